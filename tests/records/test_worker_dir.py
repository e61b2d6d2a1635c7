"""A run directory as a process sees it that does not write the records."""

from __future__ import annotations

import stat

import pytest

from otel_grpo.records.rundir import RunDirError, open_run_dir
from otel_grpo.records.worker_dir import join_run_dir, own_worker_dir


def test_a_run_is_joined_beside_its_writer(tmp_path, attempt):
    """Without its lock, which rank 0 holds, and without a change to its files."""
    run = open_run_dir(tmp_path / "run", "mine")
    run.write_run_file(attempt())
    before = run.run_file.read_bytes()
    joined = join_run_dir(tmp_path / "run", "mine", 1)
    assert joined == (run.path, "mine", 1)
    assert run.run_file.read_bytes() == before
    assert sorted(each.name for each in run.path.iterdir()) == [
        ".otel-grpo",
        "run.json",
        "spans",
        "workers",
    ]


def test_what_is_not_that_run_is_not_joined(tmp_path, attempt):
    """No directory, one without a run, and another run's."""
    with pytest.raises(RunDirError, match=r"run\.json"):
        join_run_dir(tmp_path, "mine", 1)
    with pytest.raises(RunDirError, match="not exist"):
        join_run_dir(tmp_path / "run", "mine", 1)
    open_run_dir(tmp_path / "run", "other").write_run_file(attempt())
    with pytest.raises(RunDirError, match="run other"):
        join_run_dir(tmp_path / "run", "mine", 1)


def test_a_directory_of_its_own(tmp_path, monkeypatch):
    """Owner-only, absolute, for an attempt that is not known; again is the same."""
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        own = own_worker_dir("deep/run-rank3", "launch:1")
        assert own == (tmp_path / "deep" / "run-rank3", "launch:1", 0)
    for name in ("workers", "spans"):
        assert stat.S_IMODE((own.path / name).stat().st_mode) == 0o700
    (tmp_path / "file").write_text("")
    with pytest.raises(RunDirError, match="cannot make"):
        own_worker_dir("file/run", "launch:1")
