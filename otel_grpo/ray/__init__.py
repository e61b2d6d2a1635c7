"""Workers that Ray starts: their timed calls belong to the driver's run.

Importing this loads neither Ray nor the SDK: it happens in every worker process, also in those in
which nothing is timed.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from otel_grpo.ray.actors import measure_clocks, watch
    from otel_grpo.ray.environment import instrument, runtime_env, uninstrument
    from otel_grpo.ray.methods import time_methods
    from otel_grpo.ray.process import join

_HOMES = {
    "instrument": "environment",
    "join": "process",
    "measure_clocks": "actors",
    "runtime_env": "environment",
    "time_methods": "methods",
    "uninstrument": "environment",
    "watch": "actors",
}

__all__ = [
    "instrument",
    "join",
    "measure_clocks",
    "runtime_env",
    "time_methods",
    "uninstrument",
    "watch",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
