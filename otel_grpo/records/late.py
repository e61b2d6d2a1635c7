"""Contributions that are in no record, because they came after it: for the totals that `finish` makes.

They came late, or their rank had a directory of its own and its files were copied in. Records are
never changed: a window is merged again with what was missing, and its totals are those of the result.
"""

from __future__ import annotations

import os
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

import msgspec
from msgspec import UNSET

from otel_grpo.records import build
from otel_grpo.records.inventory import Inventory, place_contribution
from otel_grpo.records.merge import Gathered, merge
from otel_grpo.records.model import (
    Attempt,
    Contribution,
    Joined,
    Ranks,
    Record,
    RolloutRecord,
    RunFile,
    SampleRun,
    TrainRecord,
    World,
)
from otel_grpo.records.reader import BadLine, Line, SpokenHead
from otel_grpo.records.sample_table import flaw

_decode = msgspec.json.Decoder(Contribution).decode


class Attempts:
    """Which attempt a line of `workers/` is of."""

    def __init__(self, run: RunFile) -> None:
        self._run_id = run.run_id
        self._known = {attempt.attempt for attempt in run.attempts}
        self._launches = {f"launch:{each.launch}": each.attempt for each in run.attempts}

    def of(self, run_id: str, attempt: int) -> int | None:
        """Its number; None if it is not of this run.

        0 is told by a process that never found the run's directory: by its launch it is known, or
        by the run's id, and then it is the latest.
        """
        if attempt == 0 and run_id in self._launches:
            return self._launches[run_id]
        if run_id != self._run_id:
            return None
        if attempt == 0:
            return max(self._known)
        return attempt if attempt in self._known else None


class _Share(NamedTuple):
    """Where a contribution stands: a thousand ranks over a long run are too much to hold."""

    path: Path
    line: int
    start: int
    size: int
    joined: Joined


class Late:
    """The contributions of one attempt that its records lack.

    Attributes:
        world: of the attempt, with the devices of ranks that rank 0 never heard of.
        merged: how many contributions came in.
    """

    def __init__(self, attempt: Attempt, missing: dict[int, set[int]]) -> None:
        """`missing`: ranks that the record of an iteration lacks."""
        self.merged = 0
        self._attempt = attempt
        self._missing = missing
        self._inventory = Inventory(attempt.world.devices, None)
        self._known = {(each.rank, each.host, each.pid) for each in attempt.processes}
        self._shares: dict[int, dict[int, _Share]] = defaultdict(dict)
        self._trains: dict[int, list[TrainRecord]] = defaultdict(list)

    @property
    def world(self) -> World:
        return msgspec.structs.replace(self._attempt.world, devices=self._inventory.devices)

    def join(self, joined: Joined) -> None:
        """A rank of which there are lines."""
        if joined.rank is not None and (joined.rank, joined.host, joined.pid) not in self._known:
            self._inventory.add(joined.devices)

    def note(self, path: Path, line: Line, head: SpokenHead, joined: Joined | None) -> None:
        """A contribution; the first of a rank to a window counts."""
        if joined is not None and head.rank in self._missing.get(head.iteration, ()):
            share = _Share(path, line.number, line.start, len(line.raw), joined)
            self._shares[head.iteration].setdefault(head.rank, share)

    def complete(self, record: Record) -> Record:
        """The record as it would be with what was missing; records come in the order of the file."""
        if record.iteration not in self._shares:
            return record
        if isinstance(record, TrainRecord):
            self._trains[record.iteration].append(record)
        if not isinstance(record, RolloutRecord):
            return record
        shares = self._shares.pop(record.iteration)
        late = {rank: self._read(share, rank) for rank, share in shares.items()}
        self.merged += len(late)
        said = record.attributes.ranks
        missing = [rank for rank in said.missing if rank not in late]
        ranks = Ranks(said.expected, said.received + len(late), missing)
        devices = self._devices(record, [share.joined for share in shares.values()])
        gathered = Gathered(True, ranks, late, devices=devices)
        own = self._own(record, self._trains.pop(record.iteration, []))
        attributes = merge(own, gathered, applied=0).attributes
        metrics = build.rollout_metrics(attributes)
        return msgspec.structs.replace(record, attributes=attributes, metrics=metrics)

    def _read(self, share: _Share, rank: int) -> Contribution:
        fd = os.open(share.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            contribution = _decode(os.pread(fd, share.size, share.start))
        except msgspec.MsgspecError as error:
            raise BadLine(share.path, share.line, f"is no contribution ({error})") from None
        finally:
            os.close(fd)
        if contribution.rank != share.joined.rank or contribution.rank != rank:
            raise BadLine(share.path, share.line, f"speaks for rank {contribution.rank}")
        if (why := flaw(contribution)) is not None:
            raise BadLine(share.path, share.line, f"does not fit together: {why}")
        return place_contribution(contribution, self._inventory.add(share.joined.devices))

    def _devices(
        self, record: RolloutRecord, processes: list[Joined]
    ) -> list[tuple[int, list[str]]] | None:
        """The record's, and those of the late ranks."""
        stored = record.attributes.devices
        if stored is UNSET:
            return None
        devices = Inventory(self._inventory.devices, stored)
        for joined in processes:
            devices.add(joined.devices)
        return devices.roles

    def _own(self, record: RolloutRecord, trains: list[TrainRecord]) -> Contribution:
        samples: list[list[SampleRun]] = [train.attributes.samples for train in trains]
        trained = [train.attributes.trained for train in trains]
        return Contribution(
            record.run_id,
            record.attempt,
            0,
            record.iteration or 0,
            record.attributes,
            {},
            samples,
            [None if tokens is UNSET else tokens for tokens in trained],
        )
