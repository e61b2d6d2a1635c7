"""What the files of the other processes tell beforehand: their clocks, windows as they opened."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from otel_grpo.records.clocks import WorkerClock
from otel_grpo.records.late import Attempts
from otel_grpo.records.model import (
    Attempt,
    ClockOffset,
    Joined,
    PublicationCompleted,
    RunFile,
    WindowOpened,
)
from otel_grpo.records.reader import Torn, read_worker_heads


@dataclass
class Index:
    """Of one attempt.

    Attributes:
        joined: by the name of the file, which is that of the process's spans, too.
        opened: start of each window, by iteration.
        completed: of publications that were confirmed after their record: (iteration, version).
    """

    attempt: Attempt
    joined: dict[str, Joined] = field(default_factory=dict)
    offsets: dict[str, list[ClockOffset]] = field(default_factory=lambda: defaultdict(list))
    opened: dict[int, int] = field(default_factory=dict)
    completed: dict[tuple[int, int], int] = field(default_factory=dict)

    def clock(self, joined: Joined) -> WorkerClock:
        """Of a process, against the one that writes the records."""
        clock = WorkerClock(joined.clock, self.attempt.clock)
        for offset in self.offsets[joined.name]:
            clock.measured(offset)
        return clock

    def number(self, joined: Joined) -> int | None:
        """What the records call the process; None if the one that writes them never heard of it."""
        if joined.rank is not None:
            return joined.rank
        numbers = (each.rank for each in self.attempt.processes if each.name == joined.name)
        return next(numbers, None)


def read_index(run_dir: Path, run: RunFile) -> dict[int, Index]:
    """By attempt. Raises `reader.BadInput`."""
    found = {each.attempt: Index(each) for each in run.attempts}
    attempts = Attempts(run)
    for path, line in read_worker_heads(run_dir):
        if isinstance(line, Torn):
            continue
        value = line.value
        attempt = attempts.of(value.run_id, value.attempt)
        if attempt is None:
            continue
        index = found[attempt]
        if isinstance(value, Joined):
            index.joined[path.name] = value
        elif isinstance(value, ClockOffset):
            index.offsets[value.name].append(value)
        elif isinstance(value, WindowOpened):
            index.opened[value.iteration] = value.start_ns
        elif isinstance(value, PublicationCompleted):
            index.completed[value.iteration, value.version] = value.completed_ns
    return found
