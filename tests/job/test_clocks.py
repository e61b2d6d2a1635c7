"""Clocks of real processes that disagree: by hosts, by hand, by drift, and while a run goes on.

A library that is compiled here and preloaded sets the clocks of a process, and gives its machine
another boot id. What is true is worked out from the shift that was set and the machine's own clock.
"""

from __future__ import annotations

import base64
import json
import marshal
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import msgspec
import pytest
from click.testing import CliRunner
from clock_shim.clocks import Clocks, compiled
from left import Files

import otel_grpo.ray
from otel_grpo.cli.show import show
from otel_grpo.core.clock import boot_id
from otel_grpo.ray.environment import _belongs
from otel_grpo.records import reader
from otel_grpo.records.clocks import WorkerClock
from otel_grpo.records.model import (
    Call,
    ClockOffset,
    ClockPair,
    Joined,
    Memory,
    WorkerLine,
    WorkerMemory,
)
from otel_grpo.records.reader import Whole
from otel_grpo.tracing import lifecycle

PROCESS = Path(__file__).parent / "clock_shim" / "process.py"
SECOND = 10**9
AHEAD = 11_560_000_000
SKEW = 1_600_000


class Child:
    """A process with clocks of its own, that does what it is told."""

    def __init__(self, library: Path, clocks: Clocks, *arguments: Any) -> None:
        self.clocks = clocks
        role, *rest = arguments
        self._process = subprocess.Popen(
            [sys.executable, PROCESS, role, *map(json.dumps, rest)],
            env=os.environ | clocks.environment(library),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def tell(self, what: Any) -> None:
        print(json.dumps(what), file=self._process.stdin, flush=True)

    def answer(self) -> Any:
        return json.loads(self._process.stdout.readline())

    def end(self) -> None:
        self._process.communicate(timeout=60)
        assert self._process.returncode == 0


class Worker(Child):
    """Looks like the handle of an actor to whoever measures its clock."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.asks = 0
        self.__ray_call__ = SimpleNamespace(remote=self._ask)

    def _ask(self, function: Any) -> Callable[[], Any]:
        self.asks += 1
        self.tell(base64.b64encode(marshal.dumps(function.__code__)).decode())
        return self.answer


# Name: another machine, wall clock and monotonic clock ahead, drift, whether it is measured.
WORKERS = {
    "stepped": (False, AHEAD, 0, 0, True),
    "behind": (False, -SKEW, 0, 0, True),
    "ahead": (True, AHEAD, AHEAD, 0, True),
    "skewed": (True, SKEW, SKEW, 0, True),
    "drifts": (True, 0, 0, 200, True),
    "runaway": (True, 0, 0, 10_000, True),
    "unknown": (True, SKEW, SKEW, 0, False),
}
MEASURED = [name for name, (*_, measured) in WORKERS.items() if measured]


class Seen(NamedTuple):
    """An instant of a worker: by its own clock, the truth on the driver's, and what bounds it."""

    told: int
    truth: int
    earliest: int
    latest: int


class Job:
    """Seven workers of a driver in this process, over windows 1 and 2 with a step of each."""

    def __init__(self, library: Path, path: Path) -> None:
        self.path = path
        self.workers: dict[str, Worker] = {}
        self._steps: dict[str, list[tuple[int, int]]] = {name: [] for name in WORKERS}
        with otel_grpo.start_run(path, trainer="test", devices=[], readings=list) as run:
            self.pair = ClockPair(boot_id(), run.clock.unix_ns, run.clock.perf_ns)
            otel_grpo.ray.runtime_env(run)
            for name, (other, *shift, _) in WORKERS.items():
                clocks = Clocks(path.parent / name, *shift, boot=name if other else None)
                self.workers[name] = Worker(library, clocks, "worker", _belongs(run), name)
            for worker in self.workers.values():
                worker.answer()
            self._measure(run)
            self._step(run)
            self.workers["stepped"].clocks.step(-3600 * SECOND)
            self.workers["behind"].clocks.step(AHEAD)
            self._step(run)
            self._measure(run)
            for worker in self.workers.values():
                worker.end()
        self.files = Files(path)
        lines = [each.value for _, each in reader.read_workers(path) if isinstance(each, Whole)]
        self.measured = {
            name: [
                line
                for line in lines
                if isinstance(line, ClockOffset) and line.name == f"policy-{name}"
            ]
            for name in WORKERS
        }

    def _measure(self, run: otel_grpo.Run) -> None:
        otel_grpo.ray.measure_clocks(run, [self.workers[name] for name in MEASURED])
        run.output.writer.flush()

    def _step(self, run: otel_grpo.Run) -> None:
        with run.iteration():
            for name, worker in self.workers.items():
                sent = run.clock.now()
                worker.tell(0.02)
                worker.answer()
                self._steps[name].append((sent, run.clock.now()))

    def lines(self, name: str) -> list[WorkerLine]:
        (file,) = (self.path / "workers").glob(f"policy-{name}-*")
        return [msgspec.json.decode(raw, type=WorkerLine) for raw in file.read_bytes().splitlines()]

    def joined(self, name: str) -> Joined:
        first = self.lines(name)[0]
        assert isinstance(first, Joined)
        return first

    def rank(self, name: str) -> int:
        (rank,) = (
            process.rank
            for process in self.files.run.attempts[0].processes
            if process.name == f"policy-{name}"
        )
        return rank

    def clock(self, name: str, measurements: int = 2) -> WorkerClock:
        """As the driver has it after so many measurements."""
        clock = WorkerClock(self.joined(name).clock, self.pair)
        for line in self.measured[name][:measurements]:
            clock.measured(line)
        return clock

    def truth(self, name: str, told: int) -> int:
        """By the driver's clock, from the shift that was set."""
        machine = self.workers[name].clocks.truth(self.joined(name).clock, told)
        return self.pair.unix_ns + machine - self.pair.perf_ns

    def calls(self, name: str) -> list[Seen]:
        """The ends of its calls."""
        told = [line.end_ns for line in self.lines(name) if isinstance(line, Call)]
        return self._seen(name, told)

    def readings(self, name: str) -> list[Seen]:
        told = [
            x
            for line in self.lines(name)
            if isinstance(line, WorkerMemory)
            for x in line.memory.instant
        ]
        return self._seen(name, told)

    def _seen(self, name: str, told: list[int]) -> list[Seen]:
        return [
            Seen(instant, self.truth(name, instant), *bounds)
            for instant, bounds in zip(told, self._steps[name], strict=True)
        ]

    def recorded(self, name: str) -> list[int]:
        """The instants of its readings in the records of windows 1 and 2."""
        rank, found = self.rank(name), []
        for number in (1, 2):
            memory = self.files.rollouts[number].attributes.memory
            if isinstance(memory, Memory):
                rows = zip(memory.rank, memory.instant, strict=True)
                found += [instant for of, instant in rows if of == rank]
        return found

    def check_windows(self, name: str) -> None:
        """Each window has the call that the driver made in it."""
        rank = str(self.rank(name))
        calls = [line for line in self.lines(name) if isinstance(line, Call)]
        for number, call in zip((1, 2), calls, strict=True):
            record = self.files.rollouts[number].attributes
            assert record.workers["step"][rank] == [call.end_ns - call.start_ns]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(tmp_path_factory.mktemp("shim"))


@pytest.fixture(scope="module")
def job(library: Path, tmp_path_factory: pytest.TempPathFactory) -> Job:
    with pytest.MonkeyPatch.context() as patch:
        # All that measuring asks of Ray is to wait for an answer.
        patch.setitem(sys.modules, "ray", SimpleNamespace(get=lambda answer, timeout: answer()))
        return Job(library, tmp_path_factory.mktemp("clocks") / "run")


@pytest.mark.parametrize("name", WORKERS)
def test_truth(job: Job, name: str) -> None:
    """What these tests call true lies between the driver's question and the answer."""
    for seen in job.calls(name) + job.readings(name):
        assert seen.earliest <= seen.truth <= seen.latest


@pytest.mark.parametrize("name", ["stepped", "behind"])
def test_wall_clock_of_the_same_machine(job: Job, name: str) -> None:
    """Wrong from the start, and set again while the worker runs: placed exactly, not measured."""
    assert job.measured[name] == []
    assert job.workers[name].asks == 2
    for seen in job.calls(name):
        assert job.clock(name).place(seen.told) == (seen.truth, 0)
    assert job.recorded(name) == [seen.truth for seen in job.readings(name)]
    job.check_windows(name)


@pytest.mark.parametrize(("name", "shift"), [("ahead", AHEAD), ("skewed", SKEW)])
def test_clock_of_another_machine(job: Job, name: str, shift: int) -> None:
    """Placed to the bound that was measured, and that is shown."""
    assert len(job.measured[name]) == 2
    bound = max(line.bound_ns for line in job.measured[name])
    theirs = job.joined(name).clock
    # The monotonic clocks of both show the same but for the shift.
    apart = (theirs.unix_ns - theirs.perf_ns) - (job.pair.unix_ns - job.pair.perf_ns) + shift
    for line in job.measured[name]:
        assert abs(line.offset_ns - apart) <= line.bound_ns
    for seen in job.calls(name):
        placed = job.clock(name).place(seen.told)
        assert placed is not None
        assert placed.bound_ns == bound
        assert abs(placed.instant_ns - seen.truth) <= bound
    for recorded, seen in zip(job.recorded(name), job.readings(name), strict=True):
        assert abs(recorded - seen.truth) <= bound
    job.check_windows(name)
    assert f"windows to +-{bound / 10**6:.3f} ms (2 measurements)" in shown(job.path, name)


@pytest.mark.parametrize("name", ["drifts", "runaway"])
def test_drift(job: Job, name: str) -> None:
    """200 ppm, or a hundredth: two measurements follow it, one alone errs by what it drifted since."""
    drift = WORKERS[name][3] / 10**6
    first, second = job.measured[name]
    for seen in job.calls(name):
        assert first.measured_ns < seen.truth < second.measured_ns
        both, one = job.clock(name).place(seen.told), job.clock(name, 1).place(seen.told)
        assert both is not None
        assert one is not None
        assert both.bound_ns == max(first.bound_ns, second.bound_ns)
        # It drifts during the round trip, too.
        assert abs(both.instant_ns - seen.truth) <= both.bound_ns * (1 + drift) + 2
        since = (seen.truth - first.measured_ns) * drift
        assert abs(one.instant_ns - seen.truth - since) <= one.bound_ns * (1 + drift) + 2
    # The driver had read these before the second measurement, or after it.
    for recorded, seen in zip(job.recorded(name), job.readings(name), strict=True):
        since = (seen.truth - first.measured_ns) * drift
        bound = max(first.bound_ns, second.bound_ns)
        assert -bound * (1 + drift) - 2 <= recorded - seen.truth
        assert recorded - seen.truth <= since + bound * (1 + drift) + 2
    job.check_windows(name)


def test_unknown_clock(job: Job) -> None:
    """Refused, counted once, named; and the windows say that its numbers are not in them."""
    rank = job.rank("unknown")
    for number in (1, 2):
        record = job.files.rollouts[number].attributes
        assert set(record.workers["step"]) == {str(job.rank(name)) for name in MEASURED}
        assert record.ranks.missing == [rank]
        assert (record.ranks.expected, record.ranks.received) == (8, 7)
    assert job.recorded("unknown") == []
    assert job.files.summary.observed.errors == {"ranks.unknown_clock": 1}
    assert job.files.summary.ranks.incomplete_windows == 2
    assert shown(job.path, "unknown").startswith("clock not known of policy-unknown: in no window")


def test_files_of_all_clocks(job: Job) -> None:
    """The audit passes, names the clock that is not known, and `finish` comes to the same."""
    allowed = "the clock is not known: policy-unknown"
    job.files.audit(allowed)
    before = job.files.summary.workers
    assert job.files.finish(allowed).workers == before


def shown(path: Path, name: str) -> str:
    """What `otel-grpo show` says of the clock of a worker."""
    done = CliRunner().invoke(show, [str(path)], catch_exceptions=False)
    told = re.sub(r"\s+", " ", done.output)
    (said,) = re.findall(rf"clock (?:not known of )?policy-{name}\b.*?(?=clock|Worker)", told)
    return str(said)


def test_wall_clocks_are_set_while_ranks_train(
    library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Back by an hour and forth by two: no time is negative, and the run's own times are right.

    Rank 1 is on a machine that is 11.56 s ahead, with a clock that is set as well: it needs no other
    clock for its windows to be those of rank 0.
    """
    monkeypatch.setenv("OTEL_GRPO_LAUNCH", "stepped")
    path, begun, real = tmp_path / "run", time.monotonic_ns(), time.time_ns()
    ranks = []
    for rank, ahead in enumerate((0, AHEAD)):
        clocks = Clocks(tmp_path / str(rank), ahead, ahead, boot=f"rank{rank}" if rank else None)
        ranks.append(Child(library, clocks, "rank", str(path), rank))
        ranks[-1].answer()
    for wall in (-3600 * SECOND, 7200 * SECOND, 0):
        for child in ranks:
            child.tell(0.05)
            child.answer()
        for child in ranks:
            child.clocks.step(wall)
            child.tell(None)
            child.answer()
    for child in ranks:
        child.end()
    elapsed = time.monotonic_ns() - begun

    files = Files(path)
    end = real
    for number in (1, 2, 3):
        record = files.rollouts[number]
        window = record.attributes.window
        assert end <= window.start_ns
        end = window.end_ns
        assert end - window.start_ns >= 50_000_000
        (generation,) = (row for row in record.attributes.intervals if row[2] == "generation")
        assert generation[4] is not None
        assert 50_000_000 <= generation[4] - generation[3] <= end - window.start_ns
        assert record.attributes.ranks.missing == []
        for busy in record.attributes.per_rank.values():
            assert 50_000_000 <= busy["generation"] <= elapsed
        assert record.metrics["tokens.total"] == (1 + 1) + (2 + 1)
    assert end <= real + elapsed
    summary = files.summary
    times = msgspec.to_builtins(summary.time)
    assert min(times.values()) >= 0
    assert 150_000_000 <= times["windows_ns"] <= times["wall_ns"] <= elapsed
    assert real <= summary.started_unix_ns <= summary.ended_unix_ns <= real + elapsed
    assert times["wall_ns"] <= summary.observed.process_ns <= elapsed
    assert (summary.updates["applied"], summary.observed.errors) == (3, {})
    for file in (path / "spans").iterdir():
        for span in spans(file):
            assert int(span["startTimeUnixNano"]) <= int(span["endTimeUnixNano"])
    files.audit()


def test_age_of_a_process_is_no_difference_of_wall_clocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the system does not tell when the process started."""
    monkeypatch.setattr(lifecycle, "_started_ns", lambda _: None)
    before = lifecycle.process_ns()
    stepped = time.time_ns() - 3600 * SECOND
    monkeypatch.setattr(time, "time_ns", lambda: stepped)
    assert 0 <= before <= lifecycle.process_ns()


def spans(file: Path) -> list[dict[str, Any]]:
    return [
        span
        for line in file.read_bytes().splitlines()
        for resource in json.loads(line)["resourceSpans"]
        for scope in resource["scopeSpans"]
        for span in scope["spans"]
    ]
