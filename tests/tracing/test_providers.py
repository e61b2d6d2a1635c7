"""Our spans, the user's spans, spans of other libraries: in one provider or apart."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from opentelemetry import trace
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, TraceIdRatioBased

import otel_grpo
from otel_grpo.records.model import FOREIGN
from otel_grpo.testing import FakeClock, RecordedRun, recorded_run


@pytest.fixture
def exported() -> InMemorySpanExporter:
    """What the user's back end got."""
    return InMemorySpanExporter()


@pytest.fixture
def provider(exported: InMemorySpanExporter) -> Iterator[TracerProvider]:
    """The user's own provider."""
    made = TracerProvider(shutdown_on_exit=False)
    made.add_span_processor(SimpleSpanProcessor(exported))
    yield made
    made.shutdown()


def names(recorded: RecordedRun) -> list[str]:
    return sorted(span["name"] for span in recorded.spans)


def train(recorded: RecordedRun, clock: FakeClock) -> None:
    with recorded.run.iteration() as it:
        with it.phase("generation"):
            clock.advance(2)
            with it.phase("reward"):
                clock.advance(1)
        with it.update():
            clock.advance(1)


COMPLETE = ["rl.loop", "rl.optimizer_step", "rl.reward", "rl.run", "rl.sample"]


def check_complete(recorded: RecordedRun) -> None:
    """The files hold every span and the whole account."""
    assert names(recorded) == COMPLETE
    metrics = recorded.rollouts[0].metrics
    assert metrics["phase.generation.busy_ns"] == 3 * 10**9
    assert metrics["phase.reward.busy_ns"] == 10**9
    assert metrics["time.unattributed_ns"] == 0
    assert len(recorded.trains) == 1


def test_span_with_a_phase_of_another_library(clock: FakeClock, provider: TracerProvider) -> None:
    """A span of anybody with `rl.phase` counts, flagged; without, it is counted and left out."""
    tracer = provider.get_tracer("vllm")
    with recorded_run(clock=clock, tracer_provider=provider) as recorded:
        with recorded.run.iteration() as it, it.phase("generation"):
            span = tracer.start_span(
                "llm", attributes={"rl.phase": "prefill"}, start_time=clock.now()
            )
            clock.advance(1)
            span.end(clock.now())
            late = tracer.start_span("llm", start_time=clock.now())
            clock.advance(1)
            late.set_attribute("rl.phase", "decode")  # told only once it runs
            late.end(clock.now())
            for _ in range(2):
                tracer.start_span("http", start_time=clock.now()).end(clock.now())
            clock.advance(1)
    (record,) = recorded.rollouts
    rows = {row[2]: row for row in record.attributes.intervals}
    assert rows["prefill"][6] == rows["decode"][6] == FOREIGN == 4
    assert rows["generation"][6] == 0
    assert rows["prefill"][1] == rows["decode"][1] == rows["generation"][0]
    assert record.attributes.foreign_spans == 2
    assert record.metrics["phase.prefill.busy_ns"] == 10**9
    assert record.metrics["phase.decode.exposed_ns"] == 10**9
    assert record.metrics["phase.generation.self_exposed_ns"] == 10**9


def test_foreign_spans_are_counted_in_their_window(provider: TracerProvider) -> None:
    """What ended between two windows is not the second window's."""
    tracer = provider.get_tracer("other")
    with recorded_run(tracer_provider=provider) as recorded:
        tracer.start_span("before").end()
        with recorded.run.iteration():
            tracer.start_span("inside").end()
        tracer.start_span("between").end()
        with recorded.run.iteration():
            pass
    assert [record.attributes.foreign_spans for record in recorded.rollouts] == [1, 0]


