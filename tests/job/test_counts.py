"""Totals of a job are those of its ranks, as each of them counted itself."""

from __future__ import annotations

from typing import Any

import pytest
from jobs import Jobs, Rank
from left import Files, united


def counted(ranks: list[Rank]) -> dict[str, Any]:
    return united(window for rank in ranks for window in rank.windows.values())


def check(jobs: Jobs, ranks: list[Rank], updates: dict[str, int]) -> Files:
    """Everybody ended well, nobody is missing, and the numbers are the ranks' own."""
    for rank in ranks:
        assert rank.code == 0, rank.words
        assert rank.warnings == []
    files = Files(jobs.folder / "run")
    files.check(counted(ranks))
    assert files.missing == {}
    said = {name: n for name, n in files.summary.updates.items() if n}
    assert said == updates
    assert files.summary.observed.errors == {}
    assert sorted(line.rank or 0 for line in files.joined) == list(range(1, len(ranks)))
    devices = [device.id for device in files.summary.world.devices]
    assert sorted(devices) == [f"cpu:host:{rank}" for rank in range(len(ranks))]
    return files


@pytest.mark.parametrize("world", [2, 3])
def test_samples_of_ranks_of_their_own(jobs: Jobs, world: int) -> None:
    """Each rank has 4 samples of a window, in groups of two."""
    ranks = jobs.train(*[{}] * world)
    files = check(jobs, ranks, {"attempted": 3, "applied": 3})
    assert files.summary.samples["consumed"] == 3 * 4 * world
    for number, record in files.rollouts.items():
        mine = [row for rank in ranks for row in rank.windows[number]["rows"]]
        assert record.attributes.samples == [(f"rollout{number}", 0, 4 * world)]
        assert record.attributes.completion_lengths == [row["completion"] for row in mine]
        assert set(record.attributes.per_rank or {}) == {str(rank) for rank in range(world)}
    for train in files.trains:
        assert train.attributes.n == 4 * world


def test_groups_that_lie_across_ranks(jobs: Jobs) -> None:
    """Three ranks of 4 samples in groups of 6: two groups, the first one of samples 0 to 5."""
    ranks = jobs.train({}, {}, {}, group=6)
    files = check(jobs, ranks, {"attempted": 3, "applied": 3})
    assert files.summary.groups == 3 * 2
    prompts = {n: r.metrics["tokens.prompt_unique"] for n, r in files.rollouts.items()}
    assert prompts == dict.fromkeys((1, 2, 3), 3 + 4)


def test_samples_that_two_ranks_hold(jobs: Jobs) -> None:
    """Ranks 0 and 1 are tensor-parallel, 2 and 3 as well: of 16 samples that are told 8 are there."""
    ranks = jobs.train({"shard": 0}, {"shard": 0}, {"shard": 1}, {"shard": 1})
    files = check(jobs, ranks, {"attempted": 3, "applied": 3})
    assert files.summary.samples["consumed"] == 3 * 8
    assert [train.attributes.n for train in files.trains] == [8, 8, 8]


def test_two_passes_of_two_updates(jobs: Jobs) -> None:
    """Visits double, samples and tokens do not."""
    ranks = jobs.train({}, {}, passes=2, updates=2)
    files = check(jobs, ranks, {"attempted": 12, "applied": 12})
    assert files.summary.samples["consumed"] == 3 * 8
    assert files.summary.samples["visits"] == 3 * 16
    assert [train.attributes.n for train in files.trains] == [4] * 12
    assert [train.optimizer_step for train in files.trains] == list(range(1, 13))


def test_uneven_tail(jobs: Jobs) -> None:
    """The last window of rank 1 has one sample of four: its update is partial, and so is the window."""
    ranks = jobs.train({}, {"samples": [4, 4, 1]})
    files = check(jobs, ranks, {"attempted": 3, "applied": 3, "partial": 1})
    assert [train.attributes.n for train in files.trains] == [8, 8, 5]
    windows = files.summary.windows
    assert (windows.complete, windows.partial, windows.aborted) == (2, 1, 0)


def test_one_rank_fails_another_skips(jobs: Jobs) -> None:
    """One rank's failure is the update's; a skip on one rank alone leaves it unconfirmed."""
    ranks = jobs.train(
        {"events": {"4.update": "skipped"}},
        {"events": {"2.update": "failed", "4.update": "skipped"}},
        {"events": {"3.update": "skipped", "4.update": "skipped"}},
        windows=4,
    )
    files = check(
        jobs,
        ranks,
        {"attempted": 4, "applied": 1, "failed": 1, "unconfirmed": 1, "skipped": 1},
    )
    rows = [row for n in range(1, 5) for row in files.rollouts[n].attributes.updates]
    assert [(row.status, row.reason, row.ranks) for row in rows] == [
        ("applied", None, []),
        ("failed", "Overflow", [1]),
        ("unconfirmed", None, [2]),
        ("skipped", "overflow", []),
    ]
    assert [row.step for row in rows] == [1, 1, 1, 1]
    assert [train.attributes.status for train in files.trains] == [row.status for row in rows]


def test_publications_that_nobody_confirms(jobs: Jobs) -> None:
    """Windows that wait for a publication are read from the other ranks all the same."""
    ranks = jobs.train({}, {}, windows=4, unconfirmed=[1, 4], pause=0.3)
    files = check(jobs, ranks, {"attempted": 4, "applied": 4})
    assert files.summary.publications == 2
    assert files.summary.publications_pending == 2
