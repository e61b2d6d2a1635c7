"""The files of `workers/` as they grow: typed lines of one attempt of one run, each once."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import msgspec

from otel_grpo.ranks.tail import Tail
from otel_grpo.records.model import (
    Joined,
    WorkerLine,
)

#: Told of what is ignored: a place that is counted, and why.
OnFault = Callable[[str, BaseException], object]

# A file of an earlier attempt, or of a process that left, is looked at this seldom unless it is seen
# to grow: over a network file system that may show late.
_SELDOM = 30

# What only a process that has joined can say.
_OF_PEERS = frozenset({"contribution", "call", "memory", "left"})
# JSON can be nested deeper than a parser follows.
UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


class _Head(msgspec.Struct):
    kind: str
    run_id: str
    attempt: int
    rank: int | None = None
    iteration: int = 0


_head = msgspec.json.Decoder(_Head).decode
_decode = msgspec.json.Decoder(WorkerLine).decode


class Spoken(NamedTuple):
    """A contribution that is not decoded yet: a thousand of them would be a million objects."""

    rank: int
    iteration: int
    raw: bytes


Line = WorkerLine | Spoken


class Peer:
    """One file, and the process that writes it once its `joined` line was read."""

    __slots__ = ("joined", "quiet", "tail")

    def __init__(self, path: Path) -> None:
        self.tail = Tail(path)
        self.joined: Joined | None = None
        self.quiet = False  # nothing more is expected in it


class Folder:
    """All files of one `workers/` directory, of which one attempt of one run is read."""

    def __init__(self, path: Path, run_id: str, attempt: int, on_fault: OnFault) -> None:
        self._path = path
        self._run_id = run_id
        self._attempt = attempt
        self._on_fault = on_fault
        self._peers: dict[str, Peer] = {}
        self._looks = 0

    def peers(self) -> list[Peer]:
        """Files that may have new lines, in the order of their names. Raises OSError.

        This process's own is the last: what it measured before a call is read no later than that.
        """
        self._looks += 1
        with os.scandir(self._path) as entries:
            for entry in entries:
                if not entry.name.endswith(".jsonl"):
                    continue
                peer = self._peers.get(entry.name)
                if peer is None:
                    self._peers[entry.name] = Peer(self._path / entry.name)
                elif peer.quiet:  # its process may go on with another attempt
                    peer.quiet = entry.stat().st_size <= peer.tail.offset
        seldom = self._looks % _SELDOM == 1
        own = f"-{os.getpid()}.jsonl"
        ordered = sorted(self._peers.items(), key=lambda each: (each[0].endswith(own), each[0]))
        return [peer for _, peer in ordered if seldom or not peer.quiet]

    def read(self, peer: Peer) -> list[Line]:
        """The new lines of a file that tell of this attempt; all others are counted and ignored."""
        lines = []
        try:
            for raw in peer.tail.lines():
                line = self._line(peer, raw)
                if line is not None:
                    lines.append(line)
        except OSError as error:
            self.fault("unreadable", peer, error.strerror or "")
        return lines

    def fault(self, place: str, peer: Peer, why: str) -> None:
        with contextlib.suppress(Exception):  # strict mode raises it, after it was counted
            self._on_fault(f"ranks.{place}", ValueError(f"{peer.tail.path.name}: {why}"))

    def _line(self, peer: Peer, raw: bytes) -> Line | None:
        try:
            head = _head(raw)
            if head.run_id != self._run_id or head.attempt > self._attempt or not head.attempt:
                self.fault("foreign", peer, f"attempt {head.attempt} of run {head.run_id}")
                return None
            earlier = head.attempt < self._attempt
            peer.quiet = earlier or head.kind == "left"
            if earlier:
                return None
            if peer.joined is None and head.kind in _OF_PEERS:
                self.fault("bad_line", peer, "no `joined` line comes first")
                return None
            if head.kind == "contribution":
                return Spoken(-1 if head.rank is None else head.rank, head.iteration, raw)
            line = _decode(raw)
        except UNREADABLE as error:
            self.fault("bad_line", peer, str(error))
            return None
        if isinstance(line, Joined):
            peer.joined = line
        return line
