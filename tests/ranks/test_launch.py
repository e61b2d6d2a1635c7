"""How a rank finds the run directory that rank 0 made."""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys

import msgspec
import pytest

from otel_grpo.ranks import launch
from otel_grpo.ranks.launch import directory_of_rank, find, launch_key
from otel_grpo.records.model import (
    Attempt,
    ClockPair,
    Observed,
    RankCounts,
    RunTime,
    Summary,
    Trainer,
    WindowCounts,
    World,
)
from otel_grpo.records.rundir import RunDirError, open_run_dir

SECOND = 10**9
STARTED = 1_000 * SECOND
ENVIRON = {"MASTER_ADDR": "node-1", "MASTER_PORT": "29500", "TORCHELASTIC_RUN_ID": "none"}
KEY = launch_key(ENVIRON)


@pytest.fixture
def make_run(tmp_path):
    """Rank 0's directory with one attempt."""

    def make(name="run", key=KEY, started=STARTED, pid=None, run_id="mine"):
        run = open_run_dir(tmp_path / name, run_id)
        clock = ClockPair(None, 1, 1)
        host, pid = socket.gethostname(), pid or os.getpid()
        attempt = Attempt(run.attempt, started, host, pid, clock, Trainer("t"), World(2))
        run.write_run_file(msgspec.structs.replace(attempt, launch=key))
        run.release()
        return run

    return make


def write_summary(run, status, ended):
    summary = Summary(
        status=status,
        started_unix_ns=1,
        ended_unix_ns=ended,
        trainer=Trainer("t"),
        world=World(2),
        time=RunTime(*[0] * 10),
        windows=WindowCounts(0, 0, 0),
        ranks=RankCounts(2, 0, 0),
        run_id=run.run_id,
        attempt=run.attempt,
        records={},
        head=None,
        observed=Observed(),
    )
    run.summary.write_bytes(msgspec.json.encode(summary))


def test_the_key_is_that_of_one_start():
    """The same in every rank, another one after a restart; none where nothing tells."""
    rank = ENVIRON | {"RANK": "3", "LOCAL_RANK": "1", "HOME": "/root"}
    assert launch_key(rank) == KEY
    assert len(KEY) == 16
    assert int(KEY, 16)
    for name in ("OTEL_GRPO_LAUNCH", "TORCHELASTIC_RESTART_COUNT", "SLURM_JOB_ID", "MASTER_PORT"):
        assert launch_key(ENVIRON | {name: "1"}) != KEY
    assert launch_key({"RANK": "3", "MASTER_ADDR": ""}) is None