def test_our_spans_are_current_in_a_shared_provider(
    clock: FakeClock, provider: TracerProvider, exported: InMemorySpanExporter
) -> None:
    """The user's spans inside our phases are their children, and his back end gets both."""
    tracer = provider.get_tracer("mine")
    with recorded_run(clock=clock, tracer_provider=provider) as recorded:
        with recorded.run.iteration() as it:
            loop = trace.get_current_span()
            with tracer.start_as_current_span("in the loop"):
                pass
            with it.phase("generation") as phase:
                assert trace.get_current_span() is phase.span
                with tracer.start_as_current_span("request"), it.phase("reward"):
                    pass
    assert not trace.get_current_span().get_span_context().is_valid
    spans = {span.name: span for span in exported.get_finished_spans()}
    assert set(spans) >= {"rl.sample", "rl.reward", "rl.loop", "request", "in the loop"}
    request = spans["request"]
    assert request.parent is not None
    assert request.parent.span_id == spans["rl.sample"].context.span_id
    assert request.context.trace_id == spans["rl.loop"].context.trace_id
    assert spans["in the loop"].parent == loop.get_span_context()
    assert spans["rl.loop"].context == loop.get_span_context()
    assert len(recorded.rollouts) == 1


@pytest.mark.parametrize("sampler", [TraceIdRatioBased(0.0), ALWAYS_OFF])
def test_samplers_steer_the_back_end_alone(
    clock: FakeClock, exported: InMemorySpanExporter, sampler: TraceIdRatioBased
) -> None:
    """With nothing sampled the user's back end is empty and the files are complete."""
    provider = TracerProvider(sampler=sampler, shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exported))
    with recorded_run(clock=clock, tracer_provider=provider) as recorded:
        train(recorded, clock)
        with recorded.run.iteration() as it, it.phase("data") as phase:
            assert trace.get_current_span() is phase.span
    assert exported.get_finished_spans() == ()
    assert names(recorded) == sorted([*COMPLETE, "rl.data", "rl.loop"])
    assert recorded.rollouts[0].metrics["phase.generation.busy_ns"] == 3 * 10**9


