"""The spans of a run as OTLP requests, from its files: the same ids, instants and attributes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, InstrumentationScope, KeyValue
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1 import trace_pb2 as pb

from otel_grpo.records.reader import BadLine, Torn
from otel_grpo.records.spans import Attribute, Request, Span, read_spans, span_files
from otel_grpo.semconv import SPAN_WORKER

#: Spans of one request at the most, as of a live view.
BATCH = 512
# The SDK's exporter sends none of these, and a back end tells by its bytes that a span came twice.
_TRACE_FLAGS = 0xFF
# Where a link leads, as the exporter says it: a worker's to the driver, any other to its own process.
_LOCAL, _REMOTE = 0x100, 0x300
# Room that a span takes beside its own bytes.
_HEADER = 8


class Spans(NamedTuple):
    """A request; ``torn`` lines were met on the way to it."""

    request: ExportTraceServiceRequest
    n: int
    torn: int = 0


def span_requests(run_dir: Path, limit: int) -> Iterator[Spans]:
    """All spans of a run in requests of at most `limit` bytes, unless a single one is larger.

    Raises `reader.BadInput`.
    """
    for path in span_files(run_dir):
        request, n, size, torn = ExportTraceServiceRequest(), 0, 0, 0
        for line in read_spans(path):
            if isinstance(line, Torn):
                torn += 1
                continue
            try:
                parts = list(_parts(line.value))
            except (TypeError, ValueError, AttributeError, LookupError) as error:
                why = f"holds what no span has ({type(error).__name__}: {error})"
                raise BadLine(path, line.line.number, why) from error
            for resource, scope, span in parts:
                own = span.ByteSize() + _HEADER
                if n and (n == BATCH or size + own > limit):
                    yield Spans(request, n)
                    request, n, size = ExportTraceServiceRequest(), 0, 0
                size += own + _add(request, resource, scope, span)
                n += 1
        if n or torn:
            yield Spans(request, n, torn)


def _parts(line: Request) -> Iterator[tuple[Resource, InstrumentationScope, pb.Span]]:
    for of_resource in line.resource_spans:
        resource = resource_of(of_resource.resource.attributes)
        for of_scope in of_resource.scope_spans:
            scope = InstrumentationScope(name=of_scope.scope.name, version=of_scope.scope.version)
            for span in of_scope.spans:
                yield resource, scope, _span(span)


def _add(
    request: ExportTraceServiceRequest,
    resource: Resource,
    scope: InstrumentationScope,
    span: pb.Span,
) -> int:
    """Adds it beside those of the same resource and scope; what a new group takes in bytes."""
    size = 0
    groups = request.resource_spans
    if not groups or groups[-1].resource != resource:
        groups.add(resource=resource)
        size += resource.ByteSize() + _HEADER
    scopes = groups[-1].scope_spans
    if not scopes or scopes[-1].scope != scope:
        scopes.add(scope=scope)
        size += scope.ByteSize() + _HEADER
    scopes[-1].spans.append(span)
    return size


def halves(request: ExportTraceServiceRequest) -> Iterator[Spans]:
    """Two requests with the spans of one; itself where there is one span."""
    parts = [
        (of_resource.resource, of_scope.scope, span)
        for of_resource in request.resource_spans
        for of_scope in of_resource.scope_spans
        for span in of_scope.spans
    ]
    middle = len(parts) // 2
    for some in (parts[:middle], parts[middle:]):
        if some:
            half = ExportTraceServiceRequest()
            for part in some:
                _add(half, *part)
            yield Spans(half, len(some))


def resource_of(attributes: Iterable[Attribute]) -> Resource:
    """What made the spans."""
    return Resource(attributes=_attributes(attributes))


def _span(span: Span) -> pb.Span:
    return pb.Span(
        trace_id=bytes.fromhex(span.trace_id),
        span_id=bytes.fromhex(span.span_id),
        parent_span_id=bytes.fromhex(span.parent_span_id),
        flags=span.flags & ~_TRACE_FLAGS,
        name=span.name,
        kind=pb.Span.SpanKind.ValueType(span.kind),
        start_time_unix_nano=span.start_ns,
        end_time_unix_nano=span.end_ns,
        attributes=_attributes(span.attributes),
        dropped_attributes_count=span.dropped_attributes_count,
        events=[
            pb.Span.Event(
                time_unix_nano=int(each.time_unix_nano),
                name=each.name,
                attributes=_attributes(each.attributes),
            )
            for each in span.events
        ],
        links=[
            pb.Span.Link(
                trace_id=bytes.fromhex(each.trace_id),
                span_id=bytes.fromhex(each.span_id),
                attributes=_attributes(each.attributes),
                flags=_REMOTE if span.name.startswith(SPAN_WORKER) else _LOCAL,
            )
            for each in span.links
        ],
        status=pb.Status(code=pb.Status.StatusCode.ValueType(span.status.code)),
    )


def _attributes(attributes: Iterable[Attribute]) -> list[KeyValue]:
    return [KeyValue(key=each.key, value=_value(each.value)) for each in attributes]


def _value(value: dict[str, Any]) -> AnyValue:
    """Protobuf's JSON: 64-bit integers are strings, and so are NaN and infinity."""
    made = AnyValue()
    for kind, content in value.items():
        if kind == "stringValue":
            made.string_value = content
        elif kind == "boolValue":
            made.bool_value = content
        elif kind == "intValue":
            made.int_value = int(content)
        elif kind == "doubleValue":
            made.double_value = float(content)
        elif kind == "arrayValue":
            made.array_value.values.extend(_value(each) for each in content.get("values", ()))
        elif kind == "kvlistValue":
            for each in content.get("values", ()):
                made.kvlist_value.values.add(key=each["key"], value=_value(each["value"]))
        else:
            raise ValueError(f"a value of the kind {kind!r}")
    return made
