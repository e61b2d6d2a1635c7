"""Reads the files of the other processes on a thread of its own, and says when a window is whole.

Nothing here waits for another process, and the training thread waits for nothing here: it looks two
things up. A directory that hangs hangs this thread alone.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable
from typing import Protocol

from otel_grpo.ranks.folder import Folder, Line, OnFault, Peer
from otel_grpo.records.merge import Gathered

#: Seconds between two looks at the files, and at the run's end.
INTERVAL_S = 1.0
HURRY_S = 0.05


class Store(Protocol):
    """What is made of the lines: `Contributions` of ranks, or `Workers`.

    A window is whole if it is complete in a look that began `settle_ns` after its end.
    """

    spmd: bool
    settle_ns: int

    def wants(self, peer: Peer, waiting: Iterable[int]) -> bool: ...
    def add(self, lines: Iterable[tuple[Peer, Line]]) -> None: ...
    def complete(self, iteration: int, start_ns: int, end_ns: int) -> bool: ...
    def gather(self, iteration: int, start_ns: int, end_ns: int) -> Gathered: ...


class Collector:
    """The other processes of a job, as `otel_grpo.tracing.peers.Peers` asks for them."""

    def __init__(
        self, folder: Folder, store: Store, *, now: Callable[[], int], on_fault: OnFault
    ) -> None:
        self._folder = folder
        self._store = store
        self._now = now
        self._on_fault = on_fault
        self._lock = threading.Lock()  # of the store; never held over a file
        self._waiting: dict[int, tuple[int, int]] = {}  # closed windows without a record
        self._whole: frozenset[int] = frozenset()
        self._interval = INTERVAL_S
        self._bell = threading.Event()
        self._over = False
        self._release: Callable[[], None] = _nothing

    @property
    def spmd(self) -> bool:
        return self._store.spmd

    def start(self, release: Callable[[], None]) -> None:
        self._release = release
        threading.Thread(target=self._run, name="otel-grpo-peers", daemon=True).start()

    def ready(self, iteration: int, start_ns: int, end_ns: int, now_ns: int) -> bool:
        self._waiting.setdefault(iteration, (start_ns, end_ns))
        return iteration in self._whole

    def take(self, iteration: int, start_ns: int, end_ns: int) -> Gathered:
        # One before it that was never taken has no record: it did not fit the writer's queue.
        for waiting in list(self._waiting):  # in one step: others are added meanwhile
            if waiting <= iteration:
                self._waiting.pop(waiting, None)
        with self._lock:
            return self._store.gather(iteration, start_ns, end_ns)

    def hurry(self) -> None:
        self._interval = HURRY_S
        self._bell.set()

    def stop(self) -> None:
        self._over = True
        self._bell.set()

    def look(self) -> None:
        """Read what is new, once; OSError if the directory can't be read."""
        since = self._now()
        asked = self._waiting.copy()
        lines = [
            (peer, line)
            for peer in self._folder.peers()
            if self._store.wants(peer, asked)
            for line in self._folder.read(peer)
        ]
        waiting = self._waiting.copy()
        with self._lock:
            self._store.add(lines)
            self._whole = frozenset(
                iteration
                for iteration, (start_ns, end_ns) in waiting.items()
                if since >= end_ns + self._store.settle_ns
                and self._store.complete(iteration, start_ns, end_ns)
            )
        if waiting:
            self._release()

    def _run(self) -> None:
        while not self._over:
            try:
                self.look()
            except BaseException as error:
                with contextlib.suppress(BaseException):  # strict mode raises it, once counted
                    self._on_fault("ranks.collector", error)
            self._bell.wait(self._interval)
            self._bell.clear()


def _nothing() -> None:
    """Nobody waits yet."""
