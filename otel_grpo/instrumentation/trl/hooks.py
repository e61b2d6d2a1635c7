"""The patches of TRL: which method tells the session what."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from otel_grpo.instrumentation.base import Hook, Steps
from otel_grpo.instrumentation.hf.hooks import LoopHooks
from otel_grpo.instrumentation.trl import contract
from otel_grpo.instrumentation.trl.session import Session
from otel_grpo.tracing.guard import logger

# A key that no trainer uses: our column in the dict that TRL shuffles.
_ORDER = "otel_grpo.order"

# A trainer that brings a TRL of its own and has an adapter of its own.
_HOST = "swift"


class Hooks(LoopHooks[Session]):
    """The patches of TRL in one process."""

    system = "trl"
    package = contract.PACKAGE
    supported = contract.SUPPORTED
    session_class = Session

    def apply(self, module: ModuleType) -> None:
        """Patch TRL, unless it is not the TRL that these hooks were written for."""
        profiling = sys.modules[contract.PROFILING]
        callback = sys.modules["transformers"].TrainerCallback
        reason = contract.mismatch(module, profiling, callback)
        if reason is not None:
            if _HOST in sys.modules:
                logger.debug("otel-grpo: the TRL that %s brings is left alone: %s", _HOST, reason)
            else:
                self._refuse(reason)
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
        self._apply_vllm(sys.modules.get(contract.VLLM))

    def _apply_vllm(self, vllm: ModuleType | None) -> None:
        """Where that does not fit, trainings that use it are refused, and no other."""
        reason = contract.vllm_mismatch(vllm)
        if reason is not None:
            self.notes.append(f"with vLLM nothing is observed: {reason}")
            return
        assert vllm is not None
        for name, _ in contract.VLLM_METHODS:
            self._wrap(vllm.VLLMGeneration, name, self._on_vllm(name))
        if not hasattr(vllm, "LLM"):
            self.notes.append("vLLM is not installed: its engine was not looked at")

    def owns(self, trainer: Any) -> bool:
        """Not a trainer of the host, which only inherits from TRL's."""
        return not any(base.__module__.split(".")[0] == _HOST for base in type(trainer).__mro__)

    def unsupported_training(self, trainer: Any) -> str | None:
        """Why this training is not observed yet; None if it is of the supported kind."""
        reason = contract.unsupported_training(trainer)
        return reason and (
            f"{reason}. Supported now: GRPOTrainer of trl {contract.SUPPORTED} that generates with"
            " transformers or vLLM; other kinds come later."
        )

    def _begin(self, trainer: Any) -> Session | None:
        session = super()._begin(trainer)
        if session is not None and (engine := session.engine) is not None:
            for name, _ in contract.ENGINE_METHODS:
                self._wrap(type(engine), name, self._on_vllm(name))
        return session

    def _on_vllm(self, name: str) -> Hook:
        """The hook around a method of what the trainer generates with: the session's of that name."""
        method = getattr(Session, name)

        def hook(part: Any, *_: Any, **__: Any) -> Steps | None:
            session = self._session
            if session is None or not session.generates_with(part):
                return None
            steps: Steps | None = method(session)
            return steps

        return hook

    def _enter_profiling(self, context: Any) -> None:
        if self._session is not None:
            self._session.enter_profiling(context)

    def _exit_profiling(self, context: Any, *exception: Any) -> None:
        session = self._session
        if session is not None and session.timed_rewards:
            session.exit_profiling(context, exception[1])

    def _log_profiling(self, context: Any, *_: Any) -> Steps | None:
        if self._session is None or not context.report_to:
            return None
        return self._session.log_profiling(context)

    def _shuffle(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """TRL's shuffle with one more column, which the trainer never sees: the samples' numbers.

        The permutation is drawn by TRL itself, from the same random state and for the same number of
        rows: the column goes last, and the first one says how many there are.
        """

        @functools.wraps(original)
        def shuffle(seq_dict: dict[str, Any]) -> dict[str, Any]:
            session, given = self._session, seq_dict
            if session is not None and (first := session.unshuffled) is not None:
                try:
                    rows = len(next(v for v in seq_dict.values() if v is not None))
                    indices = sys.modules["torch"].arange(first, first + rows)
                    given = {**seq_dict, _ORDER: indices}
                except Exception as error:
                    self._fault("hook.shuffle", error)
            result: dict[str, Any] = original(given)
            if given is not seq_dict and session is not None:
                order = result.pop(_ORDER)
                try:
                    session.shuffled(order.numpy())  # made on the CPU: no device is waited for
                except Exception as error:
                    self._fault("hook.shuffle", error)
            return result

        return shuffle