def test_what_one_node_drew_is_no_part_of_the_key_of_several():
    """`otel-grpo run` draws on each node; on one node it tells two starts apart."""
    several = ENVIRON | {"WORLD_SIZE": "16", "LOCAL_WORLD_SIZE": "8"}
    alone = ENVIRON | {"WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "8"}
    a, b = {"OTEL_GRPO_LAUNCH": "drawn-1"}, {"OTEL_GRPO_LAUNCH": "drawn-2"}
    assert launch_key(several | a) == launch_key(several | b)
    assert launch_key(alone | a) != launch_key(alone | b)
    assert launch_key(several | {"OTEL_GRPO_LAUNCH": "mine"}) != launch_key(several | a)


def test_the_attempt_of_this_start_is_found(make_run, tmp_path):
    """In the directory that was asked for: run id, and the newest attempt of this launch."""
    asked = tmp_path / "run"
    assert find(asked, KEY, STARTED) is None
    make_run(key="another")
    assert find(asked, KEY, STARTED) is None
    make_run()
    found = find(asked, KEY, STARTED)
    assert (found.path, found.run_id, found.attempt) == (asked, "mine", 2)
    assert find(asked, KEY, STARTED + 120 * SECOND) is not None
    assert find(asked, KEY, STARTED + 121 * SECOND) is None


def test_rank_0_may_have_taken_a_sibling(make_run, tmp_path):
    """The asked directory is another run's."""
    make_run(key="another", run_id="other")
    run = make_run(run_id="mine")
    assert run.path == tmp_path / "run-2"
    assert find(tmp_path / "run", KEY, STARTED).path == run.path


def test_without_a_name_the_newest_runs_are_looked_at(make_run, tmp_path):
    """Of those below `runs/`, whatever else lies there."""
    make_run("runs/20260101T000000Z-a", key="another", run_id="a")
    run = make_run("runs/20260102T000000Z-b", run_id="b")
    (tmp_path / "runs" / "zzz").write_text("no run")
    assert find(None, KEY, STARTED, tmp_path / "runs").path == run.path
    assert find(None, KEY, STARTED, tmp_path / "nowhere") is None


@pytest.mark.parametrize(
    ("status", "ended", "alive", "joins"),
    [
        ("running", STARTED - 1, True, True),
        ("running", STARTED - 1, False, False),
        ("completed", STARTED - 1, True, False),
        ("failed", STARTED + 1, False, True),
    ],
)
def test_a_job_of_the_same_address_that_is_over_is_not_joined(
    make_run, tmp_path, status, ended, alive, joins
):
    """It ended, or was killed, before this process started: the new one has no directory yet."""
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    run = make_run(started=STARTED - SECOND, pid=None if alive else gone.pid)
    write_summary(run, status, ended)
    assert (find(tmp_path / "run", KEY, STARTED) is not None) is joins


def test_a_rank_waits_for_the_directory(make_run, tmp_path):
    """It looks five times a second; rank 0 needs two looks to make it."""
    slept = []

    def wait(seconds):
        slept.append(seconds)
        if sum(slept) > 0.3 and not (tmp_path / "run").exists():
            make_run()
        return False

    found = directory_of_rank(3, tmp_path / "run", STARTED, wait=wait, environ=ENVIRON)
    assert (found.path, found.attempt) == (tmp_path / "run", 1)
    assert [each for each in slept if each] == [0.2, 0.2]


def test_a_process_that_ends_looks_once_more(make_run, tmp_path):
    make_run()
    found = directory_of_rank(
        3, tmp_path / "run", STARTED, wait=lambda seconds: True, environ=ENVIRON
    )
    assert found.attempt == 1


@pytest.mark.parametrize(
    ("environ", "run_id", "looks"),
    [
        (ENVIRON, f"launch:{KEY}", 300),
        (ENVIRON | {"OTEL_GRPO_RUN_ID": "mine"}, "mine", 300),
        ({}, "launch:none", 0),
    ],
)
def test_a_directory_that_is_not_shared(tmp_path, caplog, environ, run_id, looks):
    """After a minute the rank has its own, says so once, and its lines name no attempt."""
    slept = []
    with caplog.at_level(logging.WARNING, "otel_grpo"):
        own = directory_of_rank(
            3, tmp_path / "run", STARTED, wait=lambda s: bool(slept.append(s)), environ=environ
        )
    assert own == (tmp_path / "run-rank3", run_id, 0)
    assert sorted(each.name for each in own.path.iterdir()) == ["spans", "workers"]
    assert sum(slept) == pytest.approx(looks * 0.2)
    (said,) = caplog.messages
    assert "otel-grpo finish" in said


def test_a_process_that_ends_before_rank_zero_has_begun(make_run, tmp_path, monkeypatch):
    """A short training: there are a few looks more, a fifth of a second apart."""
    pauses = []

    def sleep(seconds):
        pauses.append(seconds)
        if len(pauses) == 3:
            make_run()

    monkeypatch.setattr(launch.time, "sleep", sleep)
    found = directory_of_rank(
        3, tmp_path / "run", STARTED, wait=lambda seconds: True, environ=ENVIRON
    )
    assert found.attempt == 1
    assert pauses == [0.2] * 3


def test_no_directory_at_all(tmp_path, monkeypatch):
    """Where not even the own one can be made."""
    monkeypatch.setattr(launch, "_LAST_LOOKS", 1)
    (tmp_path / "file").write_text("")
    with pytest.raises(RunDirError):
        directory_of_rank(
            1, tmp_path / "file" / "run", STARTED, wait=lambda s: True, environ=ENVIRON
        )


def test_the_environment_is_the_process_s_own(monkeypatch, tmp_path):
    """Where none is given."""
    for name in launch._VARIABLES:
        monkeypatch.delenv(name, raising=False)
    own = directory_of_rank(1, None, STARTED, wait=lambda s: True, runs=tmp_path)
    assert own.path.parent == tmp_path
    assert own.path.name.endswith("-unknown-rank1")
