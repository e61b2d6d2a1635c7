"""What lies inside one `_generate`: pushes of weights, an engine that wakes and sleeps, waits, tools.

They are siblings of `generation`: one phase follows another, and none is part of the other's time.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from otel_grpo import semconv
from otel_grpo.instrumentation.hf.session import LoopSession
from otel_grpo.instrumentation.windows import stop

if TYPE_CHECKING:
    from otel_grpo.instrumentation.base import Steps
    from otel_grpo.records.model import PublicationKind
    from otel_grpo.tracing.phase import Phase
    from otel_grpo.tracing.run import Run


class GeneratingSession(LoopSession):
    """The hooks around `GRPOTrainer`'s turns and tools, around `VLLMGeneration` and its engine."""

    def __init__(self, trainer: Any, run: Run) -> None:
        super().__init__(trainer, run)
        # TRL's own around vLLM, made where it generates with vLLM; and vLLM's engine.
        self._vllm: Any = getattr(trainer, "vllm_generation", None)
        self.engine: Any = getattr(self._vllm, "llm", None)  # none here where a server generates
        self._sleeps = self.engine is not None and getattr(self._vllm, "enable_sleep_mode", False)
        self._running: Phase | None = None  # of those that follow one another in `_generate`

    def generates_with(self, part: Any) -> bool:
        """Whether a call of a method of TRL's or vLLM's own is part of this training."""
        mine = part is self._vllm or part is self.engine
        return mine and threading.get_ident() == self.thread

    # --- windows and publications

    def _publish_at_end(self, applied_ns: int) -> None:
        if self._vllm is None:
            super()._publish_at_end(applied_ns)
        else:
            self._due(self._kind(), applied_ns)

    def _kind(self) -> PublicationKind:
        return "collective" if self._vllm.mode == "server" else "unknown"

    def _generation_called(self) -> None:
        """One to train on: its window begins, or does so when the update that is due is pushed."""
        self._boundary_due = True
        if self._vllm is None or self._applied_ns is None:
            self._begin_window(self.run.clock.now())

    # --- phases

    def _switch(self, phase: str, at_ns: int | None = None) -> None:
        """The running phase ends where the next one starts, unless it is that one."""
        running = self._running
        if running is None or running.name != phase:
            now = self.run.clock.now() if at_ns is None else at_ns
            stop(running, at_ns=now)
            self._running = self._start(phase, now)

    def _resume(self, before: Phase | None, error: BaseException | None) -> None:
        """A call is over: on with what it interrupted. Prompts are encoded, then generated from."""
        if self._running is before:  # all of it was that phase's
            return
        if before is None or error is not None:
            stop(self._running, error)
            self._running = None
        if before is not None and before.name != semconv.DATA:
            self._switch(before.name)
        elif before is not None and error is None:
            self._switch(semconv.GENERATION)

    def _beside(self, phase: str) -> Steps:
        """A call whose time is that of `phase`."""
        before = self._running
        self._switch(phase)
        outcome = yield
        self._resume(before, outcome.error)

    def _begin_generation(self) -> None:
        """`_generate` is called. With vLLM it encodes the prompts, and pushes what is due."""
        trainer, now = self.trainer, self.run.clock.now()
        first = semconv.GENERATION
        if self._vllm is not None:
            due = trainer.state.global_step != trainer._last_loaded_step  # the trainer's own rule
            if due or trainer.rollout_func is None:
                first = semconv.DATA
        self._switch(first, now)

    def _end_generation(self, error: BaseException | None, at_ns: int) -> None:
        stop(self._running, error, at_ns)
        self._running = None
        if error is None:
            self._begin_window(at_ns)  # if nothing was pushed

    # --- hooks

    def _tool_call_loop(self, *_: Any, **__: Any) -> Steps:
        # Tools are the environment: their time is that of rewards, as their tokens are not the model's.
        return self._beside(semconv.REWARD)

    def _generate_single_turn(self, *_: Any, **__: Any) -> Steps | None:
        running = self._running
        if self._vllm is None and running is not None and running.name == semconv.REWARD:
            return self._beside(semconv.GENERATION)  # the next turn, after tools
        return None

    def sync_weights(self) -> Steps:
        started = self.run.clock.now()
        before = self._running
        self._switch(semconv.WEIGHT_SYNC, started)
        outcome = yield
        end = self._pushed(self._running, started, outcome, self._kind())
        self._running = None
        if end is not None:
            self._begin_window(end)
        if before is not None and outcome.error is None:
            wakes = self._sleeps and self.trainer.rollout_func is None
            self._switch(semconv.DATA if wakes else semconv.GENERATION)

    def generate(self) -> Steps:
        before = self._running
        if self._vllm.mode == "server" and not self.trainer.accelerator.is_main_process:
            # The main process alone asks the server; the others wait for what it got.
            self._switch(semconv.ROLLOUT_WAIT)
        elif not self._sleeps:  # else it has to wake up first
            self._switch(semconv.GENERATION)
        outcome = yield
        self._resume(before, outcome.error)

    def wake_up(self) -> Steps:
        return self._beside(semconv.ENGINE_WAKE)

    def sleep(self) -> Steps:
        return self._beside(semconv.ENGINE_SLEEP)
