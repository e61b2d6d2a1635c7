"""ms-swift's GRPO trainer on Megatron: hooks written from the released code, not run on a GPU here.

One process for each rank, and ranks of one model-parallel group train on the same samples: each of
them names them, and they are united by their place among all. Rollouts are vLLM's.
"""

from __future__ import annotations

import sys
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any

from otel_grpo import semconv
from otel_grpo.instrumentation import base
from otel_grpo.instrumentation.base import Expected, Steps
from otel_grpo.instrumentation.ms_swift import contract, rollout
from otel_grpo.instrumentation.training import TrainingHooks
from otel_grpo.instrumentation.windows import WindowSession, stop

if TYPE_CHECKING:
    from otel_grpo.core.ledger import Samples
    from otel_grpo.tracing.phase import Phase
    from otel_grpo.tracing.run import Run

METHODS = (
    Expected("train", ("self", "train_dataset", "val_dataset")),
    Expected("train_step", ("self", "train_data_iterator")),
    Expected("_replace_data_iterator", ("self", "data_iterator")),
    Expected("_build_rollout_buffer", ("self", "data_iterator")),
    Expected("_generate_and_score_completions", ("self", "inputs")),
    Expected("resample_encode_failed_inputs", ("self", "inputs")),
    Expected("_generate_completions", ("self", "samples")),
    Expected("_move_model_to_vllm", ("self",)),
    Expected("_rollout", ("self", "samples")),
    Expected("_rollout_requests", ("self", "requests", "request_config")),
    Expected("_score_completions", ("self", "samples")),
    Expected("_maybe_compute_logps", ("self", "batch")),
    Expected("compute_per_token_logps", ("self",)),
    Expected("_compute_teacher_logps", ("self",)),
    Expected("_collate_teacher_opsd_batch", ("self", "sample_slice", "template")),
    Expected("_compute_advantages", ("self", "samples", "rewards_per_func")),
    Expected("on_log", ("self", "logs")),
    Expected("evaluate", ("self", "val_data_iterator")),
    Expected("save_checkpoint", ("self",)),
)
COLLATE = Expected("collate_to_grpo_micro_batch", ("samples", "template"))


class MegatronSession(WindowSession):
    """State of one `MegatronGRPOTrainer.train` call."""

    def __init__(self, trainer: Any, run: Run) -> None:
        super().__init__(trainer, run, asynchronous=True)
        self.mpu: Any = sys.modules["megatron.core"].mpu
        self._training = False  # the rollout that is made is one to train on
        self._local = 0  # samples that this process generated for it
        self._batches: list[list[Any]] = []  # its samples, micro-batch after micro-batch
        self._forwards = 0
        self._teacher = False
        self._slice: Samples | None = None
        self._evaluating = False
        self._advantage: Phase | None = None
        self._policy: Phase | None = None

    # --- windows and publications

    def _publish_at_end(self, applied_ns: int) -> None:
        self._due("collective", applied_ns)

    def _move_model_to_vllm(self, *_: Any, **__: Any) -> Steps:
        return self._push("collective")

    # --- hooks, in the order of the loop

    def train_step(self, *_: Any, **__: Any) -> Steps:
        outcome = yield
        stop(self._policy, outcome.error)
        update, self._policy, self._update = self._update, None, None
        if outcome.error is None and self._slice is not None and self._iteration is not None:
            self._iteration.trained(self._slice)
        if update is None:
            return
        if outcome.error is None and not outcome.value[2]:
            update.skip("overflow")
        update.stop(outcome.error)
        if update.status == "applied":
            self._applied += 1
            self._applied_ns = update.end_ns
        self.run.memory()

    def optimizer_step(self) -> None:
        """The optimizer is called: forward and backward are over, all micro-batches of this step."""
        now = self.run.clock.now()
        stop(self._policy, at_ns=now)
        self._policy = None
        if self._iteration is not None:
            self._update = self._iteration.update(
                start_ns=now, attributes=self._attributes.get(semconv.OPTIMIZER)
            ).start()

    def _replace_data_iterator(self, *_: Any, **__: Any) -> Steps:
        place = self.trainer._step  # counted on by the call
        outcome = yield
        if outcome.error is not None or self._evaluating:
            return
        parts = self._slices
        self._slice = parts[place % len(parts)] if parts else None
        self._policy = self._start(semconv.POLICY_TRAIN)

    def _build_rollout_buffer(self, *_: Any, **__: Any) -> Steps:
        now = self.run.clock.now()
        if self._iteration is None and not self._evaluating:
            self._open_window(now)
        self._advantage = self._start(semconv.DATA, now)  # until the rollout is called
        outcome = yield
        stop(self._advantage, outcome.error)
        self._advantage = None

    def _generate_and_score_completions(self, *_: Any, **__: Any) -> Steps:
        now = self.run.clock.now()
        stop(self._advantage, at_ns=now)
        self._advantage = None
        self._training = self._boundary_due = not self._evaluating
        if self._training and self._applied_ns is None:
            self._begin_window(now)
        self._batches = []
        outcome = yield
        self._boundary_due = False
        stop(self._advantage, outcome.error)
        self._advantage = None
        if self._training and outcome.error is None and self._iteration is not None:
            with self._own_work():
                self._count()
            self.run.memory()

    def resample_encode_failed_inputs(self, *_: Any, **__: Any) -> Steps:
        return self._timed(semconv.DATA)

    def _generate_completions(self, samples: Any, *_: Any, **__: Any) -> None:
        self._local = len(samples)

    def _rollout(self, *_: Any, **__: Any) -> Steps:
        now = self.run.clock.now()
        self._begin_window(now)
        return self._timed(semconv.GENERATION, now)

    _rollout_requests = _rollout

    def sleep_vllm_engine(self) -> Steps:
        return self._timed(semconv.ENGINE_SLEEP)

    def wake_up(self) -> Steps:
        return self._timed(semconv.ENGINE_WAKE)

    def _score_completions(self, *_: Any, **__: Any) -> Steps:
        return self._timed(semconv.REWARD)

    def collated(self, samples: Any) -> None:
        """The samples of one micro-batch are put together: the advantage pipeline has begun."""
        if self._teacher:
            return
        if self._advantage is None:
            self._advantage = self._start(semconv.ADV_PIPELINE)
        self._batches.append(list(samples))

    def _maybe_compute_logps(self, *_: Any, **__: Any) -> None:
        self._forwards = 0

    def compute_per_token_logps(self, *_: Any, **__: Any) -> Steps | None:
        if self._advantage is None or self._teacher:
            return None
        self._forwards += 1
        # The reference comes first, where there is one.
        reference = self.trainer.beta != 0.0 and self._forwards == 1
        return self._timed(semconv.LOGPROB_REF if reference else semconv.LOGPROB_OLD)

    def _compute_teacher_logps(self, *_: Any, **__: Any) -> Steps:
        self._teacher = True
        yield
        self._teacher = False

    _collate_teacher_opsd_batch = _compute_teacher_logps

    def _compute_advantages(self, *_: Any, **__: Any) -> None:
        """Part of the pipeline, which ends with the whole."""

    def on_log(self, *_: Any, **__: Any) -> Steps:
        return self._timed(semconv.LOG)

    def evaluate(self, *_: Any, **__: Any) -> Steps:
        phase, self._evaluating = self._start(semconv.EVALUATION), True
        outcome = yield
        self._evaluating = False
        stop(phase, outcome.error)

    def save_checkpoint(self, *_: Any, **__: Any) -> Steps:
        return self._timed(semconv.CHECKPOINT)

    # --- counts

    def _count(self) -> None:
        iteration, trainer = self._iteration, self.trainer
        assert iteration is not None
        samples = [sample for batch in self._batches for sample in batch]
        n = len(samples)
        first = int(self.mpu.get_data_parallel_rank()) * n
        self._rollouts += 1
        # Each process of a model-parallel group made its part of the group's samples.
        iteration.generated(self._rollouts, n, first=first)
        known = iteration.consumed_unread(
            self._rollouts,
            n,
            partial(
                rollout.read_batch,
                samples,
                first=first,
                group_size=trainer.num_generations,
                drops_truncated=trainer.overlong_filter,
            ),
            version=self._applied,
            first=first,
        )
        size = n // trainer.steps_per_generation
        self._slices = [known[at : at + size] for at in range(0, n, size)]


