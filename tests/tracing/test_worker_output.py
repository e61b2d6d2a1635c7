"""The files of a process that does not write the records."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest

from otel_grpo.core.clock import Clock
from otel_grpo.records.model import Call, ClockPair, Joined, WorkerLine
from otel_grpo.records.worker_dir import WorkerDir
from otel_grpo.tracing.guard import Guard
from otel_grpo.tracing.worker_output import WorkerOutput

CLOCK = Clock(1_000, 0)


def joined(run_id: str, attempt: int) -> Joined:
    pair = ClockPair(None, CLOCK.unix_ns, CLOCK.perf_ns)
    return Joined(run_id, attempt, "policy", "policy-3", None, None, "host", 7, pair, 1_000)


def output(find: Any) -> WorkerOutput:
    return WorkerOutput(
        find, joined, name="policy-3", clock=CLOCK, guard=Guard(strict=False), self_ns=lambda: 5
    )


def call(run_id: str, attempt: int) -> Call:
    return Call(run_id, attempt, "step", 1, 2)


def lines(path: Path) -> list[WorkerLine]:
    (file,) = (path / "workers").iterdir()
    assert file.name == f"policy-3-{os.getpid()}.jsonl"
    return [msgspec.json.decode(line, type=WorkerLine) for line in file.read_bytes().splitlines()]


def directory(path: Path) -> Path:
    for name in ("workers", "spans"):
        (path / name).mkdir(parents=True)
    return path


def test_lines_wait_for_their_run(tmp_path: Path) -> None:
    """What is put before the run is found stands behind `joined`, and names the run."""
    found = threading.Event()

    def find(ending: threading.Event) -> WorkerDir:
        assert found.wait(10)
        return WorkerDir(directory(tmp_path), "r1", 2)

    files = output(find)
    files.start()
    files.worker(lambda: call(files.run_id, files.attempt))
    assert list(tmp_path.iterdir()) == []
    found.set()
    files.left("completed", 9)
    assert files.flush()
    files.close(flushed=True)
    first, second, last = lines(tmp_path)
    assert (first, second) == (joined("r1", 2), call("r1", 2))
    assert (last.run_id, last.attempt, last.status, last.ended_unix_ns) == ("r1", 2, "completed", 9)
    counts = last.observed.sinks["workers"]
    # It counts itself as what is still to be written.
    assert (counts.created, counts.written, counts.dropped, counts.pending) == (3, 2, 0, 1)
    assert last.observed.self_ns == 5


def test_search_ends_with_the_process(tmp_path: Path) -> None:
    """Whoever still looks for the run is told that the process ends."""

    def find(ending: threading.Event) -> WorkerDir:
        assert ending.wait(10)
        return WorkerDir(directory(tmp_path), "r1", 1)

    files = output(find)
    files.start()
    assert files.flush()
    files.close(flushed=True)
    assert lines(tmp_path) == [joined("r1", 1)]


def test_no_place(caplog: pytest.LogCaptureFixture) -> None:
    """Without a directory every line is counted as lost, with the reason."""

    def find(ending: threading.Event) -> WorkerDir:
        raise PermissionError(13, "no", "/x")

    files = output(find)
    files.start()
    files.worker(call("r1", 1))
    assert files.flush()
    files.worker(call("r1", 1))
    files.close(flushed=True)
    counts = files.writer.counts()["workers"]
    assert (counts.created, counts.written, counts.reasons) == (3, 0, {"EACCES": 3})
    assert "workers 3" in caplog.text
