"""spans/*.jsonl is OTLP/JSON that protobuf's own reader takes, equal to what the SDK holds."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags

from otel_grpo import semconv
from otel_grpo.testing import FakeClock, recorded_run
from otel_grpo.tracing import otlp_json

Read = Callable[[Path], list[Span]]

VALUES: dict[str, Any] = {
    "string": "text",
    "empty": "",
    "true": True,
    "false": False,
    "int": 7,
    "zero": 0,
    "negative": -(2**63),
    "largest": 2**63 - 1,
    "float": 0.1,
    "whole float": 3.0,
    "tiny": 5e-324,
    "huge": 1.7976931348623157e308,
    "nan": math.nan,
    "inf": math.inf,
    "-inf": -math.inf,
    "-0": -0.0,
    "ints": (1, 2, 3),
    "floats": (0.5, math.nan),
    "strings": ("a", "日本"),
    "bools": (True, False),
    "nothing": (),
    "unicode/key 日本": "🎉\n\x00\u2028\x7f",
}


def plain(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return tuple(plain(item) for item in value.array_value.values)
    if kind == "kvlist_value":
        return {item.key: plain(item.value) for item in value.kvlist_value.values}
    return getattr(value, kind)


# The spans of a run with one phase `reward`.
OURS = {"rl.run", "rl.loop", "rl.reward", "rl.log"}


def same(ours: Any, theirs: Any) -> bool:
    """Equal in type and value; NaN equals NaN and -0.0 is not 0.0."""
    return repr(ours) == repr(theirs)


def attributes(pairs: Any) -> dict[str, Any]:
    return {pair.key: plain(pair.value) for pair in pairs}


def check(ours: Span, theirs: ReadableSpan) -> None:
    """Field by field."""
    context = theirs.context
    assert ours.trace_id == context.trace_id.to_bytes(16, "big")
    assert ours.span_id == context.span_id.to_bytes(8, "big")
    parent = b"" if theirs.parent is None else theirs.parent.span_id.to_bytes(8, "big")
    assert ours.parent_span_id == parent
    assert ours.name == theirs.name
    assert ours.kind == theirs.kind.value + 1
    assert ours.start_time_unix_nano == theirs.start_time
    assert ours.end_time_unix_nano == theirs.end_time
    assert same(attributes(ours.attributes), dict(theirs.attributes or {}))
    assert ours.flags & 0xFF == context.trace_flags
    remote = theirs.parent is not None and theirs.parent.is_remote
    assert ours.flags & 0x300 == (0x300 if remote else 0x100)
    assert len(ours.events) == len(theirs.events)
    for mine, event in zip(ours.events, theirs.events, strict=True):
        assert (mine.name, mine.time_unix_nano) == (event.name, event.timestamp)
        assert same(attributes(mine.attributes), dict(event.attributes or {}))
    assert len(ours.links) == len(theirs.links)
    for linked, link in zip(ours.links, theirs.links, strict=True):
        assert linked.trace_id == link.context.trace_id.to_bytes(16, "big")
        assert linked.span_id == link.context.span_id.to_bytes(8, "big")
        assert same(attributes(linked.attributes), dict(link.attributes or {}))
    assert ours.status.code == theirs.status.status_code.value
    assert ours.status.message == ""  # it may be the text of an exception
    assert ours.dropped_attributes_count == theirs.dropped_attributes


def test_spans_are_the_sdks(clock: FakeClock, tmp_path: Path, read_otlp: Read) -> None:
    """Each span of ours in the files equals the span that the SDK gave to another processor."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracer = provider.get_tracer(semconv.SCOPE, "1.0")
    remote = SpanContext(2**127 + 5, 77, is_remote=True, trace_flags=TraceFlags(1))
    with recorded_run(tmp_path / "run", clock=clock, tracer_provider=provider) as recorded:
        with recorded.run.iteration() as it:
            with it.phase("reward", attributes=VALUES):
                clock.advance(1)
            with it.phase("generation"), it.update():
                clock.advance(1)
            span = tracer.start_span(
                "other", kind=SpanKind.PRODUCER, attributes=VALUES,
                links=[Link(remote, {"a": 1}), Link(remote)], start_time=clock.now(),
            )  # fmt: skip
            span.add_event("event", VALUES, timestamp=clock.now())
            span.add_event("bare")
            span.set_status(Status(StatusCode.ERROR, "why"))
            span.end(clock.now() + 5)
            tracer.start_span("ok").set_status(Status(StatusCode.OK))
            ok = tracer.start_span("ok", attributes={f"k{n}": n for n in range(200)})
            ok.set_status(Status(StatusCode.OK))
            ok.end()
    theirs = {span.context.span_id: span for span in exporter.get_finished_spans()}
    ours = {int.from_bytes(span.span_id, "big"): span for span in read_otlp(tmp_path / "run")}
    # rl.run is ours alone: it is no part of the user's traces.
    extra = set(ours) - set(theirs)
    assert [ours[key].name for key in extra] == ["rl.run"]
    assert set(theirs) <= set(ours)
    assert len(theirs) == 6
    for key, span in theirs.items():
        check(ours[key], span)


