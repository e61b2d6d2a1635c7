"""Windows that tile, what can be seen while they are open, attempts, and the summary from the files."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

import otel_grpo
from otel_grpo.records import reader
from otel_grpo.records.model import CONTINUED, OPEN_AT_END, Device
from otel_grpo.records.replay import summarize
from otel_grpo.testing import FakeClock, RecordedRun, recorded_run

SECOND = 10**9


def rows(recorded: RecordedRun, window: int) -> dict[str, tuple[int, int | None, int]]:
    """Phase -> (start, end, flags) relative to the run's start, in seconds."""
    record = recorded.rollouts[window]
    start = recorded.summary.started_unix_ns
    return {
        row[2]: (
            (row[3] - start) // SECOND,
            None if row[4] is None else (row[4] - start) // SECOND,
            row[6],
        )
        for row in record.attributes.intervals
    }


def test_spans_over_the_edge(clock: FakeClock, lanes: list) -> None:
    """A span over a boundary stands in both records: open and clipped, then continued."""
    with recorded_run(clock=clock) as recorded:
        run = recorded.run
        first = run.open_iteration()
        with run.phase("data"):
            clock.advance(2)
        long = lanes[0](run.phase("rollout_wait").start)
        outer = run.phase("checkpoint").start()
        clock.advance(1)  # 3
        edge = clock.now()
        clock.advance(1)  # 4: the boundary is known only now
        inner = run.phase("weight_sync").start()
        first.close(end_ns=edge)
        second = run.open_iteration(start_ns=edge)
        clock.advance(1)  # 5
        inner.stop()
        outer.stop()
        clock.advance(1)  # 6
        second.close(end_ns=clock.now())
        third = run.open_iteration(start_ns=clock.now())
        clock.advance(1)  # 7
        long.stop()
        third.close()
    assert rows(recorded, 0) == {
        "data": (0, 2, 0),
        "rollout_wait": (2, None, OPEN_AT_END),
        "checkpoint": (2, None, OPEN_AT_END),
    }
    assert rows(recorded, 1) == {
        "rollout_wait": (2, None, OPEN_AT_END | CONTINUED),
        "checkpoint": (2, 5, CONTINUED),
        "weight_sync": (4, 5, 0),
    }
    assert rows(recorded, 2) == {"rollout_wait": (2, 7, CONTINUED)}
    walls = [record.metrics["time.wall_ns"] for record in recorded.rollouts]
    assert walls == [3 * SECOND, 3 * SECOND, 1 * SECOND]
    assert recorded.summary.time.between_ns == 0
    assert recorded.rollouts[1].metrics["phase.checkpoint.busy_ns"] == 2 * SECOND
    assert recorded.rollouts[1].metrics["phase.checkpoint.calls"] == 0
    assert recorded.rollouts[1].metrics["time.work_ns"] == 1 * SECOND
    waits = [record.metrics["phase.rollout_wait.busy_ns"] for record in recorded.rollouts]
    assert waits == [1 * SECOND, 3 * SECOND, 1 * SECOND]
    # The child whose parent is in the record keeps it.
    parent_of = {row[2]: row[1] for row in recorded.rollouts[1].attributes.intervals}
    assert parent_of["weight_sync"] is not None


def test_span_that_ends_between_close_and_open(clock: FakeClock) -> None:
    """Where windows tile, a span that ended while none was open belongs to the second."""
    with recorded_run(clock=clock) as recorded:
        run = recorded.run
        first = run.open_iteration()
        sync = run.phase("weight_sync").start()
        clock.advance(1)
        edge = clock.now()
        clock.advance(1)
        first.close(end_ns=edge)
        sync.stop()
        run.open_iteration(start_ns=edge).close()
    assert rows(recorded, 0) == {"weight_sync": (0, None, OPEN_AT_END)}
    assert rows(recorded, 1) == {"weight_sync": (0, 2, CONTINUED)}


def test_span_between_windows_is_in_none(clock: FakeClock) -> None:
    """What ended before the next window started is not in it."""
    with recorded_run(clock=clock) as recorded:
        run = recorded.run
        with run.iteration() as it:
            phase = it.phase("data").start()
            clock.advance(1)
        clock.advance(1)
        phase.stop()
        with run.iteration():
            clock.advance(1)
    assert rows(recorded, 1) == {}
    assert recorded.summary.time.between_ns == SECOND


