"""A process that others call: its timed calls, from the first one on."""

from __future__ import annotations

import inspect
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from opentelemetry.sdk.resources import Resource
from opentelemetry.trace import SpanContext

from otel_grpo import timed
from otel_grpo.core.clock import Clock
from otel_grpo.records.model import Call, ClockPair, Joined, Left, WorkerLine
from otel_grpo.records.worker_dir import WorkerDir
from otel_grpo.testing import recorded_run
from otel_grpo.tracing import carrier, dormant
from otel_grpo.tracing.call import Timer
from otel_grpo.tracing.guard import Guard
from otel_grpo.tracing.sampler import Sampler
from otel_grpo.tracing.worker import Worker
from otel_grpo.tracing.worker_output import WorkerOutput

RUN_SPAN = SpanContext(7, 9, is_remote=True)


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[[], Worker]]:
    """Makes this process a worker; it is none any more after the test."""
    for name in ("workers", "spans"):
        (tmp_path / name).mkdir()
    made: list[Worker] = []

    def start() -> Worker:
        clock, guard = Clock.read(), Guard(strict=True)
        pair = ClockPair(None, clock.unix_ns, clock.perf_ns)
        output = WorkerOutput(
            lambda ending: WorkerDir(tmp_path, "r1", 1),
            lambda run_id, attempt: Joined(
                run_id, attempt, "policy", "policy-1", None, None, "h", 1, pair, clock.unix_ns
            ),
            name="policy-1",
            clock=clock,
            guard=guard,
            self_ns=lambda: 0,
        )
        worker = Worker(
            output,
            clock,
            guard,
            name="policy-1",
            resource=Resource({}),
            attributes={},
            run_span=RUN_SPAN,
            spans=True,
            readings=list,
        )
        worker.start()
        made.append(worker)
        return worker

    yield start
    for worker in made:
        worker.finish()
    dormant._forget()


def lines(path: Path) -> list[WorkerLine]:
    (file,) = (path / "workers").iterdir()
    return [msgspec.json.decode(line, type=WorkerLine) for line in file.read_bytes().splitlines()]


@timed
def step(value: int) -> int:
    return value + 1


def test_dormant_until_the_first_call(make: Callable[[], Worker], tmp_path: Path) -> None:
    """Marked, it has neither a thread nor a file; a second end says nothing more."""
    threads = threading.active_count()
    dormant.offer(make)
    assert threading.active_count() == threads
    assert list((tmp_path / "workers").iterdir()) == []
    assert step(1) == 2
    worker = dormant.current()
    assert worker is not None
    worker.finish()
    worker.finish()
    step(1)  # nobody takes it any more
    assert [type(line) for line in lines(tmp_path)] == [Joined, Call, Left]


def in_eight_threads(work: Callable[[], None]) -> None:
    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@timed(memory=True)
def look() -> None:
    pass


