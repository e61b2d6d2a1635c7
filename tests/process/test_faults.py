"""Forks of an open run, and disks that are full, gone, hanging or somebody else's."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from otel_grpo.records import reader


@pytest.mark.parametrize("method", ["fork", "fork, normal exit", "multiprocessing"])
def test_fork_of_an_open_run(children: Any, quiet: Callable[[Any], None], method: str) -> None:
    """A child writes nothing into its parent's files and hangs on no lock; a run of its own works."""
    ended = children.forked("fork_while_open", method)
    assert ended.code == 0, ended.stderr
    assert "Traceback" not in ended.stderr
    summary = ended.finish()
    assert summary.status == "completed"
    assert summary.windows.complete == 8
    assert ended.records() == {"rollout": 8, "train": 4, "run": 1}
    files = [path.name for path in (ended.path / "spans").iterdir()]
    assert len(files) == 1
    stored = b"".join(p.read_bytes() for p in ended.path.rglob("*") if p.is_file())
    assert b"child" not in stored
    drawn: list[int] = []
    for number in range(4):
        report = Path(f"{ended.path}.child{number}")
        drawn += json.loads(report.read_text())
        child = report.with_name(f"{report.name}.run")
        assert reader.read_summary(child).status == "completed"
        assert reader.read_summary(child).records["rollout"] == 1
    mine = set()
    for line in (ended.path / "spans" / files[0]).read_bytes().splitlines():
        for group in json.loads(line)["resourceSpans"]:
            for scope in group["scopeSpans"]:
                for span in scope["spans"]:
                    mine |= {int(span["spanId"], 16), int(span["traceId"], 16)}
    assert len(set(drawn)) == 8
    assert mine.isdisjoint(drawn)


def warnings(ended: Any) -> list[str]:
    """What the plugin told beside its two usual lines."""
    usual = ("otel-grpo: recording to ", "otel-grpo: run ")
    return [line for line in ended.stderr.splitlines() if line and not line.startswith(usual)]


def test_full_disk(children: Any) -> None:
    """The training goes on to its end; one warning a file; the counts say what was lost."""
    ended = children.forked("full_disk")
    assert ended.code == 0, ended.stderr
    assert ended.trained_to_the_end
    assert "Traceback" not in ended.stderr
    told = warnings(ended)
    assert len([line for line in told if "metrics_raw" in line and "EFBIG" in line]) == 1
    ended.check_lines()
    summary = ended.finish(lossy=True)
    sinks = reader.read_summary(ended.path).observed.sinks
    raw = sinks["metrics_raw"]
    assert raw.created == 25 * 2 + 1
    assert raw.dropped > 0
    assert raw.reasons == {"EFBIG": raw.dropped}
    assert raw.written == sum(ended.records().values()) == sum(summary.records.values())
    assert any(str(raw.dropped) in line for line in told)


@pytest.mark.parametrize("below", ["FILE/run", "/proc/run"])
def test_directory_that_cannot_be_made(children: Any, below: str) -> None:
    """The training goes on without files: one warning, and the last line says what was lost."""
    ended = children.forked("unwritable", below)
    assert ended.code == 0, ended.stderr
    assert ended.trained_to_the_end
    assert "Traceback" not in ended.stderr
    told = warnings(ended)
    assert len(told) == 2, told
    assert "nothing is recorded" in told[0]
    assert "metrics_raw 7" in told[1]
    assert "metrics 3" in told[1]


def test_directory_that_is_removed(children: Any) -> None:
    """A run whose directory is gone trains on, and says at its end what is not there."""
    ended = children.forked("removed")
    assert ended.code == 0, ended.stderr
    assert ended.trained_to_the_end
    assert "Traceback" not in ended.stderr
    assert warnings(ended)


def test_directory_in_use(children: Any) -> None:
    """The second process records beside, after one warning; both runs are whole."""
    ended = children.forked("in_use")
    assert ended.code == 0, ended.stderr
    (told,) = warnings(ended)
    assert "in use" in told
    assert ended.finish().windows.complete == 1
    ended.path = ended.path.with_name(f"{ended.path.name}-2")
    assert ended.finish().windows.complete == 3


def test_hanging_file_system(children: Any) -> None:
    """Writes that never return delay neither the training nor, beyond a bound, the exit."""
    ended = children.forked("hanging_disk")
    assert ended.code == 0, ended.stderr
    assert "Traceback" not in ended.stderr
    seconds = float(Path(f"{ended.path}.trained").read_text())
    assert seconds < 2
    assert ended.seconds < 9
    told = warnings(ended)
    assert len(told) == 1
    assert "not written" in told[0]
    assert "metrics_raw" in told[0]
    ended.check_lines()
    assert ended.finish(lossy=True).windows.complete == 2
