"""What is read of a span on every start, end and line."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

from opentelemetry.sdk.trace import ReadableSpan

from otel_grpo import semconv


def attributes_of(span: ReadableSpan) -> dict[str, Any]:
    """The attributes as a dict: to look one up in the SDK's mapping costs more than to copy all."""
    attributes = span.attributes
    return attributes.copy() if isinstance(attributes, MappingProxyType) else dict(attributes or {})


def is_foreign(span: ReadableSpan) -> bool:
    """Whether another library made it."""
    scope = span.instrumentation_scope
    return scope is None or scope.name != semconv.SCOPE
