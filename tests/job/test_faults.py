"""Lines that no rank would write, directories that are not shared or hang, children of a rank."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from jobs import Jobs, Rank
from left import Files, totals, united

from otel_grpo import audit


def everything(ranks: list[Rank]) -> list[dict[str, object]]:
    return [window for rank in ranks for window in rank.windows.values()]


def test_bad_lines(jobs: Jobs) -> None:
    """Twice, of another run, for another rank, of an old window, torn: all ignored and counted."""
    ranks = jobs.train(
        {"events": {"0.end": "wait dead"}, "last_words": 1.0},
        {
            "events": {
                "1.end": "append twice;append foreign",
                "2.end": "read 1;append old;append usurped",
                "0.end": "append torn;touch dead;kill",
            }
        },
        {},
    )
    assert [rank.code for rank in ranks] == [0, -9, 0]
    files = Files(jobs.folder / "run")
    assert files.missing == {}
    errors = files.summary.observed.errors
    assert errors == {"ranks.twice": 2, "ranks.foreign": 1, "ranks.bad_line": 1}
    assert totals(files.summary) == united(everything(ranks))
    report = audit.audit(files.path)
    found = {(finding.severity, finding.line) for finding in report.findings}
    lines = {"error": (3, 4, 6, 7), "note": (9,)}
    assert found == {(severity, line) for severity in lines for line in lines[severity]}


def test_directory_that_is_not_shared(jobs: Jobs) -> None:
    """Rank 1 sees another place: it keeps its files there, and `finish` counts them once copied."""
    (jobs.folder / "node").mkdir()
    ranks = [jobs.start(0, last_words=0.2), jobs.start(1, place="node/run")]
    jobs.end(ranks)
    assert [rank.code for rank in ranks] == [0, 0]
    own = jobs.folder / "node" / "run-rank1"
    (warning,) = ranks[1].warnings
    assert str(own) in warning
    assert "finish" in warning
    assert sorted(path.name for path in own.iterdir()) == ["spans", "workers"]
    files = Files(jobs.folder / "run")
    assert files.missing == {1: [1], 2: [1], 3: [1]}
    files.check(united(ranks[0].windows.values()))
    for name in ("workers", "spans"):
        shutil.copytree(own / name, files.path / name, dirs_exist_ok=True)
    summary = files.finish("in no record", "never read them")
    assert totals(summary) == united(everything(ranks))
    assert (summary.ranks.late, summary.ranks.incomplete_windows) == (3, 0)
    assert len(summary.world.devices) == 2


def test_writes_of_a_rank_that_hang(jobs: Jobs) -> None:
    """Its training and the others' go on, its exit is bounded, and it is missing from then on."""
    ranks = jobs.train(
        {"events": {"0.end": "wait hangs"}, "last_words": 0.5},
        {"events": {"1.end": "flush", "2.generation": "hang", "0.end": "touch hangs"}},
    )
    assert [rank.code for rank in ranks] == [0, 0]
    for rank in ranks:  # the writes take a thousand seconds
        assert rank.told("finished")[0] < 30
    (warning,) = ranks[1].warnings
    assert "not written" in warning
    files = Files(jobs.folder / "run")
    assert files.missing == {2: [1], 3: [1]}
    files.check(united([*ranks[0].windows.values(), ranks[1].windows[1]]))


def test_directory_that_hangs_when_it_is_looked_for(jobs: Jobs) -> None:
    """Rank 1 never finds out where its run is: it trains, and ends with one warning."""
    (jobs.folder / "run").mkdir()
    os.mkfifo(jobs.folder / "run" / "run.json")
    (rank,) = ranks = [jobs.start(1)]
    jobs.end(ranks)
    assert rank.code == 0
    assert rank.told("finished")[0] < 30
    (warning,) = rank.warnings
    assert "not written" in warning


def test_file_that_hangs_when_rank_zero_reads_it(jobs: Jobs) -> None:
    """The reading thread hangs; training and end do not, and `finish` does the rest."""
    fifo = jobs.folder / "run" / "workers" / "a.jsonl"
    fifo.parent.mkdir(parents=True)
    os.mkfifo(fifo)
    ranks = jobs.train({"last_words": 0.2}, {})
    assert [rank.code for rank in ranks] == [0, 0]
    assert ranks[0].told("finished")[0] < 30
    fifo.unlink()
    files = Files(jobs.folder / "run")
    assert files.missing == {1: [1], 2: [1], 3: [1]}
    assert totals(files.summary) == united(ranks[0].windows.values())
    summary = files.finish("in no record", "never read them")
    assert totals(summary) == united(everything(ranks))


@pytest.mark.parametrize("method", ["os", "fork", "spawn"])
def test_children_of_a_rank(jobs: Jobs, method: str) -> None:
    """A fork of it, and a process as data loaders start them, write nothing."""
    ranks = jobs.train({}, {}, events={"2.generation": f"fork {method}"})
    for rank in ranks:
        assert rank.code == 0, rank.words
        assert rank.warnings == []
    files = Files(jobs.folder / "run")
    files.check(united(everything(ranks)))
    for name in ("workers", "spans"):
        roles = sorted(path.name.split("-")[0] for path in (files.path / name).iterdir())
        assert roles == ["driver", "trainer"]
    stored = [path.read_bytes() for path in Path(files.path).rglob("*") if path.is_file()]
    assert all(b"child" not in content for content in stored)
