"""What adapters ask of a run whose loop is not theirs: the open window, steps that go on, moves."""

from __future__ import annotations

import otel_grpo
from otel_grpo.testing import FakeClock, recorded_run


def test_iteration_of_the_current_run(clock: FakeClock) -> None:
    """Far from where the run is; without one it does nothing."""
    with otel_grpo.iteration() as nothing:
        assert nothing.number is None
    with recorded_run(clock=clock) as recorded:
        with otel_grpo.iteration() as it:
            clock.advance(1)
            assert it.number == 1
    (window,) = recorded.rollouts
    assert window.metrics["time.wall_ns"] == 10**9


def test_joined_iteration_is_the_open_one(clock: FakeClock) -> None:
    """Its counts are of that window; who opened it closes it."""
    with recorded_run(clock=clock) as recorded:
        run = recorded.run
        assert run.joined_iteration() is None
        with run.iteration():
            joined = run.joined_iteration()
            assert joined is not None
            joined.trained(joined.consumed("a", n=3))
            joined.close()
            assert run.joined_iteration() is not None
        assert run.joined_iteration() is None
    (window,) = recorded.rollouts
    assert window.metrics["samples.visits"] == 3


def test_a_submitted_step_is_an_update_when_it_ends(clock: FakeClock) -> None:
    """The phase is the caller's time, the update's lasts until the workers are through."""
    with recorded_run(clock=clock) as recorded:
        with recorded.run.iteration() as it:
            it.trained(it.consumed("a", n=4))
            update = it.update(nominal=4).start()
            clock.advance(1)
            update.submitted()
            clock.advance(1)
            with it.phase("log"):
                clock.advance(1)
            update.stop()
    (window,), (train,) = recorded.rollouts, recorded.trains
    (row,) = window.attributes.updates or ()
    assert (row.status, row.samples, row.end_ns - row.start_ns) == ("applied", 4, 3 * 10**9)
    assert window.metrics["phase.optimizer.busy_ns"] == 10**9
    assert train.span_id is not None
    assert train.span_id in {interval[0] for interval in window.attributes.intervals}


def test_a_submitted_step_may_fail(clock: FakeClock) -> None:
    """What is heard of it later decides."""
    with recorded_run(clock=clock) as recorded:
        with recorded.run.iteration() as it:
            update = it.update().start()
            update.submitted()
            update.fail("RuntimeError", ranks=[2])
            update.stop()
    (row,) = recorded.rollouts[0].attributes.updates or ()
    assert (row.status, row.reason, list(row.ranks)) == ("failed", "RuntimeError", [2])


def test_a_window_publishes_its_last_version(clock: FakeClock) -> None:
    """One that is complete moves its completion, one that is due stays due; once."""
    with recorded_run(clock=clock) as recorded:
        run = recorded.run
        start = clock.now()
        with run.iteration() as it:
            at_once = it.publication(1, kind="in_place")
            at_once.completed()
            clock.advance(1)
            at_once.moved(2, clock.now())
        with run.iteration() as it:
            due = it.publication(3)
            clock.advance(1)
            due.moved(4, clock.now())
            due.completed()
        due.moved(5, clock.now())
        assert run.version == 4
    rows = [window.attributes.publications or [] for window in recorded.rollouts]
    assert [(row.version, row.started_ns, row.completed_ns) for (row,) in rows] == [
        (2, start + 10**9, start + 10**9),
        (4, start + 2 * 10**9, start + 2 * 10**9),
    ]
    assert recorded.summary.publications == 2
