"""One training with Twinkle: what the hooked methods tell, as windows, phases and counts.

The loop is the user's script. A window is a block of his, `with otel_grpo.iteration():`, or it starts
at a generation that is seen here after the last one was trained on. Hooks may run on any thread; the
windows are those of the thread that started the session.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import deque
from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from otel_grpo import semconv
from otel_grpo.instrumentation.twinkle.batch import Batch, features_of
from otel_grpo.instrumentation.twinkle.groups import Groups
from otel_grpo.instrumentation.twinkle.publishing import Publishing
from otel_grpo.instrumentation.twinkle.remote import Waits, Workers, collected
from otel_grpo.tracing.phase import current_phase

if TYPE_CHECKING:
    from otel_grpo.instrumentation.base import Outcome, Steps
    from otel_grpo.instrumentation.twinkle.remote import UnderWay
    from otel_grpo.tracing.iteration import Iteration
    from otel_grpo.tracing.phase import Phase
    from otel_grpo.tracing.run import Run
    from otel_grpo.tracing.update import Update

logger = logging.getLogger("otel_grpo")

_NO_WINDOW = (
    "otel-grpo: this training is not observed where no iteration is open: its generations are not "
    "seen, so put `with otel_grpo.iteration():` around the body of its loop"
)

_NOT_HERE = "otel-grpo: samples that the driver does not have as feature dicts are not counted"

Sample = tuple[int, int]  # number of the batch, index in it


class Later(NamedTuple):
    """An update that the driver went on from before it was over."""

    update: Update
    under_way: UnderWay


class _Call(threading.local):
    """The phase of the hooked call that runs on this thread."""

    phase: str | None = None


class Session:
    """State of one run, from its first hooked call to the end of the process or of the hooks."""

    def __init__(self, run: Run, *, owned: bool) -> None:
        self.run = run
        self.workers = Workers(run)
        self._owned = owned
        self._thread = threading.get_ident()
        self._groups = Groups()
        self._publishing = Publishing()
        self._window: Iteration | None = None  # that was opened here, not by the user
        self._number: int | None = None  # of the window that the batch belongs to
        self._batch = Batch(0)
        self._earlier = Batch(0)
        self._batches = 0
        self._trained = False  # the open window has a training call
        self._failed = False  # a call in it has raised, and the script goes on
        self._version = 0  # of the weights when the batch was first trained on
        self._nominal: int | None = None
        self._applied = 0
        self._advantage: Phase | None = None
        self._later: deque[Later] = deque()
        self._call = _Call()
        self._told: set[str] = set()
        self._seen_ns = run.clock.now()  # end of the last hooked call

    # --- the run

    def finish(self, error: BaseException | None = None) -> None:
        """The hooks see no more of it."""
        with contextlib.suppress(Exception):  # the workers may be gone
            self._settle()
        if self._later:
            n = len(self._later)
            logger.warning("otel-grpo: the end of %d updates was not seen: not counted", n)
        self._close_window(self._seen_ns if error is None else None, error)
        if self._owned:
            self.run.finish(error=error)

    def after(self, error: BaseException | None) -> None:
        """A hooked call is over, whatever came of it."""
        self._seen_ns = self.run.clock.now()
        self._failed = self._failed or error is not None
        self._settle()

    # --- windows

    def _iteration(self) -> Iteration | None:
        """The open window, whoever opened it."""
        iteration = self.run.joined_iteration()
        if iteration is not None and iteration.number != self._number:
            # A window of the user's: what the last one has left behind is over.
            self._number = iteration.number
            self._next_batch()
        return iteration

    def _next_batch(self) -> None:
        self._leave_advantage()  # the block ended in it
        self._batches += 1
        self._earlier, self._batch = self._batch, Batch(self._batches)
        self._trained = False

    def _generates(self, at_ns: int) -> bool:
        """A generation starts; False where it is not the training's own."""
        phase = current_phase(self.run)
        if phase is not None and phase.name == semconv.EVALUATION:
            return False
        mine = threading.get_ident() == self._thread
        if mine and self._window is not None and self._trained:
            self._close_window(at_ns)
        if mine and self.run.window is None:
            self._window, self._failed = self.run.open_iteration(at_ns), False
        self._iteration()
        return True

    def _close_window(self, at_ns: int | None, error: BaseException | None = None) -> None:
        """End the window that was opened here; one that the user opened is his to close."""
        iteration, self._window = self._window, None
        if iteration is None or not self.run.live:
            return
        self._leave_advantage(at_ns)
        if error is None and self._batch.unused:
            iteration.discarded("unused", self._batch.unused, tokens=self._batch.unused_tokens)
        iteration.close(end_ns=at_ns, status="aborted" if self._failed else None, error=error)

    # --- phases

    def _start(self, phase: str) -> Phase | None:
        if self.run.window is None or not self.run.live:
            return None
        self._iteration()
        return self.run.phase(phase).start()

    def _timed(self, phase: str) -> Steps:
        self._call.phase = phase
        running = self._start(phase)
        outcome = yield
        self._call.phase = None
        if running is not None:
            running.stop(outcome.error)

    def _own_work(self) -> contextlib.AbstractContextManager[Any]:
        return self.run.phase(semconv.LOG, attributes={semconv.OWN: True})

    def _enter_advantage(self) -> None:
        """From the first auxiliary pass or advantage on, to whatever is no part of it."""
        current = current_phase(self.run)
        above = current is not None and current.name == semconv.ADV_PIPELINE
        if self._advantage is None and not above:
            self._advantage = self._start(semconv.ADV_PIPELINE)

    def _leave_advantage(self, at_ns: int | None = None) -> None:
        phase, self._advantage = self._advantage, None
        if phase is not None and phase.open:
            phase.stop(None, at_ns)

    def collects(self, lazy: Any) -> None:
        """A call has given a result that the driver may wait for, now or later or never."""
        if self._call.phase is None:
            return
        phase = self._call.phase

        def wait() -> contextlib.AbstractContextManager[Any]:
            # Inside a hooked call the wait is that call's.
            if self._call.phase is not None or self.run.window is None or not self.run.live:
                return contextlib.nullcontext()
            return self.run.phase(phase)

        collected(lazy, Waits(wait))

    # --- hooks: generation, rewards, advantages

    def sample(self, *_: Any, **__: Any) -> Steps:
        now = self.run.clock.now()
        self._publishing.elsewhere = True
        training = self._generates(now)
        self._leave_advantage(now)
        running = self._start(semconv.GENERATION)
        self._call.phase = semconv.GENERATION
        outcome = yield
        self._call.phase = None
        if running is not None:
            running.stop(outcome.error)
        iteration = self._iteration()
        if not training or outcome.error is not None or iteration is None:
            return
        with self._own_work():
            first = self._batch.generated
            n = self._batch.sampled(outcome.value)
            iteration.generated(self._batch.number, n, first=first)

    def generate(self, module: Any, *_: Any, **__: Any) -> Steps | None:
        """A module of transformers generates: is it the one that is trained?"""
        if not self._groups.is_policy(module):
            return None
        self._publishing.in_place = True
        now = self.run.clock.now()
        self._generates(now)
        self._leave_advantage(now)
        return self._timed(semconv.GENERATION)

    def sleep(self, *_: Any, **__: Any) -> Steps:
        self._leave_advantage()
        return self._timed(semconv.ENGINE_SLEEP)

    def wake_up(self, *_: Any, **__: Any) -> Steps:
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

    def forward_only(self, model: Any, *_: Any, disable_lora: bool = False, **__: Any) -> Steps:
        self._enter_advantage()
        reference = disable_lora or not self._groups.trains(model)
        return self._timed(semconv.LOGPROB_REF if reference else semconv.LOGPROB_OLD)

    # --- hooks: training

    def forward(self, model: Any, *_: Any, inputs: Any = None, **kwargs: Any) -> Steps:
        samples = self._consume(model, inputs, kwargs)
        error = yield from self._training()
        if error is None:
            self._groups.of(model, kwargs).forwarded.extend(samples)

    def calculate_loss(self, *_: Any, **__: Any) -> Steps:
        yield from self._training()

    def backward(self, model: Any, *_: Any, **kwargs: Any) -> Steps:
        error = yield from self._training()
        group = self._groups.of(model, kwargs)
        samples, group.forwarded = group.forwarded, []
        if error is None:
            self._passed(model, samples, kwargs)

    def forward_backward(self, model: Any, *_: Any, inputs: Any = None, **kwargs: Any) -> Steps:
        samples = self._consume(model, inputs, kwargs)
        error = yield from self._training()
        if error is None:
            self._passed(model, samples, kwargs)

    def _training(self) -> Generator[None, Outcome, BaseException | None]:
        """As `_timed`; gives the exception of the call, if any."""
        self._call.phase = semconv.POLICY_TRAIN
        running = self._start(semconv.POLICY_TRAIN)
        outcome = yield
        self._call.phase = None
        if running is not None:
            running.stop(outcome.error)
        return outcome.error

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
                self._version = self._applied
            unknown = {
                id(each): each
                for each in features
                if batch.index_of(each) is None and earlier.index_of(each) is None
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
                if (index := owner.index_of(each)) is not None
            ]

    # --- hooks: updates

    def clip_grad_norm(self, *_: Any, **__: Any) -> Steps:
        self._leave_advantage()
        return self._timed(semconv.OPTIMIZER)

    zero_grad = lr_step = clip_grad_norm

    def step(self, model: Any, *_: Any, **kwargs: Any) -> Steps:
        self._leave_advantage()
        iteration = self._iteration()
        if iteration is None or not self._groups.fires(model, kwargs):
            return self._timed(semconv.OPTIMIZER)
        return self._updating(iteration, model, kwargs)

    clip_grad_and_step = step

    def _updating(self, iteration: Iteration, model: Any, kwargs: dict[str, Any]) -> Steps:
        self._trained = True
        self._call.phase = semconv.OPTIMIZER
        update = iteration.update(nominal=self._nominal).start()
        outcome = yield
        self._call.phase = None
        remote = hasattr(model, "_actors")
        under_way = self.workers.under_way(model, kwargs.get("adapter_name")) if remote else None
        if outcome.error is not None:
            if under_way is not None:
                update.fail(type(outcome.error).__qualname__, sorted(under_way.failures()))
            update.stop(outcome.error)
        elif under_way is None:
            if self._groups.overflowed(model, kwargs):
                update.skip("overflow")
            self._updated(update)
        elif callable(outcome.value):
            # Its result is not waited for here, so it is not known yet how it ends.
            update.submitted()
            promised = sum(later.update.samples or 0 for later in self._later)
            update.samples = self.run.ledger.pending - promised
            self._later.append(Later(update, under_way))
        else:
            self._ended(update, under_way)

    def _ended(self, update: Update, under_way: UnderWay) -> None:
        """Every worker has come to the end of the update."""
        failures = under_way.failures()
        overflowed = [] if failures else self.workers.overflowed(under_way)
        if failures:
            kind = type(next(iter(failures.values()))).__qualname__
            update.fail(kind, sorted(failures))
        elif overflowed and len(overflowed) == len(under_way.asked):
            update.skip("overflow")
        elif overflowed:
            update.fail("overflow", overflowed)  # they have parted from the others
        self._updated(update)

    def _updated(self, update: Update) -> None:
        update.stop()
        if update.status == "applied" and update.end_ns is not None:
            self._applied += 1
            iteration = self.run.joined_iteration()
            if iteration is not None:
                self._publishing.updated(iteration, self._applied, update.end_ns)
        self.run.memory()

    def _settle(self) -> None:
        """Take up what has ended since; nothing is waited for."""
        while self._later and self.run.window is not None and self._later[0].under_way.ended():
            self._ended(*self._later.popleft())

    # --- hooks: the rest

    def sync_weights(self, *_: Any, **__: Any) -> Steps:
        self._leave_advantage()
        self._publishing.elsewhere = True
        self._settle()
        started = self.run.clock.now()
        self._call.phase = semconv.WEIGHT_SYNC
        running = self._start(semconv.WEIGHT_SYNC)
        outcome = yield
        self._call.phase = None
        if running is not None:
            running.stop(outcome.error)
        if outcome.error is None:
            self._publishing.synchronised(started)

    def calculate_metric(self, _: Any, is_training: Any = True, **__: Any) -> Steps:
        self._leave_advantage()
        # Where steps are under way its answer comes after them: that is no log, it is their time.
        self._settle()
        phase = semconv.POLICY_TRAIN if self._later else semconv.LOG
        running = self._start(phase)
        outcome = yield
        if running is not None:
            running.stop(outcome.error)
        self._settle()
        if outcome.error is None and isinstance(outcome.value, dict):
            self.run.log_scalars(_numbers(outcome.value), covers=None if is_training else ())

    def save(self, *_: Any, **__: Any) -> Steps:
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

    def _tell(self, message: str) -> None:
        if message not in self._told:
            self._told.add(message)
            logger.warning(message)


def _numbers(values: dict[str, Any]) -> dict[str, Any]:
    """Twinkle formats its metrics: numbers are read from their text, the rest stays out."""
    found = {}
    for name, value in values.items():
        with contextlib.suppress(TypeError, ValueError):
            found[name] = value if isinstance(value, (int, float)) else float(value)
    return found
