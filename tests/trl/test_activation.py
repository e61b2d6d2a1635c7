"""The demo's script, untouched, observed in each of the ways: the same shape of run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support import audited

ROOT = Path(__file__).parents[2]
SCRIPT = str(ROOT / "demo" / "train_trl.py")
BIN = Path(sys.executable).parent

ONE_LINE = f"""
import runpy, sys
import otel_grpo
otel_grpo.instrument()
sys.argv = sys.argv[1:]
sys.path.insert(0, {str(ROOT / "demo")!r})
runpy.run_path({SCRIPT!r}, run_name="__main__")
"""


def by_command(run_dir):
    return [str(BIN / "otel-grpo"), "run", "--run-dir", str(run_dir), "--", sys.executable, SCRIPT]


def by_opentelemetry(run_dir):
    quiet = [f"--{signal}_exporter=none" for signal in ("traces", "metrics", "logs")]
    return [str(BIN / "opentelemetry-instrument"), *quiet, sys.executable, SCRIPT]


def by_one_line(run_dir):
    return [sys.executable, "-c", ONE_LINE, SCRIPT]


@pytest.mark.parametrize("way", [by_command, by_opentelemetry, by_one_line])
def test_the_demo_has_the_shape_of_the_reference_run(tmp_path, way):
    """3 iterations of 8 prompts x 8 completions: every count, nothing lost, and the same losses."""
    environment = {
        **os.environ,
        "OTEL_GRPO_RUN_DIR": str(tmp_path / "run"),
        "PYTHONWARNINGS": "ignore",
    }
    done = subprocess.run(
        [*way(tmp_path / "run"), "--output-dir", str(tmp_path / "output")],
        capture_output=True, text=True, cwd=ROOT, env=environment, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    files = audited(tmp_path / "run")
    summary = files.summary
    assert summary["records"] == {"train": 3, "rollout": 3, "run": 1}
    assert len({record["run_id"] for record in files.records}) == 1
    assert summary["groups"] == 24
    assert summary["samples"]["consumed"] == summary["samples"]["generated"] == 192
    assert summary["samples"]["visits"] == 192
    assert summary["updates"] == {
        **dict.fromkeys(["skipped", "failed", "unconfirmed", "partial"], 0),
        "attempted": 3,
        "applied": 3,
    }
    assert (summary["publications"], summary["publications_pending"]) == (3, 0)
    assert {p["kind"] for w in files.of("rollout") for p in w["attributes"]["publications"]} == {
        "in_place"
    }
    assert all(
        sink["dropped"] == sink["pending"] == 0 for sink in summary["observed"]["sinks"].values()
    )
    assert summary["status"] == "completed"
    assert summary["observed"].get("errors", {}) == {}
    assert summary["observed"]["process_ns"] > summary["time"]["wall_ns"]
    # The trainer prints each of its log calls.
    printed = [line for line in done.stdout.splitlines() if line.startswith("{'")]
    assert len(files.flat) == len(printed) == 4
    seen = [float(line.split("'num_tokens': '")[1].split("'")[0]) for line in printed[:3]]
    tokens = [w["metrics"]["tokens.total"] for w in files.of("rollout")]
    assert sum(tokens[:1]) == seen[0]
    assert summary["tokens"]["total"] == files.flat[2]["num_tokens"]
    shown = summary["time"]["unattributed_ns"] / summary["time"]["windows_ns"]
    assert shown < 0.05


def test_the_demo_runs_without_us(tmp_path):
    """It is an ordinary script: no trace of this package in it, or of it in a plain run."""
    for file in ("train_trl.py", "tiny.py"):
        assert "otel" not in (ROOT / "demo" / file).read_text()
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-X", "importtime", SCRIPT, "--output-dir", str(tmp_path), "--iterations", "1"],
        capture_output=True, text=True, cwd=tmp_path, check=True,
    )  # fmt: skip
    assert "otel_grpo" not in done.stderr
    assert not (tmp_path / "runs").exists()
