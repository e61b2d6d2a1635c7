"""Reduction of memory readings, against a literal two-step model."""

from __future__ import annotations

from collections.abc import Hashable
from fractions import Fraction

from hypothesis import HealthCheck, given, settings, strategies as st

from otel_grpo.core.memory import Reduced, largest, reduce

# a busy machine is no fault of the test
SLOW = [HealthCheck.too_slow]
settings_ = settings(max_examples=100, deadline=None, suppress_health_check=SLOW)
keys = st.one_of(st.integers(0, 4), st.tuples(st.sampled_from(["a", "b"]), st.integers(0, 2)))
readings = st.lists(st.tuples(keys, st.one_of(st.none(), st.integers(0, 2**60))), max_size=20)

Reading = tuple[Hashable, int | None]
GIB = 2**30


def model(rows: list[Reading]) -> Reduced | None:
    peaks = []
    for key in {key for key, _ in rows}:
        own = [value for other, value in rows if other == key and value is not None]
        if own:
            peaks.append(max(own))
    if not peaks:
        return None
    mean = float(Fraction(sum(peaks), len(peaks)))
    return Reduced(min(peaks), max(peaks), sum(peaks), mean)


@settings_
@given(readings)
def test_reduce(rows: list[Reading]) -> None:
    """The largest reading of each owner first, then over the owners that have one."""
    assert reduce(rows) == model(rows)
    assert reduce(iter(rows)) == model(rows)


@settings_
@given(readings)
def test_largest(rows: list[Reading]) -> None:
    """An owner without a reading is not there; the reduction works on exactly these."""
    peaks = largest(rows)
    assert set(peaks) == {key for key, value in rows if value is not None}
    assert reduce(peaks.items()) == reduce(rows)


@settings_
@given(readings, readings)
def test_windows_merge_by_owner(first: list[Reading], second: list[Reading]) -> None:
    """Peaks of a run come from the peaks of its windows, owner by owner."""
    merged = [*largest(first).items(), *largest(second).items()]
    assert reduce(merged) == reduce(first + second)


def test_ranks_by_hand() -> None:
    """Two ranks with two readings each; a failed reading of the second is no zero."""
    rows: list[Reading] = [(0, 3 * GIB), (1, 9 * GIB), (0, 5 * GIB), (1, None)]
    assert reduce(rows) == Reduced(5 * GIB, 9 * GIB, 14 * GIB, 7.0 * GIB)


def test_shared_device_counts_once() -> None:
    """Two processes that read the same device saw one device."""
    rows: list[Reading] = [(("host", 0), 70), (("host", 0), 71), (("other", 0), 30)]
    assert reduce(rows) == Reduced(30, 71, 101, 50.5)


def test_zero_is_a_reading_and_nothing_is_none() -> None:
    """Absent is not 0."""
    assert reduce([]) is None
    assert reduce([(0, None), (1, None)]) is None
    assert reduce([(0, 0), (1, None)]) == Reduced(0, 0, 0, 0.0)
