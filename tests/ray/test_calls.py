"""Timed methods of actors of every flavour: results as they were, a line and a span of each call."""

from __future__ import annotations

from typing import Any

import pytest
import ray
from actors import Timed, TimedAsync, TimedThreads, reward
from plain_actors import Failure, Plain
from ray_support import until


def attributes(span: dict[str, Any]) -> dict[str, Any]:
    return {item["key"]: next(iter(item["value"].values())) for item in span["attributes"]}


def methods(calls: list[Any]) -> list[str]:
    return [call.method for call in calls]


def test_one_thread(observed, start) -> None:
    """Neither a file nor a thread before the first timed call; then a line of each, in their order."""
    actor = start(Timed)
    assert ray.get(actor.add.remote(1)) == 2
    threads = actor.__ray_call__.remote(
        lambda self: [t.name for t in __import__("threading").enumerate()]
    )
    assert [name for name in ray.get(threads) if name.startswith("otel-grpo")] == []
    assert observed.lines(actor) == []
    assert ray.get([actor.step.remote(n) for n in range(3)]) == [1, 2, 3]
    inside = ray.get(actor.__ray_call__.remote(lambda self: __import__("time").perf_counter_ns()))
    calls = observed.calls(actor, 3)
    assert methods(calls) == ["step"] * 3
    edges = [instant for call in calls for instant in (call.start_ns, call.end_ns)]
    assert edges == sorted(edges)
    joined = observed.joined(actor)
    assert edges[-1] <= joined.clock.unix_ns + inside - joined.clock.perf_ns
    assert edges[0] >= joined.started_unix_ns
    assert (joined.role, joined.name) == ("Timed", f"Timed-{actor._actor_id.hex()[:8]}")
    assert joined.pid == ray.get(actor.pid.remote())
    (device, does), *others = joined.devices
    assert (device.kind, does, others) == ("cpu", [], [])


def test_event_loop(observed, shared) -> None:
    """Calls of an async actor that overlap: each has its own time."""
    actor = shared(TimedAsync)
    assert ray.get([actor.waits.remote(), actor.frees.remote()]) == ["waited", None]
    (frees,), (waits,) = observed.calls(actor, 1, "frees"), observed.calls(actor, 1, "waits")
    assert waits.start_ns < frees.end_ns <= waits.end_ns
    assert frees.start_ns < waits.end_ns


def test_threads_and_groups(observed, start) -> None:
    """A concurrency group that is told above `timed` is the method's: both calls run at once."""
    actor = start(TimedThreads, max_concurrency=1, concurrency_groups={"side": 1})
    assert sorted(ray.get([actor.waits.remote(), actor.waits_aside.remote()])) == [0, 1]
    one, other = observed.calls(actor, 2)
    assert {one.method, other.method} == {"waits", "waits_aside"}
    assert max(one.start_ns, other.start_ns) < min(one.end_ns, other.end_ns)


def test_pool_of_threads(observed, start) -> None:
    """Two calls of one method at once are two lines."""
    actor = start(TimedThreads, max_concurrency=2, concurrency_groups={"side": 1})
    assert sorted(ray.get([actor.waits.remote(), actor.waits.remote()])) == [0, 1]
    one, other = observed.calls(actor, 2)
    assert methods([one, other]) == ["waits"] * 2
    assert max(one.start_ns, other.start_ns) < min(one.end_ns, other.end_ns)


@pytest.mark.parametrize("actor_class", [Timed, TimedAsync])
def test_streaming_generators(observed, shared, actor_class) -> None:
    """Every item arrives, and the call is one line."""
    actor = shared(actor_class)
    items = [ray.get(ref) for ref in actor.generator.remote(3)]
    assert items == [0, 1, 2]
    (call,) = observed.calls(actor, 1, "generator")
    assert not call.error


def test_what_ray_is_told_of_a_method(shared) -> None:
    """The number of results counts, above `timed` and below it."""
    actor = shared(Timed)
    assert ray.get(list(actor.two.remote())) == [1, 2]
    assert ray.get(list(actor.two_below.remote())) == [1, 2]
    with pytest.raises(TypeError):
        actor.step.remote(1, 2)
    with pytest.raises(TypeError):
        actor.step.remote(1, _otel={})  # it was not asked to take one


