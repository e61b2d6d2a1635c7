"""Requests that receivers take: what is encoded stays below their size limit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.metrics.v1.metrics_pb2 import ResourceMetrics, ScopeMetrics

from otel_grpo import semconv
from otel_grpo.otlp.answer import MAX_BYTES
from otel_grpo.tracing.light import finished

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric
    from opentelemetry.sdk.metrics.export import MetricsData
    from opentelemetry.sdk.trace import ReadableSpan

    from otel_grpo.tracing.spans import Ended

#: Characters that are left of a text that is cut.
KEPT = 256
# Bytes that a message takes beside its own: its tag and its length, and those of the messages around.
_HEADER, _NESTING = 6, 18


def encoded_spans(spans: Sequence[ReadableSpan | Ended]) -> bytes:
    """The body of one request."""
    return encode_spans([finished(span) for span in spans]).SerializeToString()


def cut_span(span: ReadableSpan | Ended, limit: int, told: Callable[[str], object]) -> bytes | None:
    """The body of a request with one span that is too large, cut to `limit` bytes.

    The largest attributes go first (of a text the beginning is kept), then its events and links;
    the span says which in its attribute ``rl.telemetry.cut``. None if that is not enough.
    """
    request = encode_spans([finished(span)])
    message = request.resource_spans[0].scope_spans[0].spans[0]
    size = request.ByteSize()
    cut = message.attributes.add(key=semconv.CUT).value.array_value.values

    def still_too_large() -> bool:
        return request.ByteSize() > limit

    for each in sorted(message.attributes[:-1], key=lambda each: -each.ByteSize()):
        if still_too_large():
            text = each.value.string_value[:KEPT]
            each.value.Clear()
            if text:
                each.value.string_value = text
            cut.add(string_value=each.key)
    for field in ("events", "links"):
        if still_too_large() and len(getattr(message, field)):
            message.ClearField(field)
            cut.add(string_value=field)
    if still_too_large():
        return None
    names = ", ".join(each.string_value for each in cut)
    told(f"span {message.name} has {size} bytes, more than a receiver takes: {names} cut")
    return request.SerializeToString()


def encoded_metrics(data: MetricsData, limit: int = MAX_BYTES) -> list[bytes]:
    """The bodies of as few requests as it takes; no metric is torn apart."""
    whole = encode_metrics(data)
    if whole.ByteSize() <= limit:
        return [whole.SerializeToString()]
    return [
        _request(resource, scope, part).SerializeToString()
        for resource in whole.resource_metrics
        for scope in resource.scope_metrics
        for part in _parts(scope.metrics, limit - _request(resource, scope, []).ByteSize())
    ]


def _request(
    resource: ResourceMetrics, scope: ScopeMetrics, metrics: Sequence[Metric]
) -> ExportMetricsServiceRequest:
    part = ScopeMetrics(scope=scope.scope, schema_url=scope.schema_url, metrics=metrics)
    whole = ResourceMetrics(
        resource=resource.resource, schema_url=resource.schema_url, scope_metrics=[part]
    )
    return ExportMetricsServiceRequest(resource_metrics=[whole])


def _parts(metrics: Iterable[Metric], room: int) -> Iterator[list[Metric]]:
    part: list[Metric] = []
    size = _NESTING
    for metric in metrics:
        own = metric.ByteSize() + _HEADER
        if part and size + own > room:
            yield part
            part, size = [], _NESTING
        part.append(metric)
        size += own
    yield part
