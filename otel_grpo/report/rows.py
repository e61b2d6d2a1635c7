"""Slices laid out on rows, so that on each row they are nested right: none crosses another."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from otel_grpo.report.track_events import Args, Trace

# What waits for the end of a phase that is open for long; then it is drawn without its parent.
_MOST_HELD = 100_000


class Slice(NamedTuple):
    """What lasted from ``start_ns`` to ``end_ns``; below another one only if both are of one ``lane``."""

    start_ns: int
    end_ns: int
    lane: Hashable
    name: str
    args: Args


@dataclass(slots=True)
class _Row:
    track: int
    until_ns: int = 0  # what was drawn on it has ended by then
    stack: list[Slice] = field(default_factory=list)


class Rows:
    """Rows below one track. The first one has the name that is given, further ones a number, too."""

    def __init__(self, trace: Trace, name: str, parent: int, rank: int) -> None:
        self._trace = trace
        self._name = name
        self._parent = parent
        self._rank = rank
        self._rows: list[_Row] = []
        self._waiting: list[Slice] = []

    def add(self, each: Slice) -> None:
        """Take in a slice; it is drawn by the next `flush`. One that ends too early has no length."""
        if each.end_ns < each.start_ns:
            each = each._replace(end_ns=each.start_ns)
        self._waiting.append(each)

    def mark(self, at_ns: int, name: str, args: Args) -> None:
        """An instant, on the first row."""
        self._trace.instant((self._rows or [self._new()])[0].track, at_ns, name, args)

    def flush(self, open_since: Mapping[Hashable, int] | None = None) -> None:
        """Draw what has come. What lies in a slice that is still open is held until that has ended.

        Args:
            open_since: for each lane with open slices the start of the first of them.
        """
        ready, held = self._waiting, []
        if open_since and len(ready) <= _MOST_HELD:
            held = [s for s in ready if s.start_ns >= open_since.get(s.lane, s.start_ns + 1)]
            ready = [s for s in ready if s.start_ns < open_since.get(s.lane, s.start_ns + 1)]
        self._waiting = held
        # A parent before its children; of two that are equal the one that came first is outside.
        ready.sort(key=lambda each: (each.start_ns, -each.end_ns))
        self._draw(ready)

    def _draw(self, slices: list[Slice]) -> None:
        occupied = [(row.until_ns, number) for number, row in enumerate(self._rows)]
        heapq.heapify(occupied)
        free: list[int] = []
        of_lane: dict[Hashable, list[int]] = defaultdict(list)
        for each in slices:
            while occupied and occupied[0][0] <= each.start_ns:
                heapq.heappush(free, heapq.heappop(occupied)[1])
            number = self._below(each, of_lane[each.lane])
            if number is None:
                if not free:
                    self._new()
                number = heapq.heappop(free) if free else len(self._rows) - 1
                heapq.heappush(occupied, (each.end_ns, number))
                of_lane[each.lane].append(number)
                self._close(self._rows[number], each.start_ns)
            row = self._rows[number]
            row.stack.append(each)
            row.until_ns = max(row.until_ns, each.end_ns)
            self._trace.begin(row.track, each.start_ns, each.name, each.args)
        for row in self._rows:
            self._close(row, row.until_ns)

    def _below(self, each: Slice, numbers: list[int]) -> int | None:
        """The row on which its own lane has a slice open that it lies in."""
        for number in numbers.copy():
            row = self._rows[number]
            if not row.stack or row.stack[0].lane != each.lane or row.until_ns <= each.start_ns:
                numbers.remove(number)  # taken by another lane, or free for any
                continue
            self._close(row, each.start_ns)
            if each.end_ns <= row.stack[-1].end_ns:
                return number
        return None

    def _close(self, row: _Row, by_ns: int) -> None:
        while row.stack and row.stack[-1].end_ns <= by_ns:
            self._trace.end(row.track, row.stack.pop().end_ns)

    def _new(self) -> _Row:
        n = len(self._rows)
        name = f"{self._name} ({n + 1})" if n else self._name
        row = _Row(self._trace.track(name, self._parent, self._rank + n))
        self._rows.append(row)
        return row
