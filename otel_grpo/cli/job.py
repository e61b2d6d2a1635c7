"""What `show` knows of the other processes of a job: sums by worker and rank, who was missing."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from msgspec import UNSET

from otel_grpo.records import build
from otel_grpo.records.model import (
    Attempt,
    ClockOffset,
    Memory,
    Process,
    RolloutAttributes,
    RolloutRecord,
)

# Columns of readings that are shown of each device.
DEVICE_COLUMNS = (
    "device_used",
    "device_total",
    "allocator_peak_allocated",
    "allocator_peak_reserved",
)


@dataclass(frozen=True)
class Spread:
    """Seconds of one method or phase over the processes that have some, each one's sum."""

    name: str
    calls: int
    min_ns: int
    median_ns: int
    max_ns: int
    slowest: int | None  # rank of the largest; None: not in the records

    @property
    def ratio(self) -> float | None:
        """Straggler ratio, max over median; None where that is 0."""
        return self.max_ns / self.median_ns if self.median_ns else None


@dataclass(frozen=True)
class Clock:
    """How well instants of a process can be compared with the driver's."""

    process: Process
    bound_ns: int | None  # None: not at all
    measurements: int


@dataclass
class Job:
    """Sums over the records of the latest attempt; its size goes with the processes."""

    calls: dict[str, dict[str, list[int]]] = field(default_factory=lambda: defaultdict(dict))
    busy: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    whole_windows: int = 0  # that have the busy times of every rank
    missing: list[tuple[int | None, list[int]]] = field(default_factory=list)
    devices: dict[int, dict[str, int]] = field(default_factory=lambda: defaultdict(dict))
    versions: tuple[int, int] | None = None
    spmd: bool = False
    offsets: dict[str, tuple[int, int]] = field(default_factory=dict)
    errors: Counter[str] = field(default_factory=Counter)  # of the others' own observers

    def add(self, record: RolloutRecord) -> None:
        """Adds one window."""
        a = record.attributes
        self.spmd = self.spmd or bool(a.per_rank)
        for method, by_rank in a.workers.items():
            for rank, durations in by_rank.items():
                sums = self.calls[method].setdefault(rank, [0, 0])
                sums[0] += len(durations)
                sums[1] += sum(durations)
        if a.ranks.missing:
            self.missing.append((record.iteration, a.ranks.missing))
        else:
            self.whole_windows += bool(a.per_rank)
            for rank, phases in a.per_rank.items():
                for phase, ns in phases.items():
                    self.busy[phase][rank] += ns
        self._publications(a)
        if a.memory is not UNSET:
            self._memory(a.memory)

    def _publications(self, a: RolloutAttributes) -> None:
        for publication in a.publications:
            low, high = self.versions or (publication.version, publication.version)
            self.versions = min(low, publication.version), max(high, publication.version)

    def _memory(self, memory: Memory) -> None:
        if memory.device is UNSET:
            return
        for name in DEVICE_COLUMNS:
            column = getattr(memory, name)
            for index, value in zip(memory.device, () if column is UNSET else column, strict=False):
                if index is not None and value is not None:
                    kept = self.devices[index]
                    kept[name] = max(value, kept.get(name, value))

    def measured(self, line: ClockOffset) -> None:
        """Adds a measurement of a clock; the largest bound counts."""
        n, bound = self.offsets.get(line.name, (0, 0))
        self.offsets[line.name] = n + 1, max(bound, line.bound_ns)

    # --- figures

    def workers(self, totals: Mapping[str, Mapping[str, int | float]] | None) -> list[Spread]:
        """Of each timed method; ``totals`` are the summary's, which may know of late calls."""
        found = []
        for method, sums in sorted(self.calls.items()):
            own = build.worker_totals(sums)
            figures = (totals or {}).get(method, own)
            rank, (_, most) = max(sums.items(), key=lambda each: each[1][1])
            found.append(_spread(method, figures, rank if most == figures["max_ns"] else None))
        return found

    def phases(self) -> list[Spread]:
        """Of each phase, over the ranks of an SPMD trainer, in windows that have all of them."""
        found = []
        for phase, sums in self.busy.items():
            figures = build.worker_totals({rank: [0, ns] for rank, ns in sums.items()})
            if figures["max_ns"]:
                found.append(_spread(phase, figures, max(sums, key=lambda rank: sums[rank])))
        return found

    def clocks(self, attempt: Attempt) -> list[Clock]:
        """Of the workers on other machines; ranks of an SPMD trainer need none."""
        ours = attempt.clock.boot_id
        others = [
            p for p in attempt.processes if p.clock.boot_id is None or p.clock.boot_id != ours
        ]
        found = []
        for process in () if self.spmd else others:
            n, bound = self.offsets.get(process.name or "", (0, 0))
            found.append(Clock(process, bound if n else None, n))
        return found

    def to_dict(self, attempt: Attempt, totals: Any) -> dict[str, Any]:
        """Plain types only, for ``--json``."""
        inventory = attempt.world.devices
        low, high = self.versions or (None, None)
        return {
            "workers": [_plain(each) for each in self.workers(totals)],
            "ranks": [_plain(each) for each in self.phases()],
            "ranks_windows": self.whole_windows,
            "missing": [{"iteration": n, "ranks": ranks} for n, ranks in self.missing],
            "devices": [
                {"device": index, "id": inventory[index].id if index < len(inventory) else None}
                | figures
                for index, figures in sorted(self.devices.items())
            ],
            "clocks": [
                {
                    "rank": each.process.rank,
                    "name": each.process.name,
                    "host": each.process.host,
                    "bound_ns": each.bound_ns,
                    "measurements": each.measurements,
                }
                for each in self.clocks(attempt)
            ],
            "versions": {"min": low, "max": high},
            "errors": dict(self.errors),
        }


def _spread(name: str, figures: Mapping[str, int | float], slowest: str | None) -> Spread:
    low, median, high = (round(figures[f"{key}_ns"]) for key in ("min", "median", "max"))
    rank = int(slowest) if slowest is not None and slowest.isdecimal() else None
    return Spread(name, round(figures["count"]), low, median, high, rank)


def _plain(each: Spread) -> dict[str, Any]:
    return {
        "name": each.name,
        "calls": each.calls,
        "min_ns": each.min_ns,
        "median_ns": each.median_ns,
        "max_ns": each.max_ns,
        "straggler_ratio": each.ratio,
        "slowest_rank": each.slowest,
    }


def ranges(numbers: Iterable[int]) -> str:
    """``1-3, 7``."""
    parts: list[Sequence[int]] = []
    for n in sorted(numbers):
        if parts and parts[-1][1] == n - 1:
            parts[-1] = (parts[-1][0], n)
        else:
            parts.append((n, n))
    return ", ".join(str(low) if low == high else f"{low}-{high}" for low, high in parts)
