"""Exact sums, ranks and extremes of columns of integers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Column = NDArray[Any]  # 64-bit integers, or objects where one of them is longer

# Sums are left to numpy only where 64 bits can hold them.
_SAFE = 1 << 62
# Values, and windows, that wait to be merged into one table: an array of few values takes as much
# memory as one of a hundred.
_MERGE_AT = 1_000_000
_PARTS = 100


def column(values: Sequence[int]) -> Column:
    """The values as 64 bits, or as Python's integers where one does not fit."""
    try:
        return np.array(values, np.int64)
    except OverflowError:
        return np.array(values, np.object_)


def _largest(values: Column) -> int:
    return max(abs(int(values.max())), abs(int(values.min()))) if len(values) else 0


def total(values: Column) -> int:
    """The sum of a column."""
    if _largest(values) * len(values) < _SAFE:
        return int(values.sum())
    return sum(int(v) for v in values)


def dot(a: Column, b: Column) -> int:
    """The sum of the products of two columns of one length."""
    if _largest(a) * _largest(b) * len(a) < _SAFE:
        return int((a * b).sum())
    return sum(int(x) * int(y) for x, y in zip(a, b, strict=True))


class Counted:
    """How often each value occurred: what extremes, ranks and the mean of a whole run need.

    Its size goes with the number of distinct values, not of samples.
    """

    def __init__(self, values: Column | None = None) -> None:
        self._parts: list[tuple[Column, Column]] = []
        self._size = 0
        if values is not None:
            found, times = np.unique(values, return_counts=True)
            self._parts = [(found, times.astype(np.int64))]

    def merge(self, other: Counted) -> None:
        """Adds the values of another one."""
        self._parts.extend(other._parts)
        self._size += sum(len(values) for values, _ in other._parts)
        if self._size > _MERGE_AT or len(self._parts) > _PARTS:
            self._compact()
            self._size = 0

    def _compact(self) -> tuple[Column, Column]:
        if len(self._parts) > 1:
            every = np.concatenate([values for values, _ in self._parts])
            values, which = np.unique(every, return_inverse=True)
            counts = np.zeros(len(values), np.int64)
            np.add.at(counts, which.reshape(-1), np.concatenate([n for _, n in self._parts]))
            self._parts = [(values, counts)]
        return self._parts[0]

    def describe(self, *, ranks: bool) -> dict[str, int | float]:
        """``min``, ``max``, ``mean`` and, with ``ranks``, ``p50``, ``p90``, ``p99``."""
        if not self._parts:
            return {}
        values, counts = self._compact()
        n = int(counts.sum())
        result: dict[str, int | float] = {
            "min": int(values[0]),
            "max": int(values[-1]),
            "mean": dot(values, counts) / n,
        }
        up_to = np.cumsum(counts)
        for q in (50, 90, 99) if ranks else ():
            position = -(-q * n // 100)  # counted from 1, rounded up
            result[f"p{q}"] = int(values[np.searchsorted(up_to, position)])
        return result


def over_workers(calls: int, per_rank: Iterable[int]) -> dict[str, int | float]:
    """A worker method: its calls, and the spread over ranks of each rank's summed duration."""
    sums = sorted(per_rank)
    if not sums:
        return {"count": calls}
    return {
        "count": calls,
        "min_ns": sums[0],
        "median_ns": sums[(len(sums) + 1) // 2 - 1],
        "max_ns": sums[-1],
        "mean_ns": sum(sums) / len(sums),
    }


def over_keys(largest: Mapping[object, int]) -> dict[str, int | float]:
    """Memory: the spread over ranks, processes, devices or hosts of each one's largest reading."""
    values = list(largest.values())
    return {
        "min_bytes": min(values),
        "max_bytes": max(values),
        "sum_bytes": sum(values),
        "mean_bytes": sum(values) / len(values),
    }
