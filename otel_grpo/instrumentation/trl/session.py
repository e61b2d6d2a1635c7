"""One training under observation: where its loop is, told to a run.

Each hook is a generator around one method of the trainer: what stands before its `yield` runs before
the method, what stands after it once the method is over. The instant at which one phase ends and the
next starts is read once, so that nothing falls between them.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from otel_grpo import semconv
from otel_grpo.core.ledger import Samples
from otel_grpo.instrumentation.trl.generating import GeneratingSession
from otel_grpo.instrumentation.trl.rollout import read_generation
from otel_grpo.instrumentation.windows import stop

if TYPE_CHECKING:
    from otel_grpo.core.columns import Ints
    from otel_grpo.instrumentation.base import Steps
    from otel_grpo.tracing.phase import Phase
    from otel_grpo.tracing.run import Run

# Where TRL's profiling contexts send their figures; without one of these they log nothing.
_PROFILING_SINKS = frozenset({"wandb", "mlflow", "trackio"})


class Session(GeneratingSession):
    """State of one `GRPOTrainer.train` call; every hook but the profiling ones runs on its thread."""

    def __init__(self, trainer: Any, run: Run) -> None:
        super().__init__(trainer, run)
        self._generated: Any = None  # what the last generation returned, not counted yet
        self._samples: Samples | None = None  # of the current generation, in the order generated
        self._auxiliary = 0
        self.timed_rewards: dict[int, Phase] = {}  # those that run, by their profiling context

    # --- hooks, in the order of the loop

    def _generate_and_score_completions(self, *_: Any, **__: Any) -> Steps:
        training = self._is_training()
        if training:
            self._generation_called()
        # An environment gives the prompts: its reset is part of fetching them.
        trainer = self.trainer  # TRL 1.7 and older have made the environments by now
        waiting = getattr(trainer, "environment_factories", trainer.environments) is not None
        if waiting:
            self._switch(semconv.DATA)
        self._auxiliary = 0
        outcome = yield
        self._boundary_due = False
        for phase in (self._running, self._advantage):
            stop(phase, outcome.error)
        self._running = self._advantage = None
        generated, self._generated = self._generated, None
        if training and generated is not None and self._iteration is not None:
            self._count(generated, consumed=outcome.error is None)
            self.run.memory()

    def _generate(self, *_: Any, **__: Any) -> Steps:
        self._begin_generation()
        outcome = yield
        now = self.run.clock.now()
        self._end_generation(outcome.error, now)
        if outcome.error is not None:
            return
        self._advantage = self._start(semconv.ADV_PIPELINE, now)
        # Lists that TRL makes anew each time, and forgets when it has made tensors of them. What follows
        # them (texts, logprobs, images) is not held.
        self._generated = outcome.value[:3]

    def _get_per_token_logps_and_entropies(self, model: Any, *_: Any, **__: Any) -> Steps:
        if self._advantage is None:  # the loss's own forward pass: policy_train
            return
        yield from self._timed(self._auxiliary_phase(model))

    def _calculate_rewards(self, *_: Any, **__: Any) -> Steps:
        now = self.run.clock.now()
        stop(self._advantage, at_ns=now)
        self._advantage = None
        self._reward = self._start(semconv.REWARD, now)
        outcome = yield
        now = self.run.clock.now()
        stop(self._reward, outcome.error, now)
        self._reward = None
        if outcome.error is None:
            self._advantage = self._start(semconv.ADV_PIPELINE, now)

    # --- hooks of profiling contexts, on any thread

    def enter_profiling(self, context: Any) -> None:
        """A reward function starts; an asynchronous one does so in a task of another thread."""
        reward, iteration = self._reward, self._iteration
        if reward is None or iteration is None:
            return
        prefix, _, name = str(context.name).partition(".")
        if prefix == type(self.trainer).__name__ and name in self.trainer.reward_func_names:
            self.timed_rewards[id(context)] = iteration.phase(
                semconv.REWARD, attributes={semconv.REWARD_NAME: name}, parent=reward
            ).start()

    def exit_profiling(self, context: Any, error: BaseException | None) -> None:
        stop(self.timed_rewards.pop(id(context), None), error)

    def log_profiling(self, context: Any) -> Steps | None:
        if context.is_main_process and not _PROFILING_SINKS.isdisjoint(context.report_to):
            return self._timed(semconv.LOG)
        return None

    # --- callbacks

    def train_begins(self) -> None:
        super().train_begins()
        self._generated = None

    # --- counts

    @property
    def unshuffled(self) -> int | None:
        """Index of the first sample of a generation that TRL is about to shuffle."""
        return None if self._samples is None else self._samples.indices[0]

    def shuffled(self, indices: Ints) -> None:
        """TRL has shuffled the generation: position i of its batch is now sample `indices[i]`."""
        if self._samples is None:
            return
        samples, self._samples = self._samples, None
        parts = self.trainer.args.steps_per_generation
        size = len(indices) // parts
        self._slices = [
            Samples(samples.rollout_id, indices[part * size : (part + 1) * size])
            for part in range(parts)
        ]

    def _count(self, generated: Any, *, consumed: bool) -> None:
        """A generation is over: its samples, and unless its rewards failed the trainer has them."""
        assert self._iteration is not None
        self._rollouts += 1
        n = len(generated[0])
        # TRL puts the samples of its processes behind each other, as many of each.
        first = self.trainer.accelerator.process_index * n
        self._iteration.generated(self._rollouts, n, first=first)
        if consumed:
            self._samples = self._iteration.consumed_unread(
                self._rollouts,
                n,
                partial(read_generation, generated, self.trainer, first),
                first=first,
                version=self._applied,
            )

    def _auxiliary_phase(self, model: Any) -> str:
        """Which forward pass this is: with adapters the reference is the policy with them off."""
        trainer, args = self.trainer, self.trainer.args
        self._auxiliary += 1
        if trainer.beta == 0.0:
            return semconv.LOGPROB_OLD
        if trainer.ref_model is not None:
            return semconv.LOGPROB_REF if model is trainer.ref_model else semconv.LOGPROB_OLD
        every = args.steps_per_generation * trainer.num_iterations
        has_old = args.gradient_accumulation_steps % every != 0 or (
            self._vllm is not None and trainer.vllm_importance_sampling_correction
        )
        return semconv.LOGPROB_OLD if has_old and self._auxiliary == 1 else semconv.LOGPROB_REF
