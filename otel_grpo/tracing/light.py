"""Spans for our files alone: what a phase costs the training thread is its row in the account.

An SDK span is made for samplers, limits and exporters, and costs some six times as much. Here the
span of a phase is made by the writer's thread when the phase is over, or where somebody asks for it.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, Span, SpanContext, Status, StatusCode, TraceFlags

from otel_grpo import semconv
from otel_grpo._version import __version__
from otel_grpo.tracing import lanes, sanitize
from otel_grpo.tracing.account import Row
from otel_grpo.tracing.ids import GENERATOR
from otel_grpo.tracing.otlp_json import encode
from otel_grpo.tracing.spans import flags_at_end, flags_at_start, leaving

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from opentelemetry.sdk.resources import Resource

    from otel_grpo.core.clock import Clock
    from otel_grpo.tracing.account import Account
    from otel_grpo.tracing.spans import Ended, Parent

_SAMPLED = TraceFlags(TraceFlags.SAMPLED)
_UNSET = Status(StatusCode.UNSET)
_SCOPE = InstrumentationScope(semconv.SCOPE, __version__)


class LightSpan(Span):
    """An OpenTelemetry span that no sampler, limit or exporter sees.

    Args:
        row: its interval; one without a phase is no part of the account.
        remote: its parent is a span of another process.
        given, common: attributes, see `spans.StartSpan`.
    """

    __slots__ = (
        "_common", "_events", "_given", "_later", "_links", "_maker", "_name", "_remote", "_status",
        "row", "trace_id",
    )  # fmt: skip

    def __init__(
        self,
        maker: LightSpans,
        trace_id: int,
        row: Row,
        name: str,
        common: Mapping[str, Any],
        given: Mapping[str, Any] | None = None,
        links: Sequence[Link] = (),
        *,
        remote: bool = False,
    ) -> None:
        self.trace_id = trace_id
        self.row = row
        self._maker = maker
        self._name = name
        self._common = common
        self._given = given
        self._links = links
        self._remote = remote
        self._later: Mapping[str, Any] = {}  # what was set while it was open
        self._events: tuple[Event, ...] = ()
        self._status = _UNSET

    def end(self, end_time: int | None = None) -> None:
        if self.row.end is None:
            self._maker.ended(self, self._maker.clock.now() if end_time is None else end_time)

    def get_span_context(self) -> SpanContext:
        return self._context(self.row.id)

    def is_recording(self) -> bool:
        return self.row.end is None

    def set_attribute(self, key: str, value: Any) -> None:
        self.set_attributes({key: value})

    def set_attributes(self, attributes: Mapping[str, Any]) -> None:
        if self.row.end is None:
            # A new dict each time: another thread may be reading the last one.
            self._later = {**self._later, **self._maker.clean(attributes)}

    def set_status(self, status: Status | StatusCode, description: str | None = None) -> None:
        """As in the SDK, OK is final. The description, often an exception's text, is not kept."""
        code = status.status_code if isinstance(status, Status) else status
        final = self._status.status_code is StatusCode.OK or code is StatusCode.UNSET
        if self.row.end is None and not final:
            self._status = Status(code)

    def update_name(self, name: str) -> None:
        if self.row.end is None:
            self._name = name

    def add_event(
        self, name: str, attributes: Mapping[str, Any] | None = None, timestamp: int | None = None
    ) -> None:
        if self.row.end is None:
            at = self._maker.clock.now() if timestamp is None else timestamp
            self._events += (Event(name, self._maker.clean(attributes or {}), at),)

    def add_link(self, context: SpanContext, attributes: Mapping[str, Any] | None = None) -> None:
        if self.row.end is None and context.is_valid:
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

    def flags(self) -> int:
        """What its row says of it once it is over."""
        return flags_at_end(self._status.status_code, {**(self._given or {}), **self._later})

    def readable(self) -> ReadableSpan:
        """What exporters and the encoder of lines take, as the SDK's tracer would have made it."""
        row = self.row
        given = self._maker.clean(self._given) if self._given else {}
        phase = {semconv.PHASE: row.phase} if row.phase else {}
        return ReadableSpan(
            self._name,
            context=self._context(row.id),
            parent=None if row.parent is None else self._context(row.parent, remote=self._remote),
            resource=self._maker.resource,
            attributes={**given, **self._maker.found, **self._common, **phase, **self._later},
            events=self._events,
            links=self._links,
            status=self._status,
            start_time=row.start,
            end_time=row.end,
            instrumentation_scope=_SCOPE,
        )

    def _context(self, span_id: int, *, remote: bool = False) -> SpanContext:
        return SpanContext(self.trace_id, span_id, is_remote=remote, trace_flags=_SAMPLED)


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
        self.lock = threading.RLock()
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
        remote = False
        if above is None:
            trace_id, parent_id = GENERATOR.generate_trace_id(), None
        else:
            trace_id, parent_id = ids_of(above)
            remote = not isinstance(above, LightSpan) and above.get_span_context().is_remote
        given = self.settled(given) if given else None
        if phase is None:
            row = Row(GENERATOR.generate_span_id(), parent_id, "", start_ns, None, 0, 0)
        else:
            row = self.row(phase, parent_id, start_ns, given)
        return LightSpan(self, trace_id, row, name, common, given, links, remote=remote)

    def row(
        self, phase: str, parent_id: int | None, start_ns: int, given: Mapping[str, Any] | None
    ) -> Row:
        """The row of a phase that has started, on the calling lane, in the account."""
        flags = flags_at_start(given) if given else 0
        try:  # without a call more: the training pays for it
            span_id = GENERATOR.stock.pop()
        except IndexError:
            span_id = GENERATOR.generate_span_id()
        lane = lanes.of_thread.lane if lanes.in_a_loop() is None else lanes.current()
        row = Row(span_id, parent_id, phase, start_ns, None, lane, flags)
        self._account.open[row.id] = row
        return row

    def settled(self, given: Mapping[str, Any]) -> Mapping[str, Any]:
        """Attributes that a user gave, safe from what he does to them next.

        Plain values can't change: they are cleaned by the writer's thread.
        """
        if type(given) is dict and sanitize.PLAIN.issuperset(map(type, given.values())):
            return given.copy()
        return self.clean(given)

    def ended(self, span: LightSpan, end_ns: int) -> None:
        """One that is not ended by its phase."""
        row = span.row
        if self.live and row.phase:
            self._account.end(row.id, end_ns, span.flags())
        row.end = end_ns
        if self.live:
            self._write(span)


def ids_of(span: Span) -> tuple[int, int]:
    """Its trace's and its own."""
    if isinstance(span, LightSpan):
        return span.trace_id, span.row.id
    context = span.get_span_context()
    return context.trace_id, context.span_id


def finished(span: ReadableSpan | Ended) -> ReadableSpan:
    """What is known of it in the end, and may leave the process."""
    return leaving(span if isinstance(span, ReadableSpan) else span.readable())


def encode_spans(spans: Iterable[ReadableSpan | Ended]) -> bytes:
    """One line of ``spans/``, without its line end."""
    return encode(map(finished, spans))
