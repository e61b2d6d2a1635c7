"""From patched methods to the session of the training that runs: one at a time in a process."""

from __future__ import annotations

import contextlib
import importlib.metadata
from abc import ABC, abstractmethod
from collections.abc import Callable
from threading import get_ident
from types import ModuleType
from typing import Any, ClassVar, Generic, TypeVar

from otel_grpo.instrumentation.base import Hook, Patches, Providers, Steps, around
from otel_grpo.instrumentation.windows import WindowSession
from otel_grpo.tracing.guard import Guard, logger

S = TypeVar("S", bound=WindowSession)


class TrainingHooks(ABC, Generic[S]):
    """The patches of one trainer in one process, and its training that is running now, if any.

    Of two adapters in one process the one whose trainer is asked first observes the training: it is
    the outer one, whose class inherits from the other's trainer.
    """

    system: ClassVar[str]  # how runs, faults and warnings name the trainer
    package: ClassVar[str]
    supported: ClassVar[str]
    session_class: type[S]

    # The trainer whose training is observed, by whichever adapter.
    _observed: ClassVar[Any] = None

    def __init__(self, providers: Callable[[], Providers] = Providers) -> None:
        self._providers = providers
        self._patches = Patches()
        self._session: S | None = None
        self._before_run = Guard()
        self.notes: list[str] = []  # what was hooked only in part, for `doctor`

    @abstractmethod
    def apply(self, module: ModuleType) -> None:
        """Patch the trainer, unless it is not the one that these hooks were written for."""

    @abstractmethod
    def unsupported_training(self, trainer: Any) -> str | None:
        """Why this training is not observed yet; None if it is of the supported kind."""

    def is_main(self, trainer: Any) -> bool:
        """Whether this process speaks for the job."""
        return True

    def run_options(self, trainer: Any) -> dict[str, Any]:
        """What `start_run` is told of this training beside the trainer's name and releases."""
        return {}

    def attached(self, session: S) -> contextlib.AbstractContextManager[None]:
        """What hangs on the trainer while it trains."""
        return contextlib.nullcontext()

    def owns(self, trainer: Any) -> bool:
        """Whether it is this adapter's to observe, or to say that it is not observed."""
        return True

    def remove(self) -> None:
        """Put every attribute back."""
        self._patches.restore()

    def _refuse(self, reason: str) -> None:
        logger.warning(
            "otel-grpo: %s is not observed: %s. GRPOTrainer of %s %s is supported.",
            self.system,
            reason,
            self.package,
            self.supported,
        )

    def _wrap(self, owner: Any, name: str, hook: Hook) -> None:
        self._patches.wrap(owner, name, lambda original: around(original, hook, self._fault))

    def _fault(self, place: str, error: Exception) -> None:
        session = self._session
        guard = self._before_run if session is None else session.run.guard
        guard.fault(f"{self.system}.{place}", error)

    def _on_trainer(self, name: str) -> Hook:
        """The hook around a method of the trainer: the session's method of the same name."""
        method = getattr(self.session_class, name)

        def hook(trainer: Any, *args: Any, **kwargs: Any) -> Steps | None:
            session = self._session
            # As `watches` says, without a call more: the training pays for it.
            if session is None or trainer is not session.trainer or get_ident() != session.thread:
                return None
            steps: Steps | None = method(session, *args, **kwargs)
            return steps

        return hook

    # --- one training

    def _train(self, trainer: Any, *_: Any, **__: Any) -> Steps:
        # Without patches: taken back, but for a method that somebody else has wrapped since.
        if not self._patches or not self.owns(trainer):
            return
        if TrainingHooks._observed is not None:
            if TrainingHooks._observed is not trainer:
                logger.warning("otel-grpo: a training that runs beside another one is not observed")
            return
        reason = self.unsupported_training(trainer)
        if reason is not None:
            if self.is_main(trainer):
                logger.warning("otel-grpo: this training is not observed: %s", reason)
            return
        session = self._begin(trainer)
        if session is None:
            return
        TrainingHooks._observed = trainer
        try:
            with self.attached(session):
                outcome = yield
            session.finish(outcome.error)
        finally:
            self._session = TrainingHooks._observed = None

    def _begin(self, trainer: Any) -> S | None:
        from otel_grpo import __version__, start_run

        providers = self._providers()
        run = start_run(
            trainer=self.system,
            trainer_version=importlib.metadata.version(self.package),
            adapter_version=__version__,
            algorithm="grpo",
            **self.run_options(trainer),
            tracer_provider=providers.tracer,
            meter_provider=providers.meter,
        )
        if not run.live:
            return None
        self._session = self.session_class(trainer, run)
        return self._session
