"""Wrong use of the API: the training goes on, the mistake is counted, told once, and costs no record."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import otel_grpo
from otel_grpo.core.ledger import Samples
from otel_grpo.records.reader import read_summary
from otel_grpo.testing import FakeClock, RecordedRun, recorded_run


class Tensor:
    """Stands for a tensor on a device: to read it in any way would wait for the device."""

    shape = (4,)
    dtype = "bfloat16"

    def _read(self, *_: Any) -> Any:
        raise AssertionError("a tensor was read")

    __array__ = __iter__ = __getitem__ = __int__ = __float__ = __index__ = __bool__ = _read
    __str__ = __format__ = item = tolist = numpy = __lt__ = __gt__ = _read

    def __len__(self) -> int:
        return 4


Tensor.__module__ = "torch"


def iteration_inside(it: otel_grpo.Iteration, run: otel_grpo.Run) -> None:
    with run.iteration() as inner, inner.phase("reward"):
        pass


def close_twice(it: otel_grpo.Iteration, run: otel_grpo.Run) -> None:
    it.close()
    it.close()


def stop_twice(it: otel_grpo.Iteration, run: otel_grpo.Run) -> None:
    phase = it.phase("reward").start()
    phase.stop()
    phase.stop()


def start_twice(it: otel_grpo.Iteration, run: otel_grpo.Run) -> None:
    phase = it.phase("reward").start()
    phase.start()
    phase.stop()


def update_twice(it: otel_grpo.Iteration, run: otel_grpo.Run) -> None:
    update = it.update().start()
    update.stop()
    update.stop()


def publish_twice(it: otel_grpo.Iteration, run: otel_grpo.Run) -> None:
    publication = it.publication(1)
    publication.completed()
    publication.completed()


def with_update(**options: Any) -> Callable[[otel_grpo.Iteration, otel_grpo.Run], None]:
    def work(it: otel_grpo.Iteration, run: otel_grpo.Run) -> None:
        with it.update(**options):
            pass

    return work


def after_close(call: Callable[[otel_grpo.Iteration], object]) -> Callable[..., None]:
    def work(it: otel_grpo.Iteration, run: otel_grpo.Run) -> None:
        it.close()
        call(it)

    return work


def update_block(it: otel_grpo.Iteration) -> None:
    with it.update(nominal=3) as update:
        update.skip("overflow")


def phase_block(it: otel_grpo.Iteration) -> None:
    with it.phase("generation"):
        pass


# what is done wrong inside an iteration -> under which name it is counted
TABLE: dict[str, tuple[Callable[[Any, Any], object], str]] = {
    "iteration inside an iteration": (iteration_inside, "api.iteration_inside"),
    "iteration closed twice": (close_twice, "api.iteration_closed"),
    "phase stopped twice": (stop_twice, "api.phase_closed"),
    "phase started twice": (start_twice, "api.phase_twice"),
    "update ended twice": (update_twice, "api.update_closed"),
    "publication twice": (publish_twice, "api.publication_twice"),
    "phase outside": (after_close(phase_block), "api.phase_outside"),
    "update outside": (after_close(update_block), "api.update_outside"),
    "update outside, of samples": (
        after_close(lambda it: with_update(samples=[("a", 0)])(it, None)), "api.update_outside"),
    "consumed outside": (after_close(lambda it: it.consumed("a", n=1)), "api.consumed_outside"),
    "trained outside": (after_close(lambda it: it.trained([("a", 1)])), "api.trained_outside"),
    "generated outside": (after_close(lambda it: it.generated("a", 1)), "api.generated_outside"),
    "discarded outside": (after_close(lambda it: it.discarded("x", 1)), "api.discarded_outside"),
    "padding outside": (after_close(lambda it: it.padding(1)), "api.padding_outside"),
    "memory outside": (after_close(lambda it: it.memory()), "api.memory_outside"),
    "publication outside": (
        after_close(lambda it: it.publication(1).completed()), "api.publication_outside"),
    "negative prompt": (lambda it, _: it.consumed("n", prompt_lengths=[1, -1]), "api.consumed"),
    "negative completion": (
        lambda it, _: it.consumed("n", completion_lengths=np.array([-5])), "api.consumed"),
    "negative n of consumed": (lambda it, _: it.consumed("n", n=-1), "api.consumed"),
    "negative first": (lambda it, _: it.consumed("n", n=1, first=-1), "api.consumed"),
    "negative generated": (lambda it, _: it.generated("n", -1), "api.generated"),
    "negative first generated": (lambda it, _: it.generated("n", 1, first=-2), "api.generated"),
    "negative discarded": (lambda it, _: it.discarded("stale", -1), "api.discarded"),
    "negative tokens": (lambda it, _: it.discarded("stale", 1, tokens=-1), "api.discarded"),
    "negative padding": (lambda it, _: it.padding(-1), "api.padding"),
    "negative sample index": (lambda it, _: it.trained([("n", -1)]), "api.trained"),
    "fraction": (lambda it, _: it.consumed("n", prompt_lengths=[1.5]), "api.consumed"),
    "fraction generated": (lambda it, _: it.generated("n", 1.5), "api.generated"),
    "columns of two lengths": (
        lambda it, _: it.consumed("n", prompt_lengths=[1], completion_lengths=[1, 2]),
        "api.consumed"),
    "lengths are a number": (lambda it, _: it.consumed("n", prompt_lengths=5), "api.consumed"),
    "lengths are a matrix": (
        lambda it, _: it.consumed("n", prompt_lengths=[[1], [2]]), "api.consumed"),
    "lengths are text": (lambda it, _: it.consumed("n", prompt_lengths="ab"), "api.consumed"),
    "lengths are a tensor": (
        lambda it, _: it.consumed("n", prompt_lengths=Tensor()), "api.consumed"),
    "lengths are tensors": (
        lambda it, _: it.consumed("n", prompt_lengths=[1, Tensor()]), "api.consumed"),
    "truncated is a tensor": (
        lambda it, _: it.consumed("n", n=4, truncated=Tensor()), "api.consumed"),
    "truncated of another length": (
        lambda it, _: it.consumed("n", n=4, truncated=[True]), "api.consumed"),
    "versions are a tensor": (
        lambda it, _: it.consumed("n", n=4, versions=Tensor()), "api.consumed"),
    "lengths beyond 64 bits": (
        lambda it, _: it.consumed("n", prompt_lengths=[2**70]), "api.consumed"),
    "groups beyond 64 bits": (
        lambda it, _: it.consumed("n", groups=np.array([2**63], dtype=np.uint64)), "api.consumed"),
    "lengths are booleans": (
        lambda it, _: it.consumed("n", prompt_lengths=[True]), "api.consumed"),
    "truncated are tensors": (
        lambda it, _: it.consumed("n", n=1, truncated=[Tensor()]), "api.consumed"),
    "truncated are fractions": (
        lambda it, _: it.consumed("n", n=1, truncated=[0.5]), "api.consumed"),
    "rollout id is an object": (lambda it, _: it.consumed(object(), n=1), "api.consumed"),
    "first is text": (lambda it, _: it.consumed("n", n=1, first="x"), "api.consumed"),
    "n is text": (lambda it, _: it.consumed("n", n="x"), "api.consumed"),
    "trained on a number": (lambda it, _: it.trained(3), "api.trained"),
    "trained on numbers": (lambda it, _: it.trained([1, 2]), "api.trained"),
    "trained on a tensor": (lambda it, _: it.trained(Tensor()), "api.trained"),
    "trained on tensor indices": (lambda it, _: it.trained([("n", Tensor())]), "api.trained"),
    "trained on a slice before the first": (
        lambda it, _: it.trained(Samples("n", range(-2, 2))), "api.trained"),
    "trained on a slice beyond 64 bits": (
        lambda it, _: it.trained(Samples("n", range(2**63, 2**63 + 2))), "api.trained"),
    "trained on a fraction": (lambda it, _: it.trained([("n", 0.5)]), "api.trained"),
    "update of samples not visited": (with_update(samples=[("z", 0)]), "api.update_samples"),
    "update of what is no sample": (with_update(samples=7), "api.update"),
    "nominal is negative": (with_update(nominal=-1), "api.update"),
    "nominal is text": (with_update(nominal="all"), "api.update"),
    "nominal is a tensor": (with_update(nominal=Tensor()), "api.update"),
    "version is text": (lambda it, _: it.publication("v1"), "api.publication"),
    "version is None": (lambda it, _: it.publication(None), "api.publication"),
    "kind is unheard of": (lambda it, _: it.publication(1, kind="pigeon"), "api.publication"),
    "bytes are text": (
        lambda it, _: it.publication(1).completed(bytes="many"), "api.publication"),
    "completed at no instant": (
        lambda it, _: it.publication(1).completed(at_ns="now"), "api.publication"),
    "scalars are no dict": (lambda _, run: run.log_scalars([1, 2]), "api.log_scalars"),
    "covers is a number": (lambda _, run: run.log_scalars({"a": 1}, covers=1), "api.log_scalars"),
    "base is text": (lambda _, run: run.resumed(tokens="many"), "api.resumed"),
    "base is negative": (lambda _, run: run.resumed(tokens=-1), "api.resumed"),
    "end before the start": (
        lambda it, _: it.close(end_ns=1_600_000_000 * 10**9), "api.iteration_end"),
    "end is text": (lambda it, _: it.close(end_ns="now"), "api.iteration_end"),
    "phase ends before its start": (
        lambda it, _: it.phase("reward").start().stop(end_ns=5), "api.phase_end"),
    "phase ends at no instant": (
        lambda it, _: it.phase("reward").start().stop(end_ns="x"), "api.phase_end"),
    "phase starts at no instant": (
        lambda it, _: phase_block(it) or it.phase("x", start_ns="x").start().stop(),
        "api.phase_start"),
    "status unheard of": (lambda it, _: it.close(status="great"), "api.iteration_status"),
}  # fmt: skip

REPEATABLE = {name for name, (_, expected) in TABLE.items() if expected == "api.consumed"}


@pytest.fixture
def messages(caplog: pytest.LogCaptureFixture) -> Iterator[Callable[[], list[str]]]:
    """What the plugin told its log."""
    caplog.set_level(logging.WARNING)
    return lambda: [record.getMessage() for record in caplog.records]


def good_iteration(recorded: RecordedRun, clock: FakeClock, rollout: str) -> None:
    with recorded.run.iteration() as it:
        with it.phase("generation"):
            clock.advance(1)
        samples = it.consumed(rollout, prompt_lengths=[2, 2], completion_lengths=[3, 4])
        it.trained(samples)
        with it.update(samples, nominal=2):
            clock.advance(1)
        it.publication(1).completed()


def check_whole(recorded: RecordedRun) -> None:
    """Every window and update has its record, nothing was dropped, the good windows are right."""
    for counts in recorded.summary.observed.sinks.values():
        assert counts.dropped == counts.pending == 0
        assert counts.created == counts.written
    assert [record.iteration for record in recorded.rollouts] == [1, 2, 3]
    for record in (recorded.rollouts[0], recorded.rollouts[-1]):
        assert record.metrics["tokens.total"] == 11
        assert record.metrics["updates.applied"] == 1
        assert record.metrics["samples.visits"] == 2
        assert record.attributes.window.status == "complete"
    assert recorded.summary.status == "completed"


@pytest.mark.parametrize("name", TABLE)
def test_wrong_use_is_counted_and_harmless(
    clock: FakeClock, messages: Callable[[], list[str]], name: str
) -> None:
    """Each mistake is one count under one name and one warning, and all else is in order."""
    work, expected = TABLE[name]
    with recorded_run(clock=clock, strict=False) as recorded:
        good_iteration(recorded, clock, "first")
        it = recorded.run.open_iteration()
        clock.advance(1)
        for _ in range(2 if name in REPEATABLE else 1):
            work(it, recorded.run)
        if it.number is not None:
            it.close()
        good_iteration(recorded, clock, "third")
    errors = recorded.summary.observed.errors
    assert errors == {expected: 2 if name in REPEATABLE else 1}
    assert len([message for message in messages() if message.startswith("otel-grpo")]) == 1
    check_whole(recorded)


class Broken(logging.Handler):
    """Of the user: the place where he sends what is logged is away."""

    def emit(self, record: logging.LogRecord) -> None:
        raise OSError(record.getMessage())


def test_a_log_handler_that_fails(clock: FakeClock) -> None:
    """What is told to it reaches nobody; the training goes on, and the mistake is counted."""
    handler = Broken()
    logging.getLogger().addHandler(handler)
    try:
        with recorded_run(clock=clock, strict=False) as recorded, recorded.run.iteration() as it:
            it.consumed(0, prompt_lengths=["many"])
            with recorded.run.iteration():
                pass
            recorded.run.guard.fault("memory", OSError("no driver"))
    finally:
        logging.getLogger().removeHandler(handler)
    errors = recorded.summary.observed.errors
    assert errors == {"api.consumed": 1, "api.iteration_inside": 1, "memory": 1}


def test_strict_mode_raises(clock: FakeClock, subtests: pytest.Subtests) -> None:
    """The same raises ApiError with a sentence where strict mode is on."""
    with recorded_run(clock=clock, strict=True) as recorded:
        run = recorded.run
        for name, (work, _) in TABLE.items():
            it = run.open_iteration()
            clock.advance(1)
            with subtests.test(name), pytest.raises(otel_grpo.ApiError, match=r"\w+ \w+"):
                work(it, run)
            if run.window is not None:
                run._close_window(run.window, None, None, None)


@pytest.mark.parametrize(
    ("options", "mistake"),
    [
        ({"rank": "0", "world_size": "2"}, "api.rank"),  # as they stand in the environment
        ({"rank": 1, "world_size": 2.0}, "api.rank"),
        ({"rank": 2, "world_size": 2}, "api.rank"),
        ({"rank": 1}, "api.rank"),
        ({"devices": ["cuda:0"]}, "api.devices"),
        ({"devices": [], "device_roles": 3}, "api.devices"),
    ],
)
def test_start_run_takes_anything(tmp_path: Path, options: dict[str, Any], mistake: str) -> None:
    """What makes no sense is counted, and the process is recorded as the process group says."""
    with otel_grpo.start_run(tmp_path / "run", trainer="loop", **options) as run, run.iteration():
        pass
    assert run.guard.errors == {mistake: 1}
    summary = read_summary(tmp_path / "run")
    assert (summary.ranks.expected, summary.records["rollout"]) == (1, 1)


def test_a_run_that_is_too_busy_is_told_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody holds the lock for longer than a training may wait: each report is a counted fault.

    None of them is half made: nothing is touched without the lock.
    """
    monkeypatch.setattr("otel_grpo.tracing.event.LOCK_S", 0.01)
    locked, done = threading.Event(), threading.Event()
    with recorded_run(strict=False) as recorded:
        run = recorded.run

        def hold() -> None:
            with run._lock:
                locked.set()
                done.wait(60)

        with run.iteration() as it:
            published = it.publication(1)
            holder = threading.Thread(target=hold)
            holder.start()
            locked.wait(60)
            published.completed()
            published.moved(2, 0)
            run.log_scalars({"loss": 1.0})
            run.resumed(tokens=5)
            it.generated("r", 4)
            run.worker_call("m", 1)
            done.set()
            holder.join()
            assert (published.completed_ns, published.version) == (None, 1)
    assert recorded.flat == []
    assert recorded.summary.observed.errors == {
        "publication": 2, "log_scalars": 1, "resumed": 1, "generated": 1, "timed": 1,
    }  # fmt: skip


