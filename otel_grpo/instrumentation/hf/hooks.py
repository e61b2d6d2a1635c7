"""Hooks of a trainer on `transformers.Trainer`: its callbacks, and what its accelerator knows."""

from __future__ import annotations

import contextlib
import os
from typing import Any, TypeVar

from otel_grpo.instrumentation.hf import callback, deepspeed
from otel_grpo.instrumentation.hf.session import LoopSession
from otel_grpo.instrumentation.training import TrainingHooks
from otel_grpo.tracing.guard import logger

S = TypeVar("S", bound=LoopSession)


class LoopHooks(TrainingHooks[S]):
    """The patches of one such trainer in one process."""

    def is_main(self, trainer: Any) -> bool:
        return bool(trainer.accelerator.is_main_process)

    def run_options(self, trainer: Any) -> dict[str, Any]:
        return {
            "config": trainer.args.to_dict(),
            "rank": trainer.accelerator.process_index,
            "world_size": trainer.accelerator.num_processes,
        }

    def attached(self, session: S) -> contextlib.AbstractContextManager[None]:
        return callback.attached(session, self._fault)

    def _begin(self, trainer: Any) -> S | None:
        told = copies(trainer)
        if told is not None:
            logger.warning(
                "otel-grpo: %s although this trainer runs in one process: each process trains a copy "
                "of its own, and is a run of its own",
                told,
            )
        session = super()._begin(trainer)
        if session is not None and trainer.is_deepspeed_enabled:
            self._wrap(deepspeed.engine(), deepspeed.STEP.name, self._engine_step)
        return session

    def _engine_step(self, engine: Any, *_: Any, **__: Any) -> None:
        session = self._session
        if session is not None and session.steps_with(engine):
            session.backward_over()


def copies(trainer: Any) -> str | None:
    """What the launcher says where each of its processes trains a copy that knows of no other."""
    world = os.environ.get("WORLD_SIZE", "1")
    alone = int(trainer.accelerator.num_processes) == 1
    return f"WORLD_SIZE is {world}" if alone and world.isdigit() and int(world) > 1 else None
