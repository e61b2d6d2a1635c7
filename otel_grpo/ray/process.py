"""A worker process of Ray, as its set-up hook leaves it: marked, and nothing more.

At its first timed call, or at `join`, it becomes a part of the driver's run.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from otel_grpo.tracing import dormant
from otel_grpo.tracing.guard import Guard, is_true

if TYPE_CHECKING:
    from otel_grpo.tracing.worker import Worker

_role: str | None = None
_does: Sequence[str] = ()


def offer(belongs: Mapping[str, Any]) -> None:
    """Called in every worker process as it starts, so it has to cost next to nothing."""
    if not is_true(os.environ.get("OTEL_GRPO_DISABLED")):
        dormant.offer(lambda: _start(belongs))


def join(role: str | None = None, does: Sequence[str] = ()) -> None:
    """Make this process a part of the driver's run now, not at its first timed call.

    Where nobody observes it does nothing. The place for it is the constructor of an actor, after
    its model has come to its device.

    Args:
        role: what the process is called, with a number; default: the class of the actor. Where
            ``OTEL_GRPO_ROLE`` is set, that counts.
        does: what its devices do: ``train``, ``generate``, ``reward``; default: not known. Where
            ``OTEL_GRPO_DOES`` is set, with commas, that counts.
    """
    global _does, _role
    _role, _does = role, does
    dormant.current()


def _start(belongs: Mapping[str, Any]) -> Worker | None:
    guard = Guard()
    try:
        from otel_grpo.ray import joining

        return joining.worker(belongs, guard, _role, _does)
    except Exception as error:
        guard.fault("worker.start", error)
        return None
