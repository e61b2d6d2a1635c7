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

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

    from opentelemetry.context import Context

    from otel_grpo.tracing.run import Run

# Our nesting, apart from OpenTelemetry's current span: the user's own spans must not become
# children of spans that his back end never gets.
_current: ContextVar[Phase | None] = ContextVar("otel_grpo_phase", default=None)


class Phase:
    """Context manager; `start` and `stop` do the same where a block does not fit.

    Start and stop may lie in different threads or contexts; the interval belongs to the lane that
    started it. `span` is its OpenTelemetry span while it is open, else None.
    """

    __slots__ = (
        "_attributes",
        "_context",
        "_outside",
        "_parent",
        "_previous",
        "_refused",
        "_run",
        "name",
        "span",
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
        self._run = run
        self._attributes = attributes
        self._parent = parent
        self.span: Span | None = None
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
    def open(self) -> bool:
        return self.span is not None

    @property
    def context(self) -> Context:
        """Context for spans below this one."""
        if self._context is None:
            base = otel_context.get_current() if self._run.shared else otel_context.Context()
            assert self.span is not None
            self._context = set_span_in_context(self.span, base)
        return self._context

    def start(self) -> Phase:
        entered = perf_counter_ns()
        run = self._run
        if not run.live:
            return self
        try:
            self._start(run, entered)
        except ApiError:
            raise
        except Exception as error:
            self._refused = True
            run.guard.fault("phase.start", error)
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
            self._stop(run, error, run.clock.at(entered) if end_ns is None else self._end(end_ns))
        except ApiError:
            raise
        except Exception as fault:
            run.guard.fault("phase.stop", fault)
        run.self_ns += perf_counter_ns() - entered

    def _start(self, run: Run, entered: int) -> None:
        window = run.window
        if window is None:
            self._refused = True
            run.guard.misuse("phase_outside", f"phase {self.name!r} outside an iteration")
            return
        if self.span is not None:
            run.guard.misuse("phase_twice", f"phase {self.name!r} was started twice")
            return
        previous = current_phase(run)
        parent = self._parent
        if parent is None or parent._run is not run or parent.span is None:
            parent = previous
        span_name = semconv.SPAN_OF_PHASE.get(self.name)
        if span_name is None:
            self.name = sanitize.label(self.name)
            span_name = f"rl.{self.name}"
        given = run._attributes(self._attributes) if self._attributes else None
        if self.start_ns is None:
            self.start_ns = run.clock.at(entered)
        else:
            self.start_ns = run._instant("phase_start", self.start_ns)
        self.span = run.start_span(
            span_name, parent or window, window.attributes, self.start_ns, self.name, given
        )
        self._previous = previous
        _current.set(self)
        if run.shared:
            self._outside = otel_context.get_current()
            otel_context.attach(self.context)

    def _stop(self, run: Run, error: BaseException | None, end_ns: int) -> None:
        span, self.span = self.span, None
        if span is None:
            if not self._refused:
                run.guard.misuse("phase_closed", f"phase {self.name!r} is not open")
            return
        if error is not None:
            mark_failed(span, error)
        try:
            span.end(end_time=end_ns)
        except Exception:
            # Another processor of a shared provider failed, and ours may not have heard of the end.
            run.account.end(span.get_span_context().span_id, end_ns, ERROR if error else 0)
            raise
        finally:
            self._leave()

    def _leave(self) -> None:
        # In another thread or context than the start's there is nothing to restore; and phases need
        # not end in the order that tokens of context variables would demand.
        if self._outside is not None and otel_context.get_current() is self._context:
            otel_context.attach(self._outside_of_open())
        self._previous = _innermost_open(self._previous)
        if _current.get() is self:
            _current.set(self._previous)

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
    phase = _innermost_open(_current.get())
    return phase if phase is not None and phase._run is run else None


def _innermost_open(phase: Phase | None) -> Phase | None:
    while phase is not None and phase.span is None:
        phase = phase._previous
    return phase


def mark_failed(span: Span, error: BaseException) -> None:
    """Status and type of an error. Its text may hold anything, prompts included: not recorded."""
    span.set_status(Status(StatusCode.ERROR))
    span.set_attribute(semconv.ERROR_TYPE, type(error).__qualname__)
