"""One training with Twinkle: what each hooked method tells, by the method's own name."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from otel_grpo import semconv
from otel_grpo.instrumentation.twinkle.batch import features_of
from otel_grpo.instrumentation.twinkle.groups import Groups
from otel_grpo.instrumentation.twinkle.publishing import Publishing
from otel_grpo.instrumentation.twinkle.remote import Workers
from otel_grpo.instrumentation.twinkle.updates import Updates
from otel_grpo.instrumentation.twinkle.windows import Timed, Windows

if TYPE_CHECKING:
    from otel_grpo.instrumentation.base import Steps
    from otel_grpo.tracing.run import Run

_NO_WINDOW = (
    "otel-grpo: this training is not observed where no iteration is open: its generations are not "
    "seen, so put `with otel_grpo.iteration():` around the body of its loop"
)
_NOT_HERE = "otel-grpo: samples that the driver does not have as feature dicts are not counted"

Sample = tuple[int, int]  # number of the batch, index in it


class Session(Windows):
    """State of one run, from its first hooked call to the end of the process or of the hooks."""

    def __init__(self, run: Run, *, owned: bool) -> None:
        super().__init__(run)
        self.workers = Workers(run)
        self._owned = owned
        self._groups = Groups()
        self._publishing = Publishing()
        self.updates = Updates(run, self.workers, self._groups, self._publishing)
        self._version = 0  # of the weights when the batch was first trained on
        self._nominal: int | None = None
        self._seen_ns = run.clock.now()  # end of the last hooked call

    def after(self, error: BaseException | None) -> None:
        """A hooked call is over, whatever came of it."""
        self._seen_ns = self.run.clock.now()
        self._failed = self._failed or error is not None
        self.updates.settle()

    def finish(self, error: BaseException | None = None) -> None:
        """The hooks see no more of it."""
        self.updates.finish()
        self._close_window(self._seen_ns if error is None else None, error)
        if self._owned:
            self.run.finish(error=error)

    # --- hooks: generation, rewards, advantages

    def sample(self, *_: Any, **__: Any) -> Steps:
        now = self.run.clock.now()
        self._publishing.elsewhere = True
        training = self._generates(now)
        self._leave_advantage(now)
        outcome = yield from self._timed(semconv.GENERATION)
        iteration = self._iteration()
        if not training or outcome.error is not None or iteration is None:
            return
        with self._own_work():
            first = self._batch.generated
            n = self._batch.sampled(outcome.value)
            iteration.generated(self._batch.number, n, first=first)

    def generate(self, module: Any, *_: Any, **__: Any) -> Timed | None:
        """A module of transformers generates: is it the one that is trained?"""
        if not self._groups.is_policy(module):
            return None
        self._publishing.in_place = True
        now = self.run.clock.now()
        self._generates(now)
        self._leave_advantage(now)
        return self._timed(semconv.GENERATION)

    def sleep(self, *_: Any, **__: Any) -> Timed:
        self._leave_advantage()
        return self._timed(semconv.ENGINE_SLEEP)

    def wake_up(self, *_: Any, **__: Any) -> Timed:
        self._leave_advantage()
        return self._timed(semconv.ENGINE_WAKE)

    def reward(self, function: Any, *_: Any, **__: Any) -> Steps:
        running = None
        if self.run.window is not None and self.run.live:
            name = {semconv.REWARD_NAME: type(function).__name__}
            running = self.run.phase(semconv.REWARD, attributes=name).start()
        outcome = yield
        if running is not None:
            running.stop(outcome.error)

    def advantage(
        self, _: Any, rewards: Any, num_generations: int = 1, *__: Any, **___: Any
    ) -> None:
        self._enter_advantage()
        if self._iteration() is not None and type(num_generations) is int and num_generations > 0:
            self._batch.group_size = num_generations

    def forward_only(self, model: Any, *_: Any, disable_lora: bool = False, **__: Any) -> Timed:
        self._enter_advantage()
        reference = disable_lora or not self._groups.trains(model)
        return self._timed(semconv.LOGPROB_REF if reference else semconv.LOGPROB_OLD)

    # --- hooks: training

    def forward(self, model: Any, *_: Any, inputs: Any = None, **kwargs: Any) -> Steps:
        samples = self._consume(model, inputs, kwargs)
        outcome = yield from self._timed(semconv.POLICY_TRAIN)
        if outcome.error is None:
            self._groups.of(model, kwargs).forwarded.extend(samples)

    def calculate_loss(self, *_: Any, **__: Any) -> Timed:
        return self._timed(semconv.POLICY_TRAIN)

    def backward(self, model: Any, *_: Any, **kwargs: Any) -> Steps:
        outcome = yield from self._timed(semconv.POLICY_TRAIN)
        group = self._groups.of(model, kwargs)
        samples, group.forwarded = group.forwarded, []
        if outcome.error is None:
            self._passed(model, samples, kwargs)

    def forward_backward(self, model: Any, *_: Any, inputs: Any = None, **kwargs: Any) -> Steps:
        samples = self._consume(model, inputs, kwargs)
        outcome = yield from self._timed(semconv.POLICY_TRAIN)
        if outcome.error is None:
            self._passed(model, samples, kwargs)

    def _passed(self, model: Any, samples: Sequence[Sample], kwargs: dict[str, Any]) -> None:
        """A pass forward and backward was made, or was asked for and not waited for."""
        self._groups.passed(model, kwargs)
        iteration = self._iteration()
        if iteration is not None:
            self._trained = True
            iteration.trained(samples)

    def _consume(self, model: Any, inputs: Any, kwargs: dict[str, Any]) -> Sequence[Sample]:
        """The samples of a training call, those that are new counted; asked before it begins.

        The trainer makes tensors of the lists in these dicts as it trains on them.
        """
        self._leave_advantage()
        if self.run.window is None:
            self._tell(_NO_WINDOW)
        features = features_of(inputs)
        if features is None:
            self._tell(_NOT_HERE)
        iteration = self._iteration()
        if iteration is None or not features:
            return ()
        with self._own_work():
            if self._nominal is None:
                self._nominal = self._groups.accumulation(model, kwargs) * len(features)
            batch, earlier = self._batch, self._earlier
            if not len(batch):
                self._version = self.updates.applied
            unknown = {
                id(each): each
                for each in features
                if id(each) not in batch.indices and id(each) not in earlier.indices
            }
            if unknown:
                numbers, columns = batch.take(list(unknown.values()))
                version = self._publishing.version(self._version)
                iteration.consumed(
                    batch.number,
                    first=numbers.start,
                    n=len(numbers),
                    versions=version,
                    trainer_version=None if version is None else self._version,
                    **columns,
                )
            return [
                (owner.number, index)
                for each in features
                for owner in (batch, earlier)
                if (index := owner.indices.get(id(each))) is not None
            ]

    # --- hooks: updates

    def clip_grad_norm(self, *_: Any, **__: Any) -> Timed:
        self._leave_advantage()
        return self._timed(semconv.OPTIMIZER)

    zero_grad = lr_step = clip_grad_norm

    def step(self, model: Any, *_: Any, **kwargs: Any) -> Steps | Timed:
        self._leave_advantage()
        iteration = self._iteration()
        if iteration is None or not self._groups.fires(model, kwargs):
            return self._timed(semconv.OPTIMIZER)
        self._trained = True
        return self._within(
            semconv.OPTIMIZER, self.updates.step(iteration, model, kwargs, self._nominal)
        )

    clip_grad_and_step = step

    # --- hooks: the rest

    def sync_weights(self, *_: Any, **__: Any) -> Steps:
        self._leave_advantage()
        self._publishing.elsewhere = True
        self.updates.settle()
        started = self.run.clock.now()
        outcome = yield from self._timed(semconv.WEIGHT_SYNC)
        if outcome.error is None:
            self._publishing.synchronised(started)

    def calculate_metric(self, _: Any, is_training: Any = True, **__: Any) -> Steps:
        self._leave_advantage()
        # Where steps are under way its answer comes after them: that is no log, it is their time.
        self.updates.settle()
        phase = semconv.POLICY_TRAIN if self.updates.under_way else semconv.LOG
        running = self._start(phase)
        outcome = yield
        if running is not None:
            running.stop(outcome.error)
        self.updates.settle()
        if outcome.error is None and isinstance(outcome.value, dict):
            self.run.log_scalars(_numbers(outcome.value), covers=None if is_training else ())

    def save(self, *_: Any, **__: Any) -> Timed:
        self._leave_advantage()
        return self._timed(semconv.CHECKPOINT)

    def resume_from_checkpoint(self, model: Any, *_: Any, **kwargs: Any) -> Steps:
        outcome = yield
        state = outcome.value
        if callable(state):  # made on all workers at once: what they gave is there
            state = (getattr(state, "_futures", None) or [None])[0]
        if (
            outcome.error is None
            and isinstance(state, dict)
            and not kwargs.get("resume_only_model")
        ):
            step = self._groups.resumed(model, kwargs, state)
            self.run.resumed(optimizer_step=step)

    def set_optimizer(self, model: Any, *_: Any, **__: Any) -> None:
        self._groups.will_train(model)

    def set_grad_scaler(self, model: Any, *_: Any, **kwargs: Any) -> None:
        if hasattr(model, "_actors"):
            self.workers.scales(model._actors)
        else:
            self._groups.rescaled(model, kwargs)

    def add_adapter_to_model(self, model: Any, adapter_name: str, *_: Any, **kwargs: Any) -> None:
        self._groups.add(model, adapter_name, kwargs)


def _numbers(values: dict[str, Any]) -> dict[str, Any]:
    """Twinkle formats its metrics: numbers are read from their text, the rest stays out."""
    found = {}
    for name, value in values.items():
        with contextlib.suppress(TypeError, ValueError):
            found[name] = value if isinstance(value, (int, float)) else float(value)
    return found
