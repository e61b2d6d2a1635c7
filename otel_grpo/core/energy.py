"""Energy from the counters of devices."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable


def spent(readings: Iterable[tuple[Hashable, int, int | None]]) -> int | None:
    """What all devices took between the first and the last reading of each.

    None where one of them can't be told: it was read once, not at all, or its counter went down.

    Args:
        readings: device, instant, and what its counter said then (None: not known), in any order.
    """
    counters: dict[Hashable, list[tuple[int, int]]] = defaultdict(list)
    for device, instant, value in readings:
        known = counters[device]
        if value is not None:
            known.append((instant, value))
    total = 0
    for rows in counters.values():
        values = [value for _, value in sorted(rows)]
        if len(values) < 2 or values != sorted(values):
            return None
        total += values[-1] - values[0]
    return total if counters else None
