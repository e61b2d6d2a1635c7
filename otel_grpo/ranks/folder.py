"""The files of `workers/` as they grow: typed lines of one attempt of one run, each once."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

import msgspec

from otel_grpo.ranks.tail import Tail
from otel_grpo.records.model import (
    ClockOffset,
    Contribution,
    Joined,
    Left,
    PublicationCompleted,
    WindowOpened,
    WorkerLine,
)
from otel_grpo.records.sample_table import flaw

#: Told of what is ignored: a place that is counted, and why.
OnFault = Callable[[str, BaseException], object]

# A file of an earlier attempt, or of a process that left, is looked at this seldom: another process
# of the same name and number may go on in it.
_SELDOM = 30

# What stands in the driver's own file.
_OF_DRIVER = (WindowOpened, PublicationCompleted, ClockOffset)
_decode = msgspec.json.Decoder(WorkerLine).decode
# JSON can be nested deeper than a parser follows.
_UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


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
        """Files that may have new lines, in the order of their names. Raises OSError."""
        self._looks += 1
        with os.scandir(self._path) as entries:
            names = [entry.name for entry in entries if entry.name.endswith(".jsonl")]
        for name in names:
            if name not in self._peers:
                self._peers[name] = Peer(self._path / name)
        seldom = self._looks % _SELDOM == 1
        return [peer for _, peer in sorted(self._peers.items()) if seldom or not peer.quiet]

    def read(self, peer: Peer) -> list[WorkerLine]:
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

    def _line(self, peer: Peer, raw: bytes) -> WorkerLine | None:
        try:
            line = _decode(raw)
        except _UNREADABLE as error:
            self.fault("bad_line", peer, str(error))
            return None
        if line.run_id != self._run_id or line.attempt > self._attempt or not line.attempt:
            self.fault("foreign", peer, f"attempt {line.attempt} of run {line.run_id}")
            return None
        peer.quiet = line.attempt < self._attempt or isinstance(line, Left)
        if line.attempt < self._attempt:
            return None
        if isinstance(line, Joined):
            peer.joined = line
        elif not isinstance(line, _OF_DRIVER) and peer.joined is None:
            self.fault("bad_line", peer, "no `joined` line comes first")
            return None
        if isinstance(line, Contribution) and (why := flaw(line)):
            self.fault("bad_line", peer, why)
            return None
        return line
