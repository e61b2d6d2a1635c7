"""One training as its trainer's methods tell it: windows, and the phases of the common loop.

An adapter's own session adds what lies between: generation, rewards, advantages, and the counts. A
window starts with the call of a train-mode generation, so windows tile the training: what follows an
update (log, evaluation, checkpoint, data fetch) belongs to its window.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from otel_grpo import semconv
from otel_grpo.tracing.phase import Phase

if TYPE_CHECKING:
    from otel_grpo.core.ledger import Samples
    from otel_grpo.instrumentation.base import Steps
    from otel_grpo.tracing.iteration import Iteration
    from otel_grpo.tracing.run import Run
    from otel_grpo.tracing.sampler import Request
    from otel_grpo.tracing.update import Update

# Phases that leave work on the device when they end: their time is what the host waited for.
_DEVICE_PHASES = frozenset(
    {
        semconv.GENERATION,
        semconv.ADV_PIPELINE,
        semconv.LOGPROB_OLD,
        semconv.LOGPROB_REF,
        semconv.POLICY_TRAIN,
        semconv.OPTIMIZER,
        semconv.EVALUATION,
    }
)


class LoopSession:
    """State of one `train` call; every method named like one of the trainer's is a hook around it."""

    # Whether the trainer's scalars go to `metrics.jsonl`: not where it keeps such a file itself.
    keeps_flat = True

    def __init__(self, trainer: Any, run: Run) -> None:
        self.trainer = trainer
        self.run = run
        self.thread = threading.get_ident()
        self._asynchronous = trainer.accelerator.device.type != "cpu"
        self._iteration: Iteration | None = None
        self._entered = False  # the open window has a generation or a training step
        self._rollouts = 0
        self._applied = 0
        self._applied_ns: int | None = None  # end of the last update that is not published yet
        self._reading: Request | None = None  # of memory, right after it
        self._slices: list[Samples] = []  # of the current generation, as the trainer trains on them
        self._slice: Samples | None = None  # of the training step that is running
        self._in_step = False
        self._evaluations = 0
        self._advantage: Phase | None = None
        self._reward: Phase | None = None
        self._policy: Phase | None = None
        self._update: Update | None = None
        self._logs_steps = False  # the log call that is running speaks of training steps

    def watches(self, trainer: Any) -> bool:
        """Whether a call of one of the trainer's methods is part of this training."""
        return trainer is self.trainer and threading.get_ident() == self.thread

    # --- windows

    def _open_window(self, at_ns: int) -> None:
        self._iteration = self.run.open_iteration(at_ns)
        self._entered = False
        self._applied_ns = None

    def close_window(self, at_ns: int | None = None, error: BaseException | None = None) -> None:
        """The window ends, `aborted` if by an error."""
        if self._iteration is None:
            return
        if self._update is not None:
            self._update.stop(error or RuntimeError("the training went on without the update"))
            self._update = None
        end = self.run.clock.now() if at_ns is None else at_ns
        if self._applied_ns is not None:
            self._publish_at_end(self._applied_ns)
        iteration, self._iteration = self._iteration, None
        iteration.close(end_ns=end, status=None if error is None else "aborted", error=error)

    def _publish_at_end(self, applied_ns: int) -> None:
        """The model that generates is the model that is trained: published once the update is."""
        assert self._iteration is not None
        publication = self._iteration.publication(
            self._applied, kind="in_place", started_ns=applied_ns
        )
        publication.request = self._reading
        publication.completed(at_ns=applied_ns)

    def _next_window(self, at_ns: int) -> None:
        """A generation is called: a new window, unless the open one has only fetched its data."""
        closes = self._entered
        if closes:
            self.close_window(at_ns)
        if self._iteration is None:
            self._open_window(at_ns)
        if closes:
            # To close a window takes time, and that time is the next one's.
            self._own_work(at_ns).start().stop()
        self._entered = True
        self._slices = []

    def finish(self, error: BaseException | None) -> None:
        """The training is over."""
        self.close_window(error=error)
        # A handler that exits on SIGTERM says 0 or not: the training did not reach its end.
        stopped = isinstance(error, (KeyboardInterrupt, SystemExit))
        self.run.finish("interrupted" if stopped else None, error=error)

    # --- phases

    def _start(self, phase: str, at_ns: int | None = None) -> Phase | None:
        """None outside a window: start-up and shutdown have no phases."""
        if self._iteration is None:
            return None
        return Phase(self.run, phase, self._attributes(phase), start_ns=at_ns).start()

    def _attributes(self, phase: str) -> dict[str, Any] | None:
        if self._asynchronous and phase in _DEVICE_PHASES:
            return {semconv.DEVICE_SYNCED: False}
        return None

    def _own_work(self, at_ns: int | None = None) -> Phase:
        """Context manager around what this plugin does on the training thread: it is a log."""
        assert self._iteration is not None
        return self._iteration.phase(semconv.LOG, attributes={semconv.OWN: True}, start_ns=at_ns)

    def _timed(self, phase: str, at_ns: int | None = None) -> Steps:
        running = self._start(phase, at_ns)
        outcome = yield
        stop(running, outcome.error)

    # --- hooks, in the order of the loop

    def get_batch_samples(self, *_: Any, **__: Any) -> Steps:
        now = self.run.clock.now()
        if self._iteration is None:
            self._open_window(now)
        return self._timed(semconv.DATA, now)

    def training_step(self, *_: Any, **__: Any) -> Steps:
        self._in_step = True
        outcome = yield
        self._in_step = False
        now = self.run.clock.now()
        stop(self._policy, outcome.error, now)
        self._policy = None
        if outcome.error is not None or self._iteration is None:
            return
        self._entered = True
        if self._slice is not None:
            self._iteration.trained(self._slice)
        if self.trainer.accelerator.sync_gradients:
            self._begin_update(now)

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
        state = self.trainer.state
        if state.global_step:
            self.run.resumed(optimizer_step=state.global_step, tokens=state.num_input_tokens_seen)
        self.close_window(error=RuntimeError("the training loop started over"))
        self._policy = self._advantage = self._reward = None
        self._slices, self._slice, self._in_step = [], None, False

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
            attributes=self._attributes(semconv.OPTIMIZER),
        ).start()

    def _nominal(self) -> int | None:
        """Samples of a full update on this process."""
        args = self.trainer.args
        return int(args.gradient_accumulation_steps * args.per_device_train_batch_size)

    def _is_training(self) -> bool:
        """The trainer's own rule: an evaluation's generations belong to the evaluation."""
        return bool(self.trainer.model.training)


def stop(phase: Phase | None, error: BaseException | None = None, at_ns: int | None = None) -> None:
    """End the phase, if one was started."""
    if phase is not None:
        phase.stop(error, at_ns)