def test_disabled_provider_is_recorded_around(
    clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`OTEL_SDK_DISABLED` makes the user's provider a no-op, not the record."""
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    provider = TracerProvider(shutdown_on_exit=False)
    with recorded_run(clock=clock, tracer_provider=provider) as recorded:
        train(recorded, clock)
    check_complete(recorded)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("OTEL_SDK_DISABLED", "true"),
        ("OTEL_TRACES_SAMPLER", "always_off"),
        ("OTEL_TRACES_SAMPLER", "traceidratio"),
        ("OTEL_TRACES_EXPORTER", "none"),
        ("OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT", "1"),
        ("OTEL_ATTRIBUTE_COUNT_LIMIT", "0"),
        ("OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT", "3"),
        ("OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT", "3"),
        ("OTEL_SPAN_LINK_COUNT_LIMIT", "0"),
        ("OTEL_RESOURCE_ATTRIBUTES", "rl.run.id=other,team=a"),
    ],
)
def test_environment_does_not_touch_the_files(
    clock: FakeClock, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    """Variables of the SDK steer exporters; the record is whole whatever they say."""
    monkeypatch.setenv(name, value)
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", "0")
    with recorded_run(clock=clock) as recorded:
        train(recorded, clock)
    check_complete(recorded)
    (loop,) = [span for span in recorded.spans if span["name"] == "rl.loop"]
    attributes = {item["key"]: item["value"] for item in loop["attributes"]}
    assert attributes["rl.window.status"] == {"stringValue": "complete"}
    assert attributes["rl.run.id"] == {"stringValue": recorded.run.run_id}
    assert len(loop["links"]) == 1


def test_disabled_by_our_own_variable(
    clock: FakeClock, monkeypatch: pytest.MonkeyPatch, tmp_path
) -> None:
    """`OTEL_GRPO_DISABLED=true` leaves no trace: no file, no thread, every call a no-op."""
    import threading

    before = set(threading.enumerate())
    monkeypatch.setenv("OTEL_GRPO_DISABLED", "TRUE")
    with otel_grpo.start_run(tmp_path / "run", trainer="loop") as run:
        assert otel_grpo.current_run() is None
        with run.iteration() as it, it.phase("generation"), otel_grpo.phase("reward"):
            samples = it.consumed("a", prompt_lengths=[1, 2])
            assert list(samples[:1]) == [("a", 0)]
            it.trained(samples)
            with it.update(samples) as update:
                update.skip("overflow")
            it.publication(1).completed()
            it.generated("a", 2)
            it.discarded("stale", 1)
            it.memory()
            run.log_scalars({"loss": 1})
    assert not (tmp_path / "run").exists()
    assert set(threading.enumerate()) == before


def test_private_provider_leaves_the_users_tracing_alone(
    clock: FakeClock, provider: TracerProvider, exported: InMemorySpanExporter
) -> None:
    """The user's spans are no children of ours, ours none of his; his context is as he left it."""
    tracer = provider.get_tracer("mine")
    global_provider = trace.get_tracer_provider()
    with recorded_run(clock=clock) as recorded:
        with tracer.start_as_current_span("his root") as root, recorded.run.iteration() as it:
            with it.phase("generation"):
                assert trace.get_current_span() is root
                with tracer.start_as_current_span("his request") as request:
                    with it.phase("reward"):
                        assert trace.get_current_span() is request
            assert trace.get_current_span() is root
    assert trace.get_tracer_provider() is global_provider
    assert [span.name for span in exported.get_finished_spans()] == ["his request", "his root"]
    his = exported.get_finished_spans()
    assert his[0].parent is not None
    assert his[0].parent.span_id == his[1].context.span_id
    assert names(recorded) == ["rl.loop", "rl.reward", "rl.run", "rl.sample"]
    by_name = {span["name"]: span for span in recorded.spans}
    assert by_name["rl.reward"]["parentSpanId"] == by_name["rl.sample"]["spanId"]
    assert his[0].context.trace_id != int(by_name["rl.loop"]["traceId"], 16)


def test_provider_outlives_the_run(
    clock: FakeClock, provider: TracerProvider, exported: InMemorySpanExporter
) -> None:
    """After the run the user's provider works as before; a second run in it counts for itself."""
    tracer = provider.get_tracer("mine")
    with recorded_run(clock=clock, tracer_provider=provider) as first:
        train(first, clock)
    exported.clear()
    with tracer.start_as_current_span("after"):
        pass
    assert [span.name for span in exported.get_finished_spans()] == ["after"]
    with recorded_run(clock=clock, tracer_provider=provider) as second:
        train(second, clock)
    check_complete(first)
    check_complete(second)


def test_processor_that_fails_costs_no_record(clock: FakeClock, provider: TracerProvider) -> None:
    """A fault of the user's own processor on our spans is counted; phases end, windows are recorded."""

    class Failing(SpanProcessor):
        def on_end(self, span: ReadableSpan) -> None:
            if span.name in ("rl.loop", "rl.sample"):
                raise OSError("no back end")

    provider.add_span_processor(Failing())
    with recorded_run(clock=clock, tracer_provider=provider, strict=False) as recorded:
        train(recorded, clock)
        assert trace.get_current_span() is trace.INVALID_SPAN
    (record,) = recorded.rollouts
    assert record.metrics["phase.generation.busy_ns"] == 3 * 10**9
    assert record.metrics["phase.optimizer.busy_ns"] == record.metrics["phase.optimizer.top_ns"]
    assert all(row[4] is not None for row in record.attributes.intervals)
    assert recorded.summary.observed.errors == {"phase.stop": 1, "loop_span": 1}


def test_resource_names_the_run(
    clock: FakeClock, monkeypatch: pytest.MonkeyPatch, read_otlp, tmp_path
) -> None:
    """The resource of our spans says which run, trainer and role they are of."""
    monkeypatch.setenv("OTEL_SERVICE_NAME", "my-service")
    with recorded_run(
        tmp_path / "run", clock=clock, trainer="loop", algorithm="grpo", trainer_version="1.2"
    ) as recorded:
        train(recorded, clock)
    import json

    (file,) = (tmp_path / "run" / "spans").glob("*.jsonl")
    first = json.loads(file.read_bytes().splitlines()[0])
    attributes = {
        item["key"]: next(iter(item["value"].values()))
        for item in first["resourceSpans"][0]["resource"]["attributes"]
    }
    assert attributes["service.name"] == "my-service"
    assert attributes["rl.system"] == "loop"
    assert attributes["rl.system.version"] == "1.2"
    assert attributes["rl.algorithm"] == "grpo"
    assert attributes["rl.run.id"] == recorded.run.run_id
    assert attributes["rl.world_size"] == "1"
    assert attributes["service.instance.id"]
    assert Resource.create().attributes["service.instance.id"] != attributes["service.instance.id"]
