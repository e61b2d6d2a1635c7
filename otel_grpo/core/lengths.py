"""Lengths of samples: exact means, nearest-rank percentiles."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from otel_grpo.core.columns import Ints, as_array, total

# Longer sequences are rare: 1 MiB for a histogram at most.
_DENSE = 2**17


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


def summarize(values: Sequence[int] | Ints) -> Lengths:
    """Summary of at least one length."""
    histogram = Histogram()
    histogram.add(values)
    return histogram.summarize()


class Histogram:
    """How often each length occurred, in one window or many: what merged percentiles need.

    Its size grows with the longest up to `_DENSE`, and with the number of different ones beyond.
    """

    def __init__(self) -> None:
        self.n = 0
        self._counts: Ints = np.zeros(0, dtype=np.int64)  # by length
        self._others: Counter[int] = Counter()  # of negative and of very large values

    def add(self, values: Sequence[int] | Ints) -> None:
        dense = array = as_array(values)
        self.n += len(array)
        if len(array) and (int(array.min()) < 0 or int(array.max()) >= _DENSE):
            inside = (array >= 0) & (array < _DENSE)
            dense = array[inside].astype(np.int64)
            others, times = np.unique(array[~inside], return_counts=True)
            self._others.update(dict(zip(others.tolist(), times.tolist(), strict=True)))
        counts = np.bincount(dense, minlength=len(self._counts))
        counts[: len(self._counts)] += self._counts
        self._counts = counts

    def summarize(self) -> Lengths:
        """Summary of all values, of which there is at least one."""
        values = np.flatnonzero(self._counts)
        counts = self._counts[values]
        if self._others:
            others = sorted(self._others)
            values = np.concatenate((values, as_array(others)))
            counts = np.concatenate((counts, as_array([self._others[value] for value in others])))
            order = np.argsort(values, kind="stable")
            values, counts = values[order], counts[order]
        ranks = np.cumsum(counts)
        p50, p90, p99 = (
            int(values[np.searchsorted(ranks, position(self.n, percent))])
            for percent in (50, 90, 99)
        )
        mean = total(values, counts) / self.n
        return Lengths(int(values[0]), int(values[-1]), p50, p90, p99, mean)
