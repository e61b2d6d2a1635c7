"""Samples, updates and publications through the API: what is counted, where, and when."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest

from otel_grpo.audit import audit
from otel_grpo.devices import Reading
from otel_grpo.records import reader
from otel_grpo.records.model import PublicationCompleted
from otel_grpo.records.replay import summarize
from otel_grpo.records.writer import BOUNDS
from otel_grpo.testing import FakeClock, RecordedRun, recorded_run
from otel_grpo.tracing.handover import DEADLINE_NS

SECOND = 10**9


class Failure(Exception):
    """An exception of the user."""


def test_applied_skipped_failed(clock: FakeClock) -> None:
    """An update counts as applied only if its block ended without an error and was not skipped."""
    mine = Failure("secret prompt")
    with recorded_run(clock=clock) as recorded, recorded.run.iteration() as it:
        samples = it.consumed("r", prompt_lengths=[1] * 8, trained_lengths=[1, 2, 3, 4, 5, 6, 7, 8])
        for micro in range(4):
            it.trained(samples[2 * micro : 2 * micro + 2])
            if micro == 0:
                with it.update(nominal=2):
                    clock.advance(1)
            elif micro == 1:
                with it.update(nominal=2) as update:
                    update.skip("overflow")
            elif micro == 2:
                with pytest.raises(Failure) as caught, it.update(nominal=2):
                    clock.advance(1)
                    raise mine
                assert caught.value is mine
            else:
                with it.update(nominal=2) as update:
                    update.fail("nccl", ranks=[3, np.int64(5)])
    (record,) = recorded.rollouts
    expected = {"attempted": 4, "applied": 1, "skipped": 1, "failed": 2, "unconfirmed": 0}
    expected["partial"] = 0
    got = {name: record.metrics[f"updates.{name}"] for name in expected}
    assert got == expected == recorded.summary.updates
    rows = [(u.step, u.samples, u.status, u.reason, u.ranks) for u in record.attributes.updates]
    assert rows == [
        (1, 2, "applied", None, []),
        (1, 2, "skipped", "overflow", []),
        (1, 2, "failed", "Failure", []),
        (1, 2, "failed", "nccl", [3, 5]),
    ]
    assert record.optimizer_step == 1
    assert record.attributes.window.status == "complete"
    trains = recorded.trains
    assert [(t.attributes.status, t.attributes.trained, t.optimizer_step) for t in trains] == [
        ("applied", 3, 1), ("skipped", 7, 1), ("failed", 11, 1), ("failed", 15, 1)
    ]  # fmt: skip
    assert trains[0].attributes.samples == [("r", 0, 2)]
    assert "secret" not in repr(recorded.records)


def test_update_of_two_windows(clock: FakeClock) -> None:
    """Visits wait over windows until an update takes them; its training spans come along."""
    with recorded_run(clock=clock) as recorded:
        for window in range(2):
            with recorded.run.iteration() as it:
                samples = it.consumed(window, prompt_lengths=[1] * 4, trained_lengths=[5] * 4)
                with it.phase("policy_train"):
                    clock.advance(2)
                    it.trained(samples)
                if window == 1:
                    with it.update(nominal=8):
                        clock.advance(1)
    first, second = recorded.rollouts
    assert first.metrics["samples.pending"] == first.attributes.pending == 4
    assert second.metrics["samples.pending"] == 0
    assert first.metrics["updates.attempted"] == 0
    assert second.metrics["updates.applied"] == 1
    assert second.metrics["updates.partial"] == 0
    (train,) = recorded.trains
    assert train.metrics["samples"] == 8
    assert train.metrics["tokens.trained"] == 40
    assert train.metrics["update.busy_ns"] == 5 * SECOND
    assert train.attributes.samples == [(0, 0, 4), (1, 0, 4)]
    assert [row[2] for row in train.attributes.intervals] == [
        "policy_train", "policy_train", "optimizer"
    ]  # fmt: skip
    assert recorded.summary.samples["pending"] == 0


def test_tail_is_partial(clock: FakeClock) -> None:
    """Fewer samples than nominal make a partial update and a partial window."""
    with recorded_run(clock=clock) as recorded, recorded.run.iteration() as it:
        it.trained(it.consumed("r", prompt_lengths=[1] * 3))
        with it.update(nominal=4):
            pass
    (record,) = recorded.rollouts
    assert record.metrics["updates.partial"] == 1
    assert record.attributes.window.status == "partial"
    assert recorded.summary.windows.partial == 1


def test_update_without_visits(clock: FakeClock) -> None:
    """A loop that reports no visits has updates of no samples: counted, no error."""
    with recorded_run(clock=clock) as recorded, recorded.run.iteration() as it:
        with it.update():
            clock.advance(1)
    (record,) = recorded.rollouts
    assert record.metrics["updates.applied"] == 1
    assert "updates.partial" not in record.metrics
    assert record.attributes.updates[0].samples == 0


def test_two_updates_of_one_batch_and_reuse(clock: FakeClock) -> None:
    """mu = 2: tokens once, visits twice."""
    with recorded_run(clock=clock) as recorded, recorded.run.iteration() as it:
        samples = it.consumed(
            "r", prompt_lengths=[1, 1, 2, 2], completion_lengths=[10, 20, 30, 40],
            groups=[0, 0, 1, 1], trained_lengths=[10, 20, 30, 40],
        )  # fmt: skip
        for _ in range(2):
            for half in (samples[:2], samples[2:]):
                it.trained(half)
                with it.update(half, nominal=2):
                    clock.advance(1)
    metrics = recorded.rollouts[0].metrics
    assert metrics["tokens.total"] == 106
    assert metrics["tokens.prompt_unique"] == 3
    assert metrics["tokens.trained"] == 100
    assert metrics["tokens.visited"] == 200
    assert metrics["samples.consumed"] == 4
    assert metrics["samples.visits"] == 8
    assert metrics["groups"] == 2
    assert metrics["updates.applied"] == 4
    assert [t.metrics["tokens.trained"] for t in recorded.trains] == [30, 70, 30, 70]


def test_replay_is_revisited(clock: FakeClock, caplog: pytest.LogCaptureFixture) -> None:
    """Samples consumed again add no tokens; their visits count as revisited, with their lengths."""
    with recorded_run(clock=clock) as recorded:
        for _ in range(3):
            with recorded.run.iteration() as it:
                samples = it.consumed(
                    "again", prompt_lengths=[5, 5], completion_lengths=[7, 9],
                    trained_lengths=[7, 9],
                )  # fmt: skip
                it.trained(samples)
                with it.update():
                    clock.advance(1)
    first, second, third = (record.metrics for record in recorded.rollouts)
    assert (first["tokens.total"], first["samples.revisited"]) == (26, 0)
    for later in (second, third):
        assert "tokens.total" not in later
        assert later["samples.consumed"] == 0
        assert later["samples.visits"] == later["samples.revisited"] == 2
        assert later["tokens.visited"] == 16
    assert recorded.rollouts[1].attributes.revisited == [("again", 0, 2, 1, 16)]
    assert recorded.summary.tokens["total"] == 26
    assert recorded.summary.samples["visits"] == 6
    assert len([r for r in caplog.records if "consumed before" in r.getMessage()]) == 1


def test_partly_replayed_batch(clock: FakeClock) -> None:
    """Of a batch that overlaps an earlier one only the new samples have columns."""
    with recorded_run(clock=clock) as recorded:
        with recorded.run.iteration() as it:
            it.trained(it.consumed("r", prompt_lengths=[1, 2, 3]))
        with recorded.run.iteration() as it:
            it.trained(
                it.consumed("r", prompt_lengths=[2, 3, 4, 5], first=1, truncated=[1, 1, 0, 1])
            )
    second = recorded.rollouts[1]
    assert second.attributes.samples == [("r", 3, 2)]
    assert second.attributes.prompt_lengths == [4, 5]
    assert second.attributes.truncated == [1]
    assert second.metrics["samples.revisited"] == 2
    assert second.metrics["samples.visits"] == 4


def test_lag_where_not_each_update_is_published() -> None:
    """Samples of version 4, the newest that was published, are two updates old for a trainer at 6."""
    with recorded_run() as recorded:
        with recorded.run.iteration() as it:
            it.publication(4).completed()
        with recorded.run.iteration() as it:
            it.consumed("a", n=2, versions=[4, 2], trainer_version=np.int64(6))
            it.consumed("b", n=1, versions=4)
    assert recorded.rollouts[1].attributes.policy_lag == [2, 4, 0]


def test_discarded_generated_padding_lag(clock: FakeClock) -> None:
    """What was sampled and thrown away, and how old the rest is."""
    with recorded_run(clock=clock) as recorded:
        with recorded.run.iteration() as it:
            it.publication(7).completed()
        with recorded.run.iteration() as it:
            it.generated("a", 6)
            it.generated("b", np.int64(2), first=np.int32(6))
            it.consumed("a", prompt_lengths=np.array([1, 2]), versions=[7, 5])
            it.consumed("b", prompt_lengths=(3,), versions=6, first=6)
            it.discarded("stale", 3, tokens=100)
            it.discarded("stale", 1)
            it.discarded("zero/advantage", np.int64(1), tokens=np.int64(9))
            it.padding(10)
            it.padding(np.int16(5))
    (_, record) = recorded.rollouts
    metrics = record.metrics
    assert metrics["samples.generated"] == 8
    assert metrics["samples.discarded.stale"] == 4
    assert metrics["samples.discarded.zero/advantage"] == 1
    assert metrics["tokens.padding"] == 15
    assert record.attributes.policy_lag == [0, 2, 1]
    assert (metrics["policy_lag.min"], metrics["policy_lag.max"]) == (0, 2)
    assert metrics["policy_lag.mean"] == 1.0
    assert record.attributes.discarded == [
        ("stale", 3, 100), ("stale", 1, None), ("zero/advantage", 1, 9)
    ]  # fmt: skip
    assert recorded.summary.samples["discarded"] == {"stale": 4, "zero/advantage": 1}
    assert record.attributes.window.status == "partial"  # samples without a visit


def test_dropped_batch(clock: FakeClock) -> None:
    """A window in which all was discarded is partial."""
    with recorded_run(clock=clock) as recorded, recorded.run.iteration() as it:
        it.discarded("zero_advantage", 8)
    assert recorded.rollouts[0].attributes.window.status == "partial"


def test_scalars_find_their_update(clock: FakeClock) -> None:
    """A log call's scalars go with the updates since the last one; None is no value, NaN is null."""
    with recorded_run(clock=clock) as recorded, recorded.run.iteration() as it:
        run = recorded.run
        for step in range(1, 4):
            it.trained(it.consumed(step, prompt_lengths=[1]))
            with it.update():
                clock.advance(1)
            if step != 2:
                run.log_scalars(
                    {"loss": step / 2, "kl": float("nan"), "none": None, "text": "x"},
                    step=step, epoch=0.5,
                )  # fmt: skip
        run.log_scalars({"eval_loss": 1.0}, covers=())
    covers = [(t.attributes.covers, t.attributes.scalars) for t in recorded.trains]
    assert covers == [
        ([1], {"loss": 0.5, "kl": None}), ([], {}), ([2, 3], {"loss": 1.5, "kl": None})
    ]  # fmt: skip
    assert recorded.flat == [
        {"step": 1, "epoch": 0.5, "loss": 0.5, "kl": None, "none": None},
        {"step": 3, "epoch": 0.5, "loss": 1.5, "kl": None, "none": None},
        {"eval_loss": 1.0},
    ]
    assert recorded.rollouts[0].attributes.nonfinite == ["kl", "kl"]
    assert recorded.trains[0].metrics["nonfinite"] == 1


