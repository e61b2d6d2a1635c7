"""Ends of a process at random points of a training: what is lost, and that the rest is whole."""

from __future__ import annotations

import random
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from otel_grpo.records import reader
from otel_grpo.records.writer import BOUNDS

# end -> exit code, status of the run
ORDERLY = {
    "by_interrupt": (130, "interrupted"),
    "by_handled_sigterm": (143, "failed"),
}
SUDDEN = {
    "by_sigterm": -signal.SIGTERM,
    "by_os_exit": 7,
    "by_sigkill": -signal.SIGKILL,
}


def check_orderly(ended: Any, code: int, status: str) -> None:
    """Nothing is lost, and the summary is there."""
    assert ended.code == code, ended.stderr
    summary = ended.finish()
    assert summary.status == status
    counts = ended.records()
    # The interrupt may come after an iteration ended and before it was told.
    complete = summary.windows.complete
    assert ended.iterations <= complete <= ended.iterations + 1
    assert summary.windows.aborted <= 1
    assert counts["rollout"] == complete + summary.windows.aborted
    assert counts["run"] == 1
    for sink in reader.read_summary(ended.path).observed.sinks.values():
        assert sink.created == sink.written
        assert sink.dropped == sink.pending == 0


def started(ended: Any) -> bool:
    """Whether the end came after the run was started and its block was entered."""
    return ended.iterations > 0 or (
        (ended.path / "summary.json").exists()
        and reader.read_summary(ended.path).records["rollout"] > 0
    )


def check_sudden(ended: Any, code: int) -> None:
    """At most the queue is lost; the files give a summary."""
    assert ended.code == code, ended.stderr
    if not (ended.path / "run.json").exists():
        assert ended.iterations <= BOUNDS["metrics_raw"]  # it ended before the first line
        return
    counts = ended.records()
    assert counts["rollout"] >= ended.iterations - BOUNDS["metrics_raw"]
    assert counts["run"] == 0
    summary = ended.finish()
    assert summary.status == "interrupted"
    assert summary.windows.complete == counts["rollout"]


def hits(n: int) -> list[float]:
    """Instants after the start of the run; below zero, two of ten, while it starts."""
    return [
        random.uniform(-0.05, -0.001) if i % 5 == 0 else random.uniform(0, 0.25) for i in range(n)
    ]


@pytest.mark.parametrize("end", ORDERLY)
def test_orderly_ends_lose_nothing(children: Any, quiet: Callable[[Any], None], end: str) -> None:
    """Ctrl-C, and SIGTERM where the training turns it into an exit: ten random points each."""
    for delay in hits(10):
        ended = children.forked(end, delay)
        quiet(ended)
        if started(ended):
            check_orderly(ended, *ORDERLY[end])


@pytest.mark.parametrize("end", SUDDEN)
def test_sudden_ends_lose_the_queue_at_most(
    children: Any, quiet: Callable[[Any], None], end: str
) -> None:
    """SIGTERM's default, os._exit and SIGKILL: ten random points each."""
    for delay in hits(10):
        ended = children.forked(end, delay)
        check_sudden(ended, SUDDEN[end])
        quiet(ended)


@pytest.mark.soak
@pytest.mark.parametrize("end", [*ORDERLY, *SUDDEN])
def test_a_hundred_ends(children: Any, quiet: Callable[[Any], None], end: str) -> None:
    """The same, a hundred points each."""
    for delay in hits(100):
        ended = children.forked(end, delay)
        if end in SUDDEN:
            check_sudden(ended, SUDDEN[end])
        elif started(ended):
            check_orderly(ended, *ORDERLY[end])
        quiet(ended)


def test_killed_and_started_again(children: Any) -> None:
    """The next attempt goes on where a killed one stopped; all are in the summary and audited."""
    ended = children.forked("killed_after_three")
    ended = children.forked("killed_after_three", 0, ended.path)
    ended = children.forked("by_end_of_the_script", 0, ended.path)
    assert ended.code == 0
    summary = ended.finish()
    assert summary.attempt == 3
    assert summary.status == "completed"
    assert [attempt.status for attempt in summary.attempts] == ["interrupted"] * 2
    windows = [attempt.windows for attempt in (*summary.attempts, summary)]
    assert [(w.complete, w.aborted) for w in windows] == [(3, 1), (3, 1), (3, 0)]
    assert ended.records() == {"rollout": 9, "train": 9, "run": 1}


