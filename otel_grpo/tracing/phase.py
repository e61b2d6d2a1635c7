"""A phase: one interval of a window, on one lane, as a span."""

from __future__ import annotations

from contextlib import suppress
from contextvars import ContextVar
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

from opentelemetry import context as otel_context
from opentelemetry.trace import Span, Status, StatusCode, set_span_in_context

from otel_grpo import semconv
from otel_grpo.tracing import sanitize

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextvars import Token
    from types import TracebackType

    from opentelemetry.context import Context

    from otel_grpo.tracing.run import Run

# Our nesting, apart from OpenTelemetry's current span: the user's own spans must not become
# children of spans that his back end never gets.
_current: ContextVar[Phase | None] = ContextVar("otel_grpo_phase", default=None)


class Phase:
    """Context manager; `start` and `stop` do the same where a block does not fit.

    Start and stop may lie in different threads or contexts; the interval belongs to the lane that
    started it.
    """

    __slots__ = ("_attributes", "_context", "_parent", "_previous", "_run", "_span", "_token",
                 "name", "start_ns")  # fmt: skip

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
        self._span: Span | None = None
        self._context: Context | None = None
        self._previous: Phase | None = None
        self._token: Token[Context] | None = None

    def __enter__(self) -> Phase:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop(error)

    @property
    def open(self) -> bool:
        return self._span is not None

    @property
    def span(self) -> Span | None:
        """The OpenTelemetry span while the phase is open."""
        return self._span

    @property
    def context(self) -> Context:
        """Context for spans below this one."""
        if self._context is None:
            base = otel_context.get_current() if self._run.shared else otel_context.Context()
            assert self._span is not None
            self._context = set_span_in_context(self._span, base)
        return self._context

    def start(self) -> Phase:
        entered = perf_counter_ns()
        run = self._run
        if not run.live:
            return self
        try:
            self._start(run, entered)
        except Exception as error:
            run.guard.fault("phase.start", error)
        run.self_ns += perf_counter_ns() - entered
        return self

    def stop(self, error: BaseException | None = None, end_ns: int | None = None) -> None:
        """End the span; with `error` it is marked by the error's type, never by its text."""
        entered = perf_counter_ns()
        run = self._run
        if not run.live:
            return
        try:
            self._stop(run, error, run.clock.now() if end_ns is None else end_ns)
        except Exception as fault:
            run.guard.fault("phase.stop", fault)
        run.self_ns += perf_counter_ns() - entered

    def _start(self, run: Run, entered: int) -> None:
        window = run.window
        if window is None:
            run.guard.misuse("phase_outside", f"phase {self.name!r} outside an iteration")
            return
        if self._span is not None:
            run.guard.misuse("phase_twice", f"phase {self.name!r} was started twice")
            return
        previous = _current.get()
        parent = self._parent or previous
        if parent is not None and parent._run is run and parent._span is not None:
            context = parent.context
        else:
            context = window.context
        attributes = {**window.attributes, semconv.PHASE: self.name}
        if self._attributes:
            attributes.update(sanitize.attributes(self._attributes))
        if self.start_ns is None:
            self.start_ns = run.clock.at(entered)
        name = semconv.SPAN_OF_PHASE.get(self.name) or f"rl.{self.name}"
        self._span = run.start_span(name, context, attributes, self.start_ns)
        self._previous = previous
        _current.set(self)
        if run.shared:
            self._token = otel_context.attach(self.context)

    def _stop(self, run: Run, error: BaseException | None, end_ns: int) -> None:
        span, self._span = self._span, None
        if span is None:
            run.guard.misuse("phase_closed", f"phase {self.name!r} is not open")
            return
        if self._token is not None:
            _detach(self._token)
        if error is not None:
            mark_failed(span, error)
        span.end(end_time=end_ns)
        # In another thread or context than the start's there is nothing to restore.
        if _current.get() is self:
            _current.set(self._previous)
        self._previous = None


def current_phase() -> Phase | None:
    """The innermost phase of the running context."""
    return _current.get()


def mark_failed(span: Span, error: BaseException) -> None:
    """Status and type of an error. Its text may hold anything, prompts included: not recorded."""
    span.set_status(Status(StatusCode.ERROR))
    span.set_attribute(semconv.ERROR_TYPE, type(error).__qualname__)


def _detach(token: Token[Context]) -> None:
    """Like `opentelemetry.context.detach`, which logs an error for a token of another context."""
    with suppress(ValueError):
        token.var.reset(token)
