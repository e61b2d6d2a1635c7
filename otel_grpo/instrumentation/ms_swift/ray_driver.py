"""ms-swift's GRPO trainer on Ray and Megatron: hooks of its driver, written from the released code.

Not run with its workers here, which need GPUs. The driver holds every sample of the job, waits for
each call of its workers, and knows that a step was made once all of them have answered.
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
    from otel_grpo.tracing.phase import Phase
    from otel_grpo.tracing.run import Run

METHODS = (
    Expected("train", ("self",)),
    Expected("_train_loop", ("self", "tg", "train_iters", "iteration")),
    Expected("_resample_failed_prompts", ("self", "prompts")),
    Expected("_generate", ("self", "samples")),
    Expected("_postprocess_rollout", ("self", "samples", "outputs")),
    Expected("score_completions", ("self", "samples")),
    Expected("_dynamic_sampling", ("self", "samples", "rewards_per_func")),
    Expected("encode_rollout_batch", ("self", "samples")),
    Expected("compute_advantages", ("self", "rewards_per_func")),
    Expected("_maybe_log_completions", ("self", "rollout_with_outputs")),
)
EXECUTE = Expected("execute", ("self", "method_name"))
SYNC = Expected("sync_weights", ("self",))
WAKE = Expected("wake_up_rollout", ("self",))
SLEEP = Expected("sleep_rollout", ("self",))

# What the driver waits for, by the workers' method.
_PHASES = {
    "compute_logps": semconv.LOGPROB_OLD,
    "compute_ref_logps": semconv.LOGPROB_REF,
    "offload_to_cpu": semconv.OFFLOAD,
    "reload_to_gpu": semconv.OFFLOAD,
}


class RaySession(WindowSession):
    """State of one `GRPOTrainer.train` call of the driver."""

    def __init__(self, trainer: Any, run: Run) -> None:
        super().__init__(trainer, run)
        self._generated: list[Any] = []  # samples of this rollout, whatever becomes of them
        self._encoded: list[Any] = []  # the chunks that are trained on, in order
        self._steps = 0  # of this rollout
        self._advantage: Phase | None = None

    # --- windows and publications

    def _publish_at_end(self, applied_ns: int) -> None:
        self._due("collective", applied_ns)

    def sync_weights(self) -> Steps:
        started = self.run.clock.now()
        self._end_advantage(started)
        if self._iteration is None:
            self._open_window(started)
        phase = self._start(semconv.WEIGHT_SYNC, started)
        outcome = yield
        now = self._pushed(phase, started, outcome, "collective")
        if now is not None:
            self._next_window(now)
            self._generated, self._encoded, self._steps = [], [], 0

    # --- hooks, in the order of the loop

    def _train_loop(self, *_: Any, **__: Any) -> Steps:
        outcome = yield
        self._end_advantage(self.run.clock.now())
        self.close_window(error=outcome.error)

    def wake(self) -> Steps:
        return self._timed(semconv.ENGINE_WAKE)

    def sleep(self) -> Steps:
        return self._timed(semconv.ENGINE_SLEEP)

    def _resample_failed_prompts(self, *_: Any, **__: Any) -> Steps:
        return self._timed(semconv.DATA)

    def _generate(self, *_: Any, **__: Any) -> Steps:
        return self._timed(semconv.GENERATION)

    def _postprocess_rollout(self, *_: Any, **__: Any) -> Steps:
        outcome = yield
        if outcome.error is None:
            self._generated.append(outcome.value)

    def score_completions(self, *_: Any, **__: Any) -> Steps:
        return self._timed(semconv.REWARD)

    def _dynamic_sampling(self, *_: Any, **__: Any) -> Steps:
        outcome = yield
        if outcome.error is not None or self._iteration is None:
            return
        kept = {id(sample) for sample in outcome.value[0]}
        lost = [each for made in self._generated for each in made if id(each) not in kept]
        if lost:
            tokens = sum(map(rollout.written, lost))
            self._iteration.discarded("filtered", len(lost), tokens=tokens)

    def _maybe_log_completions(self, *_: Any, **__: Any) -> Steps:
        return self._timed(semconv.LOG)

    def encode_rollout_batch(self, *_: Any, **__: Any) -> Steps:
        self._begin_advantage()
        outcome = yield
        if outcome.error is None:
            self._encoded.append(outcome.value)

    def compute_advantages(self, *_: Any, **__: Any) -> None:
        self._begin_advantage()

    def execute(self, method: str) -> Steps | None:
        """The driver calls a method of its workers and waits for all of them."""
        if method == "train_step":
            return self._train_step()
        phase = _PHASES.get(method)
        return None if phase is None else self._timed(phase)

    def _train_step(self) -> Steps:
        now = self.run.clock.now()
        self._end_advantage(now)
        if not self._slices and self._iteration is not None:
            with self._own_work(now):
                self._count()
        policy = self._start(semconv.POLICY_TRAIN)
        outcome = yield
        now = self.run.clock.now()
        stop(policy, outcome.error, now)
        if self._iteration is None:
            return
        if outcome.error is None and self._steps < len(self._slices):
            self._iteration.trained(self._slices[self._steps])
        self._steps += 1
        # The workers step inside the call: the time is in `policy_train`.
        update = self._iteration.update(start_ns=now, attributes={semconv.OPTIMIZER_FUSED: True})
        update.start().stop(outcome.error)
        if outcome.error is None:
            self._applied += 1
            self._applied_ns = update.end_ns

    def _begin_advantage(self) -> None:
        if self._advantage is None:
            self._advantage = self._start(semconv.ADV_PIPELINE)

    def _end_advantage(self, at_ns: int) -> None:
        stop(self._advantage, at_ns=at_ns)
        self._advantage = None

    # --- counts

    def _count(self) -> None:
        iteration = self._iteration
        assert iteration is not None
        self._rollouts += 1
        for again, made in enumerate(self._generated):
            name = f"{self._rollouts}.{again}" if again else self._rollouts
            iteration.generated(name, len(made))
        samples = [sample for chunk in self._encoded for sample in chunk]
        known = iteration.consumed_unread(
            self._rollouts,
            len(samples),
            partial(
                rollout.read_batch,
                samples,
                first=0,
                group_size=self.trainer.num_generations,
                drops_truncated=False,
            ),
            version=self._applied,
        )
        start = 0
        for chunk in self._encoded:
            self._slices.append(known[start : start + len(chunk)])
            start += len(chunk)
        left = sum(map(len, self._generated[:1])) - len(samples)
        if left > 0:  # the trainer drops what its chunks do not divide
            iteration.discarded("remainder", left)


class Hooks(TrainingHooks[RaySession]):
    """The patches of ms-swift's driver on Ray."""

    system = "ms-swift-ray"
    package = contract.PACKAGE
    supported = contract.SUPPORTED
    session_class = RaySession

    def apply(self, module: ModuleType) -> None:
        """Patch the driver, unless it is not the one that these hooks were written for."""
        trainer = module.GRPOTrainer
        group = sys.modules[contract.RAY_GROUP].WorkerGroup
        weights = sys.modules[contract.RAY_WEIGHTS].CheckpointEngineManager
        expected: list[tuple[Any, Expected]] = [(trainer, each) for each in METHODS]
        expected += [(group, EXECUTE), (weights, SYNC), (weights, WAKE), (weights, SLEEP)]
        reason = base.mismatch(self.package, self.supported, expected)
        if reason is not None:
            self._refuse(reason)
            return
        self._wrap(trainer, "train", self._train)
        for name, _ in METHODS:
            if name != "train":
                self._wrap(trainer, name, self._on_trainer(name))
        self._wrap(group, EXECUTE.name, self._execute)
        self._wrap(weights, SYNC.name, self._sync)
        self._wrap(weights, WAKE.name, self._wake)
        self._wrap(weights, SLEEP.name, self._sleep)

    def unsupported_training(self, trainer: Any) -> str | None:
        """Every training of this driver is observed."""
        return None

    def run_options(self, trainer: Any) -> dict[str, Any]:
        """The driver trains nothing: its workers' devices and memory are not its own."""
        return {"devices": [], "readings": list}

    def _execute(self, group: Any, method_name: str, *_: Any, **__: Any) -> Steps | None:
        return None if self._session is None else self._session.execute(method_name)

    def _sync(self, *_: Any, **__: Any) -> Steps | None:
        return None if self._session is None else self._session.sync_weights()

    def _wake(self, *_: Any, **__: Any) -> Steps | None:
        return None if self._session is None else self._session.wake()

    def _sleep(self, *_: Any, **__: Any) -> Steps | None:
        return None if self._session is None else self._session.sleep()
