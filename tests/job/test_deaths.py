"""Ranks that are killed, that come late, or that start again."""

from __future__ import annotations

import time
from typing import Any

import pytest
from jobs import Jobs, Rank
from left import Files, totals, united

# Enough to hear ranks that are there, where one that is not would be waited for three seconds.
SOON = 0.5


def kept(rank: Rank, *iterations: int) -> list[Any]:
    return [rank.windows[iteration] for iteration in iterations]


@pytest.mark.parametrize(
    ("point", "whole"), [("2.generation", 1), ("2.training", 1), ("2.update", 1), ("0.end", 3)]
)
def test_killed_rank(jobs: Jobs, point: str, whole: int) -> None:
    """Windows that it closed are counted; the later ones name it, and their updates are unconfirmed."""
    ranks = jobs.train(
        {"events": {"0.begin": "joined 1", "0.end": "wait dead"}},
        {"events": {point: "flush;touch dead;kill"}},
        last_words=SOON,
    )
    assert [rank.code for rank in ranks] == [0, -9]
    assert ranks[0].warnings == []
    files = Files(jobs.folder / "run")
    left = range(whole + 1, 4)
    assert files.missing == {iteration: [1] for iteration in left}
    windows = [*kept(ranks[0], 1, 2, 3), *kept(ranks[1], *range(1, whole + 1))]
    files.check(united(windows))
    assert files.summary.status == "completed"
    assert files.summary.ranks.incomplete_windows == len(left)
    updates = [r.attributes.updates[0] for _, r in sorted(files.rollouts.items())]
    applied = [("applied", [])] * whole
    assert [(u.status, u.ranks) for u in updates] == [*applied, *[("unconfirmed", [1])] * len(left)]
    assert files.summary.updates["unconfirmed"] == len(left)


@pytest.mark.parametrize(
    ("meanwhile", "deadline"), [("sleep 0.5", 30), ("read 2", 2)], ids=["at the end", "deadline"]
)
def test_the_others_of_a_killed_rank(jobs: Jobs, meanwhile: str, deadline: int) -> None:
    """Rank 2 dies in the first window: rank 1 is in each record all the same."""
    both = [f"{n}.end" for n in range(1, 6)]
    waits = {point: f"wait {point}" for point in both}
    ranks = jobs.train(
        {"events": {"0.begin": "joined 2", **waits, "4.generation": meanwhile}},
        {"events": {point: f"flush;touch {point}" for point in both}},
        {"events": {"1.training": "flush;kill"}},
        windows=5,
        look=0.05,
        deadline=deadline,
        last_words=SOON,
    )
    assert [rank.code for rank in ranks] == [0, 0, -9]
    files = Files(jobs.folder / "run")
    assert files.missing == {iteration: [2] for iteration in range(1, 6)}
    files.check(united([*ranks[0].windows.values(), *ranks[1].windows.values()]))


def test_nobody_waits_for_a_slow_rank(jobs: Jobs) -> None:
    """Rank 0 goes on while rank 1 sleeps, and ends before it; `finish` counts what came late."""
    ranks = jobs.train(
        {"events": {"0.begin": "joined 1"}, "last_words": SOON},
        {"events": {"2.generation": "sleep 2.5"}},
    )
    assert [rank.code for rank in ranks] == [0, 0]
    (mine,), (theirs,) = (rank.told("trained") for rank in ranks)
    assert mine < theirs / 3
    files = Files(jobs.folder / "run")
    assert files.missing == {2: [1], 3: [1]}
    assert totals(files.summary) == united([*kept(ranks[0], 1, 2, 3), *kept(ranks[1], 1)])
    assert files.summary.updates["applied"] == 1
    raw = (files.path / "metrics_raw.jsonl").read_bytes()
    summary = files.finish("in no record")
    assert totals(summary) == united([*kept(ranks[0], 1, 2, 3), *kept(ranks[1], 1, 2, 3)])
    assert (summary.ranks.late, summary.ranks.incomplete_windows) == (2, 0)
    assert summary.updates["applied"] == 3
    assert (files.path / "metrics_raw.jsonl").read_bytes() == raw


def test_rank_zero_is_killed_and_the_job_starts_again(jobs: Jobs) -> None:
    """The next start is attempt 2 of the same run; a rank that the first one left behind is not in it."""
    first = [
        jobs.start(0, events={"1.end": "read 1", "2.generation": "flush;kill"}),
        jobs.start(1, events={"2.generation": "wait again"}),
    ]
    jobs.end(first[:1])
    second = jobs.train({"events": {"2.end": "touch again"}}, {}, launch="b")
    jobs.end(first[1:])
    assert [rank.code for rank in (*first, *second)] == [-9, 0, 0, 0]
    files = Files(jobs.folder / "run")
    assert len({attempt.launch for attempt in files.run.attempts}) == 2
    assert sorted(line.attempt for line in files.joined) == [1, 2]
    whole = united(window for rank in second for window in rank.windows.values())
    files.check(whole, "windows without a record")
    assert (files.summary.attempt, files.summary.status) == (2, "completed")
    (before,) = files.summary.attempts
    assert before.status == "interrupted"
    assert (before.windows.complete, before.windows.aborted) == (1, 1)
    assert before.samples["consumed"] == 8


