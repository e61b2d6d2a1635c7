"""One clock per process, anchored once."""

from __future__ import annotations

import time

import pytest

from otel_grpo.core.clock import Clock


def test_now_is_the_anchor_plus_what_went_by() -> None:
    """now = unix + (perf_counter_ns - perf), to the nanosecond."""
    clock = Clock(1_767_225_600_000_000_001, 17)
    before = time.perf_counter_ns()
    now = clock.now()
    after = time.perf_counter_ns()
    assert clock.unix_ns + before - 17 <= now <= clock.unix_ns + after - 17


def test_at_is_exact() -> None:
    """Any reading of the monotonic counter has a date, also one before the anchor."""
    clock = Clock(1_767_225_600_000_000_001, 1_000)
    assert clock.at(1_000) == clock.unix_ns
    assert clock.at(1_003) == clock.unix_ns + 3
    assert clock.at(10) == clock.unix_ns - 990


def test_read_anchors_at_the_wall_clock() -> None:
    """The pair is a reading of both clocks at about the same moment."""
    unix, perf = time.time_ns(), time.perf_counter_ns()
    clock = Clock.read()
    assert perf <= clock.perf_ns <= time.perf_counter_ns()
    assert abs((clock.unix_ns - unix) - (clock.perf_ns - perf)) < 10**9


def test_stepped_wall_clock_is_not_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wall clock that is set back while the process runs makes no negative duration."""
    clock = Clock.read()
    first = clock.now()
    monkeypatch.setattr(time, "time_ns", lambda: 0)
    monkeypatch.setattr(time, "time", lambda: 0.0)
    readings = [first, *(clock.now() for _ in range(100))]
    assert readings == sorted(readings)
    assert readings[-1] - first < 60 * 10**9
