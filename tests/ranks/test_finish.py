"""What came too late for the records is in the totals that `finish` makes."""

from __future__ import annotations

import json
import shutil

import msgspec
import pytest
from click.testing import CliRunner

from otel_grpo.audit import audit
from otel_grpo.cli import main
from otel_grpo.ranks.job import Ranks
from otel_grpo.records.model import Device
from otel_grpo.records.reader import BadLine, read_run_file, read_summary
from otel_grpo.records.replay import summarize
from otel_grpo.records.worker_dir import WorkerDir
from otel_grpo.tracing import run as running, starting
from otel_grpo.tracing.guard import Guard

WINDOWS = 3
GPUS = [Device(f"GPU-{rank}", "cuda", "h") for rank in range(2)]


def loop(run, rank, windows=WINDOWS):
    """Two samples of each rank in each window, one update from them."""
    for window in range(windows):
        with run.iteration() as it:
            with it.phase("generation"):
                samples = it.consumed(
                    window,
                    first=2 * rank,
                    prompt_lengths=[3, 3],
                    completion_lengths=[10 + rank, 20 + rank + window],
                    trained_lengths=[5, 6 + rank],
                    groups=[0, 0],
                )
            it.trained(samples)
            with it.update(nominal=2):
                pass


class Split:
    """A rank whose files go to a place of their own, as where no directory is shared."""

    def __init__(self, path, run_id, attempt):
        self._place = path, run_id, attempt

    rank, world, launch = 1, 2, "the launch"

    def directory(self, asked, started_ns, wait):
        path, run_id, attempt = self._place
        for name in ("workers", "spans"):
            (path / name).mkdir(parents=True)
        return WorkerDir(path, run_id, attempt)


class First(Ranks):
    """Rank 0, whose launch is known."""

    launch = "the launch"


def started(path, job, rank):
    return starting.start(
        path,
        trainer="loop",
        job=job,
        role="trainer",
        devices=[GPUS[rank]],
        roles=[(0, ["train", "generate"])],
        guard=Guard(strict=False),
        run_id="mine",
    )


@pytest.fixture
def job(tmp_path, monkeypatch):
    """Both ranks' files; `came` says how many of rank 1's windows were there in time."""
    monkeypatch.setattr(running, "LAST_WORDS_S", 0.5)

    def make(came, run_id="mine", attempt=1):
        away, path = tmp_path / "away", tmp_path / "run"
        with started(None, Split(away, run_id, attempt), 1) as run:
            loop(run, 1)
        (file,) = (away / "workers").iterdir()
        lines = file.read_bytes().splitlines(keepends=True)
        assert [json.loads(line)["kind"] for line in lines] == [
            "joined", *["contribution"] * WINDOWS, "left",
        ]  # fmt: skip
        with started(path, First(0, 2), 0) as run:
            if came is not None:
                (path / "workers" / file.name).write_bytes(b"".join(lines[: 1 + came]))
            loop(run, 0)
        if came is not None:
            shutil.copy(file, path / "workers" / file.name)
        return path

    return make


def totals(summary):
    fields = msgspec.to_builtins(summary)
    for name in ("observed", "time", "phases", "throughput", "started_unix_ns", "ended_unix_ns"):
        del fields[name]
    return {name: fields[name] for name in fields if name not in ("head", "records")}


