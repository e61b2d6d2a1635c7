"""Records from closed windows and updates. Everything here runs on the writer's thread.

The training thread hands over what it collected and goes on; arithmetic, encoding and files are paid
for here. The totals are fed by the lines that were really written, so they say what the files say.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from msgspec import UNSET
from opentelemetry.trace import Status, StatusCode

from otel_grpo import semconv
from otel_grpo.core.ledger import TrainedLengths, UpdateEvent, resolve, visit_runs
from otel_grpo.records import build
from otel_grpo.records.model import (
    CONTINUED,
    OPEN_AT_END,
    Attempt,
    AttemptSummary,
    IntervalRow,
    Memory,
    Observed,
    OpenWindow,
    Ranks,
    Record,
    RolloutAttributes,
    RolloutRecord,
    RunRecord,
    RunStatus,
    Summary,
    TrainAttributes,
    TrainRecord,
    Update,
    Window,
)
from otel_grpo.records.summary import TotalsBuilder, summary_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from otel_grpo.core.clock import Clock
    from otel_grpo.core.ledger import Visit
    from otel_grpo.core.timeline import Timeline
    from otel_grpo.records.model import Number
    from otel_grpo.tracing.account import Row
    from otel_grpo.tracing.samples import Samples
    from otel_grpo.tracing.window import ClosedWindow

DeviceRoles = list[tuple[int, list[str]]]

_READING_COLUMNS = (
    "allocator_allocated",
    "allocator_reserved",
    "allocator_peak_allocated",
    "allocator_peak_reserved",
    "device_used",
    "device_total",
    "process_rss",
    "host_used",
    "host_total",
)


@dataclass(slots=True)
class UpdateDraft:
    """An update that was attempted, before its record is made."""

    iteration: int
    event: UpdateEvent
    visits: list[Visit]
    trained: int | None  # tokens under the loss mask of these visits
    rows: list[Row]
    trace_id: str | None
    span_id: str | None
    scalars: dict[str, Number]
    covers: list[int]
    built: bool = False  # its record is made; set on the writer's thread


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
        self._run_id = run_id
        self._clock = clock
        self._devices = devices
        self._observe = observe
        self._on_error = on_error
        self._trained = trained

    def rollout(self, closed: ClosedWindow) -> RolloutRecord | None:
        """The record of a window; its `rl.loop` span gets its figures and ends, as of the window."""
        if closed.built:  # an interrupted hand-over was repeated
            return None
        closed.built = True
        attributes = self._rollout_attributes(closed)
        times = build.window_timeline(attributes)
        attributes = _with_segments(attributes, times)
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
        event = draft.event
        attributes = TrainAttributes(
            interval=(event.start_ns, event.end_ns),
            intervals=_interval_rows(draft.rows, 0, {row.id for row in draft.rows}),
            n=event.samples,
            status=event.status,  # type: ignore[arg-type]
            samples=visit_runs(draft.visits),
            trained=UNSET if draft.trained is None else draft.trained,
            reason=event.reason,
            covers=draft.covers,
            scalars=draft.scalars,
        )
        return TrainRecord(
            scope="update",
            run_id=self._run_id,
            attempt=self.attempt.attempt,
            seq=-1,
            prev=None,
            time_unix_ns=self._clock.now(),
            stage=semconv.POLICY_TRAIN,
            iteration=draft.iteration,
            optimizer_step=event.step,
            trace_id=draft.trace_id,
            span_id=draft.span_id,
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

    def _rollout_attributes(self, closed: ClosedWindow) -> RolloutAttributes:
        window, events = closed.window, closed.events
        counts = resolve(events, self._trained)
        status = (
            "aborted"
            if closed.aborted
            else counts.status(events.updates, discarded=bool(events.discarded))
        )
        rows = closed.rows
        consumed = bool(counts.samples)
        return RolloutAttributes(
            window=Window(window.start_ns, closed.end_ns, status, window.lane),  # type: ignore[arg-type]
            intervals=_interval_rows(rows, window.start_ns, {row.id for row in rows}),
            segments=[],
            ranks=Ranks(expected=self.attempt.world.size, received=1),
            devices=UNSET if self._devices is None else self._devices,
            samples=counts.samples if consumed else UNSET,
            # Arrays as they are: the writer encodes them as the lists that a reader gets.
            **cast("dict[str, Any]", counts.columns),
            visit_counts=cast("Any", counts.visit_counts) if consumed else UNSET,
            truncated=UNSET if counts.truncated is None else counts.truncated,
            generated=events.generated or UNSET,
            discarded=events.discarded,
            revisited=counts.revisited,
            pending=events.pending,
            padding=UNSET if events.padding is None else events.padding,
            updates=[_update(event) for event in events.updates],
            publications=closed.publications,
            memory=_memory(window.samples),
            workers={method: {"0": durations} for method, durations in window.workers.items()},
            nonfinite=window.nonfinite,
            foreign_spans=closed.foreign_spans,
        )


def _with_segments(attributes: RolloutAttributes, times: Timeline) -> RolloutAttributes:
    # The segments are evidence that is derived from evidence: written so that a reader without our
    # arithmetic can add them up.
    attributes.segments.extend(build.segment_rows(times))
    return attributes


def _interval_rows(rows: Iterable[Row], start: int, known: set[int]) -> list[IntervalRow]:
    """Rows as they are written: hex ids, parents only inside the record, flags of both edges."""
    return [
        (
            f"{row.id:016x}",
            f"{row.parent:016x}" if row.parent is not None and row.parent in known else None,
            row.phase,
            row.start,
            row.end,
            row.lane,
            row.flags
            | (OPEN_AT_END if row.end is None else 0)
            | (CONTINUED if row.start < start else 0),
        )
        for row in rows
    ]


def _update(event: UpdateEvent) -> Update:
    return Update(
        step=event.step,
        start_ns=event.start_ns,
        end_ns=event.end_ns,
        samples=event.samples,
        nominal=event.nominal,
        status=event.status,  # type: ignore[arg-type]
        reason=event.reason,
        ranks=list(event.ranks),
    )


def _memory(samples: Samples) -> Memory:
    """Readings as columns; a column in which nothing was read is absent."""
    rows = samples.memory()
    if not rows:
        return UNSET  # type: ignore[return-value]
    columns: dict[str, list[int | None]] = defaultdict(list)
    for name in ("device", *_READING_COLUMNS):
        values = [getattr(row.reading, name) for row in rows]
        if any(value is not None for value in values):
            columns[name] = values
    return Memory(
        instant=[row.instant for row in rows],
        rank=[row.reading.rank for row in rows],
        host=[row.reading.host for row in rows],
        pid=[row.reading.pid for row in rows],
        peak_resets=samples.peak_resets,
        **columns,
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