def test_two_trainings_of_the_same_processes(jobs: Jobs) -> None:
    """The second is attempt 2, although rank 1 comes to it before rank 0 has ended the first."""
    ranks = jobs.train(
        {"events": {"0.end": "wait begun2"}, "last_words": SOON},
        {"events": {"0.begin": "touch begun{}"}, "windows": 2},
        trainings=2,
    )
    assert [rank.code for rank in ranks] == [0, 0]
    files = Files(jobs.folder / "run")
    assert sorted(line.attempt for line in files.joined) == [1, 2]
    assert files.missing == {3: [1]}  # whom rank 0 waits for in vain, both times
    last = [*ranks[0].told("window")[3:], *ranks[1].told("window")[2:]]
    files.check(united(last))
    (before,) = files.summary.attempts
    assert before.samples == files.summary.samples
    assert before.ranks == files.summary.ranks


def test_rank_that_starts_first(jobs: Jobs) -> None:
    """It looks for the directory of rank 0 until that is there."""
    early = jobs.start(1, events={"3.generation": "wait begun"})
    while len(early.told("window")) < 2:
        time.sleep(0.01)
    late = jobs.start(0, events={"0.begin": "touch begun"})
    jobs.end([early, late])
    check_whole(jobs, late, early)


def test_rank_that_starts_last(jobs: Jobs) -> None:
    """Rank 0 is through with its training by then, but not gone."""
    ranks = jobs.train(
        {"events": {"0.end": "touch through"}}, {"events": {"0.start": "wait through"}}
    )
    check_whole(jobs, *ranks)


def check_whole(jobs: Jobs, *ranks: Rank, place: str = "run") -> None:
    for rank in ranks:
        assert rank.code == 0, rank.words
    files = Files(jobs.folder / place)
    assert files.missing == {}
    files.check(united(window for rank in ranks for window in rank.windows.values()))


@pytest.mark.parametrize("place", ["run", None])
def test_training_that_changes_its_directory(jobs: Jobs, place: str | None) -> None:
    """A relative run directory is the one of the start, for every rank."""
    (jobs.folder / "elsewhere").mkdir()
    ranks = jobs.train({}, {}, place=place, events={"0.begin": "chdir elsewhere"})
    if place is None:
        (path,) = (jobs.folder / "runs").iterdir()
        place = str(path)
    check_whole(jobs, *ranks, place=place)
    assert list((jobs.folder / "elsewhere").iterdir()) == []


def test_two_jobs_in_one_directory(jobs: Jobs) -> None:
    """The second one records beside the first, and its rank 1 follows its own rank 0."""
    first = [
        jobs.start(0, events={"0.begin": "touch begun", "1.generation": "wait second"}),
        jobs.start(1),
    ]
    second = [
        jobs.start(1, launch="b", events={"0.start": "wait begun"}),
        jobs.start(
            0,
            launch="b",
            events={"0.start": "wait begun", "0.begin": "joined 1;touch second"},
            windows=4,
        ),
    ]
    jobs.end([*first, *second])
    (warning,) = second[1].warnings
    assert "in use" in warning
    check_whole(jobs, *first)
    files = Files(jobs.folder / "run-2")
    assert files.missing == {4: [1]}  # it trains for three
    assert totals(files.summary) == united(w for rank in second for w in rank.windows.values())


def test_interrupt_while_others_are_waited_for(jobs: Jobs) -> None:
    """Ctrl-C ends the wait for a rank that is gone; the records are all there."""
    begun = time.monotonic()
    ranks = jobs.train(
        {"events": {"0.begin": "joined 1", "0.end": "wait dead;interrupt 0.3"}},
        {"events": {"2.generation": "flush;touch dead;kill"}},
        last_words=60,
    )
    assert time.monotonic() - begun < 30
    assert "KeyboardInterrupt" in ranks[0].words
    files = Files(jobs.folder / "run")
    assert files.missing == {2: [1], 3: [1]}
    assert files.summary.records == {"train": 3, "rollout": 3, "run": 1}
    files.check(united([*kept(ranks[0], 1, 2, 3), *kept(ranks[1], 1)]))
