"""Jobs whose driver does what it is told: what it said itself, and what files it left.

Instants are the machine's: processes of one machine have one monotonic clock.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
from ray_support import HERE, until

from otel_grpo.records import reader
from otel_grpo.records.model import (
    Call,
    ClockPair,
    Joined,
    Left,
    Memory,
    RolloutRecord,
    WorkerLine,
    WorkerMemory,
)

#: A call: its method, its nanoseconds. A reading: its instant, the bytes of its process.
What = tuple[str | int, int]


class Job:
    """A driver that ran, and what it said of itself."""

    def __init__(self, folder: Path, address: str, chosen: dict[str, Any]) -> None:
        self.path, self.plan = folder / "run", chosen
        self._told, self._words = folder / "told", folder / "words"
        self.killed_ns: int | None = None
        script = [sys.executable, HERE / "soak_driver.py", self.path, address, json.dumps(chosen)]
        with self._words.open("wb") as words:
            self._process = subprocess.Popen(
                [*script, self._told], stdout=words, stderr=subprocess.STDOUT
            )

    def kill(self, since: str, after: float) -> None:
        until(lambda: self.told(since) or self._process.poll() is not None, 60)
        time.sleep(after)
        if self._process.poll() is None:
            self.killed_ns = time.perf_counter_ns()
            self._process.kill()  # it is not waited for yet: the number is its own

    def wait(self) -> None:
        code = self._process.wait(240)
        if code != -signal.SIGKILL:
            self.killed_ns = None  # it was faster
        assert code == (0 if self.killed_ns is None else -signal.SIGKILL), self.words
        assert "Traceback" not in self.words, self.words
        ours = [line for line in self.words.splitlines() if "otel-grpo" in line]
        usual = ("otel-grpo: recording to ", "otel-grpo: run ")
        assert [line for line in ours if not line.startswith(usual)] == []

    @property
    def words(self) -> str:
        return self._words.read_text("utf-8")

    def told(self, what: str) -> list[list[Any]]:
        """What it said under this name: an instant, and what happened."""
        whole = self._told.read_text().rpartition("\n")[0] if self._told.exists() else ""
        return [said for name, *said in map(json.loads, whole.splitlines()) if name == what]

    @property
    def ended_ns(self) -> int:
        return self.killed_ns or self.told("finished")[0][0]


class Files:
    """What a job left: lines of each worker, by the actor's id, and the driver's records."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lines: dict[str, list[WorkerLine]] = {}
        self.opened: list[int] = []
        self.torn = 0
        for file in sorted((path / "workers").iterdir()):
            *whole, rest = file.read_bytes().split(b"\n")
            self.torn += bool(rest)
            lines = [msgspec.json.decode(raw, type=WorkerLine) for raw in whole]
            if file.name.startswith("driver-"):
                self.opened = [
                    line.iteration for line in lines
                ]  # of a driver that publishes nothing
            elif lines:
                first, *others = lines
                assert isinstance(first, Joined)
                assert {type(line) for line in others} <= {Call, WorkerMemory, Left}
                assert first.actor_id is not None
                assert self.lines.setdefault(first.actor_id, lines) is lines
        self.attempt = reader.read_run_file(path).attempts[0]
        raw = path / "metrics_raw.jsonl"
        written = raw.exists() and raw.stat().st_size > 0
        self.rollouts = [
            line.value
            for line in (reader.read_records(raw) if written else ())
            if isinstance(line, reader.Whole) and isinstance(line.value, RolloutRecord)
        ]

    def joined(self, actor: str) -> Joined | None:
        first = self.lines[actor][0] if actor in self.lines else None
        assert first is None or isinstance(first, Joined)
        return first

    def left(self, actor: str) -> Left | None:
        """Its last line, where it had one."""
        *_, last = self.lines.get(actor, [None])
        return last if isinstance(last, Left) else None

    def said(self, actor: str) -> Iterator[tuple[int, What]]:
        """Each call and reading of an actor, when it ended or was made."""
        joined = self.joined(actor)
        for line in self.lines.get(actor, []):
            assert joined is not None
            if isinstance(line, Call):
                yield (
                    monotonic(line.end_ns, joined.clock),
                    (line.method, line.end_ns - line.start_ns),
                )
            elif isinstance(line, WorkerMemory):
                for what in _readings(line.memory, joined.clock, None):
                    yield what[0], what

    def recorded(self, record: RolloutRecord, rank: int) -> Counter[What]:
        """What a record has of an actor."""
        said: Counter[What] = Counter(
            (method, ns)
            for method, ranks in record.attributes.workers.items()
            for ns in ranks.get(str(rank), [])
        )
        if isinstance(record.attributes.memory, Memory):
            said.update(_readings(record.attributes.memory, self.attempt.clock, rank))
        return said

    def span(self, record: RolloutRecord) -> tuple[int, int]:
        window, clock = record.attributes.window, self.attempt.clock
        return monotonic(window.start_ns, clock), monotonic(window.end_ns, clock)


def monotonic(instant_ns: int, clock: ClockPair) -> int:
    """An instant of a process, by what all share."""
    return instant_ns - clock.unix_ns + clock.perf_ns


def _readings(memory: Memory, clock: ClockPair, rank: int | None) -> Iterator[tuple[int, int]]:
    """The rows of a worker's line, or those of a worker in a record."""
    for instant, whose, rss in zip(memory.instant, memory.rank, memory.process_rss, strict=True):
        if rank in (None, whose):
            yield monotonic(instant, clock), rss
