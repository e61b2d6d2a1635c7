"""Windows and phases of a loop that is the user's own: where they start and end.

A window is a block of the user's, `with otel_grpo.iteration():`, or it starts at a generation that is
seen after the last one was trained on. Hooks may run on any thread; the windows are those of the
thread that started the session.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

from otel_grpo import semconv
from otel_grpo.instrumentation.twinkle.batch import Batch
from otel_grpo.instrumentation.twinkle.remote import Waits, collected
from otel_grpo.tracing.guard import logger
from otel_grpo.tracing.phase import current_phase

if TYPE_CHECKING:
    from otel_grpo.instrumentation.base import Outcome, Steps
    from otel_grpo.tracing.iteration import Iteration
    from otel_grpo.tracing.phase import Phase
    from otel_grpo.tracing.run import Run

Timed = Generator[None, "Outcome", "Outcome"]


class _Call(threading.local):
    """The phase of the hooked call that runs on this thread."""

    phase: str | None = None


class Windows:
    """The open window of a run, the batch of samples that belongs to it, and its phases."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self._thread = threading.get_ident()
        self._window: Iteration | None = None  # that was opened here, not by the user
        self._number: int | None = None  # of the window that the batch belongs to
        self._batch = Batch(0)
        self._earlier = Batch(0)
        self._batches = 0
        self._trained = False  # the open window has a training call
        self._failed = False  # a call in it has raised, and the script goes on
        self._advantage: Phase | None = None
        self._call = _Call()
        self._told: set[str] = set()

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

    def _timed(self, phase: str) -> Timed:
        """Around a call that is that phase; gives how the call ended."""
        self._call.phase = phase
        running = self._start(phase)
        outcome = yield
        self._call.phase = None
        if running is not None:
            running.stop(outcome.error)
        return outcome

    def _within(self, phase: str, steps: Steps) -> Steps:
        """Around a call whose interval `steps` make themselves."""
        self._call.phase = phase
        next(steps)
        outcome = yield
        self._call.phase = None
        with contextlib.suppress(StopIteration):
            steps.send(outcome)

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

    def _tell(self, message: str) -> None:
        if message not in self._told:
            self._told.add(message)
            logger.warning(message)
