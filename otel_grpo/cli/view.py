"""What `show` knows of a run: the lines of its files, and the sums that a formula needs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import msgspec
from msgspec import UNSET

from otel_grpo.cli.job import Job
from otel_grpo.records.model import Number, Record, RolloutRecord, RunFile, Summary
from otel_grpo.semconv import SPAN_OF_PHASE

# Throughput -> the tokens that it counts, the time that it divides by, whose devices. The same
# names as in `metrics`.
RATES = {
    "device": ("tokens.total", "time.work_ns", None),
    "device_wall": ("tokens.total", "time.wall_ns", None),
    "generation": ("tokens.completion", "phase.generation.busy_ns", "generate"),
    "train": ("tokens.visited", "phase.policy_train.busy_ns", "train"),
}


@dataclass(frozen=True)
class Iteration:
    """One window: its numbers as they stand in the file, and how many devices have which role."""

    attempt: int
    iteration: int | None
    line: int
    status: str
    metrics: dict[str, Number]
    devices: dict[str | None, int] | None

    def integer(self, name: str) -> int | None:
        """A metric that is an integer by its name; None where it is absent."""
        value = self.metrics.get(name)
        return value if isinstance(value, int) else None

    def phases(self) -> list[str]:
        """The phases that the window has figures of."""
        return [
            name[len("phase.") : -len(".busy_ns")]
            for name in self.metrics
            if name.startswith("phase.") and name.endswith(".busy_ns")
        ]


@dataclass(frozen=True)
class Rate:
    """One throughput of several windows, with the integers that go into it."""

    name: str
    tokens: int
    device_ns: int
    ns: int
    devices: int | None  # None: not the same in every window

    @property
    def value(self) -> float:
        """Tokens per second and device, by the formula of the file's own totals."""
        return self.tokens * 10**9 / self.device_ns


@dataclass
class View:
    """A run as its files have it; ``summary`` is None where there is none yet."""

    run_dir: str
    run_file: RunFile
    summary: Summary | None
    iterations: list[Iteration] = field(default_factory=list)
    records: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    job: Job = field(default_factory=Job)

    @property
    def attempt(self) -> int:
        """The attempt whose iterations and totals are shown: the latest."""
        return self.run_file.attempts[-1].attempt

    @property
    def latest(self) -> list[Iteration]:
        """The iterations of the latest attempt."""
        return [each for each in self.iterations if each.attempt == self.attempt]

    def rates(self) -> list[Rate]:
        """The throughputs of the latest attempt that can be told."""
        found = (rate_of(name, self.latest) for name in RATES)
        return [rate for rate in found if rate is not None]

    def to_dict(self) -> dict[str, Any]:
        """Plain types only, for ``--json``; the names of the files are kept."""
        return {
            "run_dir": self.run_dir,
            "run_id": self.run_file.run_id,
            "attempt": self.attempt,
            "status": self.summary.status if self.summary else None,
            "iterations": [
                {
                    "attempt": each.attempt,
                    "iteration": each.iteration,
                    "line": each.line,
                    "status": each.status,
                    "metrics": each.metrics,
                }
                for each in self.iterations
            ],
            "throughput": {
                rate.name: {
                    "tokens": rate.tokens,
                    "ns": rate.ns,
                    "devices": rate.devices,
                    "device_ns": rate.device_ns,
                    "value": rate.value,
                }
                for rate in self.rates()
            },
            "job": self.job.to_dict(
                self.run_file.attempts[-1], self.summary.workers if self.summary else None
            ),
            "summary": msgspec.to_builtins(self.summary) if self.summary else None,
            "notes": self.notes,
        }


def iteration_of(record: RolloutRecord, line: int) -> Iteration:
    """What is kept of a record: its numbers, not its evidence, which may be a MiB."""
    rows = record.attributes.devices
    return Iteration(
        attempt=record.attempt,
        iteration=record.iteration,
        line=line,
        status=record.attributes.window.status,
        metrics=record.metrics,
        devices=None if rows is UNSET else _devices(rows),
    )


def _devices(rows: Iterable[tuple[int, list[str]]]) -> dict[str | None, int]:
    roles: dict[str | None, set[int]] = {None: set()}
    for index, names in rows:
        for name in (None, *names):
            roles.setdefault(name, set()).add(index)
    return {role: len(indexes) for role, indexes in roles.items()}


def rate_of(name: str, iterations: Iterable[Iteration]) -> Rate | None:
    """Sums of the windows, never a mean of their ratios; None where a part is not known."""
    tokens_name, ns_name, role = RATES[name]
    tokens = ns = device_ns = 0
    known = False
    counts = set()
    for each in iterations:
        if each.devices is None:
            return None
        devices = each.devices.get(role, 0)
        known = known or tokens_name in each.metrics
        tokens += each.integer(tokens_name) or 0
        spent = each.integer(ns_name) or 0
        ns += spent
        device_ns += spent * devices
        counts.add(devices)
    if not known or not device_ns:
        return None
    return Rate(name, tokens, device_ns, ns, counts.pop() if len(counts) == 1 else None)


def count_record(view: View, record: Record, line: int) -> None:
    """Adds one line of ``metrics_raw.jsonl``."""
    kind = type(record).__struct_config__.tag
    view.records[str(kind)] = view.records.get(str(kind), 0) + 1
    if isinstance(record, RolloutRecord):
        view.iterations.append(iteration_of(record, line))
        if record.attempt == view.attempt:
            view.job.add(record)


def ordered(phases: Iterable[str]) -> list[str]:
    """The order of an iteration; phases of the user's own after those that everybody has."""
    known = {phase: position for position, phase in enumerate(SPAN_OF_PHASE)}
    return sorted(phases, key=lambda phase: (known.get(phase, len(known)), phase))
