"""Random kills over the ranks of random jobs; SOAK_KILLS of them (100)."""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from jobs import Jobs, Rank, Server
from left import Files, totals, united

KILLS = int(os.environ.get("SOAK_KILLS", "100"))
AT_ONCE = 25  # in one test
# What the audit may say of a job that somebody killed.
NOTES = ("torn line", "in no record", "without a record", "never read them")


def options() -> dict[str, Any]:
    return {
        "windows": random.randint(1, 8),
        "pause": random.choice([0.0, 0.01, 0.05]),
        "passes": random.randint(1, 2),
        "updates": random.randint(1, 2),
        "group": random.choice([2, 3, 4]),
        "look": random.choice([0.02, 0.2, 1.0]),
        "deadline": random.choice([0.1, 1, 30]),
        "last_words": random.choice([0.05, 0.5]),
    }


def kill_one(jobs: Jobs, world: int, chosen: dict[str, Any]) -> tuple[list[Rank], int, int]:
    ranks = [jobs.start(rank, world=world, **chosen) for rank in range(world)]
    victim, how = random.randrange(world), random.choice([signal.SIGKILL, signal.SIGTERM])
    time.sleep(random.uniform(0, 0.1 + 1.5 * chosen["windows"] * chosen["pause"]))
    os.kill(ranks[victim].pid, how)  # it is not waited for yet: the number is its own
    jobs.end(ranks)
    return ranks, victim, how


def seen(files: Files, ranks: list[Rank], victim: int) -> None:
    """Each record is made of what the ranks counted that it does not call missing."""
    for number, record in files.rollouts.items():
        received = set(range(len(ranks))) - set(record.attributes.ranks.missing)
        if any(number not in ranks[rank].windows for rank in received):
            # Its window was cut, or closed and not told of: the last thing that the victim did.
            assert victim in received
            assert number == max(ranks[victim].windows, default=0) + 1
            continue
        expected = united([ranks[rank].windows[number] for rank in received])
        assert record.metrics["samples.visits"] == expected["samples"]["visits"]
        assert record.metrics["tokens.total"] == expected["tokens"]["total"]
        assert record.metrics["tokens.visited"] == expected["tokens"]["visited"]


def check(jobs: Jobs, ranks: list[Rank], victim: int, how: int, windows: int) -> None:
    for number, rank in enumerate(ranks):
        assert "Traceback" not in rank.words, rank.words
        if number != victim:
            assert rank.code == 0, rank.words
            assert len(rank.windows) == windows
        else:
            assert rank.code in (0, -how)
    path = jobs.folder / "run"
    if not (path / "run.json").exists():
        assert victim == 0
        return
    for number in range(1, len(ranks)):  # whoever did not find it
        own = path.with_name(f"run-rank{number}")
        for name in ("workers", "spans") if own.exists() else ():
            shutil.copytree(own / name, path / name, dirs_exist_ok=True)
    files = Files(path)
    seen(files, ranks, victim)
    late = {(rank, n) for n, missing in files.missing.items() for rank in missing}
    late &= files.contributed
    summary = files.finish(*NOTES)
    assert summary.ranks.late == len(late)
    if ranks[victim].code == 0 and not summary.ranks.incomplete_windows:
        whole = united(window for rank in ranks for window in rank.windows.values())
        assert totals(summary) == whole


@pytest.mark.soak
@pytest.mark.parametrize("_batch", range(-(-KILLS // AT_ONCE)))
def test_random_kills(server: Server, tmp_path: Path, _batch: int) -> None:
    """Training as without us, nothing lost that was written, and the audit passes."""
    seed = random.randrange(2**32)
    random.seed(seed)
    for number in range(AT_ONCE):
        folder = tmp_path / str(number)
        folder.mkdir()
        jobs, chosen = Jobs(server, folder), options()
        ranks, victim, how = kill_one(jobs, random.randint(2, 3), chosen)
        try:
            check(jobs, ranks, victim, how, chosen["windows"])
        except BaseException:
            print(f"seed {seed}, job {number}: rank {victim} got signal {how}, {chosen}: {folder}")
            raise
        shutil.rmtree(folder)
