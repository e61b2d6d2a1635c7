"""Calls and readings of workers, placed in windows by the clocks, held against the records."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from msgspec import UnsetType

from otel_grpo.audit.contributed import Place
from otel_grpo.audit.peers import INSTANT, Row, Timed, Timeline, rows
from otel_grpo.audit.report import ABSENT
from otel_grpo.records.model import RolloutAttributes


class _Pile:
    """What may lie in a window: things that do for certain are taken before the others."""

    def __init__(self) -> None:
        self.certain: Counter[object] = Counter()
        self.possible: Counter[object] = Counter()

    def take(self, what: object) -> bool:
        for pile in (self.certain, self.possible):
            if pile[what] > 0:
                pile[what] -= 1
                return True
        return False


def check_placed(at: Place, a: RolloutAttributes, workers: Mapping[int, Sequence[Timeline]]) -> int:
    """Every call and reading that the record says a worker gave is in the worker's file.

    A process without a known clock gives none: no instant of its own can be compared. One that was
    started again has several files under one number.

    Returns:
        How many lie in the window for certain and are not in its record: they were late.
    """
    late = 0
    start, end = a.window.start_ns, a.window.end_ns
    readings: dict[object, list[Row]] = defaultdict(list)
    if not isinstance(a.memory, UnsetType):
        for row in rows(a.memory):
            readings[row[0]].append(row)
    for rank, files in workers.items():
        piles: dict[str | None, _Pile] = defaultdict(_Pile)
        for timed in (t for each in files for t in each.window(start, end)):
            pile = piles[timed.method]
            certain = timed.earliest >= start and timed.latest < end
            (pile.certain if certain else pile.possible)[_key(timed)] += 1
        for method, ranks in a.workers.items():
            stored = ranks.get(str(rank), [])
            at.checked(len(stored))
            lost = [ns for ns in stored if not piles[method].take(ns)]
            if lost:
                name = f"attributes.workers.{method}.{rank}"
                at.wrong(name, _why(rank, files, "call of that length"), None, lost[0], ABSENT)
        pile = piles[None]
        own = readings.get(rank, [])
        at.checked(len(own))
        missed = [row for row in own if not pile.take(row) and not pile.take(_timeless(row))]
        if missed:
            message = _why(rank, files, "such reading")
            at.wrong("attributes.memory", message, None, f"instant {missed[0][INSTANT]}", ABSENT)
        late += sum(pile.certain.total() for pile in piles.values())
    return late


def _key(timed: Timed) -> object:
    """A reading whose instant is known only to a bound is told by the rest of it."""
    if isinstance(timed.what, int) or timed.earliest == timed.latest:
        return timed.what
    return _timeless(timed.what)


def _timeless(row: Row) -> Row:
    return (*row[:INSTANT], None, *row[INSTANT + 1 :])


def _why(rank: int, files: Sequence[Timeline], what: str) -> str:
    names = ", ".join(each.peer.file for each in files)
    if not any(each.clock.known for each in files):
        return f"the clock of rank {rank} is not known: {names}"
    return f"rank {rank} has no {what} in this window: {names}"
