"""The patches of TRL: which method tells the session what."""

from __future__ import annotations

import functools
import importlib.metadata
import logging
import sys
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any

from otel_grpo.instrumentation.base import Hook, Patches, Steps, around
from otel_grpo.instrumentation.trl import contract
from otel_grpo.instrumentation.trl.callback import attached
from otel_grpo.instrumentation.trl.session import Session
from otel_grpo.tracing.guard import Guard

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

logger = logging.getLogger("otel_grpo")

# A key that no trainer uses: our column in the dict that TRL shuffles.
_ORDER = "otel_grpo.order"


class Hooks:
    """The patches in one process, and the training that is running now, if there is one."""

    def __init__(self, provider: Callable[[], TracerProvider | None] | None = None) -> None:
        self._provider = provider
        self._patches = Patches()
        self._session: Session | None = None
        self._before_run = Guard()

    # --- patching

    def apply(self, module: ModuleType) -> None:
        """Patch TRL, unless it is not the TRL that these hooks were written for."""
        profiling = sys.modules[contract.PROFILING]
        callback = sys.modules["transformers"].TrainerCallback
        reason = contract.mismatch(module, profiling, callback)
        if reason is not None:
            logger.warning(
                "otel-grpo: TRL is not observed: %s. GRPOTrainer of trl %s is supported.",
                reason,
                contract.SUPPORTED,
            )
            return
        trainer, context = module.GRPOTrainer, profiling.ProfilingContext
        self._wrap(trainer, "train", self._train)
        for expected in contract.METHODS:
            if expected.name != "train":
                self._wrap(trainer, expected.name, self._on_trainer(expected.name))
        self._wrap(context, "__enter__", self._enter_profiling)
        self._wrap(context, "__exit__", self._exit_profiling)
        self._wrap(context, "_log_metrics", self._log_profiling)
        self._patches.wrap(module, contract.SHUFFLE.name, self._shuffle)

    def remove(self) -> None:
        self._patches.restore()

    def _wrap(self, owner: type, name: str, hook: Hook) -> None:
        self._patches.wrap(owner, name, lambda original: around(original, hook, self._fault))

    def _fault(self, place: str, error: Exception) -> None:
        session = self._session
        guard = self._before_run if session is None else session.run.guard
        guard.fault(f"trl.{place}", error)

    # --- hooks

    def _train(self, trainer: Any, *_: Any, **__: Any) -> Steps:
        if not self._patches:
            return  # taken back, but for a method that somebody else has wrapped since
        if self._session is not None:
            logger.warning("otel-grpo: a training that runs beside another one is not observed")
            return
        reason = contract.unsupported_training(trainer)
        if reason is not None:
            if trainer.accelerator.is_main_process:
                logger.warning(
                    "otel-grpo: this training is not observed: %s. Supported now: GRPOTrainer of trl"
                    " %s that generates with transformers; other kinds come later.",
                    reason,
                    contract.SUPPORTED,
                )
            return
        session = self._begin(trainer)
        if session is None:
            return
        try:
            with attached(session, self._fault):
                outcome = yield
            session.finish(outcome.error)
        finally:
            self._session = None

    def _begin(self, trainer: Any) -> Session | None:
        from otel_grpo import __version__, start_run

        told = contract.copies(trainer)
        if told is not None:
            logger.warning(
                "otel-grpo: %s although this trainer runs in one process: each process trains a copy "
                "of its own, and is a run of its own",
                told,
            )
        run = start_run(
            trainer="trl",
            trainer_version=importlib.metadata.version(contract.PACKAGE),
            adapter_version=__version__,
            algorithm="grpo",
            config=trainer.args.to_dict(),
            rank=trainer.accelerator.process_index,
            world_size=trainer.accelerator.num_processes,
            tracer_provider=self._provider() if self._provider else None,
        )
        if not run.live:
            return None
        self._session = Session(trainer, run)
        return self._session

    def _on_trainer(self, name: str) -> Hook:
        method = getattr(Session, name)

        def hook(trainer: Any, *args: Any, **kwargs: Any) -> Steps | None:
            session = self._session
            if session is None or not session.watches(trainer):
                return None
            steps: Steps | None = method(session, *args, **kwargs)
            return steps

        return hook

    def _enter_profiling(self, context: Any) -> None:
        if self._session is not None:
            self._session.enter_profiling(context)

    def _exit_profiling(self, context: Any, *exception: Any) -> None:
        if self._session is not None:
            self._session.exit_profiling(context, exception[1])

    def _log_profiling(self, context: Any, *_: Any) -> Steps | None:
        return None if self._session is None else self._session.log_profiling(context)

    def _shuffle(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """TRL's shuffle with one more column, which the trainer never sees: the samples' numbers.

        The permutation is drawn by TRL itself, from the same random state and for the same number of
        rows: the column goes last, and the first one says how many there are.
        """

        @functools.wraps(original)
        def shuffle(seq_dict: dict[str, Any]) -> dict[str, Any]:
            session, given = self._session, seq_dict
            if session is not None and session.awaits_shuffle:
                try:
                    rows = len(next(v for v in seq_dict.values() if v is not None))
                    given = {**seq_dict, _ORDER: sys.modules["torch"].arange(rows)}
                except Exception as error:
                    self._fault("hook.shuffle", error)
            result: dict[str, Any] = original(given)
            if given is not seq_dict and session is not None:
                order = result.pop(_ORDER)
                try:
                    session.shuffled(order.tolist())  # made on the CPU: no device is waited for
                except Exception as error:
                    self._fault("hook.shuffle", error)
            return result

        return shuffle
