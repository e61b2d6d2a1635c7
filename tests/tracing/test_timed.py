"""`timed`: every flavour of function, and what passes through it untouched."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import AsyncGenerator, Generator
from typing import Any

import pytest

import otel_grpo
from otel_grpo import timed
from otel_grpo.testing import FakeClock, RecordedRun, recorded_run


class Failure(Exception):
    """An exception of the user."""


class Worker:
    """Methods of each flavour; each takes one second a step."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock

    @timed
    def plain(self, value: int, *, twice: bool = False) -> int:
        """Docstring."""
        self.clock.advance(1)
        if value < 0:
            raise Failure(value)
        return value * (1 + twice)

    @timed("renamed")
    async def coroutine(self, value: int) -> int:
        await asyncio.sleep(0)
        return self.plain(value)

    @timed()
    def generator(self, n: int) -> Generator[int, Any, str]:
        got = []
        for number in range(n):
            self.clock.advance(1)
            try:
                got.append((yield number))
            except Failure as failure:
                got.append(failure)
        return repr(got)

    @timed
    async def async_generator(self, n: int) -> AsyncGenerator[Any, Any]:
        value: Any = None
        for number in range(n):
            self.clock.advance(1)
            try:
                value = yield (number, value)
            except Failure as failure:
                value = failure

    @timed
    @staticmethod
    def static(value: int) -> int:
        return value + 1

    @timed
    @classmethod
    def of_class(cls, value: int) -> tuple[str, int]:
        return cls.__name__, value

    @staticmethod
    @timed
    def static_inside(value: int) -> int:
        return value + 2


@pytest.fixture
def worker(clock: FakeClock) -> Worker:
    return Worker(clock)


