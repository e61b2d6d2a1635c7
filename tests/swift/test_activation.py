"""The command of ms-swift, observed from outside: the shape of the reference run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support import audited

BIN = Path(sys.executable).parent


@pytest.mark.parametrize("processes", [1, 2])
def test_the_command_has_the_shape_of_the_reference_run(folder, tmp_path, processes):
    """3 iterations of 8 prompts x 8 completions, by one process or two: every count, nothing lost."""
    import train_swift

    output, run_dir = tmp_path / "output", tmp_path / "run"
    words = [*train_swift.arguments(folder, output), "--use_cpu", "true", "--add_version", "false"]
    environment = {**os.environ, "LOG_LEVEL": "ERROR", "PYTHONWARNINGS": "ignore"}
    if processes > 1:
        environment["NPROC_PER_NODE"] = str(processes)
        words += ["--per_device_train_batch_size", str(64 // processes)]
    done = subprocess.run(
        [BIN / "otel-grpo", "run", "--run-dir", run_dir, "--", BIN / "swift", "rlhf", *words],
        capture_output=True, text=True, env=environment, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    told = [line for line in done.stderr.splitlines() if line.startswith("otel-grpo: ")]
    assert len(told) == 2, told  # where it records, and where it has recorded
    files = audited(run_dir)
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
    assert all(
        sink["dropped"] == sink["pending"] == 0 for sink in summary["observed"]["sinks"].values()
    )
    assert summary["status"] == "completed"
    assert summary["observed"].get("errors", {}) == {}
    assert summary["world"]["size"] == processes
    # The trainer's own file speaks of the same completions.
    logged = [json.loads(line) for line in (output / "logging.jsonl").open()]
    means = [row["completions/mean_length"] for row in logged if "loss" in row]
    tokens = [w["metrics"]["tokens.completion"] for w in files.of("rollout")]
    assert tokens == [round(mean * 64) for mean in means]
    assert all(row["grad_norm"] > 0 for row in logged if "loss" in row)
    assert not (run_dir / "metrics.jsonl").exists()
