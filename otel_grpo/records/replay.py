"""The totals of a run from its files alone: what a killed process could not say, and what came late."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

import msgspec

from otel_grpo.records import reader
from otel_grpo.records.late import Attempts, Late
from otel_grpo.records.model import (
    Attempt,
    AttemptSummary,
    Joined,
    Observed,
    PublicationCompleted,
    RunFile,
    Summary,
    WindowOpened,
)
from otel_grpo.records.summary import TotalsBuilder, earlier, summary_of


def summarize(run_dir: Path) -> Summary:
    """The summary of a run from its files alone; `observed` is taken from the last summary.

    Raises `reader.BadInput` for files that are not those of a run.
    """
    attempts, builders, head = _replay(run_dir)
    *before, last = [
        (attempt, builders[attempt.attempt].final(attempt), builders[attempt.attempt].records)
        for attempt in attempts
    ]
    attempt, totals, records = last
    return summary_of(
        totals,
        run_id=reader.read_run_file(run_dir).run_id,
        attempt=attempt.attempt,
        records=records,
        head=head,
        attempts=[earlier(t, a.attempt, r) for a, t, r in before],
        observed=_last_observed(run_dir, attempt.attempt),
    )


def load_earlier(run_dir: Path, attempt: int) -> list[AttemptSummary]:
    """The blocks of the attempts before `attempt`; a killed one is totalled from its lines."""
    try:
        summary = reader.read_summary(run_dir)
    except reader.BadInput:
        summary = None
    if summary is not None and summary.status != "running" and summary.attempt == attempt - 1:
        return [*summary.attempts, earlier(summary, summary.attempt, summary.records)]
    attempts, builders, _ = _replay(run_dir)
    return [
        earlier(builders[a.attempt].final(a), a.attempt, builders[a.attempt].records)
        for a in attempts
        if a.attempt < attempt
    ]


def _replay(run_dir: Path) -> tuple[list[Attempt], dict[int, TotalsBuilder], str | None]:
    """All lines of the files, by attempt, and the hash of the last whole record."""
    run = reader.read_run_file(run_dir)
    builders: dict[int, TotalsBuilder] = defaultdict(TotalsBuilder)
    raw = run_dir / "metrics_raw.jsonl"
    written = raw.exists() and raw.stat().st_size > 0  # a run may be killed before its first record
    # Before the records: a window counts as lost as long as no record of it has come.
    late = _read_workers(run_dir, run, raw if written else None, builders)
    head = None
    for record in reader.read_records(raw) if written else ():
        if isinstance(record, reader.Whole):
            attempt = record.value.attempt
            value = late[attempt].complete(record.value) if attempt in late else record.value
            builders[attempt].add(value)
            head = hashlib.sha256(record.line.raw).hexdigest()
    for attempt, came in late.items():
        builders[attempt].late = came.merged
    attempts = [
        msgspec.structs.replace(each, world=late[each.attempt].world) for each in run.attempts
    ]
    return attempts, builders, head


def _read_workers(
    run_dir: Path, run: RunFile, raw: Path | None, builders: Mapping[int, TotalsBuilder]
) -> dict[int, Late]:
    """Adds up what `workers/` tells of windows; the contributions that the records lack."""
    missing: dict[int, dict[int, set[int]]] = defaultdict(dict)
    # Where there is one file at most, no other process has anything to tell.
    others = len(list((run_dir / "workers").glob("*.jsonl"))) > 1
    for each in reader.read_missing(raw) if raw is not None and others else ():
        if each.missing:
            missing[each.attempt][each.iteration] = set(each.missing)
    late = {each.attempt: Late(each, missing[each.attempt]) for each in run.attempts}
    attempts = Attempts(run)
    joined: dict[tuple[Path, int], Joined] = {}
    for path, line in reader.read_worker_heads(run_dir):
        if not isinstance(line, reader.Whole):
            continue
        value = line.value
        attempt = attempts.of(value.run_id, value.attempt)
        if attempt is None:
            continue
        if isinstance(value, Joined):
            joined[path, attempt] = value
            late[attempt].join(value)
        elif isinstance(value, reader.SpokenHead):
            late[attempt].note(path, line.line, value, joined.get((path, attempt)))
        elif isinstance(value, WindowOpened | PublicationCompleted):
            builders[attempt].add_line(value)
    return late


def _last_observed(run_dir: Path, attempt: int) -> Observed:
    """What the process said of itself last; nothing else can tell."""
    try:
        summary = reader.read_summary(run_dir)
    except reader.BadInput:
        return Observed()
    return summary.observed if summary.attempt == attempt else Observed()
