"""The first reading of ``workers/``: who takes part, and what belongs to the run as a whole.

What a process tells of single windows (contributions, calls, readings) is left in its file, where
``peers`` reads it again, window by window: nothing here grows with the length of a run.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import msgspec

from otel_grpo.audit.files import UNREADABLE, lines
from otel_grpo.audit.laws import Laws
from otel_grpo.audit.report import Findings, InputFault
from otel_grpo.records.model import (
    ClockOffset,
    Joined,
    Left,
    Observed,
    PublicationCompleted,
    RunFile,
    WindowOpened,
)

# What only a process that has joined can say.
_OF_PEERS = frozenset({"contribution", "call", "memory", "left"})


class _Head(msgspec.Struct):
    kind: str
    run_id: str = ""
    attempt: int = 0


_Whole = WindowOpened | PublicationCompleted | Joined | ClockOffset | Left
_head = msgspec.json.Decoder(_Head)
_whole = msgspec.json.Decoder(_Whole)
_KINDS = {kind.__struct_config__.tag for kind in _Whole.__args__}


@dataclass(frozen=True)
class Peer:
    """Another process of an attempt, by the `joined` line in its file."""

    path: Path
    file: str
    line: int
    joined: Joined


class Numbers:
    """A set of whole numbers that mostly follow each other, kept as ranges."""

    def __init__(self) -> None:
        self.ranges: list[list[int]] = []

    def add(self, n: int) -> None:
        """Takes one in."""
        if self.ranges and self.ranges[-1][1] == n - 1:
            self.ranges[-1][1] = n
        elif n not in self:
            self.ranges.append([n, n])

    def __contains__(self, n: int) -> bool:
        return any(low <= n <= high for low, high in reversed(self.ranges))

    def __len__(self) -> int:
        return sum(high - low + 1 for low, high in self.ranges)


class Attempts:
    """Which attempt a line is of; 0 stands for a process that never found the run's directory."""

    def __init__(self, run: RunFile) -> None:
        self.run_id = run.run_id
        self._known = {facts.attempt for facts in run.attempts}
        self._latest = max(self._known)
        self._launches = {f"launch:{a.launch}": a.attempt for a in run.attempts if a.launch}

    def of(self, run_id: str, attempt: int) -> int | None:
        """The number, or None where the line is of no attempt of this run."""
        if attempt == 0 and run_id in self._launches:
            return self._launches[run_id]
        if run_id != self.run_id:
            return None
        if attempt == 0:
            return self._latest
        return attempt if attempt in self._known else None


class Workers:
    """What ``workers/`` says of the run as a whole."""

    def __init__(self) -> None:
        self.opened: dict[int, Numbers] = {}
        self.late: dict[tuple[int, int, int], int] = {}  # attempt, iteration, version -> instant
        self.last: dict[int, int] = {}  # attempt -> the last instant of its windows' notices
        self.peers: dict[int, list[Peer]] = defaultdict(list)
        # attempt, name of a process -> measured at, offset, bound
        self.clocks: dict[tuple[int, str], list[tuple[int, int, int]]] = defaultdict(list)
        self.lines = 0

    def read(self, folder: Path, attempts: Attempts, findings: Findings) -> None:
        """Takes in every file; lines of kinds that this version does not know are left alone."""
        for path in sorted(folder.glob("*.jsonl")):
            self._file(path, attempts, findings)

    def _file(self, path: Path, attempts: Attempts, findings: Findings) -> None:
        joined: dict[int, Joined | None] = {}
        broken: tuple[int, Exception] | None = None  # a line that can't be read
        newest = 0
        for file, number, data in lines(path, findings):
            self.lines += 1
            try:
                head = _head.decode(data)
                line = _whole.decode(data) if head.kind in _KINDS else None
            except UNREADABLE as error:
                broken = broken or (number, error)
                continue
            if broken is not None:
                # Only a kill leaves a part of a line, and then the next attempt goes on behind it.
                if head.attempt <= newest:
                    raise InputFault(file, *_said(broken))
                findings.add("note", file, broken[0], "", f"torn line set apart: {broken[1]}")
                broken = None
            newest = max(newest, head.attempt)
            attempt = attempts.of(head.run_id, head.attempt)
            if attempt is None:
                if head.run_id != attempts.run_id:
                    message = "one run id in all lines"
                    findings.equal(file, number, "run_id", head.run_id, attempts.run_id, message)
                else:
                    message = "an attempt that run.json does not have"
                    findings.add("error", file, number, "attempt", message, head.attempt)
                continue
            findings.checked += 1
            if head.kind in _OF_PEERS and attempt not in joined:
                joined[attempt] = None  # said once
                message = f"a {head.kind} line before the `joined` line of its process"
                findings.add("error", file, number, "kind", message)
            if isinstance(line, Joined):
                if attempt in joined:
                    message = "`joined` is the first line of a process, and its only one"
                    findings.add("error", file, number, "kind", message)
                else:
                    joined[attempt] = line
                    self.peers[attempt].append(Peer(path, file, number, line))
            elif isinstance(line, Left):
                _check_end(file, number, line.observed, findings)
            elif line is not None:
                self._notice(attempt, line)
        if broken is not None:
            raise InputFault(f"{path.parent.name}/{path.name}", *_said(broken))

    def _notice(
        self, attempt: int, line: WindowOpened | PublicationCompleted | ClockOffset
    ) -> None:
        if isinstance(line, ClockOffset):
            reading = (line.measured_ns, line.offset_ns, line.bound_ns)
            self.clocks[attempt, line.name].append(reading)
            return
        if isinstance(line, WindowOpened):
            instant = line.start_ns
            self.opened.setdefault(attempt, Numbers()).add(line.iteration)
        else:
            instant = line.completed_ns
            self.late[attempt, line.iteration, line.version] = instant
        self.last[attempt] = max(instant, self.last.get(attempt, instant))


def _check_end(file: str, number: int, observed: Observed, findings: Findings) -> None:
    """What a process says of its own files: the counts add up, and what it lost is a warning."""
    Laws(findings).sinks(file, number, observed)
    for name, sink in observed.sinks.items():
        if sink.dropped:
            message = f"its process dropped {sink.dropped} of {sink.created}"
            findings.add("warning", file, number, f"observed.sinks.{name}.dropped", message)


def _said(broken: tuple[int, Exception]) -> tuple[int, str]:
    return broken[0], str(broken[1])
