"""`finish` names the ranks that are in no total, on files made by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from otel_grpo.records.model import ClockPair, Process, Ranks, RolloutRecord


def line(path: Path, kind: str, **fields: Any) -> None:
    """Appends a line to a file of `workers/`."""
    path.parent.mkdir(exist_ok=True)
    entry = {"kind": kind, "run_id": "reference", "attempt": 1} | fields
    with path.open("a") as file:
        file.write(json.dumps(entry) + "\n")


def join(path: Path, rank: int, attempt: int = 1) -> None:
    clock = {"boot_id": None, "unix_ns": 0, "perf_ns": 0}
    who = {"role": "trainer", "name": f"trainer-{rank}", "rank": rank, "world": 4, "host": "node1"}
    line(path, "joined", pid=10 + rank, clock=clock, started_unix_ns=0, attempt=attempt, **who)


@pytest.fixture
def lacking(reference: Any) -> Path:
    """Windows 1 and 2 lack rank 2, of which there is a file; 2 and 3 lack rank 3, of which not."""
    rollouts = [record for record in reference.records if isinstance(record, RolloutRecord)]
    for record, missing in zip(rollouts, ([2], [2, 3], [3]), strict=True):
        ranks = Ranks(4, 4 - len(missing), missing)
        record.attributes = msgspec.structs.replace(record.attributes, ranks=ranks)
    clock = ClockPair("boot", 0, 0)
    processes = [Process(2, "trainer", "node1", 12, clock, "trainer-2")]
    [attempt] = reference.run_file.attempts
    reference.run_file.attempts[0] = msgspec.structs.replace(attempt, processes=processes)
    path: Path = reference.write()
    join(path / "workers" / "trainer-2-12.jsonl", 2)
    return path


def test_missing_ranks_are_named_with_the_files_that_would_have_them(
    lacking: Path, call: Any
) -> None:
    result = call("finish", lacking)
    assert result.exit_code == 0
    _, second, third, mend = result.stdout.splitlines()
    still = "  still missing: rank"
    file = "workers/trainer-2-12.jsonl"
    assert second == f"{still} 2 (trainer-2 on node1), iterations 1-2: not in {file}"
    assert third == f"{still} 3, iterations 2-3: no file workers/*-3-*.jsonl"
    assert mend == (
        "  a directory that was not shared: copy the files of its workers/ and spans/ into those "
        f"of {lacking} and finish again"
    )


def test_json_has_them_too(lacking: Path, call: Any) -> None:
    absent = json.loads(call("finish", lacking, "--json").stdout)["absent"]
    assert [(each["rank"], each["iterations"], each["file"]) for each in absent] == [
        (2, [1, 2], "workers/trainer-2-12.jsonl"),
        (3, [2, 3], None),
    ]
