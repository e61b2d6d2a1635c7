"""One training as the methods of `transformers.Trainer` tell it: the phases of the common loop.

An adapter's own session adds what lies between: generation, rewards, advantages, and the counts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from otel_grpo import semconv
from otel_grpo.instrumentation.windows import WindowSession, stop
from otel_grpo.tracing.guard import logger

if TYPE_CHECKING:
    from otel_grpo.core.ledger import Samples
    from otel_grpo.instrumentation.base import Steps
    from otel_grpo.tracing.phase import Phase
    from otel_grpo.tracing.run import Run


class LoopSession(WindowSession):
    """State of one `train` call; every method named like one of the trainer's is a hook around it."""

    # Whether the trainer's scalars go to `metrics.jsonl`: not where it keeps such a file itself.
    keeps_flat = True

    def __init__(self, trainer: Any, run: Run) -> None:
        super().__init__(trainer, run, asynchronous=trainer.accelerator.device.type != "cpu")
        self._slice: Samples | None = None  # of the training step that is running
        self._in_step = False
        self._evaluations = 0
        self._advantage: Phase | None = None
        self._reward: Phase | None = None
        self._policy: Phase | None = None
        self._logs_steps = False  # the log call that is running speaks of training steps

    # --- hooks, in the order of the loop

    def get_batch_samples(self, *_: Any, **__: Any) -> Steps:
        now = self.run.clock.now()
        if self._iteration is None:
            self._open_window(now)
        return self._timed(semconv.DATA, now)

    def training_step(self, *_: Any, **__: Any) -> Steps:
        self._in_step = True
        outcome = yield
        if self._in_step:
            self.backward_over(outcome.error)

    def backward_over(self, error: BaseException | None = None) -> None:
        """Of a micro-batch. What is left of its training step is DeepSpeed's step, if anything."""
        self._in_step = False
        now = self.run.clock.now()
        stop(self._policy, error, now)
        self._policy = None
        if error is not None or self._iteration is None:
            return
        self._entered = True
        if self._slice is not None:
            self._iteration.trained(self._slice)
        if self.trainer.accelerator.sync_gradients:
            self._begin_update(now)

    def steps_with(self, engine: Any) -> bool:
        """Whether a step of an engine of DeepSpeed ends the training step that is running."""
        accelerator = self.trainer.accelerator
        if not self._in_step or not accelerator.sync_gradients:
            return False
        return engine is accelerator.deepspeed_engine_wrapped.engine

    def _prepare_inputs(self, *_: Any, **__: Any) -> Steps:
        outcome = yield
        if not self._in_step or outcome.error is not None:
            return
        self._policy = self._start(semconv.POLICY_TRAIN)
        self._slice = None
        if self._slices:
            # The trainer's own rule for the slice of this step; it counts the step when it is over.
            self._slice = self._slices[self.trainer._step % len(self._slices)]

    def log(self, logs: dict[str, Any], *_: Any, **__: Any) -> Steps:
        # The trainer calls `log` after its own synchronisation with the device.
        self._logs_steps = "loss" in logs and not self._evaluations
        return self._timed(semconv.LOG)

    def evaluate(self, *_: Any, **__: Any) -> Steps:
        # One data set of several, and what a callback evaluates inside, is part of the outermost.
        outermost = self._start(semconv.EVALUATION) if not self._evaluations else None
        self._evaluations += 1
        outcome = yield
        self._evaluations -= 1
        stop(outermost, outcome.error)

    predict = evaluate

    def _save_checkpoint(self, *_: Any, **__: Any) -> Steps:
        return self._timed(semconv.CHECKPOINT)

    # --- callbacks

    def train_begins(self) -> None:
        """Also called when the trainer starts over with smaller batches after running out of memory."""
        if self.trainer.state.global_step:
            self.run.resumed(**self._restored())
        if skips_silently(self.trainer):
            logger.warning(
                "otel-grpo: a fused optimizer with a gradient scaler: accelerate does not say which"
                " steps the scaler skips, so they are counted as applied"
            )
        self.close_window(error=RuntimeError("the training loop started over"))
        self._policy = self._advantage = self._reward = None
        self._slices, self._slice, self._in_step = [], None, False

    def _restored(self) -> dict[str, int]:
        """What the trainer knows of the session before."""
        state = self.trainer.state
        return {"optimizer_step": state.global_step, "tokens": state.num_input_tokens_seen}

    def optimizer_stepped(self) -> None:
        """The step is over on this process; what other callbacks do next is not part of it."""
        update, self._update = self._update, None
        if update is None:
            return
        skipped = bool(self.trainer.accelerator.optimizer_step_was_skipped)
        if skipped:
            # The gradient scaler found an overflow. The trainer counts the step all the same.
            update.skip("overflow")
        update.stop()
        reading = self.run.memory()
        if not skipped:
            self._applied += 1
            self._applied_ns = update.end_ns
            self._reading = reading

    def logged(self, logs: dict[str, Any]) -> None:
        state = self.trainer.state
        self.run.log_scalars(
            logs,
            step=state.global_step,
            epoch=state.epoch,
            covers=None if self._logs_steps else (),
            flat=self.keeps_flat,
        )

    # --- updates

    def _begin_update(self, at_ns: int) -> None:
        assert self._iteration is not None
        self._update = self._iteration.update(
            nominal=self._nominal(),
            start_ns=at_ns,
            attributes=self._attributes.get(semconv.OPTIMIZER),
        ).start()

    def _nominal(self) -> int | None:
        """Samples of a full update on this process."""
        args = self.trainer.args
        return int(args.gradient_accumulation_steps * args.per_device_train_batch_size)

    def _is_training(self) -> bool:
        """The trainer's own rule: an evaluation's generations belong to the evaluation."""
        return bool(self.trainer.model.training)


def skips_silently(trainer: Any) -> bool:
    """Whether the optimizer itself leaves out the steps that overflow.

    Which ones it does is known on the device alone; to ask would wait for it.
    """
    accelerator = trainer.accelerator
    if accelerator.scaler is None or not accelerator.is_main_process:
        return False
    optimizer = getattr(trainer.optimizer, "optimizer", None)
    return bool(getattr(optimizer, "_step_supports_amp_scaling", False))
