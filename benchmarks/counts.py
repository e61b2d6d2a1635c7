"""The counts of 8,192 samples: from the calls of the training thread to the line in the file."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import otel_grpo
from benchmarks.loop import MICRO_BATCH, SAMPLES, Lengths, lengths, report
from benchmarks.measure import stay_on_one_core
from benchmarks.table import Row

WINDOWS = 20  # of a run
REPEATS = 7
COLUMNS = 7
GOAL_MS = 12


def rows(**_: Any) -> Iterator[Row]:
    """One run of many such iterations, its summary and the end of its files included."""
    stay_on_one_core()
    columns = lengths()
    with tempfile.TemporaryDirectory() as folder:
        _run(folder, 1, columns)  # warm-up
        costs = [_run(f"{folder}/{repeat}", WINDOWS, columns) for repeat in range(REPEATS)]
        line = max(map(len, Path(folder, "0/metrics_raw.jsonl").read_bytes().splitlines()))
    training = median(cost for cost, _ in costs)
    total = median(cost for _, cost in costs)
    yield Row(
        f"counts of {SAMPLES:,} samples into ledger and record",
        f"{total:.1f} ms of CPU ({min(cost for _, cost in costs):.1f} at best), {training:.1f} of it "
        f"on the training thread: {COLUMNS} columns, {SAMPLES // MICRO_BATCH} micro-batches",
        f"<= {GOAL_MS} ms",
        total <= GOAL_MS,
    )
    yield Row("  the line of its record", f"{line / 2**20:.2f} MiB", "< 1 MiB", line < 2**20)


def _run(folder: str, windows: int, columns: Lengths) -> tuple[float, float]:
    """Milliseconds of CPU for one window: of the training thread, and of both."""
    with otel_grpo.start_run(folder, trainer="benchmark") as run:
        process, thread = time.process_time_ns(), time.thread_time_ns()
        for rollout in range(windows):
            with run.iteration() as it:
                report(it, rollout, columns)
        training = time.thread_time_ns() - thread
    return training / windows / 1e6, (time.process_time_ns() - process) / windows / 1e6