def test_span_tree(clock: FakeClock, tmp_path: Path, read_otlp: Read) -> None:
    """One trace per iteration, linked to the run's; the figures of the window stand on its span."""
    with recorded_run(tmp_path / "run", clock=clock) as recorded:
        for _ in range(2):
            with recorded.run.iteration() as it:
                with it.phase("generation"):
                    clock.advance(3)
                samples = it.consumed(it.number, prompt_lengths=[2], completion_lengths=[5])
                it.trained(samples)
                with it.phase("log"):
                    clock.advance(1)
                with it.update():
                    pass
                it.publication(it.number).completed()
    spans = read_otlp(tmp_path / "run")
    (run,) = [span for span in spans if span.name == "rl.run"]
    loops = [span for span in spans if span.name == "rl.loop"]
    assert len({span.trace_id for span in (run, *loops)}) == 3
    for number, loop in enumerate(loops, 1):
        assert loop.parent_span_id == b""
        assert [(link.trace_id, link.span_id) for link in loop.links] == [
            (run.trace_id, run.span_id)
        ]
        children = [span for span in spans if span.parent_span_id == loop.span_id]
        assert [child.name for child in children] == ["rl.sample", "rl.log", "rl.optimizer_step"]
        for span in (loop, *children):
            told = attributes(span.attributes)
            assert told["rl.run.id"] == recorded.run.run_id
            assert told["rl.loop.iteration"] == number
            assert (told["rl.role"], told["rl.rank"]) == ("driver", 0)
        told = attributes(loop.attributes)
        assert told["rl.duration.wall"] == 4.0
        assert told["rl.duration.logical"] == told["rl.duration.work"] == 3.0
        assert told["rl.duration.log"] == 1.0
        assert told["rl.duration.unattributed"] == 0.0
        assert told["rl.samples.consumed"] == told["rl.samples.visits"] == 1
        assert told["rl.updates.applied"] == 1
        assert told["rl.optimizer.step"] == told["rl.weights.version"] == number
        assert told["rl.tokens"] == 7
        assert told["rl.window.status"] == "complete"
        record = recorded.rollouts[number - 1]
        assert record.trace_id == loop.trace_id.hex()
        assert record.span_id == loop.span_id.hex()
        assert recorded.trains[number - 1].span_id == children[2].span_id.hex()


