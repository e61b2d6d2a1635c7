"""Spans as OTLP/JSON: one ExportTraceServiceRequest a line, as the OTLP file exporter writes them.

Written here because the SDK has no encoder that other packages may use beside its own pins. Format:
https://opentelemetry.io/docs/specs/otlp/#json-protobuf-encoding (ids are hex, 64-bit integers are
strings, enums are numbers, keys are lowerCamelCase).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import msgspec
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext

from otel_grpo.tracing import sanitize
from otel_grpo.tracing.spans import attributes_of

_SHORT = 128  # longer text is seldom the same twice

_encode = msgspec.json.Encoder().encode
_SAMPLED_AND_HAS_PARENT = 0x100  # flags bit 8: whether the parent is remote is known
_REMOTE_PARENT = 0x200


def encode(spans: Iterable[ReadableSpan]) -> bytes:
    """One line, without its line end, of spans that may leave the process (`spans.leaving`)."""
    resources: dict[int, tuple[Resource, dict[int, tuple[Any, list[dict[str, Any]]]]]] = {}
    for span in spans:
        _, scopes = resources.setdefault(id(span.resource), (span.resource, {}))
        scope = span.instrumentation_scope
        scopes.setdefault(id(scope), (scope, []))[1].append(_span(span))
    request = {"resourceSpans": [_resource_spans(*group) for group in resources.values()]}
    try:
        return _encode(request)
    except UnicodeEncodeError:  # lone surrogates, from file names say: no UTF-8 can hold them
        return _encode(_storable(request))


def _resource_spans(
    resource: Resource, scopes: Mapping[int, tuple[InstrumentationScope | None, list[Any]]]
) -> dict[str, Any]:
    return {
        "resource": {"attributes": _attributes(resource.attributes)},
        "scopeSpans": [
            {"scope": _scope(scope), "spans": spans} for scope, spans in scopes.values()
        ],
    }


def _scope(scope: InstrumentationScope | None) -> dict[str, Any]:
    if scope is None:
        return {}
    return {"name": scope.name, "version": scope.version or ""}


def _span(span: ReadableSpan) -> dict[str, Any]:
    context: SpanContext = span.context
    encoded: dict[str, Any] = {
        "traceId": f"{context.trace_id:032x}",
        "spanId": f"{context.span_id:016x}",
        "flags": int(context.trace_flags) | _SAMPLED_AND_HAS_PARENT,
        "name": span.name,
        "kind": span.kind.value + 1,  # the wire has an extra 0 = unspecified
        "startTimeUnixNano": str(span.start_time or 0),
        "endTimeUnixNano": str(span.end_time or 0),
        "attributes": _attributes(attributes_of(span)),
    }
    if span.parent is not None:
        encoded["parentSpanId"] = f"{span.parent.span_id:016x}"
        if span.parent.is_remote:
            encoded["flags"] |= _REMOTE_PARENT
    if span.events:
        encoded["events"] = [
            {
                "timeUnixNano": str(event.timestamp),
                "name": event.name,
                "attributes": _attributes(event.attributes or {}),
            }
            for event in span.events
        ]
    if span.links:
        encoded["links"] = [
            {
                "traceId": f"{link.context.trace_id:032x}",
                "spanId": f"{link.context.span_id:016x}",
                "attributes": _attributes(link.attributes or {}),
            }
            for link in span.links
        ]
    if span.dropped_attributes:
        encoded["droppedAttributesCount"] = span.dropped_attributes
    if span.status.status_code.value:
        encoded["status"] = {"code": span.status.status_code.value}
    return encoded


def _attributes(attributes: Mapping[str, Any]) -> list[Any]:
    return [_attribute(key, value) for key, value in attributes.items()]


def _attribute(key: str, value: Any) -> Any:
    kind = type(value)
    if kind is int or kind is bool or (kind is str and len(value) <= _SHORT):
        return _encoded(key, value)
    return {"key": key, "value": _value(value)}


# Most attributes of a run are the same in each of its spans; `typed` tells 1 from True.
@lru_cache(maxsize=1024, typed=True)
def _encoded(key: str, value: Any) -> msgspec.Raw:
    return msgspec.Raw(_encode(_storable({"key": key, "value": _value(value)})))


def _value(value: Any) -> dict[str, Any]:
    if isinstance(value, str):
        return {"stringValue": value}
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        plain = sanitize.scalar(value)
        return {"intValue": str(plain)} if isinstance(plain, int) else {"stringValue": plain}
    if isinstance(value, float):
        return {"doubleValue": value if math.isfinite(value) else _nonfinite(value)}
    if isinstance(value, Mapping):
        return {"kvlistValue": {"values": _attributes(value)}}
    if isinstance(value, Sequence) and not isinstance(value, bytes):
        return {"arrayValue": {"values": [_value(item) for item in value]}}
    # A span of another library may hold anything; its content is not ours to print.
    return {"stringValue": f"<{type(value).__qualname__}>"}


def _storable(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {_storable(key): _storable(item) for key, item in value.items()}
    return [_storable(item) for item in value] if isinstance(value, list) else value


def _nonfinite(value: float) -> str:
    """Protobuf's JSON has names for them; JSON's numbers have none."""
    if math.isnan(value):
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"
