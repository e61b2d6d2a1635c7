"""The writer's thread over a long run: what it takes, and whether memory grows."""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

import otel_grpo
from benchmarks.loop import lengths, report, spans
from benchmarks.measure import stay_on_one_core
from benchmarks.table import Row

SPANS = 100
SAMPLES = 64  # of a window
PAUSE_S = 0.005  # the thread keeps up, as it does where windows last for seconds
EARLY, LATE = 200, 1000  # windows


def rows(**_: Any) -> Iterator[Row]:
    stay_on_one_core()
    process = psutil.Process()
    columns = lengths(SAMPLES)
    with (
        tempfile.TemporaryDirectory() as folder,
        otel_grpo.start_run(folder, trainer="benchmark") as run,
    ):
        resident = {}
        spent = time.thread_time_ns()
        for window in range(1, LATE + 1):
            with run.iteration() as it:
                spans(it, SPANS)
                report(it, window, columns)
            time.sleep(PAUSE_S)
            if window in (EARLY, LATE):
                time.sleep(1.0)  # the queues run empty
                resident[window] = process.memory_info().rss
        training = (time.thread_time_ns() - spent) / 1e9
        writing = _writer_seconds()
        size = sum(file.stat().st_size for file in Path(folder).rglob("*.jsonl"))
    grown = (resident[LATE] - resident[EARLY]) / 2**20
    yield Row(
        f"{LATE:,} windows of {SPANS} spans: the writer's thread",
        f"{writing:.1f} s of CPU, {writing / (LATE * SPANS) * 1e6:.0f} us and "
        f"{size / (LATE * SPANS):.0f} bytes a span (training thread {training:.1f} s)",
    )
    yield Row(
        f"  memory, from window {EARLY} to {LATE}",
        f"{grown:+.1f} MiB at {resident[LATE] / 2**20:.0f} MiB",
        "< 5 MiB",
        grown < 5,
    )


def _writer_seconds() -> float:
    thread = next(t for t in threading.enumerate() if t.name == "otel-grpo-writer")
    times = {t.id: t.user_time + t.system_time for t in psutil.Process(os.getpid()).threads()}
    return times[thread.native_id or 0]
