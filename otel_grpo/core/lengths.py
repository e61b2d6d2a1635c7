"""Lengths of samples: exact means, nearest-rank percentiles."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class Lengths(NamedTuple):
    """Tokens; every percentile is a length that occurred."""

    min: int
    max: int
    p50: int
    p90: int
    p99: int
    mean: float


def position(n: int, percent: int) -> int:
    """Nearest rank among n sorted values, counted from 1: ``ceil(percent / 100 * n)``."""
    return max(-(-percent * n // 100), 1)


def percentile(ordered: Sequence[int], percent: int) -> int:
    """The nearest-rank percentile of sorted values: a value that occurred."""
    return ordered[position(len(ordered), percent) - 1]


def summarize(values: Sequence[int]) -> Lengths:
    """Summary of at least one length."""
    ordered = np.fromiter(values, np.int64, len(values))
    ordered.sort()

    def at(percent: int) -> int:
        return int(ordered[position(len(ordered), percent) - 1])

    return Lengths(
        int(ordered[0]), int(ordered[-1]), at(50), at(90), at(99), sum(values) / len(values)
    )