class Hooks(TrainingHooks[MegatronSession]):
    """The patches of ms-swift's Megatron trainer in one process."""

    system = "ms-swift-megatron"
    package = contract.PACKAGE
    supported = contract.SUPPORTED
    session_class = MegatronSession

    def apply(self, module: ModuleType) -> None:
        """Patch the trainer, unless it is not the one that these hooks were written for."""
        trainer, mixin = module.MegatronGRPOTrainer, sys.modules[contract.MEGATRON_MIXIN]
        expected: list[tuple[Any, Expected]] = [(trainer, each) for each in METHODS]
        expected += [(module, COLLATE), (mixin, contract.SLEEP)]
        reason = base.mismatch(self.package, self.supported, expected)
        if reason is not None:
            self._refuse(reason)
            return
        self._wrap(trainer, "train", self._train)
        for name, _ in METHODS:
            if name == "train_step":
                self._wrap(trainer, name, self._train_step)
            elif name != "train":
                self._wrap(trainer, name, self._on_trainer(name))
        self._wrap(module, COLLATE.name, self._collate)
        self._wrap(mixin, contract.SLEEP.name, self._sleep)

    def unsupported_training(self, trainer: Any) -> str | None:
        """Every training of this trainer is observed."""
        return None

    def _train_step(self, trainer: Any, *args: Any, **kwargs: Any) -> Steps | None:
        session = self._session
        if session is None or not session.watches(trainer):
            return None
        # They are made after the training was called, and these hooks find them here.
        self._wrap(type(trainer.optimizer), "step", self._optimizer)
        if trainer.vllm_mode == "colocate":
            self._wrap(type(trainer.engine.engine), "wake_up", self._wake)
        return session.train_step(*args, **kwargs)

    def _optimizer(self, optimizer: Any, *_: Any, **__: Any) -> None:
        session = self._session
        if session is not None and session.trainer.optimizer is optimizer:
            session.optimizer_step()

    def _collate(self, samples: Any, *_: Any, **__: Any) -> None:
        if self._session is not None:
            self._session.collated(samples)

    def _wake(self, *_: Any, **__: Any) -> Steps | None:
        return None if self._session is None else self._session.wake_up()

    def _sleep(self, *_: Any, **__: Any) -> Steps | None:
        return None if self._session is None else self._session.sleep_vllm_engine()
