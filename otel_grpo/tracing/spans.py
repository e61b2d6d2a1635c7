"""What is common to the spans of all providers: how ours start, and what is read of them."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.trace import Link, Status, StatusCode

from otel_grpo import semconv
from otel_grpo.records.model import ERROR, FUSED_OPTIMIZER, NOT_DEVICE_SYNCED, OWN_LOG

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from opentelemetry.context import Context
    from opentelemetry.trace import Span


# An exception's own words, which may hold prompts.
_WORDS = ("exception.message", "exception.stacktrace")


class Parent(Protocol):
    """What a span of ours may lie below: an open phase or an iteration's window."""

    @property
    def span(self) -> Span | None: ...
    @property
    def context(self) -> Context: ...


class StartSpan(Protocol):
    """Starts a span of ours.

    Attributes are those `given` for it alone, by a user, those `common` to all spans of its window,
    and its phase; of the same key the last one counts.
    """

    def __call__(
        self,
        name: str,
        parent: Parent | None,
        common: Mapping[str, Any],
        start_ns: int,
        phase: str | None = None,
        given: Mapping[str, Any] | None = None,
        links: Sequence[Link] = (),
    ) -> Span: ...


class Ended(Protocol):
    """What is over, and becomes a span on the writer's thread."""

    def readable(self) -> ReadableSpan: ...


def name_of(phase: str) -> str:
    """Name of the span of a phase."""
    return semconv.SPAN_OF_PHASE.get(phase) or f"rl.{phase}"


def attributes_of(span: ReadableSpan) -> dict[str, Any]:
    """The attributes as a dict: to look one up in the SDK's mapping costs more than to copy all."""
    attributes = span.attributes
    return attributes.copy() if isinstance(attributes, MappingProxyType) else dict(attributes or {})


def is_foreign(span: ReadableSpan) -> bool:
    """Whether another library made it."""
    scope = span.instrumentation_scope
    return scope is None or scope.name != semconv.SCOPE


def leaving(span: ReadableSpan) -> ReadableSpan:
    """What of a span may leave the process: no text of exceptions.

    One of another library may hold prompts and completions, too: what says where it belongs is enough.
    """
    foreign = is_foreign(span)
    if not (foreign or span.events or span.status.description):
        return span
    attributes = attributes_of(span)
    if foreign:
        attributes = {key: value for key, value in attributes.items() if _is_ours(key)}
    return ReadableSpan(
        span.name,
        context=span.context,
        parent=span.parent,
        resource=span.resource,
        attributes=attributes,
        events=() if foreign else [_without_text(event) for event in span.events],
        links=[Link(link.context) for link in span.links] if foreign else span.links,
        kind=span.kind,
        status=Status(span.status.status_code),
        start_time=span.start_time,
        end_time=span.end_time,
        instrumentation_scope=span.instrumentation_scope,
    )


def _without_text(event: Event) -> Event:
    told = {key: value for key, value in (event.attributes or {}).items() if key not in _WORDS}
    return Event(event.name, told, event.timestamp)


def _is_ours(key: str) -> bool:
    return key.startswith("rl.") or key == semconv.ERROR_TYPE


def flags_at_start(attributes: Mapping[str, Any]) -> int:
    """Flags of a span's row while it is open."""
    return OWN_LOG if attributes.get(semconv.OWN) else 0


def flags_at_end(status: StatusCode, attributes: Mapping[str, Any]) -> int:
    """Flags of a span's row that are known once it is over."""
    flags = ERROR if status is StatusCode.ERROR else 0
    if attributes.get(semconv.OPTIMIZER_FUSED):
        flags |= FUSED_OPTIMIZER
    if attributes.get(semconv.DEVICE_SYNCED) is False:
        flags |= NOT_DEVICE_SYNCED
    return flags
