"""Workers that Ray starts: their timed calls belong to the driver's run.

Importing this loads neither Ray nor the SDK: it happens in every worker process, also in those in
which nothing is timed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from otel_grpo._lazy import lazy

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


__getattr__, __dir__ = lazy(__name__, _HOMES, globals())
