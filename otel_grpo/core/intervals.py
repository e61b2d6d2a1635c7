"""Half-open intervals ``[start, end)`` of integers. An empty interval counts nothing."""

from __future__ import annotations

from collections.abc import Iterable

Interval = tuple[int, int]


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """The same points as sorted, disjoint intervals; those that touch are one."""
    merged: list[Interval] = []
    for start, end in sorted(intervals):
        if start >= end:
            continue
        if merged and start <= merged[-1][1]:
            if end > merged[-1][1]:
                merged[-1] = (merged[-1][0], end)
        else:
            merged.append((start, end))
    return merged


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
