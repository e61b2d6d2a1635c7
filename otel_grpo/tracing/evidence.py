"""The raw evidence of closed windows and attempted updates, as it is written. On the writer's thread."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from msgspec import UNSET

from otel_grpo.core.ledger import TrainedLengths, UpdateEvent, resolve, visit_runs
from otel_grpo.records.model import (
    CONTINUED,
    OPEN_AT_END,
    Contribution,
    Hardware,
    IntervalRow,
    Memory,
    Ranks,
    RolloutAttributes,
    Update,
    Window,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from otel_grpo.core.ledger import Visit
    from otel_grpo.core.timeline import Timeline
    from otel_grpo.records.inventory import DeviceRoles
    from otel_grpo.tracing.account import Row
    from otel_grpo.tracing.samples import Row as ReadingRow, Samples
    from otel_grpo.tracing.scalars import Scalars
    from otel_grpo.tracing.window import ClosedWindow

_READING_COLUMNS = (
    "device",
    "allocator_allocated",
    "allocator_reserved",
    "allocator_peak_allocated",
    "allocator_peak_reserved",
    "device_used",
    "device_total",
    "device_source",
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
    lengths: TrainedLengths | None  # where all the visits are named
    rows: list[Row]
    trace_id: str | None
    span_id: str | None
    scalars: Scalars | None
    covers: list[int]
    built: bool = False  # its record is made; set on the writer's thread

    @property
    def trained(self) -> int | None:
        """Tokens under the loss mask of these visits."""
        return None if self.lengths is None else self.lengths.total(self.visits)


def rollout_attributes(
    closed: ClosedWindow, trained: TrainedLengths, devices: DeviceRoles | None
) -> RolloutAttributes:
    """What this process counted and read in a window; the segments are left to be derived."""
    window, events = closed.window, closed.events
    counts = resolve(events, trained)
    status = (
        "aborted"
        if closed.aborted
        else counts.status(events.updates, discarded=bool(events.discarded))
    )
    rows = closed.snapshot.rows(closed.end_ns)
    consumed = bool(counts.samples)
    return RolloutAttributes(
        window=Window(window.start_ns, closed.end_ns, status, window.lane),  # type: ignore[arg-type]
        intervals=interval_rows(rows, window.start_ns, {row.id for row in rows}),
        segments=[],
        ranks=Ranks(expected=1, received=1),
        devices=UNSET if devices is None else devices,
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
        updates=[as_row(event) for event in events.updates],
        publications=closed.publications,
        memory=memory_table(window.samples),
        hardware=hardware_table(window.samples),
        workers={method: {"0": durations} for method, durations in window.workers.items()},
        nonfinite=[name for told in window.scalars for name in told.nonfinite],
        foreign_spans=closed.snapshot.foreign_spans(closed.end_ns),
    )


def contribution(
    attributes: RolloutAttributes,
    times: Timeline,
    drafts: Sequence[UpdateDraft],
    *,
    run_id: str,
    attempt: int,
    rank: int,
    iteration: int,
) -> Contribution:
    """The share of one rank, 0 included, in a window of the job."""
    return Contribution(
        run_id,
        attempt,
        rank,
        iteration,
        attributes,
        busy_ns={phase: figures.busy_ns for phase, figures in times.phases.items()},
        update_samples=[visit_runs(draft.visits) for draft in drafts],
        update_trained=[draft.trained for draft in drafts],
    )


def interval_rows(rows: Iterable[Row], start: int, known: set[int]) -> list[IntervalRow]:
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


def as_row(event: UpdateEvent) -> Update:
    """An update as its window's record has it."""
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


def memory_table(samples: Samples) -> Memory:
    """Readings as columns; a column in which nothing was read is absent."""
    rows = samples.memory()
    if not rows:
        return UNSET  # type: ignore[return-value]
    return Memory(
        instant=[row.instant for row in rows],
        rank=[row.reading.rank for row in rows],
        host=[row.reading.host for row in rows],
        pid=[row.reading.pid for row in rows],
        peak_resets=samples.peak_resets,
        **_columns(rows, _READING_COLUMNS),
    )


def hardware_table(samples: Samples) -> Hardware:
    """What the driver said as columns."""
    rows = samples.hardware()
    if not rows:
        return UNSET  # type: ignore[return-value]
    return Hardware(
        instant=[row.instant for row in rows],
        **_columns(rows, ("device", "utilization", "power_mw", "energy_mj", "temperature_c")),
    )


def _columns(rows: Sequence[ReadingRow], names: Iterable[str]) -> dict[str, Any]:
    columns = {name: [getattr(row.reading, name, None) for row in rows] for name in names}
    return {
        name: values
        for name, values in columns.items()
        if any(value is not None for value in values)
    }
