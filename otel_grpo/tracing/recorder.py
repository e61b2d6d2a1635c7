"""Records from closed windows and updates. Everything here runs on the writer's thread.

The training thread hands over what it collected and goes on; arithmetic, encoding and files are paid
for here. The totals are fed by the lines that were really written, so they say what the files say.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import UNSET
from msgspec.structs import replace
from opentelemetry.trace import Status, StatusCode

from otel_grpo import semconv
from otel_grpo.core.ledger import visit_runs
from otel_grpo.records import build
from otel_grpo.records.inventory import DeviceRoles
from otel_grpo.records.merge import Merged, merge
from otel_grpo.records.model import (
    Attempt,
    AttemptSummary,
    Observed,
    OpenWindow,
    Record,
    RolloutAttributes,
    RolloutRecord,
    RunRecord,
    RunStatus,
    SampleRun,
    Summary,
    TrainAttributes,
    TrainRecord,
    Update,
    World,
)
from otel_grpo.records.summary import TotalsBuilder, summary_of
from otel_grpo.tracing.evidence import (
    UpdateDraft,
    as_row,
    contribution,
    interval_rows,
    rollout_attributes,
)
from otel_grpo.tracing.guard import logger

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from otel_grpo.core.clock import Clock
    from otel_grpo.core.ledger import TrainedLengths
    from otel_grpo.records.model import Number
    from otel_grpo.tracing.peers import Gathered, Peers
    from otel_grpo.tracing.window import ClosedWindow

# One log call speaks of so many updates at most.
_MOST_STEPS = 10_000


class Recorder:
    """Makes the records of one attempt and keeps its totals."""

    def __init__(
        self,
        *,
        run_id: str,
        attempt: Attempt,
        clock: Clock,
        devices: DeviceRoles | None,
        trained: TrainedLengths,
        observe: Callable[[], Observed],
        on_error: Callable[[str, Exception], object],
    ) -> None:
        self.attempt = attempt
        self.head: str | None = None
        self.earlier: list[AttemptSummary] = []
        self.totals = TotalsBuilder()
        self.peers: Peers | None = None  # the job has other processes
        self._applied = 0  # in the account of all ranks
        # Steps as this rank counts them, in that account: scalars may speak of earlier windows'.
        self._steps: dict[int, int] = {}
        self._told = False  # that ranks are absent
        self._run_id = run_id
        self._clock = clock
        self.devices = devices
        self._observe = observe
        self._on_error = on_error
        self._trained = trained

    def rollout(self, closed: ClosedWindow) -> RolloutRecord | None:
        """The record of a window; its `rl.loop` span gets its figures and ends, as of the window."""
        if closed.built:  # an interrupted hand-over was repeated
            return None
        if self.peers is None:
            attributes = rollout_attributes(closed, self._trained, self.devices)
            times = build.window_timeline(attributes)
        else:
            attributes, times = self.job(closed, self.peers).attributes, closed.times
        closed.built = True
        # The segments are evidence that is derived from evidence: written so that a reader without
        # our arithmetic can add them up.
        attributes.segments.extend(build.segment_rows(times))
        metrics = build.rollout_metrics(attributes, times)
        window = closed.window
        try:
            _end_loop_span(closed, attributes, metrics)
        except Exception as error:  # another processor's, in a shared provider: it costs no record
            self._on_error("loop_span", error)
        context = window.span.get_span_context()
        return RolloutRecord(
            scope="iteration",
            run_id=self._run_id,
            attempt=self.attempt.attempt,
            seq=-1,  # the writer numbers and chains the lines
            prev=None,
            time_unix_ns=self._clock.now(),
            stage=semconv.GENERATION,
            iteration=window.iteration,
            optimizer_step=closed.applied,
            trace_id=f"{context.trace_id:032x}",
            span_id=f"{context.span_id:016x}",
            metrics=metrics,
            attributes=attributes,
            observed=self._observe(),
        )

    def train(self, draft: UpdateDraft) -> TrainRecord | None:
        """The record of an attempted update."""
        if draft.built:
            return None
        draft.built = True
        update, samples = as_row(draft.event), visit_runs(draft.visits)
        return self._train(draft.iteration, update, samples, draft.trained, draft, draft.covers)

    def train_of_job(self, closed: ClosedWindow, k: int) -> TrainRecord | None:
        """The record of the window's k-th update, as all ranks tell of it; None if it has fewer."""
        if self.peers is None or k in closed.trains:
            return None
        job = self.job(closed, self.peers)
        if k >= len(job.attributes.updates):
            return None
        closed.trains.add(k)
        draft = closed.drafts[k] if k < len(closed.drafts) else None
        covers = [] if draft is None else [self._steps.get(step, step) for step in draft.covers]
        return self._train(
            closed.window.iteration,
            job.attributes.updates[k],
            job.update_samples[k],
            job.update_trained[k],
            draft,
            list(dict.fromkeys(covers)),
        )

    def job(self, closed: ClosedWindow, peers: Peers) -> Merged:
        """The window as all processes tell of it: asked for once, when its first record is made."""
        if closed.job is not None:
            return closed.job
        window = closed.window
        own = rollout_attributes(closed, self._trained, self.devices)
        closed.times = build.window_timeline(own)
        gathered = peers.take(window.iteration, window.start_ns, closed.end_ns)
        share = contribution(
            own,
            closed.times,
            closed.drafts,
            run_id=self._run_id,
            attempt=self.attempt.attempt,
            rank=0,
            iteration=window.iteration,
        )
        closed.job = job = merge(share, gathered, self._applied)
        if peers.spmd:
            if job.attributes.updates:
                self._applied = job.attributes.updates[-1].step
            closed.applied = self._applied
            self._remember(job.steps)
            self._tell_absent(window.iteration, gathered)
        if job.disagreements:
            n = job.disagreements
            self._on_error("ranks.disagree", ValueError(f"lengths of {n} samples differ"))
        self._learn(gathered)
        return job

    def _remember(self, steps: Mapping[int, int]) -> None:
        self._steps |= steps
        while len(self._steps) > _MOST_STEPS:
            del self._steps[next(iter(self._steps))]

    def _tell_absent(self, iteration: int, gathered: Gathered) -> None:
        """Once: each window waits for them, and lacks their numbers."""
        absent = set(gathered.ranks.missing) - {process.rank for process in gathered.processes}
        if absent and not self._told:
            self._told = True
            logger.warning(
                "otel-grpo: iteration %d is recorded without %d of %d ranks, of which nothing was "
                "heard yet (training goes on): does each start a run of its own, in this directory?",
                iteration,
                len(absent),
                gathered.ranks.expected,
            )

    def _learn(self, gathered: Gathered) -> None:
        """Processes and devices that became known, for `run.json`."""
        world = self.attempt.world
        size = max(world.size, gathered.ranks.expected)
        grown = World(size, gathered.inventory)
        if gathered.processes != self.attempt.processes or grown != world:
            self.attempt = replace(self.attempt, processes=gathered.processes, world=grown)

    def _train(
        self,
        iteration: int,
        update: Update,
        samples: list[SampleRun],
        trained: int | None,
        draft: UpdateDraft | None,
        covers: list[int],
    ) -> TrainRecord:
        rows = [] if draft is None else draft.rows
        attributes = TrainAttributes(
            interval=(update.start_ns, update.end_ns),
            intervals=interval_rows(rows, 0, {row.id for row in rows}),
            n=update.samples,
            status=update.status,
            samples=samples,
            trained=UNSET if trained is None else trained,
            reason=update.reason,
            covers=covers,
            scalars={} if draft is None or draft.scalars is None else draft.scalars.of_update(),
        )
        return TrainRecord(
            scope="update",
            run_id=self._run_id,
            attempt=self.attempt.attempt,
            seq=-1,
            prev=None,
            time_unix_ns=self._clock.now(),
            stage=semconv.POLICY_TRAIN,
            iteration=iteration,
            optimizer_step=update.step,
            trace_id=None if draft is None else draft.trace_id,
            span_id=None if draft is None else draft.span_id,
            metrics=build.train_metrics(attributes),
            attributes=attributes,
            observed=self._observe(),
        )

    def run(
        self, status: RunStatus, ended_ns: int, applied: int, ids: tuple[str, str]
    ) -> RunRecord | None:
        """The last record of the attempt, from the lines that were written before it."""
        if self.totals.run_record is not None:
            return None
        attributes = self.totals.totals(self.attempt, status, ended_ns)
        if self.peers is not None and self.peers.spmd:
            applied = self._applied
        return RunRecord(
            scope="run",
            run_id=self._run_id,
            attempt=self.attempt.attempt,
            seq=-1,
            prev=None,
            time_unix_ns=self._clock.now(),
            stage="run",
            iteration=self.totals.iteration,
            optimizer_step=applied,
            trace_id=ids[0],
            span_id=ids[1],
            metrics=build.run_metrics(attributes),
            attributes=attributes,
            observed=self._observe(),
        )

    def written(self, record: Record, head: str) -> None:
        """A line is in the file."""
        self.totals.add(record)
        self.head = head

    def summary(self, now_ns: int, opened: OpenWindow | None) -> Summary:
        """The summary as the lines stand: final once the `run` record is written."""
        over = self.totals.run_record is not None
        totals = (
            self.totals.final(self.attempt)
            if over
            else self.totals.totals(self.attempt, "running", now_ns)
        )
        return summary_of(
            totals,
            run_id=self._run_id,
            attempt=self.attempt.attempt,
            records=self.totals.records,
            head=self.head,
            attempts=self.earlier,
            opened=None if over else opened,
            observed=self._observe(),
        )