@pytest.mark.parametrize("came", [0, 2])
def test_late_contributions_complete_the_totals(job, came):
    """Each window once, whether its rank was in time or not; the records stay."""
    path = job(came)
    before = (path / "metrics_raw.jsonl").read_bytes()
    told = read_summary(path)
    assert (told.ranks.complete_windows, told.ranks.incomplete_windows) == (came, WINDOWS - came)
    assert told.ranks.late == 0
    assert told.samples["consumed"] == 2 * (WINDOWS + came)
    assert told.updates["applied"] == came
    assert told.updates["unconfirmed"] == WINDOWS - came
    after = summarize(path)
    assert (after.ranks.complete_windows, after.ranks.late) == (WINDOWS, WINDOWS - came)
    assert after.samples["consumed"] == after.samples["visits"] == 4 * WINDOWS
    assert after.groups == WINDOWS
    assert after.updates["applied"] == WINDOWS
    # Of each window: four prompts of 3, completions 10, 20 + w and 11, 21 + w.
    assert after.tokens["total"] == sum(12 + 62 + 2 * window for window in range(WINDOWS))
    assert after.tokens["visited"] == 23 * WINDOWS
    assert after.windows == msgspec.structs.replace(after.windows, complete=WINDOWS, partial=0)
    assert (path / "metrics_raw.jsonl").read_bytes() == before


def test_the_command_says_what_is_still_missing(job, tmp_path):
    """Two of three windows came late, the last one never."""
    path = job(0)
    (file,) = (path / "workers").glob("trainer-1-*")
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join(lines[:3]))
    result = CliRunner().invoke(main, ["finish", str(path)])
    assert result.exit_code == 0
    said, missing = result.stdout.splitlines()
    assert said.endswith("; 2 contributions of other ranks counted in")
    assert missing.startswith("  still missing: rank 1")
    assert missing.endswith(f"iteration 3: not in workers/{file.name}")
    assert read_summary(path).ranks.late == 2


def test_nothing_late_is_nothing_changed(job):
    """The totals of the process are those of the files."""
    path = job(WINDOWS)
    told, again = read_summary(path), summarize(path)
    assert told.ranks.incomplete_windows == again.ranks.late == 0
    assert totals(told) == totals(again)
    assert told.throughput == again.throughput
    assert audit(path).exit_status == 0


@pytest.mark.parametrize(
    ("run_id", "attempt"), [("mine", 1), ("launch:the launch", 0), ("mine", 0)]
)
def test_files_that_are_copied_in(job, tmp_path, run_id, attempt):
    """A rank without the directory: its device counts with its tokens, and run.json stays."""
    path = job(None, run_id, attempt)
    run_file = (path / "run.json").read_bytes()
    (file,) = (tmp_path / "away" / "workers").iterdir()
    told = read_summary(path)
    assert [device.id for device in told.world.devices] == ["GPU-0"]
    shutil.copy(file, path / "workers")
    after = summarize(path)
    assert after.ranks.late == WINDOWS
    assert [device.id for device in after.world.devices] == ["GPU-0", "GPU-1"]
    rate = after.tokens["total"] * 10**9 / (after.time.work_ns * 2)
    assert after.throughput["device"] == rate
    assert (path / "run.json").read_bytes() == run_file
    assert read_run_file(path).attempts[0].processes == []
    (path / "summary.json").write_bytes(msgspec.json.encode(after))
    assert audit(path).exit_status == 0, audit(path)


def test_another_run_s_files_are_left_alone(job, tmp_path):
    """By mistake in the same folder: no number is theirs."""
    path = job(None, "another", 1)
    (file,) = (tmp_path / "away" / "workers").iterdir()
    shutil.copy(file, path / "workers")
    assert summarize(path).ranks.late == 0


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (b'"trained_lengths":[5,7],', b'"trained_lengths":[5],'),
        (b'"rank":1,"iteration":2', b'"rank":2,"iteration":2'),
        (b'"prompt_lengths":[3,3]', b'"prompt_lengths":["3",3]'),
    ],
)
def test_a_contribution_that_does_not_fit_is_named(job, change, why):
    """With its file and line, and no total is made of it."""
    path = job(0)
    (file,) = (path / "workers").glob("trainer-1-*")
    content = file.read_bytes()
    assert change in content
    file.write_bytes(content.replace(change, why))
    if b'"rank":2' in why:  # it speaks for a rank that nobody misses
        assert summarize(path).ranks.late == WINDOWS - 1
        return
    with pytest.raises(BadLine) as raised:
        summarize(path)
    assert raised.value.path == file
    assert raised.value.number == 2
