"""Rates: one correctly rounded division of exact integers."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from otel_grpo.core.throughput import per_token, rate

# a busy machine is no fault of the test
SLOW = [HealthCheck.too_slow]
settings_ = settings(max_examples=150, deadline=None, suppress_health_check=SLOW)

# The reference run as it was printed: tokens and logical milliseconds of each iteration. 8 devices.
REFERENCE = ((76019, 81659), (73752, 59685), (75208, 61091))
DEVICES = 8


def is_nearest(value: float, exact: Fraction) -> bool:
    """Whether no other float is nearer to the exact quotient."""
    error = abs(Fraction(value) - exact)
    neighbours = (math.nextafter(value, -math.inf), math.nextafter(value, math.inf))
    return all(error <= abs(Fraction(other) - exact) for other in neighbours)


@settings_
@given(st.integers(0, 10**15), st.integers(1, 10**20), st.integers(1, 10**6))
def test_rate_is_rounded_once(tokens: int, ns: int, devices: int) -> None:
    """tokens * 1e9 / (ns * devices), with a single rounding."""
    value = rate(tokens, ns, devices)
    assert value is not None
    assert is_nearest(value, Fraction(tokens * 10**9, ns * devices))


@settings_
@given(st.integers(0, 10**20), st.integers(1, 10**15))
def test_per_token_is_rounded_once(ns: int, tokens: int) -> None:
    """Nanoseconds per token, with a single rounding."""
    value = per_token(ns, tokens)
    assert value is not None
    assert is_nearest(value, Fraction(ns, tokens))


@settings_
@given(st.integers(0, 10**12), st.integers(1, 10**15), st.integers(1, 64), st.integers(1, 9))
def test_rate_does_not_depend_on_where_devices_stand(
    tokens: int, ns: int, devices: int, n: int
) -> None:
    """A sum of ns * devices over windows may be given as ns; n equal windows have the rate of one."""
    assert rate(tokens, ns, devices) == rate(tokens, ns * devices)
    assert rate(n * tokens, n * ns, devices) == rate(tokens, ns, devices)


def test_without_denominator() -> None:
    """A ratio without a denominator is absent: not 0, not infinite."""
    assert rate(5, 0) is None
    assert rate(0, 0, 8) is None
    assert rate(5, 10, 0) is None
    assert per_token(5, 0) is None
    assert rate(0, 10) == 0.0
    assert per_token(0, 10) == 0.0


@pytest.mark.parametrize(
    ("window", "printed"),
    list(zip(REFERENCE, ("116.367", "154.461", "153.885"), strict=True)),
)
def test_reference_run(window: tuple[int, int], printed: str) -> None:
    """Each iteration of the reference run, recomputed from its printed figures."""
    tokens, ms = window
    assert f"{rate(tokens, ms * 10**6, DEVICES):.3f}" == printed


def test_reference_run_as_a_whole() -> None:
    """The three iterations together: a quotient of sums, never the mean of the three quotients."""
    tokens = sum(tokens for tokens, _ in REFERENCE)
    ns = sum(ms * 10**6 for _, ms in REFERENCE)
    assert f"{rate(tokens, ns, DEVICES):.3f}" == "138.921"
    assert f"{rate(tokens, ns * DEVICES):.3f}" == "138.921"
    ratios = [rate(tokens, ms * 10**6, DEVICES) for tokens, ms in REFERENCE]
    mean = sum(ratio for ratio in ratios if ratio is not None) / 3
    assert f"{mean:.3f}" == "141.571"
    assert rate(tokens, ns, DEVICES) != pytest.approx(mean, rel=1e-3)
