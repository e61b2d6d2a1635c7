"""Updates: how each step ends, whether the driver waits for it or goes on."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from otel_grpo.tracing.guard import logger

if TYPE_CHECKING:
    from otel_grpo.instrumentation.base import Steps
    from otel_grpo.instrumentation.twinkle.groups import Groups
    from otel_grpo.instrumentation.twinkle.publishing import Publishing
    from otel_grpo.instrumentation.twinkle.remote import UnderWay, Workers
    from otel_grpo.tracing.iteration import Iteration
    from otel_grpo.tracing.run import Run
    from otel_grpo.tracing.update import Update


class Later(NamedTuple):
    """An update that the driver went on from before it was over."""

    update: Update
    under_way: UnderWay


class Updates:
    """The updates of a run; `applied` ones are published."""

    def __init__(self, run: Run, workers: Workers, groups: Groups, publishing: Publishing) -> None:
        self.applied = 0
        self._run = run
        self._workers = workers
        self._groups = groups
        self._publishing = publishing
        self._later: deque[Later] = deque()

    @property
    def under_way(self) -> bool:
        """Whether an update has not been seen to end."""
        return bool(self._later)

    def step(
        self, iteration: Iteration, model: Any, kwargs: Mapping[str, Any], nominal: int | None
    ) -> Steps:
        """Around a call that changes the weights."""
        update = iteration.update(nominal=nominal).start()
        outcome = yield
        remote = hasattr(model, "_actors")
        under_way = self._workers.under_way(model, kwargs.get("adapter_name")) if remote else None
        if outcome.error is not None:
            if under_way is not None:
                update.fail(type(outcome.error).__qualname__, sorted(under_way.failures()))
            update.stop(outcome.error)
        elif under_way is None:
            if self._groups.overflowed(model, kwargs):
                update.skip("overflow")
            self._stop(update)
        elif callable(outcome.value):
            # Its result is not waited for here, so it is not known yet how it ends.
            update.submitted()
            promised = sum(later.update.samples or 0 for later in self._later)
            update.samples = self._run.ledger.pending - promised
            self._later.append(Later(update, under_way))
        else:
            self._ended(update, under_way)

    def settle(self) -> None:
        """Take up what has ended since; nothing is waited for."""
        while self._later and self._run.window is not None and self._later[0].under_way.ended():
            self._ended(*self._later.popleft())

    def finish(self) -> None:
        """The run ends."""
        try:
            self.settle()
        except Exception as error:  # the workers may be gone
            logger.debug("otel-grpo: %r", error)
        if self._later:
            n = len(self._later)
            logger.warning("otel-grpo: the end of %d updates was not seen: not counted", n)

    def _ended(self, update: Update, under_way: UnderWay) -> None:
        """Every worker has come to the end of the update."""
        failures = under_way.failures()
        overflowed = [] if failures else self._workers.overflowed(under_way)
        if failures:
            kind = type(next(iter(failures.values()))).__qualname__
            update.fail(kind, sorted(failures))
        elif overflowed and len(overflowed) == len(under_way.asked):
            update.skip("overflow")
        elif overflowed:
            update.fail("overflow", overflowed)  # they have parted from the others
        self._stop(update)

    def _stop(self, update: Update) -> None:
        update.stop()
        if update.status == "applied" and update.end_ns is not None:
            self.applied += 1
            iteration = self._run.joined_iteration()
            if iteration is not None:
                self._publishing.updated(iteration, self.applied, update.end_ns)
        self._run.memory()
