"""What a job left behind, and what it should be by the ranks' own counts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
from click.testing import CliRunner
from jobs import Window

from otel_grpo import audit
from otel_grpo.cli.finish import finish
from otel_grpo.records import reader
from otel_grpo.records.model import (
    Contribution,
    Joined,
    RolloutRecord,
    RunFile,
    Summary,
    TrainRecord,
    WorkerLine,
)

TOKENS = ("prompt", "prompt_unique", "completion", "environment", "trained", "visited", "total")


class Files:
    """A run directory after the job: as it was left, and as `otel-grpo finish` makes it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.run: RunFile = reader.read_run_file(path)
        raw = path / "metrics_raw.jsonl"
        written = raw.exists() and raw.stat().st_size > 0  # else killed before its first record
        self.records = [
            line.value
            for line in (reader.read_records(raw) if written else ())
            if isinstance(line, reader.Whole)
        ]

    @property
    def summary(self) -> Summary:
        return reader.read_summary(self.path)

    @property
    def rollouts(self) -> dict[int, RolloutRecord]:
        last = self.run.attempts[-1].attempt
        return {
            record.iteration or 0: record
            for record in self.records
            if isinstance(record, RolloutRecord) and record.attempt == last
        }

    @property
    def trains(self) -> list[TrainRecord]:
        last = self.run.attempts[-1].attempt
        return [r for r in self.records if isinstance(r, TrainRecord) and r.attempt == last]

    @property
    def missing(self) -> dict[int, list[int]]:
        """Ranks whose word is not in a record, by iteration."""
        found = {n: list(record.attributes.ranks.missing) for n, record in self.rollouts.items()}
        return {iteration: missing for iteration, missing in found.items() if missing}

    @property
    def joined(self) -> list[Joined]:
        return [line for line in self._workers() if isinstance(line, Joined)]

    @property
    def contributed(self) -> set[tuple[int, int]]:
        """Rank and iteration of each contribution, wherever it came to."""
        return {
            (line.rank, line.iteration)
            for line in self._workers()
            if isinstance(line, Contribution)
        }

    def _workers(self) -> list[WorkerLine]:
        lines = (each for _, each in reader.read_workers(self.path))
        return [each.value for each in lines if isinstance(each, reader.Whole)]

    def audit(self, *allowed: str) -> None:
        """Passes; what it says beside that holds one of the words that are allowed."""
        report = audit.audit(self.path)
        told = [str(one) for one in report.findings]
        assert report.exit_status == 0, told
        assert [one for one in told if not any(word in one for word in allowed)] == [], told

    def finish(self, *allowed: str) -> Summary:
        """What `otel-grpo finish` makes of the files."""
        done = CliRunner().invoke(finish, [str(self.path)])
        assert done.exit_code == 0, done.output
        self.audit(*allowed)
        return self.summary

    def check(self, expected: dict[str, Any], *allowed: str) -> None:
        """The summary as it was left has these totals, `finish` agrees, and the audit passes."""
        assert totals(self.summary) == expected
        self.audit(*allowed)
        told = msgspec.to_builtins(self.summary)
        again = msgspec.to_builtins(self.finish(*allowed))
        assert {**told, "observed": 0} == {**again, "observed": 0}


def totals(summary: Summary) -> dict[str, Any]:
    """The part of a summary that `united` gives."""
    samples = {name: summary.samples[name] for name in ("generated", "consumed", "visits")}
    return {
        "groups": summary.groups,
        "samples": samples,
        "tokens": {name: summary.tokens[name] for name in TOKENS},
    }


def united(windows: Iterable[Window]) -> dict[str, Any]:
    """Totals of what ranks counted, each sample once, by its id: in words of the loop alone."""
    rows: dict[tuple[str, int], dict[str, Any]] = {}
    for window in windows:
        for row in window["rows"]:
            rows.setdefault(tuple(row["id"]), row)
    groups: dict[tuple[str, int], int] = {}
    tokens: dict[str, int] = defaultdict(int)
    for (rollout, _), row in rows.items():
        groups.setdefault((rollout, row["group"]), row["prompt"])
        for name in ("prompt", "completion", "environment", "trained"):
            tokens[name] += row[name]
        tokens["visited"] += row["trained"] * row["visits"]
    tokens["prompt_unique"] = sum(groups.values())
    tokens["total"] = tokens["prompt"] + tokens["completion"]
    counted = {
        "generated": len(rows),
        "consumed": len(rows),
        "visits": sum(row["visits"] for row in rows.values()),
    }
    return {"groups": len(groups), "samples": counted, "tokens": {n: tokens[n] for n in TOKENS}}
