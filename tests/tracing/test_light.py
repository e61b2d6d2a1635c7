"""Spans for the files alone: to users they are OpenTelemetry's, in the files they are the SDK's."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from operator import itemgetter
from typing import Any

import pytest
from opentelemetry import propagate, trace
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.trace import SpanContext, Status, StatusCode, TraceFlags

import otel_grpo
from otel_grpo.records.model import ERROR, FOREIGN, FUSED_OPTIMIZER, NOT_DEVICE_SYNCED, OWN_LOG
from otel_grpo.testing import FakeClock, RecordedRun, recorded_run
from otel_grpo.tracing.provider import RecordingProvider

REMOTE = SpanContext(2**127 + 5, 77, is_remote=True, trace_flags=TraceFlags(1))


@pytest.fixture
def provider() -> Iterator[TracerProvider]:
    """Another library's own provider."""
    made = TracerProvider(shutdown_on_exit=False)
    yield made
    made.shutdown()


@otel_grpo.timed
def score() -> None:
    """A function whose calls are spans without a phase."""


def everything(recorded: RecordedRun, clock: FakeClock) -> None:
    """One of each thing that a program can do with our spans."""
    run = recorded.run
    for number in range(2):
        with run.iteration() as it:
            values = {
                "n": number,
                "share": 0.5,
                "text": "日本",
                "on": True,
                "list": [1, 2],
                "no": None,
            }
            with it.phase("generation", attributes={**values, "rl.run.id": "mine"}) as phase:
                clock.advance(1)
                span = phase.span
                assert span is not None
                span.set_attribute("later", 1)
                span.set_attributes({"later": 2, "n": 9, "more": ["a", "b"]})
                span.add_event("bare", timestamp=clock.now())
                span.add_event("full", {"k": 1}, timestamp=clock.now())
                span.add_link(REMOTE, {"a": 1})
                span.update_name("renamed")
                with it.phase("reward", attributes={"rl.reward.name": "right"}) as reward:
                    clock.advance(1)
                    score()
                    assert reward.span is not None
                    reward.span.set_status(StatusCode.OK)
                    reward.span.set_status(Status(StatusCode.ERROR))  # OK is final
            with pytest.raises(ValueError, match="a secret"), it.phase("my own"):
                clock.advance(1)
                raise ValueError("a secret")
            with it.phase("log", attributes={"rl.telemetry.own": True}):
                clock.advance(1)
            with it.phase("policy_train", attributes={"rl.device.synced": False}):
                clock.advance(1)
            with it.update(attributes={"rl.optimizer.fused": True}) as update:
                clock.advance(1)
                update.skip("overflow")
            open_at_the_end = it.phase("checkpoint").start()
            clock.advance(1)
        open_at_the_end.stop()
    with run.iteration() as it, it.phase("a tail"):
        pass


