"""What an adapter hands over as its trainer made it, to be counted on the writer's thread."""

from __future__ import annotations

import gc
import threading
import weakref
from typing import Any

import pytest

from otel_grpo.core.ledger import UnreadBatch
from otel_grpo.testing import FakeClock, recorded_run

COLUMNS: dict[str, Any] = {
    "prompt_lengths": [3, 3, 5],
    "completion_lengths": [7, 8, 9],
    "trained_lengths": [7, 0, 9],
    "environment_lengths": None,
    "group_ids": [0, 0, 1],
}
TRUNCATED = [False, True, False]


def test_unread_samples_are_those_that_consumed_gives(clock: FakeClock) -> None:
    """The same record either way; who counts is not the thread that trains."""
    threads = []

    def read() -> tuple[dict[str, Any], list[bool]]:
        threads.append(threading.get_ident())
        return COLUMNS, TRUNCATED

    records = []
    for lazy in (False, True):
        with recorded_run(clock=clock) as recorded, recorded.run.iteration() as it:
            it.publication(2)
            if lazy:
                samples = it.consumed_unread("r", 3, read, version=1, first=4)
            else:
                groups = COLUMNS["group_ids"]
                told = {k: v for k, v in COLUMNS.items() if k != "group_ids"}
                samples = it.consumed("r", **told, groups=groups, truncated=TRUNCATED, versions=1,
                                      first=4)  # fmt: skip
            assert list(samples) == [("r", 4), ("r", 5), ("r", 6)]
            it.trained(samples[1:])
            with it.update():
                pass
        records.append((recorded.rollouts[0], recorded.trains[0]))
    (eager, its_update), (record, update) = records
    assert threads != [threading.get_ident()]
    assert len(threads) == 1
    assert record.metrics["tokens.total"] == 3 + 3 + 5 + 7 + 8 + 9
    assert update.attributes.trained == its_update.attributes.trained == 0 + 9
    for name in (*COLUMNS, "samples", "policy_lag", "visit_counts", "truncated"):
        assert getattr(record.attributes, name) == getattr(eager.attributes, name), name
    assert record.attributes.policy_lag == [1, 1, 1]
    assert record.attributes.truncated == [1]


def test_what_was_handed_over_is_let_go(clock: FakeClock) -> None:
    """Once it is counted nothing holds it, though its samples go on to be trained on."""

    class Ids(list[int]):
        """A list that can be watched."""

    with recorded_run(clock=clock) as recorded, recorded.run.iteration() as it:
        ids = Ids([1, 2, 3])
        watched = weakref.ref(ids)

        def read(ids: Ids = ids) -> tuple[dict[str, Any], list[bool]]:
            return {"prompt_lengths": [len(ids)]}, [False]

        samples = it.consumed_unread("r", 1, read, version=0)
        del ids, read
        recorded.run.output.flush()
        gc.collect()
        assert watched() is None
        it.trained(samples)
    assert recorded.rollouts[0].attributes.prompt_lengths == [3]


def test_samples_that_can_not_be_counted_are_recorded(clock: FakeClock) -> None:
    """The fault is counted, their lengths are absent, and nothing of it reaches the training."""

    def read() -> Any:
        raise TypeError("tensors")

    with recorded_run(clock=clock, strict=False) as recorded, recorded.run.iteration() as it:
        it.trained(it.consumed_unread("r", 2, read, version=0))
    (record,) = recorded.rollouts
    assert record.metrics["samples.consumed"] == record.metrics["samples.visits"] == 2
    assert "tokens.total" not in record.metrics
    assert sum(recorded.summary.observed.errors.values()) == 1


def test_a_writer_that_hangs_is_given_one_batch(
    clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a trainer generates is large: while nobody counts it, it does not pile up."""
    batches: list[UnreadBatch] = []
    free = threading.Event()
    with recorded_run(clock=clock) as recorded:
        run = recorded.run
        run.output.writer.call(free.wait)
        monkeypatch.setattr(run.ledger, "consume", lambda b: batches.append(b) or b.n)  # type: ignore[func-returns-value]
        with run.iteration() as it:
            for number in range(4):
                it.consumed_unread(number, 1, lambda: ({}, [False]), version=0)
        held = [batch.unread for batch in batches]
        free.set()
    assert held == [True, False, False, False]
    assert not any(batch.unread for batch in batches)


def test_scalars_are_those_of_the_call(clock: FakeClock) -> None:
    """They are looked at later: what the trainer does to its dict after the call changes nothing."""
    given: dict[str, Any] = {"loss": 1.0, "bad": float("nan"), "word": "text"}
    free = threading.Event()
    with recorded_run(clock=clock) as recorded:
        recorded.run.output.writer.call(free.wait)
        with recorded.run.iteration() as it:
            it.trained(it.consumed("r", prompt_lengths=[1]))
            with it.update():
                pass
            recorded.run.log_scalars(given, step=1)
            given.update(loss=2.0, more=3.0)
        free.set()
    assert recorded.flat == [{"step": 1, "loss": 1.0, "bad": None}]
    assert recorded.trains[0].attributes.scalars == {"loss": 1.0, "bad": None}
    assert recorded.rollouts[0].attributes.nonfinite == ["bad"]


def test_own_time_holds_what_is_reported() -> None:
    """Counts are accounted as phases are: both add to the run's own time."""
    with recorded_run() as recorded, recorded.run.iteration() as it:
        before = recorded.run.self_ns
        samples = it.consumed("r", prompt_lengths=[1] * 1000)
        counted = recorded.run.self_ns
        it.trained(samples)
        assert before < counted < recorded.run.self_ns