def test_windows_never_overlap(clock: FakeClock) -> None:
    """A start before the last window's end is a mistake, and the windows tile."""
    with recorded_run(clock=clock, strict=False) as recorded:
        begun = clock.now()
        with recorded.run.iteration():
            clock.advance(1)
        recorded.run.open_iteration(start_ns=begun).close()
    first, second = (record.attributes.window for record in recorded.rollouts)
    assert second.start_ns == first.end_ns
    assert recorded.summary.observed.errors == {"api.iteration_start": 1}


@pytest.mark.parametrize("status", [None, "aborted"])
def test_aborted(clock: FakeClock, status: str | None) -> None:
    """An exception, a status or the run's end makes a window aborted."""
    with recorded_run(clock=clock) as recorded:
        if status is None:
            with pytest.raises(RuntimeError), recorded.run.iteration() as it:
                clock.advance(1)
                raise RuntimeError
        else:
            it = recorded.run.open_iteration()
            clock.advance(1)
            it.close(status="aborted")
        recorded.run.open_iteration()
        clock.advance(2)
    assert [record.attributes.window.status for record in recorded.rollouts] == ["aborted"] * 2
    assert recorded.summary.windows.aborted == 2
    assert recorded.summary.status == "completed"


def test_running_summary(clock: FakeClock, tmp_path: Path, lanes: list) -> None:
    """While it runs, the summary shows the open window and its open phases with their starts."""
    with recorded_run(tmp_path / "run", clock=clock) as recorded:
        run = recorded.run

        def now() -> Any:
            run.output.writer.call(run.output.tick)
            run.output.writer.flush()
            return reader.read_summary(tmp_path / "run")

        summary = now()
        assert (summary.status, summary.open) == ("running", None)
        assert summary.records == {"train": 0, "rollout": 0, "run": 0}
        with run.iteration():
            clock.advance(1)
        with run.iteration() as it:
            begun = clock.now()
            clock.advance(1)
            with it.phase("adv_pipeline"):
                wait = lanes[0](it.phase("logprob_ref").start)
                clock.advance(5)
                summary = now()
                lane = {phase.phase: phase.lane for phase in summary.open.phases}
                lanes[0](wait.stop)
                assert summary.status == "running"
                assert summary.windows.complete == 1
                assert (summary.open.iteration, summary.open.start_ns) == (2, begun)
                assert {p.phase: p.start_ns for p in summary.open.phases} == {
                    "adv_pipeline": begun + SECOND, "logprob_ref": begun + SECOND
                }  # fmt: skip
                assert lane["adv_pipeline"] != lane["logprob_ref"]
                assert summary.ended_unix_ns == clock.now()
        assert now().open is None
    assert recorded.summary.status == "completed"
    assert recorded.summary.open is None


@dataclasses.dataclass
class Reading:
    """One reading of memory."""

    rank: int = 0
    host: str = "host"
    pid: int = 1
    device: int | None = 0
    allocator_allocated: int | None = 10
    allocator_reserved: int | None = 20
    allocator_peak_allocated: int | None = None
    allocator_peak_reserved: int | None = None
    device_used: int | None = 30
    device_total: int | None = 100
    process_rss: int | None = 40
    host_used: int | None = 50
    host_total: int | None = 200


def test_memory_is_read_at_the_end_and_when_asked(clock: FakeClock) -> None:
    """No interval of the training is spent on it; the largest reading counts."""
    asked = iter([100, 300, 200])

    def readings() -> list[Reading]:
        clock.advance(1)
        return [Reading(allocator_allocated=next(asked))]

    with recorded_run(clock=clock, readings=readings) as recorded, recorded.run.iteration() as it:
        it.memory()
        recorded.run.memory()
    (record,) = recorded.rollouts
    assert record.attributes.intervals == []
    assert record.metrics["time.log_ns"] == 0
    start = record.attributes.window.start_ns
    assert record.attributes.memory.instant == [start, start + SECOND, start + 2 * SECOND]
    assert record.metrics["memory.allocator.allocated.max_bytes"] == 300
    assert record.attributes.memory.allocator_allocated == [100, 300, 200]
    assert record.attributes.memory.allocator_peak_allocated is msgspec.UNSET
    assert record.metrics["memory.process.rss.sum_bytes"] == 40


# --- the summary from the files alone --------------------------------------------------------------