def test_carrier(observed, start) -> None:
    """A span of a call that says where it belongs is below the driver's phase."""
    actor = start(Timed)
    run = observed.run
    assert run.carrier() == {}
    with run.iteration() as it:
        window = run.carrier()
        with it.phase("adv_pipeline") as phase:
            carrier = run.carrier()
            assert ray.get(actor.carried.remote(5, _otel=carrier)) == 5
            assert ray.get(actor.any_keywords.remote(a=1, _otel=carrier)) == ["a"]
            assert ray.get(actor.declares.remote(_otel=carrier)) == carrier
            expected = phase.span.get_span_context()
        assert ray.get(actor.carried.remote(5, _otel=window)) == 5
        iteration = run.window.iteration
        above = run.window.span.get_span_context()
    trace_id, span_id = f"{expected.trace_id:032x}", f"{expected.span_id:016x}"
    assert carrier == {"traceparent": f"00-{trace_id}-{span_id}-01", "iteration": str(iteration)}
    *in_phase, in_window = observed.spans(actor, 4)
    for span in in_phase:
        assert (span["traceId"], span["parentSpanId"]) == (trace_id, span_id)
        assert attributes(span)["rl.loop.iteration"] == str(iteration)
        assert "links" not in span
    assert [span["name"] for span in in_phase] == [
        "rl.worker.carried", "rl.worker.any_keywords", "rl.worker.declares"
    ]  # fmt: skip
    assert in_window["parentSpanId"] == f"{above.span_id:016x}"


@pytest.mark.parametrize("carried", [None, {}, {"traceparent": "00-0-0-01"}, "text", 7])
def test_without_a_carrier(observed, shared, carried) -> None:
    """A span of its own, linked to the run's; what is no carrier does no harm."""
    actor = shared(Timed)
    before = len(observed.spans(actor, 0)) if observed.lines(actor) else 0
    assert ray.get(actor.carried.remote(5, _otel=carried)) == 5
    span = observed.spans(actor, before + 1)[-1]
    run_span = observed.run.run_span.get_span_context()
    assert "parentSpanId" not in span
    assert span["traceId"] != f"{run_span.trace_id:032x}"
    (link,) = span["links"]
    assert (link["traceId"], link["spanId"]) == (
        f"{run_span.trace_id:032x}", f"{run_span.span_id:016x}"
    )  # fmt: skip
    told = attributes(span)
    assert (told["rl.run.id"], told["rl.role"]) == (observed.run.run_id, "Timed")
    assert "rl.loop.iteration" not in told


def test_memory(observed, shared) -> None:
    """A reading at the end of a call that wants one: of this process, after the call."""
    actor = shared(Timed)
    ray.get(actor.measured.remote())
    (call,) = observed.calls(actor, 1, "renamed")
    (line,) = observed.memory(actor, 1)
    (instant,) = line.memory.instant
    assert instant >= call.end_ns
    assert line.memory.pid == [ray.get(actor.pid.remote())]
    assert line.memory.device == [0]
    assert line.memory.process_rss[0] > 2**20


def test_exceptions_are_as_without_us(observed, shared) -> None:
    """What reaches the driver is of the same type, with the same arguments and the same last line."""
    plain, timed = shared(Plain), shared(Timed)
    errors = []
    for call in (plain.fail, timed.fails):
        with pytest.raises(Failure) as caught:
            ray.get(call.remote("a prompt"))
        errors.append(caught.value)
    without, with_us = errors
    assert type(with_us).__name__ == type(without).__name__ == "RayTaskError(Failure)"
    assert type(with_us.cause) is type(without.cause) is Failure
    assert with_us.cause.args == without.cause.args == ("a prompt", 7)
    assert (
        with_us.args == without.args
        or str(with_us).splitlines()[-1] == (str(without).splitlines()[-1])
    )
    (call,) = observed.calls(timed, 1, "fails")
    assert call.error
    (span,) = observed.spans(timed, 1, "rl.worker.fails")
    assert span["status"] == {"code": 2}
    assert attributes(span)["error.type"] == "Failure"
    assert "prompt" not in str(span) + str(observed.lines(timed))


def test_task(observed) -> None:
    """A timed function that is a task: its process is a worker that has no actor."""
    assert ray.get(ray.remote(num_cpus=0)(reward).remote("abc")) == 3

    def found() -> list[list[Any]]:
        files = (observed.run.path / "workers").glob("task-*.jsonl")
        return [lines for file in files if len(lines := observed.read(file)) > 1]

    until(found)
    ((joined, call),) = found()
    assert (joined.role, joined.actor_id, call.method) == ("task", None, "reward")