@pytest.mark.parametrize("inside", [True, False])
def test_updates_that_overlap(clock: FakeClock, tmp_path: Path, inside: bool) -> None:
    """Each has its record, in the order in which they ended, also where none began in between."""
    with recorded_run(tmp_path / "run", clock=clock) as recorded, recorded.run.iteration() as it:
        for rollout in range(2):
            it.trained(it.consumed(rollout, prompt_lengths=[1]))
        one, other = it.update(samples=[(0, 0)]), it.update(samples=[(1, 0)])
        one.start()
        if not inside:
            one.submitted()
        other.start()
        clock.advance(1)
        for update in (other, one) if inside else (one, other):
            update.stop()
        recorded.run.log_scalars({"loss": 1.0})
    first, second = (train.attributes for train in recorded.trains)
    assert [train.optimizer_step for train in recorded.trains] == [1, 2]
    assert (first.samples, second.samples) == ([(0, 0, 1)], [(1, 0, 1)])
    assert (first.scalars, second.scalars, second.covers) == ({}, {"loss": 1.0}, [1, 2])
    assert audit(tmp_path / "run").findings == []


# --- publications --------------------------------------------------------------------------------


def completions(path: Path) -> list[PublicationCompleted]:
    return [
        line.value
        for _, line in reader.read_workers(path)
        if isinstance(line, reader.Whole) and isinstance(line.value, PublicationCompleted)
    ]