class FinishedMeanwhile:
    """A lock that another thread held for as long as it took to finish the run."""

    def __init__(self, run: otel_grpo.Run) -> None:
        self.run = run
        self.held = 0

    def acquire(self, timeout: float) -> bool:
        self.run.live = False
        self.held += 1
        return True

    def release(self) -> None:
        self.held -= 1


def test_a_run_that_is_finished_meanwhile_is_told_nothing() -> None:
    """What waited for the end of the run comes too late: nothing follows its last record."""
    with recorded_run(strict=False) as recorded:
        run, lock = recorded.run, recorded.run._lock
        with run.iteration() as it:
            published = it.publication(1)
        finished = FinishedMeanwhile(run)
        run._lock = finished  # type: ignore[assignment]
        for report in (
            published.completed,
            lambda: published.moved(2, 0),
            lambda: run.log_scalars({"loss": 1.0}),
            lambda: run.resumed(tokens=5),
        ):
            run.live = True
            report()
            assert finished.held == 0
        run._lock, run.live = lock, True
        assert (published.completed_ns, published.version) == (None, 1)
    assert recorded.flat == []
    assert recorded.summary.observed.errors == {}


def test_a_misused_phase_is_own_time_too() -> None:
    """To count and tell a mistake takes time of the training, and the summary says how much."""
    with recorded_run(strict=False) as recorded:
        run = recorded.run
        spent = [run.self_ns]
        with run.iteration() as it:
            phase = it.phase("reward").start()
            phase.stop()
            spent.append(run.self_ns)
            phase.start()
            spent.append(run.self_ns)
            phase.stop()
            spent.append(run.self_ns)
        run.phase("reward").start()
        spent.append(run.self_ns)
    assert spent == sorted(set(spent))
