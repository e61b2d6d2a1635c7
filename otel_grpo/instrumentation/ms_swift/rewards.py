"""ms-swift calls its reward functions in a plain loop: each gets a phase by a wrapper of its own."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from otel_grpo.instrumentation.base import Fault, Outcome, Steps, around
from otel_grpo.instrumentation.windows import stop

if TYPE_CHECKING:
    from otel_grpo.tracing.phase import Phase


def timed(
    functions: Sequence[Any],
    plugins: Sequence[Any] | None,
    names: Sequence[str],
    start: Callable[[str], Phase | None],
    fault: Fault,
) -> tuple[list[Any], list[Any] | None]:
    """The reward functions and the plugins of reward models, each with its phase around it.

    ms-swift asks of a function only whether it is a model and whether it is asynchronous, and the
    wrappers answer as what they wrap would. A model itself stays as it is: its plugin is called.
    """
    model = sys.modules["torch"].nn.Module
    wrapped: list[Any] = []
    wrapped_plugins = None if plugins is None else list(plugins)
    for position, (function, name) in enumerate(zip(functions, names, strict=False)):
        begin = functools.partial(start, name)
        if isinstance(function, model):
            wrapped.append(function)
            if wrapped_plugins is not None:
                plugin = wrapped_plugins[position]
                wrapped_plugins[position] = around(plugin, _hook(begin), fault)
        elif _is_asynchronous(function):
            wrapped.append(_around_task(function, begin, fault))
        else:
            wrapped.append(around(function, _hook(begin), fault))
    return wrapped, wrapped_plugins


def _hook(begin: Callable[[], Phase | None]) -> Callable[..., Steps]:
    def hook(*_: Any, **__: Any) -> Steps:
        phase = begin()
        outcome: Outcome = yield
        stop(phase, outcome.error)

    return hook


def _is_asynchronous(function: Any) -> bool:
    """The trainer's own question."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004 (whether it is callable is no question)
    )


def _around_task(
    function: Callable[..., Any], begin: Callable[[], Phase | None], fault: Fault
) -> Callable[..., Any]:
    async def task(*args: Any, **kwargs: Any) -> Any:
        phase, raised = None, None
        try:
            phase = begin()
        except Exception as error:
            fault("hook.reward", error)
        try:
            return await function(*args, **kwargs)
        except BaseException as error:
            raised = error
            raise
        finally:
            try:
                stop(phase, raised)
            except Exception as error:
                fault("hook.reward", error)

    return task
