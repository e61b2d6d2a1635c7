"""What the panels must show, worked out from a run's files."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable
from fractions import Fraction
from math import ceil
from pathlib import Path
from typing import Any

Record = dict[str, Any]
Series = dict[tuple[str, ...], float]

KINDS = {
    "end_to_end": ("tokens.total", "time.work_ns", None),
    "generation": ("tokens.completion", "phase.generation.busy_ns", "generate"),
    "train": ("tokens.visited", "phase.policy_train.busy_ns", "train"),
}


class Files:
    """The numbers of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        lines = [json.loads(line) for line in (path / "metrics_raw.jsonl").read_text().splitlines()]
        self.windows: list[Record] = [line for line in lines if line["kind"] == "rollout"]
        self.updates: list[Record] = [line for line in lines if line["kind"] == "train"]
        self.summary: Record = json.loads((path / "summary.json").read_text())
        self.wall_ns = self.sum("time.wall_ns")
        self.run_id: str = self.summary["run_id"]
        #: Seconds of the epoch at which its last values were there, for they are still looked up.
        self.ended = self.summary["ended_unix_ns"] / 1e9 + 15

    def sum(self, name: str) -> int:
        return sum(window["metrics"].get(name, 0) for window in self.windows)

    def seconds(self, name: str) -> float:
        return self.sum(name) / 1e9

    def by_phase(self, what: str) -> dict[tuple[str, ...], int]:
        """Nanoseconds of all windows."""
        found: Counter[tuple[str, ...]] = Counter()
        for window in self.windows:
            for name, value in window["metrics"].items():
                if name.startswith("phase.") and name.endswith(f".{what}_ns"):
                    found[(name[len("phase.") : -len(f".{what}_ns")],)] += value
        return {phase: ns for phase, ns in found.items() if ns}

    def by(self, prefix: str) -> Series:
        """Sums of the numbers whose names go on after `prefix`."""
        found: Counter[tuple[str, ...]] = Counter()
        for window in self.windows:
            for name, value in window["metrics"].items():
                if name.startswith(prefix):
                    found[(name[len(prefix) :],)] += value
        return {key: value for key, value in found.items() if value}

    def throughput(self) -> Series:
        """Tokens / device seconds, by kind: a quotient of sums of integers."""
        found = {}
        for kind, (tokens, time, role) in KINDS.items():
            numerator = denominator = 0
            for window in self.windows:
                roles = [roles for _, roles in window["attributes"]["devices"]]
                devices = sum(role is None or role in each for each in roles)
                numerator += window["metrics"].get(tokens, 0)
                denominator += window["metrics"].get(time, 0) * devices
            if numerator and denominator:
                found[(kind,)] = float(Fraction(numerator * 10**9, denominator))
        return found

    def by_status(self) -> Series:
        """Updates."""
        statuses = ("applied", "skipped", "failed", "unconfirmed")
        found: Series = {(status,): self.sum(f"updates.{status}") for status in statuses}
        return {status: n for status, n in found.items() if n}

    def windows_by_status(self) -> Series:
        return dict(Counter((w["attributes"]["window"]["status"],) for w in self.windows))

    def nonfinite(self) -> Series:
        return dict(
            Counter((s,) for w in self.windows for s in w["attributes"].get("nonfinite", ()))
        )

    def column(self, name: str) -> list[int]:
        """Of the samples of all windows."""
        return [value for w in self.windows for value in w["attributes"].get(name, ())]

    def calls(self) -> dict[tuple[str, ...], list[int]]:
        """Durations in ns of the workers' calls that are in records, by method."""
        found: dict[tuple[str, ...], list[int]] = {}
        for window in self.windows:
            for method, workers in window["attributes"].get("workers", {}).items():
                for durations in workers.values():
                    found.setdefault((method,), []).extend(durations)
        return found

    def called(self) -> dict[tuple[str, ...], int]:
        """What workers spent in calls, in ns by method, from their own files."""
        found: Counter[tuple[str, ...]] = Counter()
        for line in self.of_workers("call"):
            found[(line["method"],)] += line["end_ns"] - line["start_ns"]
        return dict(found)

    def of_workers(self, kind: str) -> list[Record]:
        lines = [
            json.loads(line)
            for file in (self.path / "workers").glob("*.jsonl")
            for line in file.read_text().splitlines()
        ]
        return [line for line in lines if line["kind"] == kind]

    def lost(self) -> Series:
        """Records that were not written, by outcome and sink, of all processes."""
        found: Counter[tuple[str, ...]] = Counter()
        of_all = [self.summary["observed"], *(left["observed"] for left in self.of_workers("left"))]
        for observed in of_all:
            for sink, counts in observed["sinks"].items():
                for outcome in ("dropped", "unconfirmed"):
                    found[outcome, sink] += counts.get(outcome, 0)
        return {key: n for key, n in found.items() if n}

    def scalar(self, name: str) -> Series:
        """Of the last update that has it."""
        told = [update["attributes"].get("scalars", {}).get(name) for update in self.updates]
        values = [value for value in told if value is not None]
        return {(): values[-1]} if values and values[-1] else {}

    def version(self) -> Series:
        told = [
            publication["version"]
            for window in self.windows
            for publication in window["attributes"].get("publications", ())
            if publication["completed_ns"] is not None
        ]
        return {(): max(told)} if told and max(told) else {}

    def devices(self) -> Series:
        """Of the last window, by what they do."""
        roles = [role for _, each in self.windows[-1]["attributes"]["devices"] for role in each]
        return {(role,): n for role, n in Counter(roles).items()}

    def trace_ids(self) -> set[str]:
        return {window["trace_id"] for window in self.windows}


def nearest_rank(values: Iterable[float], q: float) -> float:
    """The smallest value that at least the share `q` of all does not exceed."""
    ordered = sorted(values)
    return ordered[ceil(q * len(ordered)) - 1]


def over(values: dict[tuple[str, ...], int], whole: float) -> Series:
    return {key: value / whole for key, value in values.items()}


def one(value: float) -> Series:
    """A single series without labels."""
    return {(): value} if value else {}


Of = Callable[[Files], Series]