def train(recorded: RecordedRun, clock: FakeClock, windows: int, first: int = 0) -> None:
    for number in range(first, first + windows):
        with recorded.run.iteration() as it:
            with it.phase("generation"):
                clock.advance(3)
                with it.phase("reward"):
                    clock.advance(1)
            samples = it.consumed(
                number, prompt_lengths=[3, 4], completion_lengths=[5, 6 + number],
                trained_lengths=[5, 6], groups=[0, 0], versions=max(0, number - 1),
                truncated=[False, True], environment_lengths=[0, 1],
            )  # fmt: skip
            it.generated(number, 3)
            it.discarded("stale", 1)
            with it.phase("policy_train"):
                clock.advance(2)
                it.trained(samples)
            with it.update(nominal=2):
                clock.advance(1)
            recorded.run.worker_call("step", 5 + number)
            recorded.run.log_scalars({"loss": float("nan")})
            it.publication(number + 1, kind="collective").completed()
        clock.advance(1)


def completed(recorded: RecordedRun, clock: FakeClock) -> None:
    train(recorded, clock, 3)


def failed(recorded: RecordedRun, clock: FakeClock) -> None:
    train(recorded, clock, 1)
    with recorded.run.iteration() as it, it.phase("reward"):
        clock.advance(1)
        raise RuntimeError("reward")


def aborted(recorded: RecordedRun, clock: FakeClock) -> None:
    train(recorded, clock, 1)
    it = recorded.run.open_iteration()
    it.publication(9)
    clock.advance(1)


def interrupted(recorded: RecordedRun, clock: FakeClock) -> None:
    train(recorded, clock, 1)
    raise KeyboardInterrupt


def empty(recorded: RecordedRun, clock: FakeClock) -> None:
    clock.advance(1)


ENDS: list[tuple[Callable[[RecordedRun, FakeClock], None], str]] = [
    (completed, "completed"),
    (failed, "failed"),
    (aborted, "completed"),
    (interrupted, "interrupted"),
    (empty, "completed"),
]


def same_summaries(run_dir: Path) -> dict[str, Any]:
    """The file's summary, after it was compared to the one from the lines, key by key."""
    ours = msgspec.to_builtins(reader.read_summary(run_dir))
    again = msgspec.to_builtins(summarize(run_dir))
    assert list(ours) == list(again)
    for key in ours:
        if key != "observed":
            assert ours[key] == again[key], key
    return ours


def one_attempt(
    run_dir: Path, clock: FakeClock, end: Callable[[RecordedRun, FakeClock], None]
) -> None:
    devices = [Device("GPU-1", "cuda", "host"), Device("GPU-2", "cuda", "host")]
    try:
        with recorded_run(
            run_dir, clock=clock, devices=devices, readings=lambda: [Reading()], trainer="loop"
        ) as recorded:
            clock.advance(1)
            end(recorded, clock)
    except (RuntimeError, KeyboardInterrupt):
        pass


@pytest.mark.parametrize(("end", "status"), ENDS)
def test_summary_from_the_files(
    clock: FakeClock, tmp_path: Path, end: Callable[[RecordedRun, FakeClock], None], status: str
) -> None:
    """What `finish` makes equals what the process wrote, however the run ended."""
    one_attempt(tmp_path / "run", clock, end)
    assert same_summaries(tmp_path / "run")["status"] == status


def test_attempts_in_one_directory(clock: FakeClock, tmp_path: Path) -> None:
    """Each run in the directory is the next attempt; the chain, `seq` and the blocks go on."""
    path = tmp_path / "run"
    for end, _ in ENDS:
        one_attempt(path, clock, end)
        same_summaries(path)
        clock.advance(100)
    summary = reader.read_summary(path)
    assert summary.attempt == 5
    assert [one.attempt for one in summary.attempts] == [1, 2, 3, 4]
    assert [one.status for one in summary.attempts] == [status for _, status in ENDS[:4]]
    assert [one.tokens.get("total") for one in summary.attempts] == [57, 18, 18, 18]
    lines = [line for line in reader.read_records(path) if isinstance(line, reader.Whole)]
    assert [line.value.seq for line in lines] == list(range(len(lines)))
    assert len({line.value.run_id for line in lines}) == 1
    assert [a.attempt for a in reader.read_run_file(path).attempts] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("place", ["metrics_raw.jsonl", "workers"])
def test_attempt_after_a_damaged_one(clock: FakeClock, tmp_path: Path, place: str) -> None:
    """It is in run.json, and numbered on from there, whatever the files before it hold."""
    path = tmp_path / "run"
    one_attempt(path, clock, completed)
    (path / "summary.json").unlink()
    damaged = path / place if place != "workers" else next((path / place).iterdir())
    damaged.write_bytes(b"garbage\n" + damaged.read_bytes())
    for number in (2, 3):
        with otel_grpo.start_run(path, trainer="test") as run, run.iteration():
            pass
        summary = reader.read_summary(path)
        assert (summary.attempt, summary.status) == (number, "completed")
        attempts = [a.attempt for a in reader.read_run_file(path).attempts]
        assert attempts == list(range(1, number + 1))


