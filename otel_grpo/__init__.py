"""Performance observations of RL post-training that anybody can recompute.

Importing this package loads nothing heavy: no SDK, no numpy, no trainer. The parts load when a run
starts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from otel_grpo._lazy import lazy
from otel_grpo._version import __version__

if TYPE_CHECKING:
    from otel_grpo.api import current_run, iteration, phase, start_run
    from otel_grpo.core.ledger import Samples
    from otel_grpo.instrumentation import instrument, uninstrument
    from otel_grpo.tracing.guard import ApiError
    from otel_grpo.tracing.iteration import Iteration
    from otel_grpo.tracing.phase import Phase
    from otel_grpo.tracing.publication import Publication
    from otel_grpo.tracing.run import Run
    from otel_grpo.tracing.timed import timed
    from otel_grpo.tracing.update import Update

_HOMES = {
    "ApiError": "tracing.guard",
    "Iteration": "tracing.iteration",
    "Phase": "tracing.phase",
    "Publication": "tracing.publication",
    "Run": "tracing.run",
    "Samples": "core.ledger",
    "Update": "tracing.update",
    "current_run": "api",
    "instrument": "instrumentation",
    "iteration": "api",
    "phase": "api",
    "start_run": "api",
    "timed": "tracing.timed",
    "uninstrument": "instrumentation",
}

__all__ = [
    "ApiError",
    "Iteration",
    "Phase",
    "Publication",
    "Run",
    "Samples",
    "Update",
    "__version__",
    "current_run",
    "instrument",
    "iteration",
    "phase",
    "start_run",
    "timed",
    "uninstrument",
]


__getattr__, __dir__ = lazy(__name__, _HOMES, globals())