def durations(recorded: RecordedRun) -> dict[str, list[int]]:
    """Method -> seconds of each call of rank 0, in the only window."""
    (record,) = recorded.rollouts
    workers = record.attributes.workers
    return {method: [ns // 10**9 for ns in of["0"]] for method, of in workers.items()}


def test_plain_method(clock: FakeClock, worker: Worker) -> None:
    """Arguments, results and figures of a method; the span stands below the open phase."""
    with recorded_run(clock=clock) as recorded, recorded.run.iteration() as it:
        with it.phase("policy_train"):
            assert worker.plain(2) == 2
            assert worker.plain(3, twice=True) == 6
        clock.advance(1)
    assert durations(recorded) == {"plain": [1, 1]}
    metrics = recorded.rollouts[0].metrics
    assert {key: value for key, value in metrics.items() if key.startswith("worker.")} == {
        "worker.plain.count": 2,
        "worker.plain.min_ns": 2 * 10**9,
        "worker.plain.median_ns": 2 * 10**9,
        "worker.plain.max_ns": 2 * 10**9,
        "worker.plain.mean_ns": 2e9,
    }
    assert recorded.summary.workers == {
        "plain": {"count": 2, "min_ns": 2 * 10**9, "median_ns": 2 * 10**9, "max_ns": 2 * 10**9,
                  "mean_ns": 2e9}
    }  # fmt: skip
    spans = {span["name"]: span for span in recorded.spans}
    assert spans["rl.worker.plain"]["parentSpanId"] == spans["rl.train"]["spanId"]
    # Raw durations of workers are no phases: they are no part of the account.
    assert metrics["phase.policy_train.busy_ns"] == 2 * 10**9
    assert "phase.plain.busy_ns" not in metrics
    assert recorded.rollouts[0].attributes.foreign_spans == 0


def test_coroutine(clock: FakeClock, worker: Worker) -> None:
    """A coroutine counts under the name that it was given; what it calls counts too."""
    with recorded_run(clock=clock) as recorded, recorded.run.iteration():
        assert asyncio.run(worker.coroutine(4)) == 4
        with pytest.raises(Failure):
            asyncio.run(worker.coroutine(-1))
    assert durations(recorded) == {"plain": [1, 1], "renamed": [1, 1]}


def test_generator_send_throw_return(clock: FakeClock, worker: Worker) -> None:
    """`send`, `throw` and the return value pass; the time runs to the end, the consumer's included."""
    with recorded_run(clock=clock) as recorded, recorded.run.iteration():
        generator = worker.generator(3)
        assert next(generator) == 0
        assert generator.send("sent") == 1
        clock.advance(10)
        failure = Failure("mine")
        assert generator.throw(failure) == 2
        with pytest.raises(StopIteration) as stop:
            generator.send("last")
        assert stop.value.value == repr(["sent", failure, "last"])
    assert durations(recorded) == {"generator": [13]}


def test_generator_close_and_abandon(clock: FakeClock, worker: Worker) -> None:
    """A generator that is closed early, or never started, is no failure."""
    with recorded_run(clock=clock) as recorded, recorded.run.iteration():
        generator = worker.generator(3)
        next(generator)
        generator.close()
        worker.generator(3)  # never started: there was no call
    assert durations(recorded) == {"generator": [1]}
    (span,) = [span for span in recorded.spans if span["name"] == "rl.worker.generator"]
    assert "status" not in span


def test_async_generator(clock: FakeClock, worker: Worker) -> None:
    """`asend`, `athrow` and `aclose` of an async generator pass through."""

    async def use() -> list[Any]:
        generator = worker.async_generator(9)
        failure = Failure("mine")
        seen = [await anext(generator), await generator.asend("sent")]
        seen.append(await generator.athrow(failure))
        assert seen[2][1] is failure
        await generator.aclose()
        with pytest.raises(StopAsyncIteration):
            await anext(generator)
        seen += [item async for item in worker.async_generator(2)]
        return seen

    with recorded_run(clock=clock) as recorded, recorded.run.iteration():
        seen = asyncio.run(use())
    assert [number for number, _ in seen] == [0, 1, 2, 0, 1]
    assert seen[1][1] == "sent"
    assert durations(recorded) == {"async_generator": [3, 2]}
    spans = [span for span in recorded.spans if span["name"] == "rl.worker.async_generator"]
    assert all("status" not in span for span in spans)


def test_async_generator_that_never_started(clock: FakeClock, worker: Worker) -> None:
    """It behaves as the function does: `athrow` raises at once, `aclose` is silent."""

    async def use() -> None:
        generator = worker.async_generator(2)
        with pytest.raises(Failure):
            await generator.athrow(Failure())
        await worker.async_generator(2).aclose()

    with recorded_run(clock=clock) as recorded, recorded.run.iteration():
        asyncio.run(use())
    assert durations(recorded) == {}


def test_async_generator_that_resists(clock: FakeClock) -> None:
    """What the function does with a GeneratorExit or an exception is what its caller sees."""
    cleaned = []

    @timed
    async def stubborn() -> AsyncGenerator[int, None]:
        try:
            yield 1
        finally:
            cleaned.append(True)
            await asyncio.sleep(0)
        raise AssertionError("unreachable")

    @timed
    async def failing() -> AsyncGenerator[int, None]:
        yield 1
        raise Failure

    async def use() -> None:
        generator = stubborn()
        await anext(generator)
        await generator.aclose()
        with pytest.raises(Failure):
            _ = [item async for item in failing()]
        async for _item in failing():
            break  # left to the event loop's care
        await asyncio.sleep(0.01)

    with recorded_run(clock=clock) as recorded, recorded.run.iteration():
        asyncio.run(use())
    assert cleaned == [True]
    spans = {span["name"]: span for span in recorded.spans}
    assert "status" not in spans["rl.worker.stubborn"]
    failed = [span for span in recorded.spans if span["name"] == "rl.worker.failing"]
    assert sorted("status" in span for span in failed) == [False, True]


def test_exceptions_are_the_same_objects(clock: FakeClock, worker: Worker) -> None:
    """The very exception of the function reaches the caller; the span is marked by its type."""
    mine = Failure("secret prompt")

    @timed
    def fails() -> None:
        raise mine

    with recorded_run(clock=clock) as recorded, recorded.run.iteration():
        with pytest.raises(Failure) as caught:
            fails()
        assert caught.value is mine
        assert mine.__cause__ is mine.__context__ is None
    (span,) = [span for span in recorded.spans if span["name"] == "rl.worker.fails"]
    assert span["status"] == {"code": 2}
    attributes = {item["key"]: item["value"] for item in span["attributes"]}
    assert attributes["error.type"] == {"stringValue": "Failure"}
    assert "secret" not in str(recorded.spans)


def test_flavour_and_signature_are_kept() -> None:
    """Whoever inspects the function sees what was written."""
    assert Worker.plain.__name__ == "plain"
    assert Worker.plain.__doc__ == "Docstring."
    assert Worker.plain.__qualname__ == "Worker.plain"
    assert str(inspect.signature(Worker.plain)) == (
        "(self, value: 'int', *, twice: 'bool' = False) -> 'int'"
    )
    assert inspect.iscoroutinefunction(Worker.coroutine)
    assert inspect.isgeneratorfunction(Worker.generator)
    assert inspect.isasyncgenfunction(Worker.async_generator)
    for other in (Worker.generator, Worker.async_generator, Worker.plain):
        assert not inspect.iscoroutinefunction(other)
    assert not inspect.isgeneratorfunction(Worker.plain)


def test_static_and_class_methods(clock: FakeClock, worker: Worker) -> None:
    """The decorator may stand on either side of `staticmethod` and `classmethod`."""
    with recorded_run(clock=clock) as recorded, recorded.run.iteration():
        assert worker.static(1) == Worker.static(1) == 2
        assert worker.of_class(1) == Worker.of_class(1) == ("Worker", 1)
        assert worker.static_inside(1) == 3
    assert {name: len(calls) for name, calls in durations(recorded).items()} == {
        "static": 2, "of_class": 2, "static_inside": 1
    }  # fmt: skip


def test_callables_without_a_name(clock: FakeClock) -> None:
    """A partial or a callable object is named by its type."""

    class Judge:
        def __call__(self, value: int) -> int:
            return -value

    with recorded_run(clock=clock) as recorded, recorded.run.iteration():
        assert timed(functools.partial(max, 3))(1) == 3
        assert timed(Judge())(1) == -1
        assert timed("judge")(Judge())(2) == -2
        assert timed("judge \ud800")(Judge())(2) == -2
    assert set(durations(recorded)) == {"partial", "Judge", "judge", "judge ?"}


def test_without_a_run_nothing_happens(worker: Worker) -> None:
    """Decorated functions work the same where nothing is observed."""
    assert worker.plain(1) == 1
    assert list(worker.generator(2)) == [0, 1]
    assert asyncio.run(worker.coroutine(1)) == 1


def test_calls_outside_and_across_windows(clock: FakeClock, worker: Worker) -> None:
    """A call counts in the window in which it ends; outside of any it has its span only."""
    with recorded_run(clock=clock) as recorded:
        worker.plain(1)
        with recorded.run.iteration():
            generator = worker.generator(2)
            next(generator)
        with recorded.run.iteration():
            list(generator)
    first, second = recorded.rollouts
    assert first.attributes.workers == {}
    assert list(second.attributes.workers) == ["generator"]
    assert len([s for s in recorded.spans if s["name"].startswith("rl.worker.")]) == 2


def test_call_that_outlives_its_run(clock: FakeClock, worker: Worker) -> None:
    """A generator that goes on after the run, and into another run, harms neither."""
    with recorded_run(clock=clock) as recorded, recorded.run.iteration():
        generator = worker.generator(2)
        next(generator)
    with recorded_run(clock=clock) as other, other.run.iteration():
        list(generator)
    assert recorded.rollouts[0].attributes.workers == {}
    assert other.rollouts[0].attributes.workers == {}
    assert other.summary.observed.errors == {}
    assert otel_grpo.current_run() is None
