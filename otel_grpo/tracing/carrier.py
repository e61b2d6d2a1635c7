"""Where a call belongs, as a small dict that goes to another process with its arguments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from opentelemetry.context import Context
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, set_span_in_context

#: The keyword under which a call takes it along.
KEYWORD = "_otel"
#: W3C Trace Context, version 00.
PARENT = "traceparent"
ITERATION = "iteration"
_LONGEST = 19  # digits: the number must be one of 64 bits


def carrier(span: SpanContext, iteration: int) -> dict[str, str]:
    """For what happens below `span`, elsewhere, in that iteration."""
    return {PARENT: traceparent(span), ITERATION: str(iteration)}


def parent_of(carried: Any) -> SpanContext | None:
    """The span that a carrier names; None if it is no carrier."""
    return span_context(carried.get(PARENT)) if isinstance(carried, Mapping) else None


def iteration_of(carried: Any) -> int | None:
    number = carried.get(ITERATION) if isinstance(carried, Mapping) else None
    if isinstance(number, str) and number.isdecimal() and len(number) < _LONGEST:
        return int(number)
    return None


class Elsewhere:
    """A span of another process, as a parent of ours."""

    def __init__(self, span: SpanContext) -> None:
        self.span = NonRecordingSpan(span)
        self.context = set_span_in_context(self.span, Context())


def traceparent(span: SpanContext) -> str:
    return f"00-{span.trace_id:032x}-{span.span_id:016x}-{span.trace_flags:02x}"


def span_context(text: Any) -> SpanContext | None:
    """What a `traceparent` names; None if it is none."""
    parts = text.split("-") if isinstance(text, str) else []
    try:
        trace_id, span_id, flags = (int(part, 16) for part in parts[1:4])
    except ValueError:
        return None
    span = SpanContext(trace_id, span_id, is_remote=True, trace_flags=TraceFlags(flags))
    return span if span.is_valid else None
