"""One call of a timed function, in the run of this process or as a worker of another's."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from opentelemetry.trace import Span

from otel_grpo import semconv
from otel_grpo.tracing import carrier, dormant, lifecycle
from otel_grpo.tracing.phase import current_phase, mark_failed
from otel_grpo.tracing.run import Run
from otel_grpo.tracing.worker import Worker

#: Given the keyword arguments of a call, what goes around it.
Around = Callable[[dict[str, Any]], AbstractContextManager[None]]


class Timer:
    """What is known of a timed function before it is called.

    Args:
        method: its name in the files.
        strips: it takes no carrier: what a call carries goes no further than here.
        memory: have memory read when a call ends.
    """

    __slots__ = ("_memory", "_method", "_strips")

    def __init__(self, method: str, *, strips: bool, memory: bool) -> None:
        self._method = method
        self._strips = strips
        self._memory = memory

    def __call__(self, kwargs: dict[str, Any]) -> Call:
        carried = None
        if carrier.KEYWORD in kwargs:
            take = kwargs.pop if self._strips else kwargs.get
            carried = take(carrier.KEYWORD)
        return Call(self._method, carried, self._memory)

    def __reduce__(self) -> tuple[Any, ...]:
        return _portable(), (self._method, self._strips, self._memory)


def _portable() -> Callable[[str, bool, bool], Around]:
    """What makes a timer where a class is unpickled, or a substitute where this package is missing.

    A function inside a function goes by value, so that it needs nothing of ours over there.
    """

    def timer(method: str, strips: bool, memory: bool) -> Around:
        try:
            from otel_grpo.tracing.call import Timer
        except Exception:
            from contextlib import nullcontext

            def untimed(kwargs: dict[str, Any]) -> AbstractContextManager[None]:
                if strips:
                    kwargs.pop("_otel", None)
                return nullcontext()

            return untimed
        return Timer(method, strips=strips, memory=memory)

    return timer


class Call:
    """Context manager. It sets no context, so that it may be held over the yields of a generator."""

    __slots__ = ("_carried", "_memory", "_method", "_run", "_span", "_start", "_worker")

    def __init__(self, method: str, carried: Any, memory: bool) -> None:
        self._method = method
        self._carried = carried
        self._memory = memory
        self._run: Run | None = None
        self._worker: Worker | None = None
        self._span: Span | None = None
        self._start = 0

    def __enter__(self) -> None:
        run = lifecycle.current_run()
        if run is None:
            self._worker = worker = dormant.current()
            if worker is not None:
                self._start = worker.clock.now()
        elif run.live:
            try:
                self._begin(run)
            except Exception as error:
                run.guard.fault("timed.start", error)

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        # A generator that its consumer leaves early is no failure.
        error = None if isinstance(error, GeneratorExit) else error
        run, worker = self._run, self._worker
        if worker is not None and worker.live:
            try:
                worker.ended(self._method, self._start, self._carried, error, memory=self._memory)
            except Exception as fault:
                worker.guard.fault("timed.stop", fault)
        elif run is not None and run.live:
            try:
                self._end(run, error)
            except Exception as fault:
                run.guard.fault("timed.stop", fault)

    def _begin(self, run: Run) -> None:
        window = run.window
        parent = carrier.parent_of(self._carried)
        self._start = run.clock.now()
        self._span = run.start_span(
            semconv.SPAN_WORKER + self._method,
            (current_phase(run) or window) if parent is None else carrier.Elsewhere(parent),
            {} if window is None else window.attributes,
            self._start,
        )
        self._run = run

    def _end(self, run: Run, error: BaseException | None) -> None:
        span, end = self._span, run.clock.now()
        assert span is not None
        if error is not None:
            mark_failed(span, error)
        span.end(end_time=end)
        run.worker_call(self._method, end - self._start)
        if self._memory and run.window is not None:
            run.memory()
