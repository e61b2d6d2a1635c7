"""Trainers observed from outside: each is patched when the user's program imports it.

Nothing here imports a trainer or torch; a process that never imports one stays as it is.
"""

from __future__ import annotations

import functools
import importlib
import os
from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol

from otel_grpo.instrumentation.base import Providers, when_imported

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

__all__ = ["instrument", "uninstrument"]

DISABLED = "OTEL_GRPO_DISABLED"

# The module whose import shows that a trainer is there, and the module whose `Hooks` patch it.
# `auto/sitecustomize.py` waits for the same ones.
ADAPTERS = MappingProxyType(
    {
        "trl.trainer.grpo_trainer": "otel_grpo.instrumentation.trl.hooks",
        "swift.rlhf_trainers.grpo_trainer": "otel_grpo.instrumentation.ms_swift.hooks",
        "swift.megatron.trainers.grpo_trainer": "otel_grpo.instrumentation.ms_swift.megatron",
        "swift.ray.megatron.grpo_trainer": "otel_grpo.instrumentation.ms_swift.ray_driver",
        "twinkle.infra": "otel_grpo.instrumentation.twinkle.hooks",
    }
)


class Adapter(Protocol):
    """The patches of one trainer: `Hooks(providers)` of its module."""

    def apply(self, module: ModuleType) -> None:
        """Patch the trainer, or tell why not."""

    def remove(self) -> None:
        """Put every attribute back."""


_applied: dict[str, Adapter] = {}
_enabled = False


def instrument(*, providers: Callable[[], Providers] = Providers) -> None:
    """Observe every supported trainer that this process has imported or will import.

    A second call changes nothing. `providers`, asked when a training starts, gives those that the run
    shares; by default each run has private ones.
    """
    if _enable():
        for trainer in ADAPTERS:
            when_imported(trainer, functools.partial(_patch, trainer, providers))


def imported(module: ModuleType) -> None:
    """Observe the trainer whose module was imported just now; others may be half imported."""
    if _enable():
        _patch(module.__name__, Providers, module)


def _enable() -> bool:
    global _enabled
    _enabled = os.environ.get(DISABLED, "").strip().lower() != "true"
    return _enabled


def _patch(trainer: str, providers: Callable[[], Providers], module: ModuleType) -> None:
    if not _enabled or trainer in _applied:
        return
    hooks: Adapter = importlib.import_module(ADAPTERS[trainer]).Hooks(providers)
    hooks.apply(module)
    _applied[trainer] = hooks


def uninstrument() -> None:
    """Put every attribute of every trainer back; of a training that runs now only its end is seen."""
    global _enabled
    _enabled = False
    while _applied:
        _, hooks = _applied.popitem()
        hooks.remove()
