"""A phase: one interval of a window, on one lane, as a span."""

from __future__ import annotations

from contextvars import ContextVar
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

from opentelemetry import context as otel_context
from opentelemetry.trace import Span, Status, StatusCode, set_span_in_context

from otel_grpo import semconv
from otel_grpo.records.model import ERROR
from otel_grpo.tracing import sanitize
from otel_grpo.tracing.guard import ApiError
from otel_grpo.tracing.light import LightSpan, ids_of
from otel_grpo.tracing.spans import flags_at_end, name_of

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import ReadableSpan

    from otel_grpo.tracing.account import Row
    from otel_grpo.tracing.run import Run
    from otel_grpo.tracing.window import Window

# Our nesting, apart from OpenTelemetry's current span: the user's own spans must not become
# children of spans that his back end never gets.
_current: ContextVar[Phase | None] = ContextVar("otel_grpo_phase", default=None)


class Phase:
    """Context manager; `start` and `stop` do the same where a block does not fit.

    Start and stop may lie in different threads or contexts; the interval belongs to the lane that
    started it. A phase is one interval: it can't be started again.
    """

    __slots__ = (
        "_attributes",
        "_context",
        "_outside",
        "_parent",
        "_previous",
        "_refused",
        "_row",
        "_run",
        "_span",
        "_window",
        "name",
        "open",
        "start_ns",
    )  # fmt: skip

    def __init__(
        self,
        run: Run,
        name: str,
        attributes: Mapping[str, Any] | None = None,
        *,
        parent: Phase | None = None,
        start_ns: int | None = None,
    ) -> None:
        self.name = name
        self.start_ns = start_ns
        self.open = False
        self._run = run
        self._attributes = attributes
        self._parent = parent
        self._window: Window | None = None
        self._row: Row | None = None  # of the span that is made when somebody needs it
        self._span: Span | None = None
        self._refused = False
        self._context: Context | None = None
        self._previous: Phase | None = None
        self._outside: Context | None = None  # OpenTelemetry's context around it

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop(error)

    @property
    def span(self) -> Span | None:
        """The OpenTelemetry span while the phase is open."""
        if not self.open:
            return None
        with self._run.light.lock:  # two threads get the same one
            if self._span is None:
                self._span = self._light_span()
            return self._span

    @property
    def context(self) -> Context:
        """Context for spans below this one."""
        if self._context is None:
            base = otel_context.get_current() if self._run.shared else otel_context.Context()
            assert self.span is not None
            self._context = set_span_in_context(self.span, base)
        return self._context

    @property
    def ids(self) -> tuple[int, int] | None:
        """Trace and span while the phase is open."""
        if not self.open:
            return None
        if self._row is not None and self._window is not None:
            return self._window.ids[0], self._row.id
        return None if self._span is None else ids_of(self._span)

    def start(self) -> Phase:
        entered = perf_counter_ns()
        run = self._run
        if not run.live:
            return self
        try:
            window = run.window
            if window is None or self._window is not None:
                self._refuse(run, window)
                return self
            previous = _current.get()
            if previous is not None and not (previous.open and previous._run is run):
                previous = current_phase(run)
            parent = self._parent
            if parent is None or parent._run is not run or not parent.open:
                parent = previous
            if self.name not in semconv.SPAN_OF_PHASE:
                self.name = sanitize.label(self.name)
            if self.start_ns is None:
                self.start_ns = run.clock.at(entered)
            elif type(self.start_ns) is not int:
                self.start_ns = run._instant("phase_start", self.start_ns)
            if run.shared:
                self._start_shared(run, window, parent)
            else:
                if self._attributes:
                    self._attributes = run.light.settled(self._attributes)
                above = window.ids[1] if parent is None or parent._row is None else parent._row.id
                self._row = run.light.row(self.name, above, self.start_ns, self._attributes)
            self._window = window
            self._previous = previous
            self.open = True
            _current.set(self)
            if run.shared:
                self._outside = otel_context.get_current()
                otel_context.attach(self.context)
        except ApiError:
            raise
        except Exception as error:
            self._refused = True
            run.guard.fault("phase.start", error)
        finally:
            run.self_ns += perf_counter_ns() - entered
        return self

    __enter__ = start

    def stop(self, error: BaseException | None = None, end_ns: int | None = None) -> None:
        """End the span; with `error` it is marked by the error's type, never by its text."""
        entered = perf_counter_ns()
        run = self._run
        if not run.live:
            return
        try:
            if not self.open:
                if not self._refused:
                    run.guard.misuse("phase_closed", f"phase {self.name!r} is not open")
                return
            if end_ns is None:
                end_ns = run.clock.at(entered)
            if type(end_ns) is not int or end_ns < (self.start_ns or 0):
                end_ns = self._end(end_ns)
            if error is not None and (span := self.span) is not None:
                mark_failed(span, error)
            self.open = False
            try:
                if (row := self._row) is None:
                    self._end_shared(run, end_ns, error)
                elif row.end is None:  # else its user ended the span himself
                    flags = 0 if self._span is None and not self._attributes else self._flags()
                    run.account.end(row.id, end_ns, flags)
                    batch = run.output.spans
                    if len(batch) < batch.room:
                        batch.append(self)
                    else:
                        run.output.span(self)
            finally:
                before = self._previous
                if run.shared or not (before is None or before.open) or _current.get() is not self:
                    self._leave()
                else:  # as `_leave` does, without a call more: the training pays for it
                    _current.set(before)
        except ApiError:
            raise
        except Exception as fault:
            run.guard.fault("phase.stop", fault)
        finally:
            run.self_ns += perf_counter_ns() - entered

    def readable(self) -> ReadableSpan:
        """The span of a phase that is over, for the writer's thread."""
        span = self._span or self._light_span()
        assert isinstance(span, LightSpan)
        return span.readable()

    def _start_shared(self, run: Run, window: Window, parent: Phase | None) -> None:
        assert self.start_ns is not None
        self._span = run.start_span(
            name_of(self.name),
            parent or window,
            window.attributes,
            self.start_ns,
            self.name,
            self._attributes,
        )

    def _refuse(self, run: Run, window: Window | None) -> None:
        if window is None:
            self._refused = True
            run.guard.misuse("phase_outside", f"phase {self.name!r} outside an iteration")
        else:
            run.guard.misuse("phase_twice", f"phase {self.name!r} was started twice")

    def _end_shared(self, run: Run, end_ns: int, error: BaseException | None) -> None:
        span, self._span = self._span, None
        assert span is not None
        try:
            span.end(end_time=end_ns)
        except Exception:
            # Another processor failed, and ours may not have heard of the end.
            run.account.end(ids_of(span)[1], end_ns, ERROR if error else 0)
            raise

    def _leave(self) -> None:
        # In another thread or context than the start's there is nothing to restore; and phases need
        # not end in the order that tokens of context variables would demand.
        if self._outside is not None and otel_context.get_current() is self._context:
            otel_context.attach(self._outside_of_open())
        while (before := self._previous) is not None and not before.open:
            self._previous = before._previous
        if _current.get() is self:
            _current.set(self._previous)

    def _flags(self) -> int:
        if isinstance(self._span, LightSpan):
            return self._span.flags()
        return flags_at_end(StatusCode.UNSET, self._attributes) if self._attributes else 0

    def _light_span(self) -> LightSpan:
        window, row = self._window, self._row
        assert window is not None
        assert row is not None
        return LightSpan(
            self._run.light,
            window.ids[0],
            row,
            name_of(self.name),
            window.attributes,
            self._attributes,
        )

    def _end(self, given_ns: int) -> int:
        end = self._run._instant("phase_end", given_ns)
        if self.start_ns is not None and end < self.start_ns:
            self._run._misuse("phase_end", f"phase {self.name!r} would end before its start")
            end = self.start_ns
        return end

    def _outside_of_open(self) -> Context:
        """The context around this phase, or around those before it that are over as well."""
        outside, before = self._outside, self._previous
        while before is not None and not before.open:
            if outside is before._context:
                outside = before._outside
            before = before._previous
        return otel_context.Context() if outside is None else outside


def current_phase(run: Run) -> Phase | None:
    """The innermost open phase of the run in the running context."""
    phase = _current.get()
    while phase is not None and not phase.open:
        phase = phase._previous
    return phase if phase is not None and phase._run is run else None


def mark_failed(span: Span, error: BaseException) -> None:
    """Status and type of an error. Its text may hold anything, prompts included: not recorded."""
    span.set_status(Status(StatusCode.ERROR))
    span.set_attribute(semconv.ERROR_TYPE, type(error).__qualname__)
