"""Instants of a worker on the driver's clock."""

from __future__ import annotations

import pytest

from otel_grpo.records.clocks import Placed, WorkerClock
from otel_grpo.records.model import ClockOffset, ClockPair

OURS = ClockPair("boot", 5_000_000, 1_000)


def clock(*measured, boot=None):
    """(instant of the driver, offset, bound) of each measurement."""
    known = WorkerClock(ClockPair(boot, 0, 0), OURS)
    for at, offset, bound in measured:
        known.measured(ClockOffset("run", 1, "policy-0", offset, bound, at))
    return known


@pytest.mark.parametrize("stepped", [0, 11_560_000_000, -1_600_000])
def test_one_machine_needs_no_measurement(stepped):
    """The wall clock was set between the two starts; the monotonic one tells the truth."""
    later = 700  # ns, after the driver's pair
    theirs = ClockPair("boot", OURS.unix_ns + later + stepped, OURS.perf_ns + later)
    shared = WorkerClock(theirs, OURS)
    # 2,000 ns after the worker's start, seen by each.
    by_theirs = theirs.unix_ns + 2_000
    assert shared.place(by_theirs) == Placed(OURS.unix_ns + later + 2_000, 0)


def test_unknown_is_refused():
    """Another boot id, or none on both sides, and nothing measured."""
    assert clock(boot="other").place(5) is None
    nameless = ClockPair(None, 1, 1)
    assert WorkerClock(nameless, nameless).place(5) is None


def test_the_nearest_measurement_holds_outside():
    """11.56 s ahead, right to 90 us, whenever it was measured."""
    one = clock((1_000, 11_560_000_000, 90_000))
    assert one.place(11_560_000_000) == Placed(0, 90_000)
    two = clock((1_000, 100, 5), (2_000, 300, 7))
    assert two.place(1_000) == Placed(900, 5)
    assert two.place(2_400) == Placed(2_100, 7)


def test_between_two_measurements_the_offset_drifts():
    """At 1,000 and 2,000 of ours it was 100 and 300: half-way on, 200, with the larger bound."""
    for measured in ([(1_000, 100, 5), (2_000, 300, 7)], [(2_000, 300, 7), (1_000, 100, 5)]):
        drifting = clock(*measured)
        assert drifting.place(1_100) == Placed(1_000, 7)
        assert drifting.place(1_700) == Placed(1_500, 7)
        # 1,101 is 1/1200 of the way: the offset is 100 + 200 // 1200.
        assert drifting.place(1_101) == Placed(1_001, 7)
        assert drifting.place(2_300) == Placed(2_000, 7)


def test_our_own_instants_come_back():
    """Whatever the drift, what the worker saw at an instant of ours is placed there, to 1 ns."""
    drift = clock((0, 1_600_000, 10), (10**9, 1_600_000 + 40_000, 10))
    for ours in range(0, 10**9, 99_999_937):
        theirs = ours + 1_600_000 + 40_000 * ours // 10**9
        assert abs(drift.place(theirs).instant_ns - ours) <= 1
