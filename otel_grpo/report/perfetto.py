"""A run as a trace that the Perfetto viewer opens: https://ui.perfetto.dev, no server needed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from otel_grpo.records.model import RolloutRecord, Summary, TrainRecord
from otel_grpo.records.reader import (
    BadInput,
    Torn,
    read_records,
    read_run_file,
    read_summary,
)
from otel_grpo.report.driver import Driver
from otel_grpo.report.index import Index, read_index
from otel_grpo.report.others import Others, about_of, phase_of, spans_of, with_tops
from otel_grpo.report.rows import Rows, Slice
from otel_grpo.report.track_events import Trace
from otel_grpo.semconv import SPAN_LOOP

# Processes of one attempt, in the order of the groups.
_APART = 100_000
_NEVER = 1 << 63


@dataclass(frozen=True)
class Drawn:
    """What a trace holds.

    Attributes:
        slices, instants, samples: numbers of events.
        windows: numbers of iterations, with a record and without.
        apart: processes that stand by their own clock, which was never compared with the driver's.
    """

    slices: int
    instants: int
    samples: int
    windows: tuple[int, int]
    apart: list[str]


def draw(run_dir: Path, write: Callable[[bytes], object], iterations: range | None = None) -> Drawn:
    """Writes the trace of a run, also of one that goes on; memory does not grow with the files.

    Args:
        run_dir: of the run.
        write: takes bytes in order.
        iterations: those to draw; default: all.

    Raises `reader.BadInput` for what is no run of ours.
    """
    run = read_run_file(run_dir)
    if not run.attempts:
        raise BadInput(run_dir / "run.json", "has no attempt")
    indices = read_index(run_dir, run)
    trace = Trace(write, run.run_id, run.attempts[0].started_unix_ns)
    drivers = {number: Driver(trace, index, number * _APART) for number, index in indices.items()}
    bounds, n = _records(run_dir, drivers, iterations)
    lost = {number: driver.without_record(iterations) for number, driver in drivers.items()}
    for number, windows in lost.items():
        if windows:
            low, _ = bounds.get(number, (min(windows.values()), 0))
            bounds[number] = min(low, *windows.values()), _NEVER

    def wanted(instant_ns: int) -> bool:
        return iterations is None or any(low <= instant_ns < high for low, high in bounds.values())

    others = Others(trace, run_dir, indices, max(indices) * _APART)
    others.draw_calls(wanted)
    others.draw_ranks(iterations)
    summary = _last_summary(run_dir)
    for number, driver in drivers.items():
        windows = lost[number]
        ended = _draw_lost(trace, run_dir, indices[number], driver, windows) if windows else set()
        open_window = None
        if summary is not None and summary.attempt == number and summary.open is not None:
            open_window = summary.open
            at = summary.observed.time_unix_ns
            driver.seen(at if isinstance(at, int) else open_window.start_ns)
        driver.finish(windows, open_window, ended)
    n_lost = sum(map(len, lost.values()))
    return Drawn(trace.slices, trace.instants, trace.samples, (n, n_lost), others.apart)


def _records(
    run_dir: Path, drivers: dict[int, Driver], iterations: range | None
) -> tuple[dict[int, tuple[int, int]], int]:
    """Draws them; of each attempt from where to where its windows reach, and how many there are."""
    bounds: dict[int, tuple[int, int]] = {}
    n = 0
    path = run_dir / "metrics_raw.jsonl"
    if not path.exists() or not path.stat().st_size:  # killed before its first record
        return bounds, n
    for each in read_records(path):
        if isinstance(each, Torn):
            continue
        record = each.value
        driver = drivers.get(record.attempt)
        if driver is None:
            continue
        if iterations is not None and record.iteration not in iterations:
            continue
        if isinstance(record, TrainRecord):
            driver.train(record)
        elif isinstance(record, RolloutRecord):
            driver.rollout(record)
            window = record.attributes.window
            low, high = bounds.get(record.attempt, (window.start_ns, window.end_ns))
            bounds[record.attempt] = min(low, window.start_ns), max(high, window.end_ns)
            n += 1
    return bounds, n


def _draw_lost(
    trace: Trace, run_dir: Path, index: Index, driver: Driver, lost: dict[int, int]
) -> set[tuple[str, int]]:
    """Phases of windows without a record, from their spans. Returns the name and start of each."""
    rows = Rows(trace, "phases of windows without a record", driver.group, 4_000)
    spans = [
        span
        for path in (run_dir / "spans").glob(f"*-0-{index.attempt.pid}.jsonl")
        for span, iteration in spans_of(path, index.attempt.attempt)
        if iteration in lost and span.name != SPAN_LOOP
    ]
    for span, top in with_tops(spans):
        rows.add(Slice(span.start_ns, span.end_ns, top, phase_of(span), about_of(span)))
        driver.seen(span.end_ns)
    rows.flush()
    return {(phase_of(span), span.start_ns) for span in spans}


def _last_summary(run_dir: Path) -> Summary | None:
    try:
        return read_summary(run_dir)
    except BadInput:
        return None
