"""Trainings of the reference trainer in processes of their own, made once for all tests."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
WITHOUT = Path(__file__).parent / "without"

# Arguments of demo/train_ray.py.
COLOCATED = ("--workers", "8")
BESIDE = ("--workers", "8", "--mode", "async", "--lead", "1")
SMALL = ("--workers", "2", "--micro-batch", "16")
# Two policy workers; each failure in an iteration of its own, the sixth one goes well.
_FAULTS = (
    "before:0@1",
    "during:1@2",
    "after:0@3",
    *("before:0@4", "after:1@4"),
    "hang:1@5",
    "exit:0@7",
)
BED = (
    *("--bed", "--workers", "2", "--micro-batch", "32", "--iterations", "7", "--step-timeout", "8"),
    *itertools.chain.from_iterable(("--fault", fault) for fault in _FAULTS),
)


class Training:
    """What a training told, and what was recorded of it."""

    def __init__(self, folder, arguments, *, how):
        self.path = folder / "run"
        out = folder / "told.json"
        paths = [*([WITHOUT] if how == "without" else []), ROOT / "demo"]
        environment = {
            **{k: v for k, v in os.environ.items() if not k.startswith("OTEL_GRPO_")},
            "PYTHONPATH": os.pathsep.join(map(str, paths)),
            "OTEL_GRPO_DISABLED": str(how == "disabled").lower(),
            "OMP_NUM_THREADS": "1",
        }
        command = [sys.executable, Path(__file__).parent / "driver.py", out]
        self.process = subprocess.run(
            [*command, *arguments, "--run-dir", self.path],
            env=environment,
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=580,
            check=False,
        )
        assert out.exists(), self.process.stderr
        told = json.loads(out.read_text())
        self.calls, self.failures, self.history = told["calls"], told["failures"], told["history"]
        self.told = told
        assert told["observed"] == (how != "without")

    @property
    def results(self):
        """What has to be the same bit by bit: JSON keeps each float as it is."""
        names = ("batch", "texts", "loss", "grad_norm", "reward")
        return [{name: row.get(name) for name in names} for row in self.history]


class Files:
    """What a run directory holds, after the independent audit has passed over it."""

    def __init__(self, path):
        from otel_grpo.audit import audit

        report = audit(path)
        assert report.exit_status == 0, [str(finding) for finding in report.findings]
        self.path = path
        self.run = json.loads((path / "run.json").read_text())
        self.summary = json.loads((path / "summary.json").read_text())
        with (path / "metrics_raw.jsonl").open() as lines:
            self.records = [json.loads(line) for line in lines]

    def of(self, kind):
        return [record for record in self.records if record["kind"] == kind]

    def worker_lines(self, kind):
        """(name of the process, line) of each line of a kind that the workers wrote."""
        found = []
        for file in sorted((self.path / "workers").iterdir()):
            lines = [json.loads(line) for line in file.read_text().splitlines()]
            found += [(file.name, line) for line in lines if line["kind"] == kind]
        return found

    def worker_spans(self):
        """All spans of other processes than the driver."""
        return [
            span
            for file in sorted((self.path / "spans").iterdir())
            if not file.name.startswith("driver")
            for line in file.read_text().splitlines()
            for resource in json.loads(line)["resourceSpans"]
            for scope in resource["scopeSpans"]
            for span in scope["spans"]
        ]
