"""Every interval of the run that may belong to a window, open ones included."""

from __future__ import annotations

import threading
from collections import deque
from operator import attrgetter
from typing import NamedTuple

import msgspec

from otel_grpo import semconv


class Row(msgspec.Struct, gc=False):
    """One span with a phase. Ids are numbers; ``end`` is None while it is open.

    A struct because C code makes it: each function of Python that a phase goes through costs the
    training thread microseconds, for in a training none of them is in a cache.
    """

    id: int
    parent: int | None
    phase: str
    start: int
    end: int | None
    lane: int
    flags: int


_TRAINING = frozenset({semconv.POLICY_TRAIN, semconv.OPTIMIZER})
# An update may be made of several windows, a loop may report none at all.
_MOST_TRAINING = 100_000
_START_AND_ID = attrgetter("start", "id")
# Spans of others go on while no window is open.
_MOST_WAITING = 10_000


class Snapshot(NamedTuple):
    """The rows of a window and more, as they were when it was closed; a later thread sorts them."""

    closed: list[Row]
    opened: list[Row]
    foreign: list[int]  # when each ended

    def rows(self, end: int) -> list[Row]:
        """The rows of the window that closed at `end`, in the order of their starts.

        Rows that reach over the end have ``end`` None here, and come again in the next window.
        """
        rows = [
            _still_open(row) if row.end is None or row.end > end else row
            for row in (*self.closed, *self.opened)
            if row.start < end
        ]
        rows.sort(key=_START_AND_ID)
        return rows

    def foreign_spans(self, end: int) -> int:
        return sum(at < end for at in self.foreign)


class Account:
    """Rows of the open window. Calls come from any thread; each holds the lock for a moment."""

    def __init__(self) -> None:
        # Reentrant: a signal handler or the garbage collector may end a span while we hold it.
        self._lock = threading.RLock()
        #: By id. A row is put here where it is made, in one step under the interpreter's lock.
        self.open: dict[int, Row] = {}
        self._closed: list[Row] = []
        self._training: deque[Row] = deque(maxlen=_MOST_TRAINING)
        self._foreign: list[int] = []  # when each ended
        self._collecting = False

    def end(self, span_id: int, end: int, flags: int) -> bool:
        """Close a row; False if there is none (its phase was set later)."""
        with self._lock:
            row = self.open.pop(span_id, None)
            if row is None:
                return False
            row.end = end
            row.flags |= flags
            # Also between two windows: where they tile, the next one starts before it is opened.
            self._closed.append(row)
            if not self._collecting:
                del self._closed[:-_MOST_WAITING]
            if row.phase in _TRAINING:
                self._training.append(row)
            return True

    def count_foreign(self, end: int) -> None:
        """A span without a phase, made by another library, ended."""
        with self._lock:
            self._foreign.append(end)
            if not self._collecting:
                del self._foreign[:-_MOST_WAITING]

    def open_rows(self) -> list[Row]:
        with self._lock:
            return list(self.open.values())

    def begin(self, start: int) -> None:
        """A window opens at `start`: what ended before it is forgotten."""
        with self._lock:
            self._forget(start)
            self._collecting = True

    def snapshot(self) -> Snapshot:
        """What there is now, for the window that is about to be closed."""
        with self._lock:
            opened = [_still_open(row) for row in self.open.values()] if self.open else []
            return Snapshot(self._closed.copy(), opened, self._foreign.copy())

    def close(self, end: int) -> None:
        """The window is closed at `end`: forget what lies before it."""
        with self._lock:
            self._forget(end)
            self._collecting = False

    def _forget(self, before: int) -> None:
        if self._closed:
            self._closed = [row for row in self._closed if row.end is None or row.end > before]
        if self._foreign:
            self._foreign = [at for at in self._foreign if at >= before]

    def take_training(self) -> list[Row]:
        """Rows of training and optimizer since the last call; open ones have ``end`` None."""
        with self._lock:
            rows = list(self._training)
            self._training.clear()
            return rows + [_still_open(row) for row in self.open.values() if row.phase in _TRAINING]


def _still_open(row: Row) -> Row:
    return Row(row.id, row.parent, row.phase, row.start, None, row.lane, row.flags)
