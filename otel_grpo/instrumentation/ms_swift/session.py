"""One training of ms-swift's GRPOTrainer: what lies between the phases of the common loop.

Generation with transformers shares the weights with the training. With vLLM the weights are pushed
inside the generation that follows an update, so there the window ends, at the end of that push.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from otel_grpo import semconv
from otel_grpo.instrumentation.hf.session import LoopSession
from otel_grpo.instrumentation.ms_swift import rollout
from otel_grpo.instrumentation.windows import stop

if TYPE_CHECKING:
    from otel_grpo.instrumentation.base import Steps
    from otel_grpo.records.model import PublicationKind
    from otel_grpo.tracing.phase import Phase
    from otel_grpo.tracing.run import Run

# Where the trainer's profiling contexts send their figures; without one of these they log nothing.
_PROFILING_SINKS = frozenset({"wandb", "swanlab"})


class Session(LoopSession):
    """State of one `GRPOTrainer.train` call."""

    keeps_flat = False  # the trainer has its `logging.jsonl`

    def __init__(self, trainer: Any, run: Run) -> None:
        super().__init__(trainer, run)
        self._generations: list[Sequence[Any]] = []  # samples of the rollout that is being made
        self._valid: list[list[bool]] = []  # what dynamic sampling found of each of them
        self._chunks: Sequence[Sequence[Any]] = ()  # the samples as the trainer trains on them
        self._preparing = False
        self._teacher = False
        self._fetch: Phase | None = None
        self._written_by = 0  # version of the weights that made the rollout at hand
        self._in_flight = 0  # the same of a rollout that is made beside the training

    def _nominal(self) -> int | None:
        return None if self.trainer.dynamic_num_samples else super()._nominal()

    def _restored(self) -> dict[str, int]:
        # It does not count tokens: the state's number of them stays 0.
        return {"optimizer_step": self.trainer.state.global_step}

    # --- windows and publications

    def _publish_at_end(self, applied_ns: int) -> None:
        if not self.trainer.use_fast_infer:
            super()._publish_at_end(applied_ns)
        else:
            self._due(self._kind(), applied_ns)

    def _kind(self) -> PublicationKind:
        return "collective" if self.trainer.vllm_mode == "server" else "unknown"

    def _move_model_to_vllm(self, *_: Any, **__: Any) -> Steps:
        return self._push(self._kind())

    # --- hooks, in the order of the loop

    def _generate_and_score_completions(self, *_: Any, **__: Any) -> Steps:
        training = self._is_training()
        self._boundary_due = training
        if training and not (self.trainer.use_fast_infer and self._applied_ns is not None):
            self._begin_window(self.run.clock.now())
        self._generations, self._valid, self._chunks = [], [], ()
        outcome = yield
        self._boundary_due = False
        for phase in (self._fetch, self._advantage):
            stop(phase, outcome.error)
        self._fetch = self._advantage = None
        if training and self._generations and self._iteration is not None:
            with self._own_work():
                self._count(consumed=outcome.error is None)
            self.run.memory()
        self._generations, self._chunks = [], ()

    def resample_encode_failed_inputs(self, *_: Any, **__: Any) -> Steps:
        return self._timed(semconv.DATA)

    def _generate_completions(self, *_: Any, **__: Any) -> Steps:
        now = self.run.clock.now()
        stop(self._fetch, at_ns=now)
        self._fetch = None
        training = self._is_training()
        # With vLLM the waits and switches of this call are siblings of `generation`.
        running = None if self.trainer.use_fast_infer else self._start(semconv.GENERATION, now)
        if not self.trainer.async_generate:
            self._written_by = self._applied
        outcome = yield
        stop(running, outcome.error)
        if training and outcome.error is None:
            self._generations.append(outcome.value)

    def _infer_single_or_multi_turn(self, *_: Any, **__: Any) -> Steps | None:
        if not self.trainer.use_fast_infer:
            return None
        now = self.run.clock.now()
        if threading.get_ident() == self.thread:
            self._begin_window(now)
        return self._timed(semconv.GENERATION, now)

    def _wait_queue(self, *_: Any, **__: Any) -> Steps:
        return self._timed(semconv.ROLLOUT_WAIT)

    def async_generate_rollout(self, *_: Any, **__: Any) -> Steps | None:
        self._begin_window(self.run.clock.now())
        if self._is_training():
            self._written_by, self._in_flight = self._in_flight, self._applied
        return None

    def wake_up(self, *_: Any, **__: Any) -> Steps:
        return self._timed(semconv.ENGINE_WAKE)

    def sleep_vllm_engine(self, *_: Any, **__: Any) -> Steps:
        return self._timed(semconv.ENGINE_SLEEP)

    def offload_model(self, *_: Any, **__: Any) -> Steps:
        return self._timed(semconv.OFFLOAD)

    load_model = offload_optimizer = load_optimizer = offload_model

    def _compute_rewards_per_func(self, *_: Any, **__: Any) -> Steps:
        self._reward = self._start(semconv.REWARD)
        outcome = yield
        stop(self._reward, outcome.error)
        self._reward = None

    def start_reward(self, name: str) -> Phase | None:
        """A reward function is called; an asynchronous one in a task."""
        if self._reward is None or self._iteration is None:
            return None
        attributes = {semconv.REWARD_NAME: name}
        return self._iteration.phase(
            semconv.REWARD, attributes=attributes, parent=self._reward
        ).start()

    def _dynamic_sampling(self, *_: Any, **__: Any) -> Steps:
        outcome = yield
        stop(self._fetch, outcome.error)
        self._fetch = None

    def compute_std(self, *_: Any, **__: Any) -> Steps:
        outcome = yield
        if outcome.error is None:
            # The trainer reads it next, element by element.
            self._valid.append([std > 0 for std in outcome.value.tolist()])
            self._fetch = self._start(semconv.DATA)

    def _prepare_batch_inputs(self, *_: Any, **__: Any) -> Steps:
        self._advantage = self._start(semconv.ADV_PIPELINE)
        self._preparing = True
        yield
        self._preparing = False

    def split_by_mini_batches(self, *_: Any, **__: Any) -> Steps | None:
        return self._keep_chunks() if self._preparing else None

    def _keep_chunks(self) -> Steps:
        outcome = yield
        self._chunks = outcome.value or ()

    def _get_per_token_logps_and_entropies(
        self, model: Any, model_inputs: Any, grpo_batch: Any, *_: Any, **__: Any
    ) -> Steps | None:
        if not self._preparing or self._teacher:  # `policy_train`, or another part of the pipeline
            return None
        is_old = grpo_batch.old_per_token_logps is None
        return self._timed(semconv.LOGPROB_OLD if is_old else semconv.LOGPROB_REF)

    def _compute_teacher_logps(self, *_: Any, **__: Any) -> Steps:
        self._teacher = True
        yield
        self._teacher = False

    def _postprocess_batch(self, *_: Any, **__: Any) -> Steps:
        outcome = yield
        stop(self._advantage, outcome.error)
        self._advantage = None

    def _log_rollout(self, *_: Any, **__: Any) -> Steps:
        return self._timed(semconv.LOG)

    def _evalscope_eval(self, *args: Any, **kwargs: Any) -> Steps:
        return self.evaluate(*args, **kwargs)

    def reports(self, trainer: Any) -> bool:
        """Whether a profiling context of this trainer sends its figures anywhere."""
        return (
            self.watches(trainer)
            and trainer.accelerator.is_main_process
            and not _PROFILING_SINKS.isdisjoint(trainer.args.report_to or ())
        )

    def start_log(self) -> Phase | None:
        """A profiling context begins to log."""
        return self._start(semconv.LOG)

    # --- counts

    def _count(self, *, consumed: bool) -> None:
        """A rollout is over: its samples, and unless it failed the trainer has them."""
        iteration, trainer = self._iteration, self.trainer
        assert iteration is not None
        process = trainer.accelerator.process_index
        self._rollouts += 1
        number: int | str = self._rollouts
        if trainer.dynamic_num_samples:  # places of other processes are not known
            number = f"{number}/{process}"
        for again, samples in enumerate(self._generations):
            first = 0 if trainer.dynamic_num_samples else process * len(samples)
            name = f"{number}.{again}" if again else number
            iteration.generated(name, len(samples), first=first)
        if not consumed:
            return
        if self._valid and not trainer.dynamic_num_samples:
            size = trainer.args.generation_batch_size
            for reason, n, tokens in rollout.not_needed(
                self._generations, self._valid, process=process, size=size
            ):
                iteration.discarded(reason, n, tokens=tokens)
        samples = [sample for chunk in self._chunks for sample in chunk]
        first = rollout.first_of(len(samples), trainer)
        known = iteration.consumed_unread(
            number,
            len(samples),
            partial(
                rollout.read_batch,
                samples,
                first=first,
                group_size=None if trainer.dynamic_num_samples else trainer.num_generations,
                drops_truncated=trainer.overlong_filter,
            ),
            version=self._written_by,
            first=first,
        )
        self._slices, start = [], 0
        for chunk in self._chunks:
            self._slices.append(known[start : start + len(chunk)])
            start += len(chunk)
        if trainer.overlong_filter and not process % trainer.template.sequence_parallel_size:
            # Of processes that share these samples one says what the loss leaves out.
            cut = [rollout.written(sample) for sample in samples if sample.is_truncated]
            if cut:
                iteration.discarded("overlong", len(cut), tokens=sum(cut))