def test_first_readings_of_several_threads(
    make: Callable[[], Worker], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory is read by one thread, which is started once."""
    starts, start = [], Sampler.start

    def slow(sampler: Sampler) -> None:
        starts.append(sampler)
        threading.Event().wait(0.05)
        start(sampler)

    monkeypatch.setattr(Sampler, "start", slow)
    dormant.offer(make)
    step(1)
    in_eight_threads(look)
    worker = dormant.current()
    assert worker is not None
    worker.finish()
    assert worker.guard.errors == {}
    assert len(starts) == 1


def test_no_thread_to_be_had(
    make: Callable[[], Worker], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Nobody waits for a reading that nobody makes; the next call may find one."""
    start = Sampler.start

    def refused(sampler: Sampler) -> None:
        monkeypatch.setattr(Sampler, "start", start)
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(Sampler, "start", refused)
    dormant.offer(make)
    step(1)
    worker = dormant.current()
    assert worker is not None
    worker.guard.strict = False
    look()
    assert not worker._sampler._thread.is_alive()
    look()
    assert worker._sampler._thread.is_alive()
    worker.finish()
    assert worker.guard.errors == {"timed.stop": 1}
    assert [type(line) for line in lines(tmp_path)] == [Joined, Call, Call, Call, Left]


def test_first_calls_of_several_threads(make: Callable[[], Worker], tmp_path: Path) -> None:
    """They wait for the one that wakes the worker: none is lost, and there is one worker."""
    together = threading.Barrier(8)

    def start() -> Worker:
        threading.Event().wait(0.05)
        return make()

    def call() -> None:
        together.wait()
        step(1)

    dormant.offer(start)
    in_eight_threads(call)
    worker = dormant.current()
    assert worker is not None
    worker.finish()
    assert [type(line) for line in lines(tmp_path)] == [Joined] + [Call] * 8 + [Left]


def test_a_timed_call_on_the_way_to_the_worker(make: Callable[[], Worker], tmp_path: Path) -> None:
    """What is timed while the worker starts is not timed, and does not start another."""

    def start() -> Worker:
        assert step(1) == 2
        return make()

    dormant.offer(start)
    assert step(2) == 3
    worker = dormant.current()
    assert worker is not None
    worker.finish()
    assert [type(line) for line in lines(tmp_path)] == [Joined, Call, Left]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_child_is_no_worker(make: Callable[[], Worker], tmp_path: Path) -> None:
    """A forked child of a worker writes nothing, nor does that of a marked process."""
    dormant.offer(make)
    for _ in range(2):  # dormant, then awake
        worker = dormant._worker
        child = os.fork()
        if not child:
            alone = dormant.current() is None and step(1) == 2
            # Nor does its exit speak for the parent's, of which lines may have been on their way.
            os._exit(0 if alone and not (worker and worker.live) else 1)
        assert os.waitpid(child, 0)[1] == 0
        step(1)
    worker = dormant.current()
    assert worker is not None
    worker.finish()
    assert [type(line) for line in lines(tmp_path)] == [Joined, Call, Call, Left]


def test_a_start_that_fails() -> None:
    """The calls go on, and nobody tries again."""
    tries: list[int] = []

    def start() -> None:
        tries.append(1)

    dormant.offer(start)
    assert [step(n) for n in range(3)] == [1, 2, 3]
    assert tries == [1]
    dormant._forget()


def test_a_run_of_this_process_comes_first(make: Callable[[], Worker]) -> None:
    """In a process that has a run, calls are its own."""
    dormant.offer(make)
    with recorded_run() as recorded, recorded.run.iteration():
        step(1)
    assert list(recorded.rollouts[0].attributes.workers) == ["step"]
    dormant._forget()


def test_carrier_in_a_run_of_this_process() -> None:
    """On a thread of the driver a carrier says where the call belongs, too."""
    with recorded_run() as recorded, recorded.run.iteration() as it:
        with it.phase("reward"):
            carried = recorded.run.carrier()

        @timed
        def score(**kwargs: Any) -> list[str]:
            return list(kwargs)

        with it.phase("adv_pipeline"):
            assert score(_otel=carried, a=1) == ["a"]
    spans = {span["name"]: span for span in recorded.spans}
    assert spans["rl.worker.score"]["parentSpanId"] == spans["rl.reward"]["spanId"]


def test_keyword_of_a_carrier() -> None:
    """Told in the signature where it was asked for, and taken off where the function has none."""

    @timed(carrier=True)
    def plain(a: int, *rest: int, b: int = 1, **others: int) -> Any:
        return a, rest, b, others

    @timed(carrier=True)
    def declares(_otel: Any = "nothing") -> Any:
        return _otel

    assert str(inspect.signature(plain)) == (
        "(a: 'int', *rest: 'int', b: 'int' = 1, _otel=None, **others: 'int') -> 'Any'"
    )
    assert plain(1, 2, b=3, c=4, _otel={}) == (1, (2,), 3, {"c": 4})
    assert str(inspect.signature(declares)) == "(_otel: 'Any' = 'nothing') -> 'Any'"
    assert (declares(), declares(_otel=5)) == ("nothing", 5)


def test_what_is_said_of_the_method_is_on_the_outermost_function() -> None:
    """So that whoever unwraps it finds it there, as on the function itself."""

    def method() -> None: ...

    method.said_below = 1  # type: ignore[attr-defined]
    outer: Any = timed(method)
    outer.said_above = 2
    found: Any = inspect.unwrap(outer)
    assert (found.said_below, found.said_above) == (1, 2)


def test_a_timer_travels() -> None:
    """What goes to another process makes a timer there; the substitute is tested with Ray."""
    make, arguments = Timer("step", strips=True, memory=False).__reduce__()
    keywords = {"_otel": {}, "a": 1}
    timer = make(*arguments)
    assert isinstance(timer, Timer)
    with timer(keywords):
        assert keywords == {"a": 1}


@pytest.mark.parametrize(
    "text", [None, 7, "", "00", "00-x-y-z", "00-0-0-01", f"00-{'f' * 32}-{0:016x}-01"]
)
def test_no_carrier(text: Any) -> None:
    """What is no W3C context names no span, and raises nothing."""
    assert carrier.span_context(text) is None
    assert carrier.parent_of({carrier.PARENT: text}) is None


@pytest.mark.parametrize("number", [None, 7, "", "-1", "1.5", "x", "9" * 19, "9" * 5000])
def test_no_iteration(number: Any) -> None:
    """Nor does what is no number name an iteration."""
    assert carrier.iteration_of({carrier.ITERATION: number}) is None


def test_carrier_and_back() -> None:
    """The W3C example, and what a driver makes of a span."""
    example = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    span = carrier.span_context(example)
    assert span is not None
    assert (span.trace_id, span.span_id) == (
        0x4BF92F3577B34DA6A3CE929D0E0E4736, 0x00F067AA0BA902B7
    )  # fmt: skip
    assert carrier.carrier(span, 12) == {"traceparent": example, "iteration": "12"}
    assert carrier.iteration_of(carrier.carrier(span, 12)) == 12
