"""What the ranks of an SPMD trainer contributed to windows that have no record yet."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from otel_grpo.ranks.folder import UNREADABLE, Folder, Line, Peer, Spoken
from otel_grpo.records.inventory import Inventory, place_contribution
from otel_grpo.records.merge import Gathered
from otel_grpo.records.model import Contribution, Joined, Left, Process, Ranks
from otel_grpo.records.sample_table import flaw

_decode = msgspec.json.Decoder(Contribution).decode

# Of so many windows that lack ranks it is known which: where all are missing always, that is a set
# of a thousand for each. What comes for one before them is late.
_REMEMBERED = 100


class Contributions:
    """Of each rank but 0, by iteration."""

    spmd = True
    settle_ns = 0

    def __init__(self, folder: Folder, world: int, inventory: Inventory) -> None:
        self._folder = folder
        self._world = world
        self._inventory = inventory
        self._here: dict[int, dict[int, tuple[Peer, Spoken]]] = {}
        self._taken = 0  # the last iteration that has its record
        self._missing: dict[int, set[int]] = {}  # of those that lack a rank
        self._forgotten = 0  # the last of those that are not remembered
        self._left: set[int] = set()
        self._devices: dict[int, list[int]] = {}
        self._processes: list[Process] = []

    def wants(self, peer: Peer, waiting: Iterable[int]) -> bool:
        """Whether the file may hold what a window waits for."""
        if peer.joined is None:
            return True
        return any(peer.joined.rank not in self._of(iteration) for iteration in waiting)

    def add(self, lines: Iterable[tuple[Peer, Line]]) -> None:
        """Take new lines in."""
        for peer, line in lines:
            if isinstance(line, Joined):
                self._join(line)
            elif isinstance(line, Spoken):
                self._contribute(peer, line)
            elif isinstance(line, Left) and peer.joined is not None:
                self._left.add(peer.joined.rank or 0)

    def complete(self, iteration: int, start_ns: int, end_ns: int) -> bool:
        """Whether every rank has contributed, or left and never will."""
        return len(self._left | self._of(iteration).keys() | {0}) >= self._world

    def gather(self, iteration: int, start_ns: int, end_ns: int) -> Gathered:
        """What is here of a window; what comes later is late."""
        spoken = self._here.pop(iteration, {})
        here = {
            rank: share
            for rank, (peer, line) in spoken.items()
            if (share := self._decoded(peer, line)) is not None
        }
        for earlier in [each for each in self._here if each < iteration]:
            del self._here[earlier]  # of windows that nobody asked for
        missing = set(range(1, self._world)) - here.keys()
        self._taken = max(self._taken, iteration)
        if missing:
            self._missing[iteration] = set(missing)
        if len(self._missing) > _REMEMBERED:
            self._forgotten = next(iter(self._missing))
            del self._missing[self._forgotten]
        return Gathered(
            spmd=True,
            ranks=Ranks(self._world, self._world - len(missing), sorted(missing)),
            contributions=here,
            processes=list(self._processes),
            inventory=list(self._inventory.devices),
            devices=self._inventory.roles,
        )

    def _of(self, iteration: int) -> dict[int, tuple[Peer, Spoken]]:
        return self._here.get(iteration, {})

    def _decoded(self, peer: Peer, line: Spoken) -> Contribution | None:
        try:
            share = _decode(line.raw)
        except UNREADABLE as error:
            self._folder.fault("bad_line", peer, str(error))
            return None
        if (why := flaw(share)) is not None:
            self._folder.fault("bad_line", peer, why)
            return None
        return place_contribution(share, self._devices.get(line.rank, ()))

    def _join(self, line: Joined) -> None:
        rank = line.rank or 0
        self._left.discard(rank)
        self._devices[rank] = self._inventory.add(line.devices)
        self._processes.append(Process(rank, line.role, line.host, line.pid, line.clock, line.name))

    def _contribute(self, peer: Peer, line: Spoken) -> None:
        rank = line.rank
        if peer.joined is None or peer.joined.rank != rank or not 0 < rank < self._world:
            self._folder.fault("bad_line", peer, f"speaks for rank {rank}")
        elif rank in self._of(line.iteration):
            self._folder.fault("twice", peer, f"iteration {line.iteration} again")
        elif line.iteration > self._taken:
            self._here.setdefault(line.iteration, {})[rank] = peer, line
        elif line.iteration <= self._forgotten or rank in self._missing.get(line.iteration, ()):
            self._missing.get(line.iteration, set()).discard(rank)
            self._folder.fault("late", peer, f"iteration {line.iteration} has its record")
        else:
            self._folder.fault("twice", peer, f"iteration {line.iteration} again")
