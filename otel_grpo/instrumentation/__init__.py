"""Trainers observed from outside: each is patched when the user's program imports it.

Nothing here imports a trainer or torch; a process that never imports one stays as it is.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from otel_grpo.instrumentation.base import when_imported

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from opentelemetry.sdk.trace import TracerProvider

    from otel_grpo.instrumentation.trl.hooks import Hooks

__all__ = ["instrument", "uninstrument"]

DISABLED = "OTEL_GRPO_DISABLED"
TRL = "trl.trainer.grpo_trainer"

_applied: dict[str, Hooks] = {}
_enabled = False


def instrument(*, provider: Callable[[], TracerProvider | None] | None = None) -> None:
    """Observe every supported trainer that this process has imported or will import.

    A second call changes nothing. `provider`, asked when a training starts, gives the tracer provider
    that the run shares; by default each run has a private one.
    """
    global _enabled
    if os.environ.get(DISABLED, "").strip().lower() == "true":
        return
    _enabled = True

    def patch(module: ModuleType) -> None:
        if not _enabled or TRL in _applied:
            return
        from otel_grpo.instrumentation.trl.hooks import Hooks

        hooks = Hooks(provider)
        hooks.apply(module)
        _applied[TRL] = hooks

    when_imported(TRL, patch)


def uninstrument() -> None:
    """Put every attribute of every trainer back; of a training that runs now only its end is seen."""
    global _enabled
    _enabled = False
    while _applied:
        _, hooks = _applied.popitem()
        hooks.remove()
