"""Columns against Python's own integers, which have no size."""

from __future__ import annotations

import numpy as np
from hypothesis import HealthCheck, given, settings, strategies as st

from otel_grpo.core.columns import as_array, as_ints, total

# a busy machine is no fault of the test
settings_ = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
int64 = st.one_of(st.integers(0, 4096), st.integers(-(2**63), 2**63 - 1))
columns = st.lists(int64, max_size=40)


@settings_
@given(columns)
def test_there_and_back(values: list[int]) -> None:
    """A list and its array hold the same numbers, a part of an array too."""
    array = as_array(values)
    assert array.dtype == np.int64
    assert as_array(array) is array
    assert list(as_ints(array)) == values
    assert list(as_ints(array[::-2])) == values[::-2]
    assert all(type(value) is int for value in as_ints(array))


@settings_
@given(columns)
def test_total(values: list[int]) -> None:
    """The sum is exact, also where 64 bits do not hold it."""
    assert total(as_array(values)) == sum(values)
    assert type(total(as_array(values))) is int


@settings_
@given(st.lists(st.tuples(int64, st.integers(0, 5)), max_size=40))
def test_total_of_products(pairs: list[tuple[int, int]]) -> None:
    """The same with each value several times, or never."""
    values, times = as_array([value for value, _ in pairs]), as_array([n for _, n in pairs])
    assert total(values, times) == sum(value * n for value, n in pairs)


def test_by_hand() -> None:
    """Sums at the edge of 64 bits and beyond it."""
    assert total(as_array([2**62, 2**62 - 1])) == 2**63 - 1
    assert total(as_array([2**62, 2**62])) == 2**63
    assert total(as_array([-(2**63), -1])) == -(2**63) - 1
    assert total(as_array([2**62, 7]), as_array([2, 0])) == 2**63
    assert total(as_array([])) == total(as_array([]), as_array([])) == 0
    assert total(np.full(3, 2**31 - 1, dtype=np.int32)) == 3 * (2**31 - 1)


def test_more_than_64_bits() -> None:
    """Numbers from a file that nobody checked keep their value."""
    values = [2**70, 2**63, 3]
    assert as_array(values).tolist() == values
    assert total(as_array(values)) == sum(values)
    assert total(as_array(values), as_array([1, 2, 3])) == 2**70 + 2**64 + 9
