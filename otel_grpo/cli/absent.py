"""The ranks of which numbers are in no total, and the files that would have them."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from otel_grpo.cli.job import ranges
from otel_grpo.records.model import Joined
from otel_grpo.records.reader import (
    SpokenHead,
    Torn,
    read_missing,
    read_run_file,
    read_worker_heads,
)


@dataclass(frozen=True)
class Absent:
    """One process and the windows of the latest attempt that lack it."""

    rank: int
    iterations: list[int]
    name: str | None  # None: the process that wrote the records never heard of it
    host: str | None
    file: str | None  # None: it is not in `workers/`

    def __str__(self) -> str:
        who = f"rank {self.rank}"
        if self.name is not None:
            who += f" ({self.name} on {self.host})"
        has = f"not in {self.file}" if self.file else f"no file workers/*-{self.rank}-*.jsonl"
        windows = "iterations" if len(self.iterations) > 1 else "iteration"
        return f"{who}, {windows} {ranges(self.iterations)}: {has}"

    def to_dict(self) -> dict[str, Any]:
        """Plain types only, for ``--json``."""
        return {
            "rank": self.rank,
            "iterations": self.iterations,
            "name": self.name,
            "host": self.host,
            "file": self.file,
        }


def find_absent(run_dir: Path) -> list[Absent]:
    """By rank, what the records lack and no file of `workers/` has either."""
    attempt = read_run_file(run_dir).attempts[-1]
    lacking: dict[int, list[int]] = defaultdict(list)
    for window in read_missing(run_dir / "metrics_raw.jsonl"):
        for rank in window.missing if window.attempt == attempt.attempt else ():
            lacking[rank].append(window.iteration)
    # A rank that did not find the directory does not know the attempt: 0.
    ours = {0, attempt.attempt}
    names = {process.name: process.rank for process in attempt.processes}
    files: dict[int, str] = {}
    spoken: set[tuple[int, int]] = set()
    for path, line in read_worker_heads(run_dir):
        if isinstance(line, Torn) or line.value.attempt not in ours:
            continue
        value = line.value
        if isinstance(value, SpokenHead):
            spoken.add((value.rank, value.iteration))
        elif isinstance(value, Joined):
            number = names.get(value.name) if value.rank is None else value.rank
            if number is not None:
                files[number] = f"workers/{path.name}"
    known = {process.rank: process for process in attempt.processes}
    found = []
    for rank, windows in sorted(lacking.items()):
        iterations = [n for n in windows if (rank, n) not in spoken]
        process = known.get(rank)
        name = process.name or process.role if process else None
        host = process.host if process else None
        if iterations:
            found.append(Absent(rank, iterations, name, host, files.get(rank)))
    return found