def one_window(recorded: RecordedRun, clock: FakeClock):
    with recorded.run.iteration() as it:
        clock.advance(1)
        return it.publication(it.number, kind="collective")


def check_summary(recorded: RecordedRun, publications: int, pending: int) -> None:
    """The totals, in the process and from the files."""
    for summary in (recorded.summary, summarize(recorded.path)):
        assert (summary.publications, summary.publications_pending) == (publications, pending)


def test_completed_in_the_window(clock: FakeClock, tmp_path: Path) -> None:
    """Completed inside the block, with size and a snapshot of queue and version."""
    with recorded_run(tmp_path / "run", clock=clock) as recorded, recorded.run.iteration() as it:
        publication = it.publication(3, kind="ipc")
        clock.advance(2)
        publication.completed(bytes=np.int64(10), queue=5)
        clock.advance(1)
    (row,) = recorded.rollouts[0].attributes.publications
    assert row.completed_ns == row.started_ns + 2 * SECOND
    assert (row.kind, row.version, row.in_window, row.bytes) == ("ipc", 3, True, 10)
    assert row.snapshot == {"version": 3, "queue": 5}
    check_summary(recorded, 1, 0)


def test_completed_later_by_another_thread(clock: FakeClock, tmp_path: Path) -> None:
    """The record waits for it, later windows wait behind; it is counted, but not in its window."""
    with recorded_run(tmp_path / "run", clock=clock) as recorded:
        publication = one_window(recorded, clock)
        one_window(recorded, clock).completed()
        recorded.run.output.writer.flush()
        assert not (tmp_path / "run" / "metrics_raw.jsonl").exists()
        thread = threading.Thread(target=publication.completed)
        thread.start()
        thread.join()
        recorded.run.output.writer.flush()
        assert (tmp_path / "run" / "metrics_raw.jsonl").read_bytes().count(b"\n") == 2
    rows = [record.attributes.publications[0] for record in recorded.rollouts]
    assert [row.in_window for row in rows] == [False, True]
    assert [record.metrics["publications"] for record in recorded.rollouts] == [1, 1]
    assert completions(tmp_path / "run") == []
    check_summary(recorded, 2, 0)


