"""Percentiles by nearest rank and exact means, against their definitions."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from otel_grpo.core.lengths import Histogram, Lengths, percentile, summarize

# a busy machine is no fault of the test
SLOW = [HealthCheck.too_slow]
settings_ = settings(max_examples=100, deadline=None, suppress_health_check=SLOW)
lengths = st.lists(st.integers(0, 200_000), min_size=1, max_size=250)
# Some that no tokens are, which must not be wrong either.
numbers = st.one_of(
    st.integers(-3, 3),
    st.integers(2**17 - 2, 2**17 + 2),
    st.integers(2**31 - 2, 2**31 + 2),
    st.integers(-(2**63), 2**63 - 1),
    st.integers(-(2**70), 2**70),
)


def nearest_rank(values: list[int], percent: int) -> int:
    """The smallest value that at least `percent` of the values don't exceed."""
    return min(v for v in values if 100 * sum(w <= v for w in values) >= percent * len(values))


@settings_
@given(lengths, st.integers(1, 100))
def test_percentile(values: list[int], percent: int) -> None:
    """A percentile is a value that occurred, never one between two."""
    assert percentile(sorted(values), percent) == nearest_rank(values, percent)


@settings_
@given(lengths)
def test_summary(values: list[int]) -> None:
    """Order doesn't matter, and the mean is the exact one rounded once."""
    assert summarize(values) == Lengths(
        min(values),
        max(values),
        nearest_rank(values, 50),
        nearest_rank(values, 90),
        nearest_rank(values, 99),
        float(Fraction(sum(values), len(values))),
    )


@pytest.mark.parametrize(
    ("n", "p50", "p90", "p99"),
    [
        (1, 1, 1, 1),
        (2, 1, 2, 2),
        (3, 2, 3, 3),
        (10, 5, 9, 10),
        (11, 6, 10, 11),
        (20, 10, 18, 20),
        (99, 50, 90, 99),
        (100, 50, 90, 99),
        (101, 51, 91, 100),
        (200, 100, 180, 198),
        # 0.9 * 190 is above 171 and 0.99 * 300 below 297 in floating point
        (190, 95, 171, 189),
        (300, 150, 270, 297),
        (1000, 500, 900, 990),
    ],
)
def test_positions(n: int, p50: int, p90: int, p99: int) -> None:
    """The position is ceil(q * n) in integer arithmetic, counted from 1."""
    ordered = list(range(1, n + 1))
    assert [percentile(ordered, q) for q in (50, 90, 99)] == [p50, p90, p99]


def test_by_hand() -> None:
    """Ten completion lengths."""
    values = [7, 1, 512, 33, 33, 90, 1024, 4, 33, 250]
    assert summarize(values) == Lengths(1, 1024, 33, 512, 1024, 198.7)


def test_percentile_of_merged_windows() -> None:
    """The p99 of two windows comes from all of their values, not from two p99."""
    first, second = [10] * 100, [10] * 95 + [1000] * 5
    assert summarize(first).p99 == 10
    assert summarize(second).p99 == 1000
    assert summarize(first + second).p99 == 1000
    assert summarize(first * 4 + second).p99 == 10


def test_mean_of_numbers_that_floats_cannot_hold() -> None:
    """The sum is exact before the one division."""
    values = [2**53 + 1] * 3 + [2**53 + 3]
    assert summarize(values).mean == float(Fraction(sum(values), 4))


@settings_
@given(st.lists(st.lists(numbers, max_size=30), max_size=6))
def test_histogram_of_windows(windows: list[list[int]]) -> None:
    """The summary of windows is that of all their values, whatever their size and sign."""
    histogram, values = Histogram(), [value for window in windows for value in window]
    for window in windows:
        histogram.add(window)
    assert histogram.n == len(values)
    if values:
        assert histogram.summarize() == Lengths(
            min(values),
            max(values),
            nearest_rank(values, 50),
            nearest_rank(values, 90),
            nearest_rank(values, 99),
            float(Fraction(sum(values), len(values))),
        )
        assert all(type(number) is int for number in histogram.summarize()[:5])


def test_histogram_does_not_grow_with_the_windows() -> None:
    """What is kept depends on the values that occurred, not on how often."""
    histogram = Histogram()
    for _ in range(3):
        histogram.add([4, 9, -1, 2**40] * 1000)
    assert len(histogram._counts) == 10
    assert histogram._others == {-1: 3000, 2**40: 3000}
