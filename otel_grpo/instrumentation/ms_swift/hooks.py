"""The patches of ms-swift: which method tells the session what."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import ModuleType, TracebackType
from typing import Any

from otel_grpo.instrumentation.base import Steps
from otel_grpo.instrumentation.hf.hooks import LoopHooks
from otel_grpo.instrumentation.ms_swift import contract, rewards
from otel_grpo.instrumentation.ms_swift.session import Session
from otel_grpo.instrumentation.windows import stop


class Hooks(LoopHooks[Session]):
    """The patches of ms-swift in one process."""

    system = "ms-swift"
    package = contract.PACKAGE
    supported = contract.SUPPORTED
    session_class = Session

    def apply(self, module: ModuleType) -> None:
        """Patch ms-swift, unless it is not the one that these hooks were written for."""
        mixin, utils = sys.modules[contract.MIXIN], sys.modules[contract.UTILS]
        callback = sys.modules["transformers"].TrainerCallback
        reason = contract.mismatch(module, mixin, utils, callback)
        if reason is not None:
            self._refuse(reason)
            return
        trainer = module.GRPOTrainer
        self._wrap(trainer, "train", self._train)
        for name, _ in contract.METHODS:
            if name == "_infer_single_or_multi_turn":
                self._wrap(trainer, name, self._on_any_thread)
            elif name != "train":
                self._wrap(trainer, name, self._on_trainer(name))
        self._wrap(mixin, contract.SLEEP.name, self._sleep)
        self._patches.wrap(module, contract.REWARDS.name, self._score)
        for place in (module, mixin, utils):
            self._patches.wrap(place, contract.PROFILING.name, self._profile)

    def unsupported_training(self, trainer: Any) -> str | None:
        """Why this training is not observed yet; None if it is of the supported kind."""
        return contract.unsupported_training(trainer)

    def _begin(self, trainer: Any) -> Session | None:
        session = super()._begin(trainer)
        if session is not None and trainer.use_fast_infer and trainer.vllm_mode == "colocate":
            # The engine's own method: ms-swift has none around it.
            self._wrap(type(trainer.engine.engine), "wake_up", self._wake)
        return session

    # --- hooks

    def _on_any_thread(self, trainer: Any, *_: Any, **__: Any) -> Steps | None:
        """A rollout that is made beside the training runs in a thread of the trainer's."""
        session = self._session
        if session is None or trainer is not session.trainer:
            return None
        return session._infer_single_or_multi_turn()

    def _wake(self, engine: Any, *_: Any, **__: Any) -> Steps | None:
        session = self._session
        mine = session is not None and session.trainer.engine.engine is engine
        return session.wake_up() if session is not None and mine else None

    def _sleep(self, engine: Any, *_: Any, **__: Any) -> Steps | None:
        session = self._session
        mine = session is not None and session.trainer.engine.engine is engine
        return session.sleep_vllm_engine() if session is not None and mine else None

    def _score(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """The trainer's scoring, with a phase around each reward function."""

        @functools.wraps(original)
        def score(
            samples: Any, reward_funcs: Any, reward_model_plugins: Any, *args: Any, **kwargs: Any
        ) -> Any:
            session = self._session
            if session is not None and reward_funcs is session.trainer.reward_funcs:
                try:
                    reward_funcs, reward_model_plugins = rewards.timed(
                        reward_funcs,
                        reward_model_plugins,
                        session.trainer.reward_func_names,
                        session.start_reward,
                        self._fault,
                    )
                except Exception as error:
                    self._fault("hook.rewards", error)
            return original(samples, reward_funcs, reward_model_plugins, *args, **kwargs)

        return score

    def _profile(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """The trainer's profiling: what it sends to wandb and swanlab as it ends is `log`."""

        @functools.wraps(original)
        def profiling_context(trainer: Any, name: str) -> Any:
            context, session = original(trainer, name), self._session
            try:
                if session is not None and session.reports(trainer):
                    return _Profiled(context, session)
            except Exception as error:
                self._fault("hook.profiling_context", error)
            return context

        return profiling_context


class _Profiled:
    """A profiling context whose own work at its end is timed; after an exception it does none."""

    def __init__(self, context: Any, session: Session) -> None:
        self._context = context
        self._session = session

    def __enter__(self) -> Any:
        return self._context.__enter__()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> Any:
        if kind is not None:
            return self._context.__exit__(kind, error, traceback)
        log = self._session.start_log()
        try:
            return self._context.__exit__(None, None, None)
        finally:
            stop(log)
