"""Interval arithmetic against sets of single nanoseconds."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from otel_grpo.core.intervals import clip, intersection, measure, union, union_of_columns

Interval = tuple[int, int]

# a busy machine is no fault of the test
SLOW = [HealthCheck.too_slow]
settings_ = settings(max_examples=100, deadline=None, suppress_health_check=SLOW)
interval = st.tuples(st.integers(-20, 60), st.integers(0, 25)).map(lambda p: (p[0], p[0] + p[1]))
intervals = st.lists(interval, max_size=10)


def points(spans: list[Interval]) -> set[int]:
    return {t for start, end in spans for t in range(start, end)}


def is_canonical(spans: list[Interval]) -> bool:
    """Sorted, none empty, and a gap before each next one."""
    no_gap_missing = all(a[1] < b[0] for a, b in itertools.pairwise(spans))
    return no_gap_missing and all(start < end for start, end in spans)


@settings_
@given(intervals)
def test_union(spans: list[Interval]) -> None:
    """The union has the same points, in the only form that sorted disjoint intervals can have."""
    united = union(spans)
    assert points(united) == points(spans)
    assert is_canonical(united)
    assert union(united) == united


@settings_
@given(intervals)
def test_union_of_columns(spans: list[Interval]) -> None:
    """As columns it is the same."""
    columns = np.array(spans, dtype=np.int64).reshape(-1, 2)
    starts, ends = union_of_columns(columns[:, 0], columns[:, 1])
    assert list(zip(starts.tolist(), ends.tolist(), strict=True)) == union(spans)


@pytest.mark.parametrize("step", [1, 2**60])
def test_union_of_many(step: int) -> None:
    """Three of each hundred are gaps; numbers beyond 64 bits are as exact."""
    spans = [(step * i, step * (i + 1)) for i in range(5000) if i % 100 > 2]
    spans += [(step * i, step * (i + 50)) for i in range(3, 5000, 100)]
    spans += [(7, 7)] * 10  # empty
    assert union(reversed(spans)) == [(step * i, step * (i + 97)) for i in range(3, 5000, 100)]
    assert measure(spans) == 50 * 97 * step


@settings_
@given(intervals)
def test_measure(spans: list[Interval]) -> None:
    """The measure counts each nanosecond once."""
    assert measure(spans) == len(points(spans))


@settings_
@given(intervals, st.integers(-25, 70), st.integers(0, 60))
def test_clip(spans: list[Interval], start: int, length: int) -> None:
    """Clipping keeps the parts inside, one for each interval, in the order given."""
    end = start + length
    inside = [sorted(points([span]) & set(range(start, end))) for span in spans]
    assert clip(spans, start, end) == [(part[0], part[-1] + 1) for part in inside if part]


@settings_
@given(intervals, intervals)
def test_intersection(first: list[Interval], second: list[Interval]) -> None:
    """The intersection has the points that both have, sorted and disjoint."""
    common = intersection(first, second)
    assert points(common) == points(first) & points(second)
    assert is_canonical(common)
    assert common == intersection(second, first)


@settings_
@given(intervals, intervals)
def test_inclusion_and_exclusion(first: list[Interval], second: list[Interval]) -> None:
    """|A| + |B| = |A or B| + |A and B|."""
    both = measure(intersection(first, second))
    assert measure(first) + measure(second) == measure(first + second) + both


@settings_
@given(intervals)
def test_one_pass_is_enough(spans: list[Interval]) -> None:
    """Any iterable will do, also one that can be read only once."""
    assert union(iter(spans)) == union(spans)
    assert measure(iter(spans)) == measure(spans)
    assert clip(iter(spans), 0, 30) == clip(spans, 0, 30)
    assert intersection(iter(spans), iter(spans)) == union(spans)


def test_by_hand() -> None:
    """Touching intervals are one; an empty one is nothing and joins nothing."""
    assert union([(5, 7), (1, 3), (3, 5), (9, 9), (12, 14), (10, 11)]) == [
        (1, 7),
        (10, 11),
        (12, 14),
    ]
    assert union([]) == []
    assert measure([(0, 10), (5, 15), (20, 20)]) == 15
    assert clip([(30, 50), (0, 12), (0, 10), (12, 40)], 10, 40) == [(30, 40), (10, 12), (12, 40)]
    assert clip([(0, 100)], 10, 10) == []
    assert intersection([(0, 10), (20, 30)], [(10, 20), (5, 25)]) == [(5, 10), (20, 25)]
    assert intersection([(0, 10)], [(10, 20)]) == []


def test_dates_are_exact() -> None:
    """Nanoseconds since 1970 need more bits than a float has."""
    epoch = 1_767_225_600_000_000_001
    assert measure([(epoch, epoch + 1), (epoch + 2, epoch + 3)]) == 2
    assert union([(epoch, epoch + 1), (epoch + 1, epoch + 2)]) == [(epoch, epoch + 2)]
