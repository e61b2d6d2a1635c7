"""A small run made by hand from the file contract: the figures of the reference run."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner, Result

import otel_grpo
from otel_grpo.cli import main
from otel_grpo.records.model import (
    SCHEMA,
    Attempt,
    ClockPair,
    Device,
    Observed,
    OpenPhase,
    OpenWindow,
    RankCounts,
    Ranks,
    Record,
    RolloutAttributes,
    RolloutRecord,
    RunAttributes,
    RunFile,
    RunRecord,
    RunTime,
    SinkCounts,
    Summary,
    TrainAttributes,
    Trainer,
    TrainRecord,
    Window,
    WindowCounts,
    World,
)

SECOND = 10**9
MS = 10**6
START = 1_800_000_000 * SECOND  # 2027-01-15 08:00:00 UTC
FIRST_WINDOW = START + 100 * SECOND
END = START + 390 * SECOND
GIB = 2**30
ROOT = Path(__file__).parents[2]

# iteration, tokens, generation, policy_train and wall in milliseconds
REFERENCE = [
    (1, 76019, 46416, 15052, 81659),
    (2, 73752, 46102, 9174, 59685),
    (3, 75208, 46640, 9938, 61091),
]


@dataclass
class HandMadeRun:
    """The parts of a run; a test changes what it is about and writes them."""

    path: Path
    run_file: RunFile
    records: list[Record]
    summary: Summary | None
    torn: bytes = b""
    extra: dict[str, bytes] = field(default_factory=dict)

    def write(self) -> Path:
        self.path.mkdir(parents=True, exist_ok=True)
        (self.path / "run.json").write_bytes(msgspec.json.encode(self.run_file))
        lines, prev = [], None
        for seq, record in enumerate(self.records):
            record.seq, record.prev = seq, prev
            lines.append(msgspec.json.encode(record))
            prev = hashlib.sha256(lines[-1]).hexdigest()
        content = b"".join(line + b"\n" for line in lines) + self.torn
        (self.path / "metrics_raw.jsonl").write_bytes(content)
        if self.summary is not None:
            summary = msgspec.structs.replace(self.summary, head=prev)
            (self.path / "summary.json").write_bytes(msgspec.json.encode(summary))
        for name, data in self.extra.items():
            (self.path / name).write_bytes(data)
        return self.path

    def change(self, **fields: Any) -> None:
        """Replaces fields of the summary."""
        assert self.summary is not None
        self.summary = msgspec.structs.replace(self.summary, **fields)


def window_metrics(tokens: int, generation: int, train: int, wall: int) -> dict[str, Any]:
    """The metrics of a window of `wall` ms, worked out by hand for two phases in sequence."""
    metrics: dict[str, Any] = {
        "time.wall_ns": wall * MS,
        "time.log_ns": 0,
        "time.logical_ns": wall * MS,
        "time.work_ns": wall * MS,
        "time.overlapped_ns": 0,
        "time.unattributed_ns": (wall - generation - train) * MS,
        "time.log_background_ns": 0,
        "samples.consumed": 64,
        "samples.visits": 64,
        "samples.revisited": 0,
        "samples.pending": 0,
        "groups": 8,
        "tokens.prompt": 19,
        "tokens.completion": tokens - 19,
        "tokens.total": tokens,
        "updates.attempted": 1,
        "updates.applied": 1,
        "updates.skipped": 0,
        "updates.failed": 0,
        "updates.unconfirmed": 0,
        "publications": 1,
        "publications.pending": 0,
        "nonfinite": 0,
        "devices": 8,
        "throughput.device": tokens * 10**9 / (wall * MS * 8),
    }
    for phase, ms in (("generation", generation), ("policy_train", train)):
        for key in ("busy", "logical", "top", "exposed", "self_exposed", "sum"):
            metrics[f"phase.{phase}.{key}_ns"] = ms * MS
        metrics[f"phase.{phase}.calls"] = 1
    return metrics


def header(scope: str, stage: str, iteration: int | None, step: int, at: int) -> dict[str, Any]:
    return {
        "scope": scope,
        "run_id": "reference",
        "attempt": 1,
        "seq": 0,
        "prev": None,
        "time_unix_ns": at,
        "stage": stage,
        "iteration": iteration,
        "optimizer_step": step,
    }


def reference_records() -> list[Record]:
    """Three `train` and three `rollout` records; the `run` record follows."""
    records: list[Record] = []
    start = FIRST_WINDOW
    for number, tokens, generation, train, wall in REFERENCE:
        end = start + wall * MS
        between = start + generation * MS
        intervals = [
            (f"{number:015d}1", None, "generation", start, between, 1, 0),
            (f"{number:015d}2", None, "policy_train", between, between + train * MS, 1, 0),
        ]
        records.append(
            TrainRecord(
                **header("update", "policy_train", number, number, end),
                metrics={"samples": 64, "update.busy_ns": train * MS, "nonfinite": 0},
                attributes=TrainAttributes((between, end), intervals[1:], 64, "applied"),
                observed=Observed(),
            )
        )
        records.append(
            RolloutRecord(
                **header("iteration", "generation", number, number, end),
                metrics=window_metrics(tokens, generation, train, wall),
                attributes=RolloutAttributes(
                    Window(start, end, "complete", 1),
                    intervals,
                    [],
                    Ranks(1, 1),
                    devices=[(index, ["generate", "train"]) for index in range(8)],
                ),
                observed=Observed(),
            )
        )
        start = end
    return records


def reference_summary() -> Summary:
    """The totals of the three windows, worked out by hand."""
    phases = {}
    for phase, ms in (("generation", 139158), ("policy_train", 34164)):
        phases[phase] = {
            f"{key}_ns": ms * MS
            for key in ("busy", "logical", "top", "exposed", "self_exposed", "sum")
        } | {"calls": 3}
    return Summary(
        run_id="reference",
        attempt=1,
        status="completed",
        started_unix_ns=START,
        ended_unix_ns=END,
        trainer=TRAINER,
        world=WORLD,
        time=RunTime(
            wall_ns=390_000 * MS,
            startup_ns=100_000 * MS,
            windows_ns=202_435 * MS,
            between_ns=0,
            shutdown_ns=87_565 * MS,
            log_ns=0,
            logical_ns=202_435 * MS,
            work_ns=202_435 * MS,
            overlapped_ns=0,
            unattributed_ns=29_113 * MS,
        ),
        windows=WindowCounts(3, 0, 0),
        phases=phases,
        groups=24,
        samples={"consumed": 192, "visits": 192, "revisited": 0, "pending": 0, "discarded": {}},
        tokens={"prompt": 57, "completion": 224922, "total": 224979},
        updates={"attempted": 3, "applied": 3, "skipped": 0, "failed": 0, "unconfirmed": 0},
        publications=3,
        length={"completion": {"min": 1, "max": 1024, "mean": 224922 / 192}},
        memory={
            "allocator.peak_reserved": figures(8, 10, 72, 9.0),
            "process.rss": figures(2, 4, 24, 3.0),
            "host.used": figures(100, 100, 100, 100.0),
        },
        throughput={
            "device": 224979 * 10**9 / (202_435 * MS * 8),
            "device_wall": 224979 * 10**9 / (202_435 * MS * 8),
            "generation": 224922 * 10**9 / (139_158 * MS * 8),
            "formula": "sum(tokens) * 1e9 / sum(work_ns * devices)",
        },
        ranks=RankCounts(1, 3, 0),
        records={"train": 3, "rollout": 3, "run": 1},
        head=None,
        observed=Observed(
            process_ns=398_561 * MS,
            self_ns=1_500_000,
            sinks={
                "metrics_raw": SinkCounts(7, 7, 0, 0),
                "metrics": SinkCounts(3, 3, 0, 0),
                "spans": SinkCounts(39, 39, 0, 0),
            },
            time_unix_ns=END,
        ),
    )


def figures(low: int, high: int, total: int, mean: float) -> dict[str, int | float]:
    """GiB as they are stored: bytes."""
    return {
        "min_bytes": low * GIB,
        "max_bytes": high * GIB,
        "sum_bytes": total * GIB,
        "mean_bytes": mean * GIB,
    }


TRAINER = Trainer("trl", "1.16.0", "0.1.0", "grpo")
WORLD = World(1, [Device(f"GPU-{n}", "cuda", "node1", "Fake H1", 96 * GIB) for n in range(8)])


def attempt(number: int) -> Attempt:
    return Attempt(number, START, "node1", 1, ClockPair("boot", START, 0), TRAINER, WORLD)


def run_record(summary: Summary) -> RunRecord:
    """The end of the attempt: the summary without its last three blocks."""
    totals = {name: getattr(summary, name) for name in RunAttributes.__struct_fields__}
    return RunRecord(
        **header("run", "run", 3, 3, END),
        metrics={},
        attributes=RunAttributes(**totals),
        observed=Observed(),
    )


@pytest.fixture
def reference(tmp_path: Path) -> HandMadeRun:
    """The reference run, not yet written."""
    summary = reference_summary()
    records = [*reference_records(), run_record(summary)]
    run_file = RunFile(SCHEMA, "reference", [attempt(1)])
    return HandMadeRun(tmp_path / "run", run_file, records, summary)


@pytest.fixture
def killed(reference: HandMadeRun) -> HandMadeRun:
    """The reference run killed in its third window, in the middle of a line."""
    third = msgspec.json.encode(reference.records[4])
    reference.records = reference.records[:4]
    reference.torn = third[:200]
    reference.change(
        status="running",
        open=OpenWindow(
            3,
            FIRST_WINDOW + 141_344 * MS,
            [OpenPhase("generation", FIRST_WINDOW + 141_344 * MS, 1)],
        ),
        ended_unix_ns=FIRST_WINDOW + 150_344 * MS,
        windows=WindowCounts(2, 0, 0),
        records={"train": 2, "rollout": 2, "run": 0},
        observed=Observed(time_unix_ns=FIRST_WINDOW + 150_344 * MS),
    )
    return reference


@pytest.fixture
def real(tmp_path: Path) -> Path:
    """Three windows of a loop through the public API, as it writes them."""
    path = tmp_path / "real"
    with otel_grpo.start_run(path, trainer="loop", algorithm="grpo", run_id="real") as run:
        for number in range(3):
            with run.iteration() as it:
                with it.phase("generation"):
                    time.sleep(0.002)
                samples = it.consumed(
                    number, prompt_lengths=[3] * 4, completion_lengths=[5, 6, 7, 8]
                )
                with it.phase("policy_train"):
                    it.trained(samples)
                with it.update(samples=samples):
                    pass
                it.publication(number + 1).completed()
                run.memory()
    return path


@pytest.fixture
def call() -> Any:
    """Calls the command line in this process."""

    def invoke(*arguments: str | Path) -> Result:
        return CliRunner().invoke(main, [str(argument) for argument in arguments])

    return invoke


@pytest.fixture
def child() -> Any:
    """Calls the command line as a user does, in a process of its own."""

    def start(*arguments: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
        environment = os.environ | {"PYTHONPATH": str(ROOT)} | options.pop("env", {})
        return subprocess.run(
            [sys.executable, "-m", "otel_grpo.cli", *map(str, arguments)],
            check=False,
            capture_output=True,
            text=True,
            timeout=60,
            env=environment,
            **options,
        )

    return start
