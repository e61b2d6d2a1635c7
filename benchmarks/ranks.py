"""Many processes: what their files cost rank 0, and how large its record becomes."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import msgspec

from benchmarks.loop import SAMPLES, lengths
from benchmarks.measure import stay_on_one_core
from benchmarks.table import Row
from otel_grpo.ranks.collector import Collector
from otel_grpo.ranks.contributions import Contributions
from otel_grpo.ranks.folder import Folder
from otel_grpo.ranks.workers import Workers
from otel_grpo.records import build
from otel_grpo.records.inventory import Inventory
from otel_grpo.records.merge import merge
from otel_grpo.records.model import (
    Call,
    ClockPair,
    Contribution,
    Device,
    Joined,
    Memory,
    Observed,
    Ranks,
    RolloutAttributes,
    RolloutRecord,
    Update,
    Window,
    WorkerMemory,
)

RANKS = 1024
SECONDS = 20  # one contribution of each rank in each
CALLS = 4  # of a worker in a window
WORKERS = (8, 64, 1024)
_CLOCK = ClockPair("boot", 0, 0)
_WINDOW = 10**9
_COLUMNS = lengths()
_PHASES = (
    "generation",
    "reward",
    "adv_pipeline",
    "policy_train",
    "optimizer",
    "weight_sync",
    "log",
)


def rows(**_: Any) -> Iterator[Row]:
    stay_on_one_core()
    with tempfile.TemporaryDirectory() as folder:
        yield from _ranks(Path(folder))
    for workers in WORKERS:
        with tempfile.TemporaryDirectory() as folder:
            yield _window_end(Path(folder), workers)


def _ranks(folder: Path) -> Iterator[Row]:
    """Rank 0 of a large job: its collector, and the record of one window."""
    inventory = Inventory([_device(0)], [(0, ["train"])])
    reader = Folder(folder, "run", 1, _fault)
    collector = Collector(
        reader, Contributions(reader, RANKS, inventory), now=time.time_ns, on_fault=_fault
    )
    for rank in range(1, RANKS):
        _append(folder, rank, _joined(rank, rank))
    collector.look()
    reading, merging = [], []
    for iteration in range(1, SECONDS + 1):
        shares = [_contribution(rank, iteration) for rank in range(RANKS)]
        for rank in range(1, RANKS):
            _append(folder, rank, shares[rank])
        collector.ready(iteration, 0, 1, 1)
        reading.append(_cpu(collector.look))
        if not collector.ready(iteration, 0, 1, 1):
            raise RuntimeError("a contribution was not read")
        gathered = collector.take(iteration, 0, 1)
        before = time.thread_time_ns()
        merged = merge(shares[0], gathered, applied=0)
        line = _record(merged.attributes)
        merging.append(time.thread_time_ns() - before)
    share = median(reading) / 1e9
    yield Row(
        f"collector of rank 0, {RANKS:,} ranks contribute each second",
        f"{100 * share:.1f} % of a core ({100 * max(reading) / 1e9:.1f} at most)",
        "<= 5 %",
        share <= 0.05,
    )
    yield Row(
        f"  a record of {RANKS:,} ranks x {SAMPLES:,} samples",
        f"{len(line) / 2**20:.2f} MiB",
        "< 1 MiB",
        len(line) < 2**20,
    )
    yield Row(
        "  merging them into it, on the writer's thread",
        f"{median(merging) / 1e6:.0f} ms of CPU a window",
    )


def _window_end(folder: Path, workers: int) -> Row:
    """A driver's window end: what its own thread pays, and the threads behind it."""
    reader = Folder(folder, "run", 1, _fault)
    collector = Collector(
        reader,
        Workers(reader, _CLOCK, Inventory([], None)),
        now=time.time_ns,
        on_fault=_fault,
    )
    for number in range(workers):
        _append(folder, number, _joined(number, None))
    asking, behind = [], []
    for iteration in range(1, SECONDS + 1):
        start, end = iteration * _WINDOW, (iteration + 1) * _WINDOW
        for number in range(workers):
            _append(folder, number, *_calls(start, number))
        asking.append(_cpu(lambda: collector.ready(iteration, start, end, end)))  # noqa: B023
        behind.append(
            _cpu(lambda: (collector.look(), collector.take(iteration, start, end)))  # noqa: B023
        )
    return Row(
        f"window end on a driver with {workers:,} workers' readings",
        f"{median(asking) / 1e3:.1f} us on the training thread; behind it "
        f"{median(behind) / 1e6:.1f} ms, {median(behind) / workers / 1e3:.0f} us a worker",
        "<= 2 ms",
        median(asking) <= 2e6,
    )


