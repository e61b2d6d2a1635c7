"""The metrics of a window: what they cost the writer's thread, and what others wait for it."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from threading import Thread
from typing import Any

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

import otel_grpo
from benchmarks.loop import SAMPLES, lengths, report
from benchmarks.measure import in_turns
from benchmarks.table import Row
from otel_grpo.core.clock import Clock
from otel_grpo.metrics import Instruments
from otel_grpo.metrics.columns import Columns
from otel_grpo.metrics.views import views
from otel_grpo.records.model import RolloutRecord, SinkCounts
from otel_grpo.records.reader import Whole, read_records
from otel_grpo.tracing.live import LiveSources

REPEATS = 7
PHASES = 10
VALUES = 3 * SAMPLES  # lengths of prompts and completions, lags
GOAL_MS = 10
#: Python has a thread wait so long for another one that computes.
SWITCH_US = 5000


def rows(**_: Any) -> Iterator[Row]:
    """A record of 8,192 samples and 10 phases, counted again and again."""
    record = _record()
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader], views=views(), shutdown_on_exit=False)
    columns = Columns()
    ours = _instruments(provider, traced=lambda _: True, columns=columns)
    theirs = _instruments(MeterProvider([InMemoryMetricReader()], shutdown_on_exit=False))
    costs = in_turns(
        {"ours": _counting(ours, record), "theirs": _counting(theirs, record)}, n=2, repeats=REPEATS
    )
    cost, one_by_one = (median(costs[name]) / 1e6 for name in ("ours", "theirs"))
    yield Row(
        f"metrics of {SAMPLES:,} samples and {PHASES} phases",
        f"{cost:.1f} ms of the writer's thread ({min(costs['ours']) / 1e6:.1f} at best)",
        f"<= {GOAL_MS} ms",
        cost <= GOAL_MS,
    )
    yield Row(
        "  in a meter provider of one's own",
        f"{one_by_one:.0f} ms: {VALUES:,} values one by one, {one_by_one / VALUES * 1e3:.1f} us each",
    )
    waits = _waits(theirs, record)
    long = waits[int(len(waits) * 0.99)]
    yield Row(
        "  another thread's wait for the interpreter there",
        f"{median(waits):.0f} us, 99 of 100 under {long:.0f} us",
        f"< {SWITCH_US:,} us",
        long < SWITCH_US,
    )
    before = time.thread_time_ns()
    columns.added_to(reader.get_metrics_data())
    collecting = (time.thread_time_ns() - before) / 1e6
    yield Row(
        "  collecting all metrics", f"{collecting:.1f} ms of the exporter's thread, every 10 s"
    )


def _counting(instruments: Instruments, record: RolloutRecord) -> Callable[[int], None]:
    def count(n: int) -> None:
        for _ in range(n):
            instruments.made(record)

    return count


def _record() -> RolloutRecord:
    with tempfile.TemporaryDirectory() as folder:
        with otel_grpo.start_run(folder, trainer="benchmark") as run, run.iteration() as it:
            report(it, 1, lengths())
            for number in range(PHASES):
                with it.phase(f"phase_{number}"):
                    pass
        lines = read_records(Path(folder, "metrics_raw.jsonl"))
        values = [line.value for line in lines if isinstance(line, Whole)]
    return next(value for value in values if isinstance(value, RolloutRecord))


def _instruments(provider: MeterProvider, **options: Any) -> Instruments:
    sources = LiveSources(
        Clock.read(),
        open_window=lambda: None,
        self_ns=lambda: 0,
        files=lambda: {"metrics_raw": SinkCounts()},
    )
    return Instruments(provider.get_meter("benchmark"), sources, **options)


def _waits(instruments: Instruments, record: RolloutRecord) -> list[float]:
    """Microseconds until a thread that lets go of the interpreter has it back, sorted."""
    waits: list[float] = []
    counting = Thread(target=instruments.made, args=(record,))
    counting.start()
    while counting.is_alive():
        before = time.perf_counter_ns()
        time.sleep(0)
        waits.append((time.perf_counter_ns() - before) / 1e3)
        sum(range(2000))
    return sorted(waits)
