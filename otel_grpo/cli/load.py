"""From a run directory to what `show` knows of it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from otel_grpo.cli.last_words import note_last_words
from otel_grpo.cli.problem import Problem
from otel_grpo.cli.text import count, lost
from otel_grpo.cli.view import View, count_record
from otel_grpo.devices.host import host_name
from otel_grpo.records.model import Attempt, ClockOffset, Summary
from otel_grpo.records.reader import (
    BadInput,
    BadLine,
    Torn,
    read_records,
    read_run_file,
    read_summary,
    read_workers,
)

FINISH = "`otel-grpo finish` makes it"


def load(run_dir: Path) -> View:
    """Reads `run.json`, `summary.json` and the records; raises Problem for what is no run of ours."""
    check_directory(run_dir)
    with clear_errors():
        view = View(str(run_dir), read_run_file(run_dir), None)
        if not view.run_file.attempts:
            raise BadInput(run_dir / "run.json", "has no attempt")
        _read_summary(view, run_dir)
        torn = _read_records(view, run_dir)
        _read_clocks(view, run_dir)
    if view.summary is not None:
        _note_summary(view, view.summary, torn)
    note_last_words(view, run_dir)
    return view


def check_directory(run_dir: Path) -> None:
    """Raises Problem unless there is a directory with a `run.json`."""
    mend = "give the run directory that the training printed when it started"
    if not run_dir.exists():
        raise Problem("no such directory", where=str(run_dir), mend=mend)
    if not run_dir.is_dir():
        raise Problem("is no directory", where=str(run_dir), mend=mend)
    if not (run_dir / "run.json").exists():
        what = "is no run directory of otel-grpo: it has no run.json"
        raise Problem(what, where=str(run_dir), mend=mend)


@contextlib.contextmanager
def clear_errors() -> Iterator[None]:
    """What the reader says, as a problem of the input."""
    try:
        yield
    except BadLine as bad:
        raise Problem(bad.why, where=f"{bad.path}:{bad.number}") from bad
    except BadInput as bad:
        raise Problem(bad.why, where=str(bad.path), mend="restore the file from a copy") from bad


def _read_summary(view: View, run_dir: Path) -> None:
    if not (run_dir / "summary.json").exists():
        view.notes.append(f"no summary.json: {FINISH}")
        return
    summary = read_summary(run_dir)
    if summary.attempt == view.attempt:
        view.summary = summary
    else:
        view.notes.append(
            f"summary.json ends with attempt {summary.attempt}, the run with {view.attempt}: "
            f"{FINISH} complete"
        )


def _read_records(view: View, run_dir: Path) -> list[int]:
    """Counts the records into the view; the numbers of torn lines."""
    torn = []
    if not (run_dir / "metrics_raw.jsonl").exists():
        view.notes.append("no metrics_raw.jsonl: no record was written")
        return []
    for each in read_records(run_dir):
        if isinstance(each, Torn):
            torn.append(each.line.number)
        else:
            count_record(view, each.value, each.line.number)
    return torn


def _read_clocks(view: View, run_dir: Path) -> None:
    """The measurements of clocks, where a worker runs on another machine."""
    if not view.job.clocks(view.run_file.attempts[-1]):
        return
    for _, each in read_workers(run_dir):
        if isinstance(each, Torn) or each.value.attempt != view.attempt:
            continue
        if isinstance(each.value, ClockOffset):
            view.job.measured(each.value)


def _note_summary(view: View, summary: Summary, torn: list[int]) -> None:
    running = summary.status == "running"
    if running and not _may_live(view.run_file.attempts[-1]):
        running = False
        view.notes.append(
            "the process is gone, so the run was killed: `otel-grpo finish` makes its last summary"
        )
    if not running:
        # The last line of a run that goes on may be on its way into the file.
        view.notes += [
            f"metrics_raw.jsonl:{number}: cut off when its process was killed, not counted"
            for number in torn
        ]
    view.notes += filter(None, map(lost, summary.observed.sinks, summary.observed.sinks.values()))
    if summary.ranks.incomplete_windows:
        view.notes.append(
            f"{count(summary.ranks.incomplete_windows, 'window')} without the numbers of every "
            "rank: `otel-grpo finish` adds those that came late"
        )


def _may_live(attempt: Attempt) -> bool:
    # The lock of the directory is not tried: a training that starts at this instant would find it
    # taken and go elsewhere.
    if attempt.host != host_name():
        return True
    try:
        os.kill(attempt.pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
