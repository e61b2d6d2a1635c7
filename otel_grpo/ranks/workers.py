"""Calls and readings of workers, which a driver calls, that belong to windows without a record."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain

from msgspec import UNSET

from otel_grpo.ranks.folder import Folder, Line, Peer
from otel_grpo.records.clocks import WorkerClock
from otel_grpo.records.inventory import Inventory, placed, ragged
from otel_grpo.records.merge import Gathered
from otel_grpo.records.model import (
    Call,
    ClockOffset,
    ClockPair,
    Joined,
    Left,
    Memory,
    Process,
    Ranks,
    WorkerMemory,
)

# So many windows that have their record are remembered at least; what lies before them is late.
_REMEMBERED = 10_000


@dataclass(slots=True)
class _Worker:
    """One worker. Instants are the driver's: of the end of each call, of each reading."""

    number: int
    since_ns: int = 0  # it is expected in windows that end later
    clock: WorkerClock | None = None  # None: it has not joined
    devices: Sequence[int] = ()
    left: bool = False
    refused: bool = False  # its clock is not known, which was said
    silent: bool = False  # a record was made without it, and nothing was heard since
    calls: list[tuple[int, str, int]] = field(default_factory=list)  # instant, method, duration
    readings: list[tuple[int, Memory]] = field(default_factory=list)

    def heard(self, start_ns: int, end_ns: int) -> bool:
        readings = (instant for instant, _ in self.readings)
        calls = (instant for instant, _, _ in self.calls)
        return any(start_ns <= instant < end_ns for instant in chain(readings, calls))


