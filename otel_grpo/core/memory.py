"""Reduction of memory readings: the largest of each owner, then over the owners."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import NamedTuple


class Reduced(NamedTuple):
    """Bytes over distinct ranks, processes, devices or hosts."""

    min: int
    max: int
    sum: int
    mean: float


def largest(readings: Iterable[tuple[Hashable, int | None]]) -> dict[Hashable, int]:
    """The largest reading of each owner; a failed reading (None) is no reading."""
    peaks: dict[Hashable, int] = {}
    for owner, value in readings:
        if value is not None and value > peaks.get(owner, -1):
            peaks[owner] = value
    return peaks


def reduce(readings: Iterable[tuple[Hashable, int | None]]) -> Reduced | None:
    """The largest reading of each owner, then min, max, sum and mean over owners.

    An owner is what the quantity belongs to, so that a device that two ranks share counts once.
    """
    values = list(largest(readings).values())
    if not values:
        return None
    return Reduced(min(values), max(values), sum(values), sum(values) / len(values))
