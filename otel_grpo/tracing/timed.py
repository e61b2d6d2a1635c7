"""`timed`: raw durations of a function's calls, as spans `rl.worker.<method>`."""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncGenerator, Callable, Generator
from typing import Any, TypeVar, overload

from opentelemetry.trace import Span

from otel_grpo import semconv
from otel_grpo.tracing import lifecycle, sanitize
from otel_grpo.tracing.phase import current_phase, mark_failed
from otel_grpo.tracing.run import Run

F = TypeVar("F", bound=Callable[..., Any])


@overload
def timed(function: F, /) -> F: ...
@overload
def timed(name: str | None = None, /) -> Callable[[F], F]: ...
def timed(function: Any = None, /) -> Any:
    """Decorator: time each call of a function or method, plain, async or generator.

    The time of a generator runs from its first step to its end, its consumer's time included; of a
    coroutine, from its first step to its result. Arguments, results and exceptions pass unchanged.

    Args:
        function: the function, or a name for it; default name: the function's own.
    """
    if callable(function) or isinstance(function, (staticmethod, classmethod)):
        return _wrap(function, _name_of(function))
    return lambda f: _wrap(f, sanitize.label(function or _name_of(f)))


def _name_of(function: Any) -> str:
    return getattr(function, "__name__", None) or type(function).__name__


def _wrap(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    if isinstance(function, (staticmethod, classmethod)):
        return type(function)(_wrap(function.__func__, name))
    # functools.wraps keeps the name; the flavour must be the same as well, callers look at it.
    if inspect.isasyncgenfunction(function):

        @functools.wraps(function)
        async def async_generator(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
            with _Call(name):
                # What `yield from` does for plain generators has no short form for these.
                inner = function(*args, **kwargs)
                try:
                    item = await anext(inner)
                    while True:
                        try:
                            sent = yield item
                        except GeneratorExit:
                            raise
                        except BaseException as error:
                            item = await inner.athrow(error)
                        else:
                            item = await inner.asend(sent)
                except StopAsyncIteration:
                    return
                finally:
                    await inner.aclose()

        return async_generator

    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def coroutine(*args: Any, **kwargs: Any) -> Any:
            with _Call(name):
                return await function(*args, **kwargs)

        return coroutine

    if inspect.isgeneratorfunction(function):

        @functools.wraps(function)
        def generator(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
            with _Call(name):
                return (yield from function(*args, **kwargs))

        return generator

    @functools.wraps(function)
    def plain(*args: Any, **kwargs: Any) -> Any:
        with _Call(name):
            return function(*args, **kwargs)

    return plain


class _Call:
    """One call. It sets no context, so that it may be held over the yields of a generator."""

    __slots__ = ("_name", "_run", "_span", "_start")

    def __init__(self, name: str) -> None:
        self._name = name
        self._run: Run | None = None
        self._span: Span | None = None
        self._start = 0

    def __enter__(self) -> None:
        run = lifecycle.current_run()
        if run is None or not run.live:
            return
        try:
            window = run.window
            attributes = {} if window is None else window.attributes
            self._start = run.clock.now()
            self._span = run.start_span(
                semconv.SPAN_WORKER + self._name,
                current_phase(run) or window,
                attributes,
                self._start,
            )
            self._run = run
        except Exception as error:
            run.guard.fault("timed.start", error)

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        run, span = self._run, self._span
        if run is None or span is None or not run.live:
            return
        try:
            end = run.clock.now()
            # A generator that its consumer leaves early is no failure.
            if error is not None and not isinstance(error, GeneratorExit):
                mark_failed(span, error)
            span.end(end_time=end)
            run.worker_call(self._name, end - self._start)
        except Exception as fault:
            run.guard.fault("timed.stop", fault)