class Workers:
    """Of each worker: what no record has yet."""

    spmd = False
    # A call that ended in the window may be on its way into the file for so long.
    settle_ns = 500_000_000

    def __init__(self, folder: Folder, clock: ClockPair, inventory: Inventory) -> None:
        self._folder = folder
        self._clock = clock
        self._inventory = inventory
        self._workers: dict[str, _Worker] = {}
        self._offsets: dict[str, list[ClockOffset]] = defaultdict(list)
        self._processes: list[Process] = []
        self._starts: list[int] = []  # of the windows that have their record
        self._ends: list[int] = []
        self._forgot = False  # there were windows before these

    def watch(self, names: Iterable[str], since_ns: int) -> None:
        """Number workers before they are heard of: one that never is counts as missing."""
        for name in names:
            if name not in self._workers:
                self._worker(name).since_ns = since_ns

    def wants(self, peer: Peer, waiting: Iterable[int]) -> bool:
        """Every file may have calls of the open window."""
        return True

    def add(self, lines: Iterable[tuple[Peer, Line]]) -> None:
        """Take new lines in: clocks first, for what they place may have been read before them."""
        lines = list(lines)
        for _, line in lines:
            if isinstance(line, ClockOffset):
                self._offset(line)
        for peer, line in lines:
            if isinstance(line, Joined):
                self._join(line)
            elif peer.joined is None:
                continue
            elif isinstance(line, Call):
                self._call(peer, self._worker(peer.joined.name), line)
            elif isinstance(line, WorkerMemory):
                self._read(peer, self._worker(peer.joined.name), line.memory)
            elif isinstance(line, Left):
                self._worker(peer.joined.name).left = True

    def complete(self, iteration: int, start_ns: int, end_ns: int) -> bool:
        """Whether every worker that has not left was heard in the window.

        One that a record was made without is not waited for again before it is heard: it may be dead.
        """
        return all(
            worker.left
            or worker.silent
            or worker.since_ns >= end_ns
            or worker.heard(start_ns, end_ns)
            for worker in self._workers.values()
        )

    def gather(self, iteration: int, start_ns: int, end_ns: int) -> Gathered:
        """What is here of a window; what comes later is late."""
        self._starts.append(start_ns)
        self._ends.append(end_ns)
        if len(self._ends) == 2 * _REMEMBERED:
            del self._starts[:_REMEMBERED], self._ends[:_REMEMBERED]
            self._forgot = True
        heard = {
            worker.number for worker in self._workers.values() if worker.heard(start_ns, end_ns)
        }
        missing = [
            worker.number
            for worker in self._workers.values()
            # What one wrote whose clock is not known may belong here, whether it left or not.
            if worker.number not in heard
            and worker.since_ns < end_ns
            and (worker.refused or not worker.left)
        ]
        workers: dict[str, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
        memory = []
        for worker in self._workers.values():
            worker.silent = worker.number in missing
            for instant, method, duration in sorted(worker.calls):
                if start_ns <= instant < end_ns:
                    workers[method][worker.number].append(duration)
            memory += [
                reading for instant, reading in worker.readings if start_ns <= instant < end_ns
            ]
            worker.calls = [each for each in worker.calls if each[0] >= end_ns]
            worker.readings = [each for each in worker.readings if each[0] >= end_ns]
        return Gathered(
            spmd=False,
            ranks=Ranks(1 + len(heard) + len(missing), 1 + len(heard), missing),
            workers={method: dict(calls) for method, calls in workers.items()},
            memory=memory,
            processes=list(self._processes),
            inventory=list(self._inventory.devices),
            devices=self._inventory.roles,
        )

    def _worker(self, name: str) -> _Worker:
        worker = self._workers.get(name)
        if worker is None:
            worker = self._workers[name] = _Worker(len(self._workers) + 1)
        return worker

    def _offset(self, line: ClockOffset) -> None:
        self._offsets[line.name].append(line)
        worker = self._workers.get(line.name)
        if worker is not None and worker.clock is not None:
            worker.clock.measured(line)
            worker.refused = False

    def _join(self, line: Joined) -> None:
        known = line.name in self._workers  # from before, or because it is watched
        worker = self._worker(line.name)
        worker.left = False
        worker.clock = WorkerClock(line.clock, self._clock)
        for offset in self._offsets[line.name]:
            worker.clock.measured(offset)
        started = worker.clock.place(line.started_unix_ns)
        if started is not None and not known:
            worker.since_ns = started.instant_ns
        worker.devices = self._inventory.add(line.devices)
        self._processes.append(
            Process(worker.number, line.role, line.host, line.pid, line.clock, line.name)
        )

    def _call(self, peer: Peer, worker: _Worker, line: Call) -> None:
        instant = self._placed(peer, worker, line.end_ns)
        if instant is not None:
            worker.silent = False
            worker.calls.append((instant, line.method, line.end_ns - line.start_ns))

    def _read(self, peer: Peer, worker: _Worker, memory: Memory) -> None:
        if ragged(memory):
            self._folder.fault("bad_line", peer, "readings with columns of different lengths")
            return
        for row, read_at in enumerate(memory.instant):
            instant = self._placed(peer, worker, read_at)
            if instant is not None:
                worker.silent = False
                one = _row(memory, row, instant, worker.number)
                worker.readings.append((instant, placed(one, worker.devices)))

    def _placed(self, peer: Peer, worker: _Worker, instant_ns: int) -> int | None:
        """By the driver's clock; None if that can't be told, or if its window has its record."""
        found = None if worker.clock is None else worker.clock.place(instant_ns)
        if found is None:
            if not worker.refused:
                worker.refused = True
                self._folder.fault("unknown_clock", peer, "none of its instants can be placed")
            return None
        at = bisect_right(self._starts, found.instant_ns) - 1
        if found.instant_ns < self._ends[at] if at >= 0 else self._forgot:
            self._folder.fault("late", peer, "the window of a call or reading has its record")
            return None
        return found.instant_ns


def _row(memory: Memory, row: int, instant: int, number: int) -> Memory:
    """One reading, as it stands in the records."""
    columns = {
        name: [column[row]]
        for name in Memory.__struct_fields__
        if name not in ("instant", "rank", "peak_resets")
        and (column := getattr(memory, name)) is not UNSET
    }
    resets = memory.peak_resets if row == 0 else 0
    return Memory(instant=[instant], rank=[number], peak_resets=resets, **columns)