def test_completed_after_the_deadline(clock: FakeClock, tmp_path: Path) -> None:
    """The record is made without it; the completion is a line in workers/ and moves the totals."""
    with recorded_run(tmp_path / "run", clock=clock) as recorded:
        late = one_window(recorded, clock)
        never = one_window(recorded, clock)
        clock.advance(ns=DEADLINE_NS + 1)
        one_window(recorded, clock).completed()
        recorded.run.output.writer.flush()
        clock.advance(1)
        late.completed()
    metrics = [record.metrics for record in recorded.rollouts]
    assert [m["publications"] for m in metrics] == [0, 0, 1]
    assert [m["publications.pending"] for m in metrics] == [1, 1, 0]
    (line,) = completions(tmp_path / "run")
    assert (line.iteration, line.version, line.attempt) == (1, 1, 1)
    assert line.completed_ns == late.completed_ns
    assert never.completed_ns is None
    check_summary(recorded, 2, 1)


def test_deadline_is_the_end_of_the_next_window_at_least(clock: FakeClock, tmp_path: Path) -> None:
    """The window that is still the last is waited for, however long it takes."""
    with recorded_run(tmp_path / "run", clock=clock) as recorded:
        publication = one_window(recorded, clock)
        clock.advance(10 * DEADLINE_NS / SECOND)
        recorded.run.output.tick()
        publication.completed()
    check_summary(recorded, 1, 0)
    assert completions(tmp_path / "run") == []


def test_completed_between_hand_over_and_record(clock: FakeClock, tmp_path: Path) -> None:
    """The writer's thread builds records later: a completion in between is counted once."""
    hold = threading.Event()
    with recorded_run(tmp_path / "run", clock=clock) as recorded:
        recorded.run.output.writer.flush()
        recorded.run.output.writer.call(lambda: hold.wait(20))
        late = one_window(recorded, clock)
        one_window(recorded, clock).completed()
        clock.advance(ns=DEADLINE_NS + 1)
        one_window(recorded, clock).completed()  # hands the first window over
        late.completed()
        hold.set()
    assert recorded.rollouts[0].metrics["publications"] == 0
    assert len(completions(tmp_path / "run")) == 1
    check_summary(recorded, 3, 0)


