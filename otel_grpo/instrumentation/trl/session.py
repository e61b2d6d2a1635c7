"""One training under observation: where its loop is, told to a run.

Each hook is a generator around one method of the trainer: what stands before its `yield` runs before
the method, what stands after it once the method is over. The instant at which one phase ends and the
next starts is read once, so that nothing falls between them.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from otel_grpo import semconv
from otel_grpo.instrumentation.trl.rollout import read_generation

if TYPE_CHECKING:
    from otel_grpo.core.ledger import Samples
    from otel_grpo.instrumentation.base import Steps
    from otel_grpo.tracing.iteration import Iteration
    from otel_grpo.tracing.phase import Phase
    from otel_grpo.tracing.run import Run
    from otel_grpo.tracing.update import Update

# Where TRL's profiling contexts send their figures; without one of these they log nothing.
_PROFILING_SINKS = frozenset({"wandb", "mlflow", "trackio"})

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


class Session:
    """State of one `GRPOTrainer.train` call; every hook but the profiling ones runs on its thread."""

    def __init__(self, trainer: Any, run: Run) -> None:
        self.trainer = trainer
        self.run = run
        self.thread = threading.get_ident()
        self._asynchronous = trainer.accelerator.device.type != "cpu"
        self._iteration: Iteration | None = None
        self._entered = False  # the open window has a generation or a training step
        self._rollouts = 0
        self._applied = 0
        self._applied_ns: int | None = None  # end of the last update applied in the open window
        self._generated: Any = None  # what the last generation returned, not counted yet
        self._samples: Samples | None = None  # of the current generation, in the order generated
        self._slices: list[Samples] = []  # the same as TRL trains on them, after its shuffle
        self._slice: Samples | None = None  # of the training step that is running
        self._in_step = False
        self._evaluations = 0
        self._fetch: Phase | None = None
        self._advantage: Phase | None = None
        self._reward: Phase | None = None
        self._policy: Phase | None = None
        self._update: Update | None = None
        self._auxiliary = 0
        self._logs_steps = False  # the log call that is running speaks of training steps
        self._timed_rewards: dict[int, Phase] = {}

    def watches(self, trainer: Any) -> bool:
        """Whether a call of one of the trainer's methods is part of this training."""
        return trainer is self.trainer and threading.get_ident() == self.thread

    # --- windows

    def _open_window(self, at_ns: int) -> None:
        self._iteration = self.run.open_iteration(at_ns)
        self._entered = False
        self._applied_ns = None

    def close_window(self, at_ns: int | None = None, error: BaseException | None = None) -> None:
        """The window ends, `aborted` if by an error; its last applied update published the weights."""
        if self._iteration is None:
            return
        if self._update is not None:
            self._update.stop(error or RuntimeError("the training went on without the update"))
            self._update = None
        end = self.run.clock.now() if at_ns is None else at_ns
        if self._applied_ns is not None:
            # The model that generates is the model that is trained: once the update is complete.
            self._iteration.publication(
                self._applied, kind="in_place", started_ns=self._applied_ns
            ).completed(at_ns=self._applied_ns)
        iteration, self._iteration = self._iteration, None
        iteration.close(end_ns=end, status=None if error is None else "aborted", error=error)

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
        attributes = self._attributes(phase)
        return self._iteration.phase(phase, attributes=attributes, start_ns=at_ns).start()

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
        _stop(running, outcome.error)

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
        _stop(self._policy, outcome.error, now)
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
            # TRL's own rule for the slice of this step; it counts the step when it is over.
            self._slice = self._slices[self.trainer._step % len(self._slices)]

    def _generate_and_score_completions(self, *_: Any, **__: Any) -> Steps:
        training = self._is_training()
        if training:
            self._next_window(self.run.clock.now())
        # An environment gives the prompts: its reset is part of fetching them.
        waiting = self.trainer.environment_factories is not None
        self._fetch = self._start(semconv.DATA) if waiting else None
        self._auxiliary = 0
        outcome = yield
        _stop(self._fetch, outcome.error)
        _stop(self._advantage, outcome.error)
        self._fetch = self._advantage = None
        generated, self._generated = self._generated, None
        if training and generated is not None and self._iteration is not None:
            with self._own_work():
                self._count(generated, consumed=outcome.error is None)
            self.run.memory()

    def _generate(self, *_: Any, **__: Any) -> Steps:
        now = self.run.clock.now()
        _stop(self._fetch, at_ns=now)
        self._fetch = None
        running = self._start(semconv.GENERATION, now)
        outcome = yield
        now = self.run.clock.now()
        _stop(running, outcome.error, now)
        if outcome.error is not None:
            return
        self._advantage = self._start(semconv.ADV_PIPELINE, now)
        self._generated = outcome.value

    def _get_per_token_logps_and_entropies(self, model: Any, *_: Any, **__: Any) -> Steps:
        if self._advantage is None:  # the loss's own forward pass: policy_train
            return
        yield from self._timed(self._auxiliary_phase(model))

    def _calculate_rewards(self, *_: Any, **__: Any) -> Steps:
        now = self.run.clock.now()
        _stop(self._advantage, at_ns=now)
        self._advantage = None
        self._reward = self._start(semconv.REWARD, now)
        outcome = yield
        now = self.run.clock.now()
        _stop(self._reward, outcome.error, now)
        self._reward = None
        if outcome.error is None:
            self._advantage = self._start(semconv.ADV_PIPELINE, now)

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
        _stop(outermost, outcome.error)

    predict = evaluate

    def _save_checkpoint(self, *_: Any, **__: Any) -> Steps:
        return self._timed(semconv.CHECKPOINT)

    # --- hooks of profiling contexts, on any thread

    def enter_profiling(self, context: Any) -> None:
        """A reward function starts; an asynchronous one does so in a task of another thread."""
        reward, iteration = self._reward, self._iteration
        if reward is None or iteration is None:
            return
        prefix, _, name = str(context.name).partition(".")
        if prefix == type(self.trainer).__name__ and name in self.trainer.reward_func_names:
            self._timed_rewards[id(context)] = iteration.phase(
                semconv.REWARD, attributes={semconv.REWARD_NAME: name}, parent=reward
            ).start()

    def exit_profiling(self, context: Any, error: BaseException | None) -> None:
        _stop(self._timed_rewards.pop(id(context), None), error)

    def log_profiling(self, context: Any) -> Steps | None:
        if context.is_main_process and not _PROFILING_SINKS.isdisjoint(context.report_to or ()):
            return self._timed(semconv.LOG)
        return None

    # --- callbacks

    def train_begins(self) -> None:
        """Also called when the trainer starts over with smaller batches after running out of memory."""
        state = self.trainer.state
        if state.global_step:
            self.run.resumed(optimizer_step=state.global_step, tokens=state.num_input_tokens_seen)
        self.close_window(error=RuntimeError("the training loop started over"))
        self._policy = self._advantage = self._reward = self._generated = None
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
        if not skipped:
            self._applied += 1
            self._applied_ns = update.end_ns
        self.run.memory()

    def logged(self, logs: dict[str, Any]) -> None:
        state = self.trainer.state
        self.run.log_scalars(
            logs,
            step=state.global_step,
            epoch=state.epoch,
            covers=None if self._logs_steps else (),
        )

    # --- counts

    def shuffled(self, order: list[int]) -> None:
        """TRL has shuffled the generation: position i of its batch is now sample `order[i]`."""
        if self._samples is None:
            return
        samples, self._samples = self._samples, None
        parts = self.trainer.args.steps_per_generation
        size = len(order) // parts
        self._slices = [samples[order[part * size : (part + 1) * size]] for part in range(parts)]

    @property
    def awaits_shuffle(self) -> bool:
        return self._samples is not None

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

    def _count(self, generated: Any, *, consumed: bool) -> None:
        """A generation is over: its samples, and unless its rewards failed the trainer has them."""
        assert self._iteration is not None
        rollout = read_generation(generated, self.trainer)
        self._rollouts += 1
        self._iteration.generated(self._rollouts, len(rollout), first=rollout.first)
        if consumed:
            self._samples = self._iteration.consumed(
                self._rollouts,
                prompt_lengths=rollout.prompt_lengths,
                completion_lengths=rollout.completion_lengths,
                environment_lengths=rollout.environment_lengths,
                trained_lengths=rollout.trained_lengths,
                truncated=rollout.truncated,
                groups=rollout.groups,
                first=rollout.first,
                versions=self._applied,
            )

    def _begin_update(self, at_ns: int) -> None:
        assert self._iteration is not None
        args = self.trainer.args
        self._update = self._iteration.update(
            nominal=args.gradient_accumulation_steps * args.per_device_train_batch_size,
            start_ns=at_ns,
            attributes=self._attributes(semconv.OPTIMIZER),
        ).start()

    def _auxiliary_phase(self, model: Any) -> str:
        """Which forward pass this is: with adapters the reference is the policy with them off."""
        trainer, args = self.trainer, self.trainer.args
        self._auxiliary += 1
        if trainer.beta == 0.0:
            return semconv.LOGPROB_OLD
        if trainer.ref_model is not None:
            return semconv.LOGPROB_REF if model is trainer.ref_model else semconv.LOGPROB_OLD
        every = args.steps_per_generation * trainer.num_iterations
        has_old = args.gradient_accumulation_steps % every != 0
        return semconv.LOGPROB_OLD if has_old and self._auxiliary == 1 else semconv.LOGPROB_REF

    def _is_training(self) -> bool:
        """TRL's own rule: an evaluation's generations belong to the evaluation."""
        return bool(self.trainer.model.training)


def _stop(
    phase: Phase | None, error: BaseException | None = None, at_ns: int | None = None
) -> None:
    if phase is not None:
        phase.stop(error, at_ns)
