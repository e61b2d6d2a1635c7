"""What a rank above 0 writes: its share of each window, in place of the records, which rank 0 makes."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace
from opentelemetry.trace import Status, StatusCode

from otel_grpo import semconv
from otel_grpo.records import build
from otel_grpo.tracing.evidence import contribution, rollout_attributes
from otel_grpo.tracing.worker_output import WorkerOutput

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_grpo.core.ledger import TrainedLengths
    from otel_grpo.records.model import Contribution, RunStatus
    from otel_grpo.tracing.evidence import UpdateDraft
    from otel_grpo.tracing.output import Sources
    from otel_grpo.tracing.scalars import Scalars
    from otel_grpo.tracing.window import ClosedWindow


class RankOutput(WorkerOutput):
    """Takes what `Output` takes.

    Args:
        rank: of this process.
        trained: of its ledger.
        sources: what may be asked of its run.
        found: told of run id and attempt once they are known, on the writer's thread.
        options: of `WorkerOutput`.
    """

    def __init__(
        self,
        *arguments: Any,
        rank: int,
        trained: TrainedLengths,
        sources: Sources,
        found: Callable[[RankOutput], None],
        **options: Any,
    ) -> None:
        super().__init__(*arguments, self_ns=sources.self_ns, **options)
        self._rank = rank
        self._trained = trained
        self._sources = sources
        self._found = found

    # --- on the training thread

    def rollout(self, closed: ClosedWindow, *, held: bool) -> bool:
        return self.writer.put("workers", partial(self._share, closed), held=held)

    def run(self, status: RunStatus, ended_ns: int, *_: Any) -> None:
        self.left(status, ended_ns)

    # The job's windows, updates, publications, scalars and what was restored are rank 0's.

    def opened(self, iteration: int, start_ns: int) -> None: ...
    def train(self, draft: UpdateDraft) -> None: ...
    def published_late(self, iteration: int, version: int, completed_ns: int) -> None: ...
    def flat(self, scalars: Scalars) -> None: ...
    def resumed(self, base: dict[str, int]) -> None: ...

    # --- on the writer's thread

    def _settle(self) -> None:
        super()._settle()
        self._found(self)

    def _share(self, closed: ClosedWindow) -> Contribution | None:
        if closed.built:
            return None
        closed.built = True
        self._sources.settle(closed.window)
        attributes = rollout_attributes(closed, self._trained, None)
        times = build.window_timeline(attributes)
        try:
            _end_loop_span(closed, attributes.window.status)
        except Exception as error:  # another processor's, in a shared provider
            self._guard.fault("loop_span", error)
        share = contribution(
            replace(attributes, intervals=[], publications=[]),
            times,
            closed.drafts,
            run_id=self.run_id,
            attempt=self.attempt,
            rank=self._rank,
            iteration=closed.window.iteration,
        )
        if self._live is not None:
            self._live.made(share)
        return share


def _end_loop_span(closed: ClosedWindow, status: str) -> None:
    """The figures of the loop are the job's, and stand on rank 0's span."""
    span = closed.window.span
    span.set_attribute(semconv.WINDOW_STATUS, status)
    if closed.error_type is not None:
        span.set_status(Status(StatusCode.ERROR))
        span.set_attribute(semconv.ERROR_TYPE, closed.error_type)
    span.end(end_time=closed.end_ns)