# --- no with-block ---------------------------------------------------------------------------------


def pythons() -> list[str]:
    """The Pythons of the environments that stand beside this one: exit differs between releases."""
    beside = Path(sys.prefix).parent.glob("dev-3.*/bin/python")
    return sorted({sys.executable, *map(str, beside)})


@pytest.mark.parametrize("python", pythons(), ids=lambda path: Path(path).parts[-3])
def test_exit_writes_the_summary(children: Any, quiet: Callable[[Any], None], python: str) -> None:
    """A run that nobody finished is finished by the exit of its process."""
    ended = children.started("by_end_of_the_script", python=python)
    assert ended.code == 0
    quiet(ended)
    summary = ended.finish()
    assert reader.read_summary(ended.path).status == summary.status == "completed"
    assert ended.records() == {"rollout": 3, "train": 3, "run": 1}


def test_exit_in_an_open_window(children: Any, quiet: Callable[[Any], None]) -> None:
    """The window that was open is aborted, and its open phase is in the record."""
    ended = children.forked("by_exit_in_the_loop", 0.05)
    assert ended.code == 3
    quiet(ended)
    summary = ended.finish()
    assert (summary.status, summary.windows.aborted) == ("interrupted", 1)
    (record,) = [
        line.value
        for line in reader.read_records(ended.path)
        if isinstance(line, reader.Whole) and line.value.scope == "iteration"
    ]
    rows = [row for row in record.attributes.intervals if row[2] != "log"]
    assert [(row[2], row[4], row[6]) for row in rows] == [("generation", None, 2)]


def test_uncaught_exception_without_a_block(children: Any) -> None:
    """The exit knows the exception that ended the script."""
    ended = children.started("by_uncaught")
    assert ended.code == 1
    assert ended.stderr.count("Traceback") == 1
    assert "of the user" in ended.stderr
    summary = ended.finish()
    assert (summary.status, summary.windows.complete, summary.windows.aborted) == ("failed", 1, 1)
    stored = b"".join(p.read_bytes() for p in ended.path.rglob("*") if p.is_file())
    assert b"of the user" not in stored


def test_interrupt_without_a_block(children: Any) -> None:
    """Ctrl-C in a script that has no block."""
    ended = children.started("by_interrupt_without_a_block", 0.3)
    assert ended.code == -signal.SIGINT
    assert ended.finish().status == "interrupted"


def test_impatient_user(children: Any, quiet: Callable[[Any], None]) -> None:
    """A second Ctrl-C, while the run is being finished, costs nothing: exit finishes it."""
    ended = children.forked("double_interrupt")
    assert ended.code == 130
    quiet(ended)
    check_orderly(ended, 130, "interrupted")


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_run_in_a_multiprocessing_child(
    children: Any, quiet: Callable[[Any], None], method: str
) -> None:
    """Such a child ends by os._exit, without atexit: its run has its summary all the same."""
    ended = children.started("in_multiprocessing", method)
    assert ended.code == 0, ended.stderr
    quiet(ended)
    # Since 3.13 such a child has forgotten its exception at its exit, so that nobody can tell.
    unfinished = "completed" if sys.version_info < (3, 13) else "interrupted"
    assert ended.finish().status == unfinished
    assert ended.records() == {"rollout": 3, "train": 3, "run": 1}


def test_exception_in_a_multiprocessing_child(children: Any) -> None:
    """The exception that ends such a child makes its run failed, where Python still knows it."""
    ended = children.started("failing_in_multiprocessing", "fork")
    assert ended.code == 0, ended.stderr
    assert ended.stderr.count("Traceback") == 1
    told = "failed" if sys.version_info < (3, 13) else "interrupted"
    assert ended.finish().status == told
