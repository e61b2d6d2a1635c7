"""The lines of one other process about single windows, read once, forwards, as the records go on.

A file is opened for each reading, so that a thousand processes do not take a thousand descriptors,
and of its lines only those are kept that a window to come may need.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import msgspec
from msgspec import UnsetType

from otel_grpo.audit.clocks import Clock
from otel_grpo.audit.files import UNREADABLE
from otel_grpo.audit.report import InputFault
from otel_grpo.audit.workers import Attempts, Peer
from otel_grpo.records.model import Call, Contribution, Memory, WorkerMemory

_Line = Contribution | Call | WorkerMemory
_decoder = msgspec.json.Decoder(_Line)
_KINDS = {kind.__struct_config__.tag for kind in _Line.__args__}
# Threads hand their calls to one writer, so lines can be out of order by a moment. Nanoseconds.
_DISORDER = 10 * 10**9


class _Kind(msgspec.Struct):
    kind: str


_kind = msgspec.json.Decoder(_Kind)

# A reading: rank, host, pid, device, instant, then every column; None where it says nothing.
Row = tuple[object, ...]
INSTANT = 4
COLUMNS = tuple(
    name
    for name in Memory.__struct_fields__
    if name not in {"instant", "rank", "host", "pid", "device", "peak_resets"}
)


class Devices:
    """Indices into the devices of a `joined` line, as indices into the inventory of run.json."""

    def __init__(self, peer: Peer, inventory: dict[str, int]) -> None:
        self._ids = [device.id for device, _ in peer.joined.devices]
        self._inventory = inventory
        self.unknown: set[int] = set()  # that either list lacks

    def of(self, index: int | None) -> int | None:
        """None where the reading has no device, or one that nobody knows."""
        if index is None:
            return None
        name = self._ids[index] if 0 <= index < len(self._ids) else None
        if name not in self._inventory:
            self.unknown.add(index)
            return None
        return self._inventory[name]

    def all(self) -> list[int]:
        """Those of the process that the inventory has."""
        return [self._inventory[name] for name in self._ids if name in self._inventory]


def rows(memory: Memory, devices: Devices | None = None, rank: int | None = None) -> list[Row]:
    """The readings one by one, ``device`` and ``rank`` as the records have them.

    Raises ValueError where the columns are of different lengths.
    """
    n = len(memory.instant)
    nothing: list[int | None] = [None] * n
    own = nothing if isinstance(memory.device, UnsetType) else memory.device
    columns = (getattr(memory, name) for name in COLUMNS)
    return list(
        zip(
            memory.rank if rank is None else [rank] * n,
            memory.host,
            memory.pid,
            own if devices is None else [devices.of(index) for index in own],
            memory.instant,
            *(nothing if isinstance(column, UnsetType) else column for column in columns),
            strict=True,
        )
    )


class _Reader:
    """The lines of one attempt in one file, from where the reading before stopped."""

    def __init__(self, peer: Peer, attempts: Attempts, attempt: int) -> None:
        self.peer = peer
        self._attempts = attempts
        self._attempt = attempt
        self._offset = 0
        self._number = 0

    def __iter__(self) -> Iterator[tuple[int, _Line]]:
        with self.peer.path.open("rb") as file:
            file.seek(self._offset)
            for data in file:
                if not data.endswith(b"\n"):
                    return
                self._offset += len(data)
                self._number += 1
                line = self._decode(data)
                if line is not None and self._attempt == self._attempts.of(
                    line.run_id, line.attempt
                ):
                    yield self._number, line

    def _decode(self, data: bytes) -> _Line | None:
        try:
            return _decoder.decode(data)
        except UNREADABLE as error:
            try:
                kind = _kind.decode(data).kind
            except UNREADABLE:
                return None  # the first reading has said so
            if kind in _KINDS:
                raise InputFault(self.peer.file, self._number, str(error)) from error
        return None


class Contributions:
    """What one rank contributed, by iteration."""

    def __init__(self, peer: Peer, attempts: Attempts, attempt: int) -> None:
        self.peer = peer
        self.stray = 0  # of windows that have no record
        self.disorder: list[tuple[int, int]] = []  # line, iteration: twice, or not in order
        self._reader = _Reader(peer, attempts, attempt)
        self._next: tuple[int, Contribution] | None = None
        self._last = 0

    def of(self, iteration: int) -> tuple[int, Contribution] | None:
        """The contribution to a window and its line; iterations must be asked for in order."""
        if self._next is None or self._next[1].iteration < iteration:
            self._forward(iteration)
        found = self._next
        if found is None or found[1].iteration != iteration:
            return None
        self._next = None
        return found

    def finish(self) -> None:
        """Reads on to the end of the file."""
        self._forward(None)

    def _forward(self, iteration: int | None) -> None:
        self.stray += self._next is not None
        self._next = None
        for number, line in self._reader:
            if not isinstance(line, Contribution):
                continue
            if line.iteration <= self._last:
                self.disorder.append((number, line.iteration))
                continue
            self._last = line.iteration
            if iteration is not None and line.iteration >= iteration:
                self._next = number, line
                return
            self.stray += 1


class Timed(NamedTuple):
    """A call or a reading with the range of instants, of the driver, in which it lies."""

    earliest: int
    latest: int
    method: str | None  # None: a reading
    what: int | Row  # the duration of a call in nanoseconds, or a reading


class Timeline:
    """Calls and readings of one worker in order of time."""

    def __init__(
        self,
        peer: Peer,
        attempts: Attempts,
        attempt: int,
        clock: Clock,
        devices: Devices,
        rank: int,
    ) -> None:
        self.peer = peer
        self.clock = clock
        self.rank = rank
        self._devices = devices
        self._reader = _Reader(peer, attempts, attempt)
        self._held: list[Timed] = []
        self._read_to = 0
        self._ended = False

    def window(self, start: int, end: int) -> list[Timed]:
        """What may lie in ``[start, end)``; windows must be asked for in order."""
        if not self.clock.known:
            return []
        if not self._ended and self._read_to < end + _DISORDER:
            self._ended = True
            for number, line in self._reader:
                if isinstance(line, Contribution):
                    continue
                try:
                    self._take(line)
                except ValueError:
                    message = "columns of memory of different lengths"
                    raise InputFault(self.peer.file, number, message) from None
                if self._read_to >= end + _DISORDER:
                    self._ended = False
                    break
        self._held = [each for each in self._held if each.latest >= start]
        return [each for each in self._held if each.earliest < end]

    def _take(self, line: Call | WorkerMemory) -> None:
        if isinstance(line, Call):
            earliest, latest = self.clock.place(line.end_ns)
            duration = line.end_ns - line.start_ns
            self._held.append(Timed(earliest, latest, line.method, duration))
        else:
            earliest = self._read_to
            readings = rows(line.memory, self._devices, self.rank)
            for instant, row in zip(line.memory.instant, readings, strict=True):
                earliest, latest = self.clock.place(instant)
                # The records have it by the driver's clock.
                placed = (*row[:INSTANT], earliest, *row[INSTANT + 1 :])
                self._held.append(Timed(earliest, latest, None, placed))
        self._read_to = max(self._read_to, earliest)
