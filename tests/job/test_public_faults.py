"""Faults of public trainers that only a job of many processes can have, with the right value.

Each names the report it comes from; the naive value is asserted to be another one.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner
from left import Files

import otel_grpo.ray
from otel_grpo.cli.show import show
from otel_grpo.core.clock import boot_id
from otel_grpo.records.model import (
    Call,
    ClockOffset,
    ClockPair,
    Device,
    Joined,
    Memory,
    WorkerLine,
    WorkerMemory,
)
from otel_grpo.testing import FakeClock, RecordedRun, recorded_run
from otel_grpo.tracing import run as runs

SECOND = 10**9
MS = 10**6
US = 10**3

# Four ranks; each of them says that it consumed all 128 samples.
FOUR_RANKS = """
import os, sys, time
import otel_grpo, otel_grpo.api
from otel_grpo.records.model import Device

def train(rank):
    devices = [Device(f"GPU-{rank}", "cuda", "host")]
    run = otel_grpo.start_run(
        sys.argv[1], trainer="test", rank=rank, world_size=4, devices=devices, readings=list
    )
    with run, run.iteration() as it:
        it.consumed(
            0,
            prompt_lengths=[100] * 128,
            completion_lengths=[2132 + (i < 54) for i in range(128)],
            groups=[i // 8 for i in range(128)],
        )
        while run.path is None:  # it looks for rank 0's
            time.sleep(0.01)

children = []
for rank in range(4):
    child = os.fork()
    if not child:
        train(rank)
        sys.exit()
    children.append(child)
sys.exit(any(os.waitpid(child, 0)[1] for child in children))
"""


@contextmanager
def driver(path: Path, *, strict: bool = True) -> Iterator[tuple[FakeClock, RecordedRun]]:
    """A driver's run whose workers' files are read; its clock stands still until it is turned."""
    clock = FakeClock()
    with recorded_run(path, clock=clock, strict=strict) as recorded:
        otel_grpo.ray.runtime_env(recorded.run)
        yield clock, recorded


def worker(
    run: otel_grpo.Run, name: str, pair: ClockPair, devices: dict[str, str], *lines: WorkerLine
) -> None:
    """The file that a worker would write; `devices`: what it does with each of its GPUs."""
    first = Joined(
        run.run_id,
        1,
        role=name.partition("-")[0],
        name=name,
        rank=None,
        world=None,
        host="host",
        pid=1,
        clock=pair,
        started_unix_ns=pair.unix_ns,
        devices=[(Device(gpu, "cuda", "host"), [does]) for gpu, does in devices.items()],
    )
    assert run.path is not None
    raw = b"".join(msgspec.json.encode(line) + b"\n" for line in (first, *lines))
    (run.path / "workers" / f"{name}-1.jsonl").write_bytes(raw)


def here(run: otel_grpo.Run) -> ClockPair:
    """The clock of a process on the driver's machine."""
    return ClockPair(boot_id(), run.clock.unix_ns, run.clock.perf_ns)


def shown(path: Path) -> str:
    """What `otel-grpo show` says, as one line."""
    done = CliRunner().invoke(show, [str(path)], catch_exceptions=False)
    return re.sub(r"\s+", " ", done.output)


def test_the_same_list_from_four_ranks_counts_once(tmp_path: Path) -> None:
    """github.com/allenai/open-instruct/pull/1808: all ranks report the global list of lengths.

    128 samples of 285,750 tokens, 12,800 of them in prompts; added up over 4 ranks they would be
    1,143,000.
    """
    path = tmp_path / "run"
    environment = os.environ | {"OTEL_GRPO_LAUNCH": "four"}
    subprocess.run([sys.executable, "-c", FOUR_RANKS, path], env=environment, check=True)
    files = Files(path)
    (record,) = files.rollouts.values()
    assert (record.attributes.ranks.received, record.attributes.ranks.missing) == (4, [])
    assert record.metrics["tokens.total"] == 285_750
    assert files.summary.tokens["total"] == 285_750
    assert files.summary.tokens["prompt"] == 12_800
    assert files.summary.samples["consumed"] == 128
    assert files.summary.groups == 16
    files.audit()
    # Each rank's own file does say that many: nothing was lost on the way.
    told = [
        sum(line["attributes"]["completion_lengths"])
        for file in (path / "workers").glob("trainer-*")
        for line in map(json.loads, file.read_bytes().splitlines())
        if line["kind"] == "contribution"
    ]
    assert told == [272_950] * 3
    assert 4 * 285_750 == 1_143_000


@pytest.mark.parametrize(
    ("generators", "listed", "rate"),
    [
        # 8 devices of trainers and 8 others: over the trainers alone it would be 2000.
        (range(8, 16), 16, 1000.0),
        # 4 generators on 8 devices that trainers have, two each: they are no devices more.
        (range(8), 8, 2000.0),
    ],
)
def test_rollout_devices_are_devices_once(
    tmp_path: Path, generators: range, listed: int, rate: float
) -> None:
    """github.com/verl-project/verl/pull/7049: 1,600,000 tokens in 100 s."""
    each = len(generators) // 4 if listed == 8 else 1
    with driver(tmp_path) as (clock, recorded):
        run, start = recorded.run, clock.now()
        pair = here(run)
        call = Call(run.run_id, 1, "step", start, start + 99 * SECOND)
        for i in range(8):
            worker(run, f"policy-{i}", pair, {f"GPU-{i}": "train"}, call)
        for k in range(0, len(generators), each):
            gpus = {f"GPU-{i}": "generate" for i in generators[k : k + each]}
            worker(run, f"rollout-{k}", pair, gpus, call)
        with run.iteration() as it:
            it.consumed(0, prompt_lengths=[600] * 1000, completion_lengths=[1000] * 1000)
            clock.advance(100)
        clock.advance(1)
    (record,) = recorded.rollouts
    assert record.metrics["throughput.device"] == rate
    assert recorded.summary.throughput["device"] == rate
    files = Files(tmp_path)
    assert {d.id for d in files.run.attempts[0].world.devices} == {
        f"GPU-{i}" for i in range(listed)
    }
    roles = [does for _, does in record.attributes.devices or ()]
    both, apart = [["train", "generate"]], [["train"], ["generate"]]
    assert sorted(roles) == sorted(8 * (both if listed == 8 else apart))
    files.audit()
    assert 1_600_000 / 100 / 8 == 2000.0


def test_every_wait_of_a_window_counts(tmp_path: Path) -> None:
    """github.com/verl-project/verl/issues/6693: one start of idleness per window.

    A window of 100 s waits in [10, 30) and [50, 90): 60 s, 60.0 %. From one start alone it would be
    40 s or 80 s. A worker generates all the while: the driver's waiting is still none of that.
    """
    with driver(tmp_path) as (clock, recorded):
        run, start = recorded.run, clock.now()
        call = Call(run.run_id, 1, "generate", start, start + 99 * SECOND)
        worker(run, "rollout-0", here(run), {"GPU-0": "generate"}, call)
        with run.iteration():
            for pause, wait in ((10, 20), (20, 40)):
                clock.advance(pause)
                with run.phase("rollout_wait"):
                    clock.advance(wait)
            clock.advance(10)
        clock.advance(1)
    (record,) = recorded.rollouts
    metrics = record.metrics
    assert metrics["phase.rollout_wait.busy_ns"] == 60 * SECOND
    assert metrics["phase.rollout_wait.calls"] == 2
    assert metrics["time.wall_ns"] == 100 * SECOND
    assert [key for key in metrics if "generation" in key] == []
    assert record.attributes.workers == {"generate": {"1": [99 * SECOND]}}
    assert recorded.summary.phases["rollout_wait"]["busy_ns"] / 100 / SECOND == 0.6
    assert "generation" not in recorded.summary.phases
    assert "rollout_wait 60.000" in shown(tmp_path)
    Files(tmp_path).audit()


# Origin of the monotonic clock, skew of the wall clock, error of its measurement; all are right to
# 90 us.
CLOCKS = [
    (0, 0, 0),
    (2_100 * MS, 400 * US, 50 * US),
    (7_300 * MS, -1_100 * US, -90 * US),
    (11_560 * MS, 1_600 * US, 90 * US),
]
NAMES = [f"policy-{i}" for i in range(len(CLOCKS))]


@contextmanager
def four_hosts(path: Path, *, measured: bool) -> Iterator[RecordedRun]:
    """Windows [0, 19.999) and [19.999, 30) s; at 20 s four processes read their memory, and end a
    call of 5 s.
    """
    with driver(path, strict=measured) as (clock, recorded):
        run, start = recorded.run, clock.now()
        for name, (_, skew, error) in zip(NAMES, CLOCKS, strict=True):
            line = ClockOffset(run.run_id, 1, name, skew + error, 90 * US, start + SECOND)
            if measured:
                run.output.worker(line)
        run.output.writer.flush()
        for i, (origin, skew, _) in enumerate(CLOCKS):
            at = start + skew + 20 * SECOND
            worker(
                run,
                NAMES[i],
                ClockPair(f"boot{i}", start + skew, origin),
                {},
                Call(run.run_id, 1, "step", at - 5 * SECOND, at),
                WorkerMemory(run.run_id, 1, Memory([at], [0], [f"h{i}"], [1], process_rss=[i])),
            )
        for ns in (19_999 * MS, 10_001 * MS):
            with run.iteration():
                clock.advance(ns=ns)
        clock.advance(1)
        yield recorded


@pytest.fixture
def few_last_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some workers are heard in no window, or not in each."""
    monkeypatch.setattr(runs, "LAST_WORDS_S", 0.5)


@pytest.mark.usefixtures("few_last_words")
def test_monotonic_clocks_have_origins_of_their_own(tmp_path: Path) -> None:
    """github.com/gaogaotiantian/viztracer/issues/361, hw-native-sys/simpler/pull/2099.

    The monotonic clocks of four hosts began up to 11.56 s apart, their wall clocks are up to 1.6 ms
    apart: what happened at one instant, 1 ms into a window, is there, to the bound that is told.
    """
    with four_hosts(tmp_path, measured=True) as recorded:
        pass
    first, second = (record.attributes for record in recorded.rollouts)
    edge = second.window.start_ns
    assert (first.workers, first.memory) == ({}, msgspec.UNSET)
    assert second.workers == {"step": {str(rank): [5 * SECOND] for rank in (1, 2, 3, 4)}}
    assert isinstance(second.memory, Memory)
    placed = dict(zip(second.memory.rank, second.memory.instant, strict=True))
    assert placed == {i + 1: edge + MS - error for i, (_, _, error) in enumerate(CLOCKS)}
    assert (first.ranks.missing, second.ranks.missing) == ([1, 2, 3, 4], [])
    for name in NAMES:
        said = f"clock {name} on host: its calls and readings are placed in windows to +-0.090 ms"
        assert said in shown(tmp_path)
    Files(tmp_path).audit()
    # By its own wall clock one of them would be in the other window; by the monotonic ones they
    # would be 11.56 s apart.
    assert min(skew for _, skew, _ in CLOCKS) < -MS
    assert max(origin for origin, _, _ in CLOCKS) == 11_560 * MS


@pytest.mark.usefixtures("few_last_words")
def test_clocks_that_were_not_measured_are_not_compared(tmp_path: Path) -> None:
    """The same without a measurement: each is refused by its name, and nothing is in a window."""
    with four_hosts(tmp_path, measured=False) as recorded:
        pass
    for record in recorded.rollouts:
        assert (record.attributes.workers, record.attributes.memory) == ({}, msgspec.UNSET)
        assert record.attributes.ranks.missing == [1, 2, 3, 4]
    assert recorded.summary.observed.errors == {"ranks.unknown_clock": len(NAMES)}
    names = ", ".join(NAMES)
    assert f"clock not known of {names}: in no window" in shown(tmp_path)
    Files(tmp_path).audit(f"the clock is not known: {names}")
