"""Lengths of samples: exact means, nearest-rank percentiles."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Lengths(NamedTuple):
    """Tokens; every percentile is a length that occurred."""

    min: int
    max: int
    p50: int
    p90: int
    p99: int
    mean: float


def percentile(ordered: Sequence[int], percent: int) -> int:
    """The value at position ``ceil(percent / 100 * n)`` of the sorted values, counted from 1."""
    return ordered[max(-(-percent * len(ordered) // 100), 1) - 1]


def summarize(values: Sequence[int]) -> Lengths:
    """Summary of at least one length."""
    ordered = sorted(values)
    return Lengths(
        ordered[0],
        ordered[-1],
        percentile(ordered, 50),
        percentile(ordered, 90),
        percentile(ordered, 99),
        sum(ordered) / len(ordered),
    )
