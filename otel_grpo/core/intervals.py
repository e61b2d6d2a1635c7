"""Half-open intervals ``[start, end)`` of integers. An empty interval counts nothing."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from otel_grpo.core.columns import Ints, as_array

Interval = tuple[int, int]

# From so many on it pays to make columns of pairs, and pairs of columns.
MANY = 1000


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """The same points as sorted, disjoint intervals; those that touch are one."""
    pairs = list(intervals)
    if len(pairs) >= MANY:
        starts, ends = as_array([a for a, _ in pairs]), as_array([b for _, b in pairs])
        starts, ends = union_of_columns(starts, ends)
        return list(zip(starts.tolist(), ends.tolist(), strict=True))
    merged: list[Interval] = []
    for start, end in sorted(pairs):
        if start >= end:
            continue
        if merged and start <= merged[-1][1]:
            if end > merged[-1][1]:
                merged[-1] = (merged[-1][0], end)
        else:
            merged.append((start, end))
    return merged


def union_of_columns(starts: Ints, ends: Ints) -> tuple[Ints, Ints]:
    """The union as columns: starts and ends, sorted. Shapes (n,), (n,) -> (m,), (m,) with m <= n.

    Starts and ends are sorted apart, and no start remembers its end: the union has a gap before the
    i-th start (from 0) exactly where i intervals have ended before it, and so all that had started.
    """
    full = starts < ends
    if np.count_nonzero(full) < len(full):
        starts, ends = starts[full], ends[full]
    starts = np.sort(starts)
    if np.count_nonzero(ends[:-1] > ends[1:]):  # not in a trace, which tells of what has ended
        ends = np.sort(ends)
    edge = np.ones(len(starts) + 1, dtype=bool)
    np.less(ends[:-1], starts[1:], out=edge[1:-1])
    return starts.compress(edge[:-1]), ends.compress(edge[1:])


def measure(intervals: Iterable[Interval]) -> int:
    """Length of the union: what overlaps counts once."""
    return sum(end - start for start, end in union(intervals))


def clip(intervals: Iterable[Interval], start: int, end: int) -> list[Interval]:
    """The non-empty parts inside ``[start, end)``, in the order given."""
    clipped = ((max(a, start), min(b, end)) for a, b in intervals)
    return [(a, b) for a, b in clipped if a < b]


def intersection(first: Iterable[Interval], second: Iterable[Interval]) -> list[Interval]:
    """The points in both unions, as sorted, disjoint intervals."""
    one, two = union(first), union(second)
    common: list[Interval] = []
    i = j = 0
    while i < len(one) and j < len(two):
        start, end = max(one[i][0], two[j][0]), min(one[i][1], two[j][1])
        if start < end:
            common.append((start, end))
        if one[i][1] < two[j][1]:
            i += 1
        else:
            j += 1
    return common
