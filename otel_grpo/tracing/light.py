"""Spans for our files alone: all that a phase costs the training thread is a few small objects.

An SDK span is made for samplers, limits and exporters, and costs some six times as much. Here the
rest of the work, from the mapping of attributes to the line of ``spans/``, is the writer's thread's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, Span, SpanContext, Status, StatusCode, TraceFlags

from otel_grpo import semconv
from otel_grpo._version import __version__
from otel_grpo.tracing import lanes
from otel_grpo.tracing.account import Row
from otel_grpo.tracing.ids import GENERATOR
from otel_grpo.tracing.otlp_json import encode
from otel_grpo.tracing.spans import flags_at_end, flags_at_start

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from opentelemetry.sdk.resources import Resource

    from otel_grpo.core.clock import Clock
    from otel_grpo.tracing.account import Account
    from otel_grpo.tracing.spans import Parent

_SAMPLED = TraceFlags(TraceFlags.SAMPLED)
_UNSET = Status(StatusCode.UNSET)
_SCOPE = InstrumentationScope(semconv.SCOPE, __version__)


class LightSpan(Span):
    """An OpenTelemetry span that no sampler, limit or exporter sees. `LightSpans` makes it."""

    __slots__ = (
        "_common", "_events", "_given", "_later", "_links", "_maker", "_name", "_parent_id",
        "_start_ns", "end_ns", "phase", "span_id", "status", "trace_id",
    )  # fmt: skip

    def __init__(
        self,
        maker: LightSpans,
        trace_id: int,
        span_id: int,
        parent_id: int | None,
        name: str,
        common: Mapping[str, Any],
        start_ns: int,
        phase: str | None,
        given: Mapping[str, Any] | None,
        links: Sequence[Link],
    ) -> None:
        self.trace_id = trace_id
        self.span_id = span_id
        self.phase = phase
        self.end_ns: int | None = None
        self.status = _UNSET
        self._maker = maker
        self._parent_id = parent_id
        self._name = name
        self._start_ns = start_ns
        self._common = common
        self._given = given
        self._later: Mapping[str, Any] | None = None  # what was set while it was open
        self._links = links
        self._events: tuple[Event, ...] = ()

    def end(self, end_time: int | None = None) -> None:
        if self.end_ns is None:
            self.end_ns = self._maker.clock.now() if end_time is None else end_time
            self._maker.ended(self)

    def get_span_context(self) -> SpanContext:
        return self._context(self.span_id)

    def is_recording(self) -> bool:
        return self.end_ns is None

    def set_attribute(self, key: str, value: Any) -> None:
        self.set_attributes({key: value})

    def set_attributes(self, attributes: Mapping[str, Any]) -> None:
        if self.end_ns is None:
            # A new dict each time: another thread may be reading the last one.
            self._later = {**(self._later or {}), **self._maker.clean(attributes)}

    def set_status(self, status: Status | StatusCode, description: str | None = None) -> None:
        """As in the SDK, OK is final. The description, often an exception's text, is not kept."""
        code = status.status_code if isinstance(status, Status) else status
        final = self.status.status_code is StatusCode.OK or code is StatusCode.UNSET
        if self.end_ns is None and not final:
            self.status = Status(code)

    def update_name(self, name: str) -> None:
        if self.end_ns is None:
            self._name = name

    def add_event(
        self, name: str, attributes: Mapping[str, Any] | None = None, timestamp: int | None = None
    ) -> None:
        if self.end_ns is None:
            at = self._maker.clock.now() if timestamp is None else timestamp
            self._events += (Event(name, self._maker.clean(attributes or {}), at),)

    def add_link(self, context: SpanContext, attributes: Mapping[str, Any] | None = None) -> None:
        if self.end_ns is None and context.is_valid:
            self._links = (*self._links, Link(context, self._maker.clean(attributes or {})))

    def record_exception(
        self,
        exception: BaseException,
        attributes: Mapping[str, Any] | None = None,
        timestamp: int | None = None,
        escaped: bool = False,
    ) -> None:
        """An event with the exception's type; its text and traceback are not kept."""
        told = {"exception.type": type(exception).__qualname__, "exception.escaped": str(escaped)}
        self.add_event("exception", {**told, **(attributes or {})}, timestamp)

    def own_attributes(self) -> Mapping[str, Any]:
        """Those that only this span has: given at its start, and set since."""
        given, later = self._given or {}, self._later
        return {**given, **later} if later else given

    def readable(self) -> ReadableSpan:
        """What exporters and the encoder of lines take, as the SDK's tracer would have made it."""
        phase = {} if self.phase is None else {semconv.PHASE: self.phase}
        return ReadableSpan(
            self._name,
            context=self.get_span_context(),
            parent=None if self._parent_id is None else self._context(self._parent_id),
            resource=self._maker.resource,
            attributes={
                **(self._given or {}),
                **self._maker.found,
                **self._common,
                **phase,
                **(self._later or {}),
            },
            events=self._events,
            links=self._links,
            status=self.status,
            start_time=self._start_ns,
            end_time=self.end_ns,
            instrumentation_scope=_SCOPE,
        )

    def _context(self, span_id: int) -> SpanContext:
        return SpanContext(self.trace_id, span_id, is_remote=False, trace_flags=_SAMPLED)


class LightSpans:
    """Makes them, keeps the account of those with a phase, and hands them on when they end.

    Args:
        clock: for ends and events that come without an instant.
        write: takes each ended span.
        clean: makes attributes of what a user gave; raises nothing.
    """

    def __init__(
        self,
        account: Account,
        clock: Clock,
        resource: Resource,
        write: Callable[[LightSpan], object],
        clean: Callable[[Mapping[str, Any]], dict[str, Any]],
    ) -> None:
        self.live = True
        self.clock = clock
        self.resource = resource
        self.clean = clean
        # Attributes of all spans that may become known after they are made.
        self.found: Mapping[str, Any] = {}
        self._account = account
        self._write = write

    def start(
        self,
        name: str,
        parent: Parent | None,
        common: Mapping[str, Any],
        start_ns: int,
        phase: str | None = None,
        given: Mapping[str, Any] | None = None,
        links: Sequence[Link] = (),
    ) -> LightSpan:
        """A span that has started; see `spans.StartSpan`."""
        above = None if parent is None else parent.span
        parent_id = None
        if above is None:
            trace_id = GENERATOR.generate_trace_id()
        elif isinstance(above, LightSpan):
            trace_id, parent_id = above.trace_id, above.span_id
        else:  # in a shared provider
            context = above.get_span_context()
            trace_id, parent_id = context.trace_id, context.span_id
        span_id = GENERATOR.generate_span_id()
        if phase is not None:
            flags = flags_at_start(given) if given else 0
            row = Row(span_id, parent_id, phase, start_ns, None, lanes.current(), flags)
            self._account.start(row)
        return LightSpan(
            self, trace_id, span_id, parent_id, name, common, start_ns, phase, given, links
        )

    def ended(self, span: LightSpan) -> None:
        if not self.live:
            return
        if span.phase is not None:
            flags = flags_at_end(span.status.status_code, span.own_attributes())
            self._account.end(span.span_id, span.end_ns or 0, flags)
        self._write(span)


def encode_spans(spans: Iterable[ReadableSpan | LightSpan]) -> bytes:
    """One line of ``spans/``, without its line end."""
    return encode(span.readable() if isinstance(span, LightSpan) else span for span in spans)
