"""Calls and readings of workers, placed in windows by the clocks, held against the records."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from msgspec import UnsetType

from otel_grpo.audit.contributed import Place
from otel_grpo.audit.peers import Row, Timed, Timeline, rows
from otel_grpo.audit.report import ABSENT
from otel_grpo.records.model import RolloutAttributes


@dataclass
class Late:
    """What lies in a window for certain and is not in its record."""

    calls: list[tuple[str, int, int]] = field(default_factory=list)  # method, rank, nanoseconds
    readings: list[Row] = field(default_factory=list)


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


def check_placed(at: Place, a: RolloutAttributes, timelines: Iterable[Timeline]) -> Late:
    """Every call and reading that the record says a worker gave is in the worker's file.

    A process without a known clock gives none: no instant of its own can be compared.
    """
    late = Late()
    start, end = a.window.start_ns, a.window.end_ns
    readings: dict[object, list[Row]] = defaultdict(list)
    if not isinstance(a.memory, UnsetType):
        for row in rows(a.memory):
            readings[row[0]].append(row)
    for each in timelines:
        piles: dict[str | None, _Pile] = defaultdict(_Pile)
        instants: dict[object, Row] = {}
        for timed in each.window(start, end) if each.clock.known else ():
            pile = piles[timed.method]
            certain = timed.earliest >= start and timed.latest < end
            (pile.certain if certain else pile.possible)[_key(timed)] += 1
            if timed.method is None and isinstance(timed.what, tuple):
                instants[_key(timed)] = timed.what
        for method, ranks in a.workers.items():
            stored = ranks.get(str(each.rank), [])
            at.checked(len(stored))
            lost = [ns for ns in stored if not piles[method].take(ns)]
            if lost:
                name = f"attributes.workers.{method}.{each.rank}"
                at.wrong(name, _why(each, "call of that length"), None, lost[0], ABSENT)
        own = readings.get(each.rank, [])
        at.checked(len(own))
        lost_rows = [row for row in own if not piles[None].take(_without_instant(row))]
        if lost_rows:
            message = _why(each, "such reading")
            at.wrong("attributes.memory", message, None, f"instant {lost_rows[0][4]}", ABSENT)
        for kind, pile in piles.items():
            for what in pile.certain.elements():
                if kind is None:
                    late.readings.append(instants[what])
                elif isinstance(what, int):
                    late.calls.append((kind, each.rank, what))
    return late


def _key(timed: Timed) -> object:
    return timed.what if isinstance(timed.what, int) else _without_instant(timed.what)


def _without_instant(row: Row) -> Row:
    # The records have it by the driver's clock, the file by the worker's own.
    return (*row[:4], *row[5:])


def _why(each: Timeline, what: str) -> str:
    if not each.clock.known:
        return f"the clock of rank {each.rank} is not known: {each.peer.file}"
    return f"rank {each.rank} has no {what} in this window: {each.peer.file}"
