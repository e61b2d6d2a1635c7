"""`timed`: raw durations of a function's calls, as spans `rl.worker.<method>`."""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncGenerator, Callable, Generator
from typing import Any, TypeVar, overload

from otel_grpo.tracing import carrier, sanitize
from otel_grpo.tracing.call import Around, Timer

F = TypeVar("F", bound=Callable[..., Any])


@overload
def timed(function: F, /) -> F: ...
@overload
def timed(
    name: str | None = None, /, *, memory: bool = False, carrier: bool = False
) -> Callable[[F], F]: ...
def timed(function: Any = None, /, *, memory: bool = False, carrier: bool = False) -> Any:
    """Decorator: time each call of a function or method, plain, async or generator.

    The time of a generator runs from its first step to its end, its consumer's time included; of a
    coroutine, from its first step to its result. Arguments, results and exceptions pass unchanged.

    Args:
        function: the function, or a name for it; default name: the function's own.
        memory: have memory read when a call ends; the call doesn't wait for it.
        carrier: let a call say where it belongs, by the keyword ``_otel=run.carrier()``, which the
            function itself doesn't get. For methods of Ray actors, whose arguments are checked.
    """
    if callable(function) or isinstance(function, (staticmethod, classmethod)):
        return _wrap(function, _name_of(function), memory=memory, told=carrier)
    return lambda f: _wrap(f, sanitize.label(function or _name_of(f)), memory=memory, told=carrier)


def _name_of(function: Any) -> str:
    return getattr(function, "__name__", None) or type(function).__name__


def _wrap(
    function: Callable[..., Any], name: str, *, memory: bool, told: bool
) -> Callable[..., Any]:
    if isinstance(function, (staticmethod, classmethod)):
        inside = _wrap(function.__func__, name, memory=memory, told=told)
        return type(function)(inside)
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some of C's have none
        return _flavour(function, Timer(name, strips=True, memory=memory))
    strips = carrier.KEYWORD not in signature.parameters
    wrapper: Any = _flavour(function, Timer(name, strips=strips, memory=memory))
    if told or not hasattr(function, "__wrapped__"):
        # Who unwraps it, as Ray does, ends here: what is said of the method, by a decorator above
        # or below, is on the wrapper, and what is above would not be found on the function.
        vars(wrapper).pop("__wrapped__", None)
    wrapper.__signature__ = _with_keyword(signature) if told and strips else signature
    return wrapper  # type: ignore[no-any-return]


def _with_keyword(signature: inspect.Signature) -> inspect.Signature:
    parameters = list(signature.parameters.values())
    keyword = inspect.Parameter(carrier.KEYWORD, inspect.Parameter.KEYWORD_ONLY, default=None)
    last = bool(parameters) and parameters[-1].kind is inspect.Parameter.VAR_KEYWORD
    parameters.insert(len(parameters) - last, keyword)
    return signature.replace(parameters=parameters)


def _flavour(function: Callable[..., Any], around: Around) -> Callable[..., Any]:
    """The function with a call around it.

    `functools.wraps` keeps the name; the flavour must be the same as well, callers look at it. Only
    what is in the closure is used: a class that is pickled by value must do without this package.
    """
    if inspect.isasyncgenfunction(function):

        @functools.wraps(function)
        async def async_generator(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
            with around(kwargs):
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
            with around(kwargs):
                return await function(*args, **kwargs)

        return coroutine

    if inspect.isgeneratorfunction(function):

        @functools.wraps(function)
        def generator(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
            with around(kwargs):
                return (yield from function(*args, **kwargs))

        return generator

    @functools.wraps(function)
    def plain(*args: Any, **kwargs: Any) -> Any:
        with around(kwargs):
            return function(*args, **kwargs)

    return plain
