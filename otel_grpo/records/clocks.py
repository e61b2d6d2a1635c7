"""Instants of another process on the driver's clock."""

from __future__ import annotations

from bisect import bisect_right, insort
from typing import NamedTuple

from otel_grpo.records.model import ClockOffset, ClockPair


class Placed(NamedTuple):
    """An instant by the driver's clock, right to ``bound_ns``."""

    instant_ns: int
    bound_ns: int


class WorkerClock:
    """The clock of one process against the driver's.

    On one machine, told by its boot id, the monotonic clock is shared and both pairs give the offset
    exactly. Else it is what was measured; without a measurement nothing is known.
    """

    def __init__(self, theirs: ClockPair, ours: ClockPair) -> None:
        self._exact: int | None = None
        if theirs.boot_id is not None and theirs.boot_id == ours.boot_id:
            self._exact = (theirs.unix_ns - theirs.perf_ns) - (ours.unix_ns - ours.perf_ns)
        # Instant of theirs, offset, bound: by their instants, for those are what is looked up.
        self._measured: list[tuple[int, int, int]] = []

    def measured(self, line: ClockOffset) -> None:
        """Take in a measurement."""
        insort(self._measured, (line.measured_ns + line.offset_ns, line.offset_ns, line.bound_ns))

    def place(self, instant_ns: int) -> Placed | None:
        """By the driver's clock; None where the offset is not known.

        Between two measurements the offset is interpolated, rounded down, and the larger bound
        holds; outside, the nearest one is as good as any.
        """
        if self._exact is not None:
            return Placed(instant_ns - self._exact, 0)
        at = bisect_right(self._measured, instant_ns, key=lambda each: each[0])
        around = self._measured[max(at - 1, 0) : at + 1]
        if not around:
            return None
        (start, first, low), (stop, last, high) = around[0], around[-1]
        offset = first
        if start != stop:
            offset += (last - first) * (instant_ns - start) // (stop - start)
        return Placed(instant_ns - offset, max(low, high))