def _end_loop_span(
    closed: ClosedWindow, attributes: RolloutAttributes, metrics: Mapping[str, Number]
) -> None:
    span = closed.window.span
    span.set_attribute(semconv.OPTIMIZER_STEP, closed.applied)
    span.set_attribute(semconv.WINDOW_STATUS, attributes.window.status)
    for name in ("wall", "logical", "work", "log", "unattributed"):
        span.set_attribute(semconv.DURATION + name, (metrics[f"time.{name}_ns"] or 0) / 1e9)
    for name, metric in (
        (semconv.SAMPLES_CONSUMED, "samples.consumed"),
        (semconv.SAMPLES_VISITS, "samples.visits"),
        (semconv.UPDATES_APPLIED, "updates.applied"),
        (semconv.TOKENS, "tokens.total"),
        (semconv.THROUGHPUT_DEVICE, "throughput.device"),
    ):
        if (value := metrics.get(metric)) is not None:
            span.set_attribute(name, value)
    if attributes.publications:
        span.set_attribute(semconv.WEIGHTS_VERSION, attributes.publications[-1].version)
    if closed.error_type is not None:
        span.set_status(Status(StatusCode.ERROR))
        span.set_attribute(semconv.ERROR_TYPE, closed.error_type)
    span.end(end_time=closed.end_ns)