def test_never_completed_is_pending(clock: FakeClock, tmp_path: Path) -> None:
    """Completion is never assumed, and at the run's end the deadline is now."""
    with recorded_run(tmp_path / "run", clock=clock) as recorded:
        publication = one_window(recorded, clock)
    publication.completed()  # the run is over: nothing to tell
    assert recorded.rollouts[0].metrics["publications.pending"] == 1
    assert recorded.rollouts[0].attributes.publications[0].completed_ns is None
    check_summary(recorded, 0, 1)


def test_completed_at_a_given_instant(clock: FakeClock) -> None:
    """The receiver's own instant decides whether it was in the window."""
    with recorded_run(clock=clock) as recorded:
        publication = one_window(recorded, clock)
        end = clock.now()
        clock.advance(5)
        publication.completed(at_ns=end)
    assert recorded.rollouts[0].attributes.publications[0].in_window


def test_snapshot_that_fails_costs_no_publication(clock: FakeClock, tmp_path: Path) -> None:
    """Readings that raise are counted; the publication counts without them."""

    def readings() -> list:
        raise OSError("driver gone")

    with recorded_run(tmp_path / "run", clock=clock, readings=readings, strict=False) as recorded:
        one_window(recorded, clock).completed()
    check_summary(recorded, 1, 0)
    assert recorded.summary.observed.errors == {"memory": 2}
    (row,) = recorded.rollouts[0].attributes.publications
    assert row.snapshot == {"version": row.version}


def test_snapshot_of_a_publication_counts_a_process_once(clock: FakeClock) -> None:
    """Two devices of one process: their memory adds up, the process and its host count once."""
    readings = [
        Reading(rank=0, host="h", pid=1, device=index, device_used=10, process_rss=7, host_used=70)
        for index in (0, 1)
    ]
    with recorded_run(clock=clock, readings=lambda: readings) as recorded:
        with recorded.run.iteration() as it:
            it.publication(1).completed(queue=3)
    (row,) = recorded.rollouts[0].attributes.publications
    assert row.snapshot == {
        "version": 1,
        "queue": 3,
        "process_rss": 7,
        "host_used": 70,
        "device_used": 20,
    }


def test_snapshot_is_a_reading_that_was_made_after_it(clock: FakeClock) -> None:
    """Made when the completion is told; the window's record does not show it as one of its own."""
    calls = []

    def readings() -> list[Reading]:
        calls.append(clock.now())
        return [Reading(rank=0, host="h", pid=1, process_rss=len(calls))]

    with recorded_run(clock=clock, readings=readings) as recorded:
        with recorded.run.iteration() as it:
            done = clock.now()
            clock.advance(1)
            it.memory()
            it.publication(1).completed(at_ns=done)
            clock.advance(1)
            it.publication(2).completed()
    first, second = recorded.rollouts[0].attributes.publications
    assert (first.snapshot["process_rss"], second.snapshot["process_rss"]) == (2, 3)
    assert recorded.rollouts[0].attributes.memory.process_rss == [1, 4]


@pytest.mark.parametrize("first_only", [True, False])
def test_windows_that_waited_are_all_recorded(
    first_only: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many windows a publication held back, they are recorded when the run ends."""
    monkeypatch.setitem(BOUNDS, "metrics_raw", 8)
    windows = 40
    with recorded_run() as recorded:
        for number in range(windows):
            with recorded.run.iteration() as it:
                publication = it.publication(number)
                if first_only and number:
                    publication.completed()
    assert len(recorded.rollouts) == windows
    assert recorded.summary.status == "completed"
    assert recorded.summary.observed.sinks["metrics_raw"].dropped == 0


def test_updates_of_a_loop_that_never_logs_cost_the_same() -> None:
    """What no log call covers is remembered without looking through all of it."""

    class Steps(list[int]):
        def __contains__(self, step: object) -> bool:
            raise AssertionError("each update looks at all before it")

    with recorded_run() as recorded:
        recorded.run.handover._uncovered = Steps()
        for status in ("applied", "skipped", "applied"):
            with recorded.run.iteration() as it, it.update() as update:
                if status == "skipped":
                    update.skip("overflow")
        recorded.run.log_scalars({"loss": 1.0})
    assert [record.attributes.covers for record in recorded.trains] == [[], [], [1, 2]]