def test_lines_are_requests(clock: FakeClock, tmp_path: Path) -> None:
    """Each line is one ExportTraceServiceRequest with hex ids and 64-bit integers as strings."""
    with recorded_run(tmp_path / "run", clock=clock) as recorded, recorded.run.iteration() as it:
        with it.phase("generation", attributes={"n": 1}):
            clock.advance(1)
    (file,) = (tmp_path / "run" / "spans").iterdir()
    assert file.name.startswith("driver-0-")
    for line in file.read_bytes().splitlines():
        (group,) = json.loads(line)["resourceSpans"]
        assert group["resource"]["attributes"]
        for span in group["scopeSpans"][0]["spans"]:
            assert len(span["traceId"]) == 32
            assert len(span["spanId"]) == 16
            assert span["startTimeUnixNano"].isdecimal()
            for attribute in span["attributes"]:
                (kind,) = attribute["value"]
                assert kind != "intValue" or isinstance(attribute["value"][kind], str)


def test_what_others_put_on_spans(clock: FakeClock, tmp_path: Path, read_otlp: Read) -> None:
    """Spans of other libraries may hold what UTF-8 can't, bytes or objects: no line is lost."""
    provider = TracerProvider(shutdown_on_exit=False)
    tracer = provider.get_tracer("other \udce9", "\ud800")
    with recorded_run(tmp_path / "run", clock=clock, tracer_provider=provider) as recorded:
        with recorded.run.iteration():
            span = tracer.start_span(
                "broken \ud800",
                attributes={"rl.key \ud801": "value \ud802", "rl.phase": "phase \ud803"},
                start_time=clock.now(),
            )
            span._attributes["rl.bytes"] = b"\xff"  # type: ignore[attr-defined, index]
            span._attributes["rl.big"] = 2**70  # type: ignore[attr-defined, index]
            span.add_event("event \ud804", {"k": "\ud805"})
            span.set_status(Status(StatusCode.ERROR, "why \ud806"))
            clock.advance(1)
            span.end(clock.now())
    assert recorded.summary.observed.errors == {}
    assert recorded.rollouts[0].metrics["phase.phase ?.busy_ns"] == 10**9
    (span,) = [span for span in read_otlp(tmp_path / "run") if span.name.startswith("broken")]
    told = attributes(span.attributes)
    assert told["rl.key ?"] == "value ?"
    assert told["rl.bytes"] == "<bytes>"
    assert told["rl.big"] == str(2**70)
    assert span.status.message == ""


def test_content_of_other_libraries(tmp_path: Path) -> None:
    """Prompts, completions and the texts of exceptions stay out of the files, whoever records them."""
    provider = TracerProvider(shutdown_on_exit=False)
    tracer = provider.get_tracer("other")
    with recorded_run(tmp_path / "run", tracer_provider=provider) as recorded:
        with recorded.run.iteration() as it, it.phase("reward"), contextlib.suppress(ValueError):
            with tracer.start_as_current_span("chat", attributes={"gen_ai.prompt": "secret"}):
                pass
            with tracer.start_as_current_span(
                "judge",
                attributes={"rl.phase": "judge", "rl.n": 2, "gen_ai.completion": "secret"},
                links=[Link(SpanContext(5, 6, is_remote=True), {"gen_ai.prompt": "secret"})],
            ) as span:
                span.add_event("choice", {"text": "secret"})
                raise ValueError("a secret prompt")
    assert "secret" not in "".join(
        file.read_text() for file in (tmp_path / "run").rglob("*") if file.is_file()
    )
    (judge,) = [span for span in recorded.spans if span["name"] not in OURS]
    assert (judge["name"], judge["status"]) == ("judge", {"code": StatusCode.ERROR.value})
    assert "events" not in judge
    assert judge["links"] == [{"traceId": f"{5:032x}", "spanId": f"{6:016x}", "attributes": []}]
    assert {attribute["key"] for attribute in judge["attributes"]} == {"rl.phase", "rl.n"}
    assert recorded.rollouts[0].attributes.foreign_spans == 1


def test_empty_batch() -> None:
    """An empty batch is a request of nothing."""
    assert json.loads(otlp_json.encode([])) == {"resourceSpans": []}
