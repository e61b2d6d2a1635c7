"""`finish` makes the summary from the files alone, and touches nothing else."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import otel_grpo

ROOT = Path(otel_grpo.__file__).parents[1]

# Three whole windows, then one that stays open until the process is killed. It is ready when the
# files have what a killed process leaves: the lines in its queue would be lost.
LOOP = """
import glob, os, sys, time
import otel_grpo
def lines(name):
    files = glob.glob(os.path.join(sys.argv[1], name))
    return sum(len(open(file).readlines()) for file in files)
with otel_grpo.start_run(sys.argv[1], trainer="loop", run_id="killed") as run:
    for number in range(4):
        with run.iteration() as it:
            with it.phase("generation"):
                it.consumed(number, prompt_lengths=[3] * 4, completion_lengths=[5, 6, 7, 8])
                if number == 3:
                    while lines("metrics_raw.jsonl") < 3 or lines("workers/*.jsonl") < 4:
                        time.sleep(0.01)
                    print("ready", flush=True)
                    time.sleep(30)
"""


def files_of(path: Path) -> dict[str, str]:
    """The hash of each file but the summary."""
    return {
        str(file.relative_to(path)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in sorted(path.rglob("*"))
        if file.is_file() and file.name != "summary.json"
    }


@pytest.fixture
def living(tmp_path: Path) -> Any:
    """A process in the middle of its fourth window, and its run directory."""
    path = tmp_path / "killed"
    process = subprocess.Popen(
        [sys.executable, "-c", LOOP, str(path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=ROOT,
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process, path
        process.kill()


def test_a_complete_summary_stays_as_it_is(real: Path, call: Any) -> None:
    """The one that the process made equals the one from the files: not a byte changes."""
    before = (real / "summary.json").read_bytes()
    others = files_of(real)
    result = call("finish", real)
    assert result.exit_code == 0
    assert (real / "summary.json").read_bytes() == before
    assert files_of(real) == others
    assert result.stdout == (
        f"{real}/summary.json: was complete already; run real, attempt 1, completed: "
        "3 windows and 0 aborted; records: 3 train, 3 rollout, 1 run\n"
    )


def test_a_lost_summary_is_made_again(real: Path, call: Any) -> None:
    """All of it but `observed`, which no line has."""
    before = json.loads((real / "summary.json").read_bytes())
    (real / "summary.json").unlink()
    result = call("finish", real)
    assert result.exit_code == 0
    assert "summary.json: written; run real" in result.stdout
    after = json.loads((real / "summary.json").read_bytes())
    before.pop("observed")
    after.pop("observed")
    assert after == before


def test_a_killed_run_is_finished(living: Any, call: Any) -> None:
    """Three windows, whose samples nobody trained on, and an aborted one.

    The summary passes the audit, and a second time there is nothing new.
    """
    process, path = living
    process.send_signal(signal.SIGKILL)
    process.wait()
    others = files_of(path)
    result = call("finish", path, "--json")
    assert result.exit_code == 0
    shown = json.loads(result.stdout)
    assert set(shown) == {"path", "changed", "absent", "summary"}
    assert shown["changed"] is True
    assert shown["summary"] == json.loads((path / "summary.json").read_bytes())
    assert shown["summary"]["status"] == "interrupted"
    assert shown["summary"]["windows"] == {"complete": 0, "partial": 3, "aborted": 1}
    assert shown["summary"]["tokens"]["total"] == 3 * 38
    assert files_of(path) == others
    audited = call("audit", path)
    assert audited.exit_code == 0, audited.stdout
    assert "was complete already" in call("finish", path).stdout


def test_a_living_run_is_shown_and_left_alone(living: Any, call: Any) -> None:
    """`show` says what it is in; `finish` refuses in one line and changes nothing."""
    _, path = living
    time.sleep(0.1)
    output = " ".join(call("show", path).stdout.split())
    assert "Run killed: running" in output
    before = (path / "summary.json").read_bytes()
    result = call("finish", path)
    assert result.exit_code == 2
    assert result.stderr == (
        f"otel-grpo: {path}: the run still goes on and makes its own summary; wait for its end, "
        "or `otel-grpo show` what there is\n"
    )
    after = (path / "summary.json").read_bytes()
    # The process itself may have written it in between.
    assert json.loads(after)["status"] == json.loads(before)["status"] == "running"


def test_a_bad_line_is_named(real: Path, call: Any) -> None:
    """No summary is made of it, and the one that is there stays."""
    with (real / "metrics_raw.jsonl").open("ab") as file:
        file.write(b"garbage\n")
    before = (real / "summary.json").read_bytes()
    result = call("finish", real)
    assert result.exit_code == 2
    assert "metrics_raw.jsonl:8" in result.stderr
    assert (real / "summary.json").read_bytes() == before


@pytest.mark.parametrize(
    ("part", "name", "value"),
    [("attributes", "memory", {"host": []}), ("metrics", "publications", None)],
)
def test_records_that_can_t_be_added_up_are_said(
    real: Path, call: Any, part: str, name: str, value: Any
) -> None:
    """Lines of the right types that no writer of ours made: bad input, not a fault of ours."""
    lines = [json.loads(line) for line in (real / "metrics_raw.jsonl").read_text().splitlines()]
    inside = next(line for line in lines if line["kind"] == "rollout")[part]
    if value is None:
        del inside[name]
    else:
        inside[name] = {**inside[name], **value}
    (real / "metrics_raw.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    before = (real / "summary.json").read_bytes()
    result = call("finish", real)
    assert result.exit_code == 2
    assert result.stderr.startswith(f"otel-grpo: {real}: its records hold what can't be added up")
    assert (real / "summary.json").read_bytes() == before
    assert call("audit", real).exit_code == 1


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_directory_that_can_t_be_written_is_said(real: Path, call: Any) -> None:
    (real / "summary.json").unlink()
    real.chmod(0o500)
    result = call("finish", real)
    real.chmod(0o700)
    assert result.exit_code == 2
    assert "can't be written" in result.stderr


def test_a_disk_that_refuses_is_said(
    real: Path, call: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    (real / "summary.json").unlink()
    monkeypatch.setattr("otel_grpo.records.files.atomic_write", refuse)
    result = call("finish", real)
    assert result.exit_code == 2
    assert result.stderr == (
        f"otel-grpo: {real}/summary.json: can't be written (No space left on device); make it "
        "writable, or finish a copy of the run\n"
    )