def comparable(spans: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Spans and attributes in one order, and ids numbered as they come: they are drawn."""
    spans.sort(key=itemgetter("startTimeUnixNano", "endTimeUnixNano", "name"))
    numbers: dict[str, int] = {}
    linked = [link for span in spans for link in span.get("links", ())]
    for one in (*spans, *linked):
        one["attributes"].sort(key=itemgetter("key"))
        for name in ("traceId", "spanId", "parentSpanId"):
            if name in one:
                one[name] = numbers.setdefault(one[name], len(numbers))
    return spans


def intervals(recorded: RecordedRun) -> list[Any]:
    return [[row[2:] for row in record.attributes.intervals] for record in recorded.rollouts]


def test_files_are_those_of_the_sdk() -> None:
    """The same program writes the same spans and the same account, whoever made its spans."""
    seen = []
    for shared in (None, RecordingProvider(Resource.create())):
        clock = FakeClock()
        with recorded_run(clock=clock, run_id="r", tracer_provider=shared) as recorded:
            everything(recorded, clock)
        seen.append(recorded)
    light, sdk = seen
    lanes = {row[-2] for recorded in seen for record in intervals(recorded) for row in record}
    assert len(lanes) == 1
    assert intervals(light) == intervals(sdk)
    assert len(light.spans) == 1 + 3 + 2 * 8 + 1
    assert comparable(light.spans) == comparable(sdk.spans)
    assert [record.metrics for record in light.rollouts] == [r.metrics for r in sdk.rollouts]


def test_rows_say_what_the_spans_say(clock: FakeClock) -> None:
    """Flags of the rows by hand: own log, error, fused optimizer, device work outstanding."""
    with recorded_run(clock=clock) as recorded:
        everything(recorded, clock)
    rows = {row[2]: row[6] for row in recorded.rollouts[1].attributes.intervals if row[4]}
    assert rows["log"] == OWN_LOG
    assert rows["my own"] == ERROR
    assert rows["optimizer"] == FUSED_OPTIMIZER
    assert rows["policy_train"] == NOT_DEVICE_SYNCED
    assert rows["generation"] == rows["reward"] == 0


def test_is_a_span_to_other_libraries(clock: FakeClock, provider: TracerProvider) -> None:
    """Another library's span below a phase is its child, and its ids go over the wire."""
    tracer = provider.get_tracer("other")
    with recorded_run(clock=clock) as recorded:
        with recorded.run.iteration() as it, it.phase("generation") as phase:
            span = phase.span
            assert span is phase.span
            assert isinstance(span, trace.Span)
            assert not isinstance(span, ReadableSpan)  # none of the SDK's was made
            assert {span: 1}[span] == 1
            child = tracer.start_span("child", phase.context)
            assert isinstance(child, ReadableSpan)
            grandchild = tracer.start_span("below", trace.set_span_in_context(child))
            with trace.use_span(span, end_on_exit=False):
                beside = tracer.start_span("beside")
            carrier: dict[str, str] = {}
            propagate.inject(carrier, phase.context)
    (loop,) = (span for span in recorded.spans if span["name"] == "rl.loop")
    (ours,) = (span for span in recorded.spans if span["name"] == "rl.sample")
    trace_id, span_id = int(ours["traceId"], 16), int(ours["spanId"], 16)
    for one in (child, beside):
        assert isinstance(one, ReadableSpan)
        assert one.parent is not None
        assert (one.parent.trace_id, one.parent.span_id) == (trace_id, span_id)
        assert one.parent.is_valid
        assert one.parent.trace_flags.sampled
    assert grandchild.get_span_context().trace_id == trace_id
    assert carrier["traceparent"] == f"00-{ours['traceId']}-{ours['spanId']}-01"
    assert ours["parentSpanId"] == loop["spanId"]


def test_user_spans_of_the_runs_provider(clock: FakeClock) -> None:
    """What a user makes with the run's own provider is accounted for below our phases."""
    with recorded_run(clock=clock) as recorded:
        tracer = recorded.run.tracer_provider.get_tracer("mine")
        with recorded.run.iteration() as it, it.phase("generation") as phase:
            mine = tracer.start_span(
                "prefill", phase.context, attributes={"rl.phase": "prefill"}, start_time=clock.now()
            )
            clock.advance(2)
            mine.end(clock.now())
            tracer.start_span("http", phase.context).end(clock.now())
            clock.advance(1)
    (record,) = recorded.rollouts
    rows = {row[2]: row for row in record.attributes.intervals}
    assert rows["prefill"][1] == rows["generation"][0]
    assert (rows["prefill"][6], rows["generation"][6]) == (FOREIGN, 0)
    assert record.attributes.foreign_spans == 1
    spans = {span["name"]: span for span in recorded.spans}
    assert set(spans) == {"rl.run", "rl.loop", "rl.sample", "prefill"}
    assert spans["prefill"]["parentSpanId"] == spans["rl.sample"]["spanId"]
    assert spans["prefill"]["traceId"] == spans["rl.loop"]["traceId"]


def test_what_is_over_stays_as_it_is(clock: FakeClock) -> None:
    """A span that its user ended is written once, with his end; later calls change nothing."""
    with recorded_run(clock=clock) as recorded:
        with recorded.run.iteration() as it, it.phase("generation") as phase:
            span = phase.span
            assert span is not None
            assert span.is_recording()
            clock.advance(2)
            span.end()
            clock.advance(1)
            span.end()
            span.set_attribute("late", 1)
            span.set_status(StatusCode.ERROR)
            span.update_name("late")
            span.add_event("late")
            span.add_link(REMOTE)
            assert not span.is_recording()
    (ours,) = (span for span in recorded.spans if span["name"] == "rl.sample")
    assert int(ours["endTimeUnixNano"]) - int(ours["startTimeUnixNano"]) == 2 * 10**9
    assert not {"events", "links", "status"} & set(ours)
    assert "late" not in {attribute["key"] for attribute in ours["attributes"]}
    (record,) = recorded.rollouts
    assert record.metrics["phase.generation.busy_ns"] == 2 * 10**9


@pytest.mark.parametrize("shared", [False, True])
def test_words_of_exceptions(clock: FakeClock, provider: TracerProvider, *, shared: bool) -> None:
    """An exception that a user records on our span is told by its type, never by its text."""
    with recorded_run(clock=clock, tracer_provider=provider if shared else None) as recorded:
        with recorded.run.iteration() as it, it.phase("generation") as phase:
            assert phase.span is not None
            phase.span.record_exception(ValueError("a secret prompt"), {"n": 1})
            phase.span.set_status(StatusCode.ERROR, "a secret prompt")
    (ours,) = (span for span in recorded.spans if span["name"] == "rl.sample")
    assert "secret" not in str(ours)
    (event,) = ours["events"]
    assert event["attributes"] == [
        {"key": "exception.type", "value": {"stringValue": "ValueError"}},
        {"key": "exception.escaped", "value": {"stringValue": "False"}},
        {"key": "n", "value": {"intValue": "1"}},
    ]
    assert ours["status"] == {"code": StatusCode.ERROR.value}


def test_values_that_can_not_be_read(clock: FakeClock) -> None:
    """What a user sets on a span goes through the same sieve as what he gives a phase."""

    class Tensor:
        def __str__(self) -> str:
            raise AssertionError("a tensor was read")

    with recorded_run(clock=clock, strict=False) as recorded:
        with recorded.run.iteration() as it, it.phase("generation") as phase:
            assert phase.span is not None
            phase.span.set_attribute("tensor", Tensor())
            phase.span.set_attributes(7)  # type: ignore[arg-type]
            phase.span.add_event("event", {"tensor": Tensor()})
    (ours,) = (span for span in recorded.spans if span["name"] == "rl.sample")
    named = {"stringValue": f"<{__name__}.{Tensor.__qualname__}>"}
    assert {"key": "tensor", "value": named} in ours["attributes"]
    assert ours["events"][0]["attributes"] == [{"key": "tensor", "value": named}]
    assert recorded.summary.observed.errors == {"api.attributes": 1}


def test_parent_in_another_process(clock: FakeClock) -> None:
    """A call that comes with a carrier is that span's child, and the line says that it is remote."""
    told = {"traceparent": f"00-{REMOTE.trace_id:032x}-{REMOTE.span_id:016x}-01"}
    with recorded_run(clock=clock) as recorded, recorded.run.iteration():
        score(_otel=told)  # type: ignore[call-arg]
        score()
    remote, ours = (span for span in recorded.spans if span["name"] == "rl.worker.score")
    assert (remote["traceId"], remote["parentSpanId"]) == (f"{2**127 + 5:032x}", f"{77:016x}")
    # Of the wire's flags 0x100 says that it is known whether the parent is remote, 0x200 that it is.
    assert (remote["flags"], ours["flags"]) == (0x301, 0x101)


@pytest.mark.parametrize("shared", [False, True])
def test_a_phase_is_one_interval(
    clock: FakeClock, provider: TracerProvider, *, shared: bool
) -> None:
    """A phase that is over can't be started again: that is counted, and its interval stays."""
    options = {"tracer_provider": provider if shared else None, "strict": False}
    with recorded_run(clock=clock, **options) as recorded, recorded.run.iteration() as it:
        phase = it.phase("generation")
        for _ in range(2):
            with phase:
                clock.advance(1)
    (row,) = recorded.rollouts[0].attributes.intervals
    assert row[4] - row[3] == 10**9
    assert recorded.summary.observed.errors == {"api.phase_twice": 1, "api.phase_closed": 1}


def python_calls(work: Callable[[], object]) -> int:
    """How many functions of Python `work` goes through: with cold caches they are the cost."""
    calls = 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    work()  # what is made once
    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(None)
    return calls


def test_steps_of_a_phase(clock: FakeClock, provider: TracerProvider) -> None:
    """A phase takes the training thread through less than half the functions of a bare SDK span."""
    tracer = provider.get_tracer("bare")

    def bare() -> None:
        tracer.start_span("span", attributes={"rl.phase": "generation"}).end()

    with recorded_run(clock=clock) as recorded, recorded.run.iteration() as it:

        def ours() -> None:
            with it.phase("generation"):
                pass

        assert 2 * python_calls(ours) < python_calls(bare)