def _cpu(work: Callable[[], object]) -> int:
    before = time.thread_time_ns()
    work()
    return time.thread_time_ns() - before


def _fault(place: str, error: BaseException) -> None:
    raise RuntimeError(place) from error


def _append(folder: Path, number: int, *lines: msgspec.Struct) -> None:
    with (folder / f"trainer-{number}-1.jsonl").open("ab") as file:
        file.writelines(msgspec.json.encode(line) + b"\n" for line in lines)


def _device(number: int) -> Device:
    return Device(f"GPU-{number:032x}", "cuda", f"node-{number // 8}")


def _joined(number: int, rank: int | None) -> Joined:
    used = [(_device(number), ["train", "generate"])]
    name, host = f"trainer-{number}", f"node-{number // 8}"
    return Joined("run", 1, "trainer", name, rank, RANKS, host, number, _CLOCK, 0, used)


def _contribution(rank: int, iteration: int) -> Contribution:
    n = SAMPLES // RANKS
    first = rank * n
    part = slice(first, first + n)
    runs = [(f"step-{iteration}", first, n)]
    attributes = RolloutAttributes(
        Window(0, _WINDOW, "complete", 0),
        [],
        [],
        Ranks(1, 1),
        samples=runs,
        prompt_lengths=_COLUMNS.prompts[part],
        completion_lengths=_COLUMNS.completions[part],
        trained_lengths=_COLUMNS.completions[part],
        environment_lengths=_COLUMNS.environment[part],
        group_ids=_COLUMNS.groups[part],
        visit_counts=[1] * n,
        policy_lag=_COLUMNS.versions[part],
        truncated=[],
        generated=runs,
        pending=0,
        updates=[Update(1, 0, 1, n, n, "applied")],
        memory=_memory(rank, iteration),
    )
    busy = dict.fromkeys(_PHASES, 123_456_789)
    return Contribution("run", 1, rank, iteration, attributes, busy, [runs], [n * 500])


def _memory(number: int, iteration: int) -> Memory:
    size = 40 * 2**30 + number * 4096
    columns = {name: [size] for name in (*build.MEMORY_COLUMNS, "device_total", "host_total")}
    host = f"node-{number // 8}"
    return Memory([iteration * _WINDOW], [number], [host], [number], device=[0], **columns)


def _calls(start: int, number: int) -> list[msgspec.Struct]:
    calls: list[msgspec.Struct] = [
        Call("run", 1, f"method_{k}", start + k, start + k + 1000) for k in range(CALLS)
    ]
    memory = msgspec.structs.replace(_memory(number, 1), instant=[start + 1])
    return [*calls, WorkerMemory("run", 1, memory)]


def _record(attributes: RolloutAttributes) -> bytes:
    """The line, as the writer encodes it."""
    record = RolloutRecord(
        scope="iteration",
        run_id="run",
        attempt=1,
        seq=1,
        prev="0" * 64,
        time_unix_ns=0,
        stage="generation",
        iteration=1,
        optimizer_step=1,
        metrics=build.rollout_metrics(attributes),
        attributes=attributes,
        observed=Observed(),
    )
    return msgspec.json.encode(record, enc_hook=lambda column: column.tolist())
