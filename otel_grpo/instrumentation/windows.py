"""Windows that tile a training, and phases in them: what the session of every trainer shares."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from otel_grpo import semconv
from otel_grpo.tracing.phase import Phase

if TYPE_CHECKING:
    from otel_grpo.core.ledger import Samples
    from otel_grpo.instrumentation.base import Outcome, Steps
    from otel_grpo.records.model import PublicationKind
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


class WindowSession:
    """State of one training that is observed; its thread is the one that made it.

    A window starts with the call of a train-mode generation, so windows tile the training: what
    follows an update (log, evaluation, checkpoint, data fetch) belongs to its window.
    """

    def __init__(self, trainer: Any, run: Run, *, asynchronous: bool = False) -> None:
        """`asynchronous`: a phase may end while its device is still at work."""
        self.trainer = trainer
        self.run = run
        self.thread = threading.get_ident()
        # Attributes of phases, by their names.
        self._attributes: dict[str, dict[str, Any]] = (
            {phase: {semconv.DEVICE_SYNCED: False} for phase in _DEVICE_PHASES}
            if asynchronous
            else {}
        )
        self._iteration: Iteration | None = None
        self._entered = False  # the open window has a generation or a training step
        self._boundary_due = False  # the generation that is running has not begun its window yet
        self._rollouts = 0
        self._applied = 0
        self._applied_ns: int | None = None  # end of the last update that is not published yet
        self._reading: Request | None = None  # of memory, right after it
        self._slices: list[Samples] = []  # of the current generation, as the trainer trains on them
        self._update: Update | None = None

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

    def _due(self, kind: PublicationKind, applied_ns: int) -> None:
        """The push comes with the next generation, and there is none: due, and never done."""
        if self._iteration is not None:
            self._iteration.publication(self._applied, kind=kind, started_ns=applied_ns)

    def _pushed(
        self, phase: Phase | None, started_ns: int, outcome: Outcome, kind: PublicationKind
    ) -> int | None:
        """A call that pushes the weights is over: its end, if it did so in an open window."""
        now = self.run.clock.now()
        stop(phase, outcome.error, now)
        if outcome.error is not None or self._iteration is None:
            return None
        if self._applied_ns is not None:  # else the generator had this version already
            self._applied_ns = None
            publication = self._iteration.publication(
                self._applied, kind=kind, started_ns=started_ns
            )
            publication.completed(at_ns=now)
        return now

    def _push(self, kind: PublicationKind) -> Steps:
        """A call that pushes the weights: the generation that was called waits for it to begin."""
        started = self.run.clock.now()
        phase = self._start(semconv.WEIGHT_SYNC, started)
        outcome = yield
        now = self._pushed(phase, started, outcome, kind)
        if now is not None:
            self._begin_window(now)

    def _begin_window(self, at_ns: int) -> None:
        """The window of the generation that was called, unless it has begun."""
        if self._boundary_due:
            self._boundary_due = False
            self._next_window(at_ns)

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
        return Phase(self.run, phase, self._attributes.get(phase), start_ns=at_ns).start()

    def _own_work(self, at_ns: int | None = None) -> Phase:
        """Context manager around what this plugin does on the training thread: it is a log."""
        assert self._iteration is not None
        return self._iteration.phase(semconv.LOG, attributes={semconv.OWN: True}, start_ns=at_ns)

    def _timed(self, phase: str, at_ns: int | None = None) -> Steps:
        running = self._start(phase, at_ns)
        outcome = yield
        stop(running, outcome.error)


def stop(phase: Phase | None, error: BaseException | None = None, at_ns: int | None = None) -> None:
    """End the phase, if one was started."""
    if phase is not None:
        phase.stop(error, at_ns)