def test_figures_of_a_whole_run(clock: FakeClock, tmp_path: Path) -> None:
    """The totals of three windows, worked out by hand."""
    one_attempt(tmp_path / "run", clock, completed)
    summary = reader.read_summary(tmp_path / "run")
    assert summary.tokens == {
        "prompt": 21, "completion": 36, "environment": 3, "trained": 33, "prompt_unique": 9,
        "visited": 33, "total": 57,
    }  # fmt: skip
    assert summary.samples == {
        "generated": 9, "consumed": 6, "visits": 6, "revisited": 0, "truncated": 3, "pending": 0,
        "discarded": {"stale": 3},
    }  # fmt: skip
    assert summary.length["completion"]["max"] == 8
    assert summary.length["completion"]["mean"] == 6.0
    assert summary.time.wall_ns == 25 * SECOND
    assert summary.time.startup_ns == SECOND
    assert summary.time.windows_ns == 21 * SECOND
    assert summary.time.between_ns == 2 * SECOND
    assert summary.time.shutdown_ns == SECOND
    assert summary.throughput["device"] == 57 / (21 * 2)
    assert summary.workers["step"]["count"] == 3
    assert summary.workers["step"]["max_ns"] == 18
    assert summary.policy_lag == {"min": 0, "max": 1, "mean": 4 / 6}
    assert summary.nonfinite == 3
    assert summary.records == {"train": 3, "rollout": 3, "run": 1}


def test_a_large_window_is_a_line_of_less_than_a_mib(clock: FakeClock, tmp_path: Path) -> None:
    """8,192 samples of a wide spread of lengths, 1,024 groups, 100 spans, two visits each."""
    path, n = tmp_path / "run", 8192
    with recorded_run(path, clock=clock) as recorded, recorded.run.iteration() as it:
        for _ in range(100):
            with it.phase("generation"):
                clock.advance(ns=123_456_789)
        samples = it.consumed(
            "rollout",
            prompt_lengths=[100 + i * 7919 % 4000 for i in range(n)],
            completion_lengths=[1 + i * 104_729 % 32_000 for i in range(n)],
            trained_lengths=[1 + i * 104_729 % 32_000 for i in range(n)],
            environment_lengths=[i * 31 % 5000 for i in range(n)],
            groups=[i // 8 for i in range(n)],
            versions=[0] * n,
            truncated=[i % 5 == 0 for i in range(n)],
        )
        for _ in range(2):
            it.trained(samples)
            with it.update(samples):
                pass
    line = max((path / "metrics_raw.jsonl").read_bytes().splitlines(), key=len)
    assert 2**16 < len(line) < 2**20
    (window,) = recorded.rollouts
    assert window.metrics["samples.visits"] == 2 * n


def test_two_runs_at_once(clock: FakeClock, tmp_path: Path) -> None:
    """A directory in use is left alone: the second run goes to a sibling, both are whole."""
    with recorded_run(tmp_path / "run", clock=clock) as one:
        with recorded_run(tmp_path / "run", clock=clock) as two:
            with two.run.iteration():
                clock.advance(1)
        with one.run.iteration():
            clock.advance(1)
    assert one.path != two.path
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run", "run-2"]
    for recorded in (one, two):
        assert len(recorded.rollouts) == 1
        same_summaries(recorded.path)


def test_many_threads_report(tmp_path: Path) -> None:
    """Phases, timed calls and completions of many threads are all there, on a real clock."""
    with recorded_run(tmp_path / "run") as recorded:
        run = recorded.run
        with run.iteration() as it:
            publications = [it.publication(version) for version in range(64)]

            def work(part: int) -> None:
                for number in range(50):
                    with it.phase("reward"):
                        it.generated(f"{part}", 1, first=number)
                    run.worker_call("step", 1)
                for publication in publications[part::8]:
                    publication.completed()

            threads = [threading.Thread(target=work, args=(part,)) for part in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
    (record,) = recorded.rollouts
    assert record.metrics["phase.reward.calls"] == 400
    assert record.metrics["samples.generated"] == 400
    assert record.metrics["worker.step.count"] == 400
    assert record.metrics["publications"] == 64
    assert len({row[5] for row in record.attributes.intervals}) == 8
    assert len(recorded.spans) == 402
    same_summaries(tmp_path / "run")
