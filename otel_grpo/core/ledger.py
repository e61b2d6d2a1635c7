"""The account of samples, tokens and updates: each sample's tokens once, each visit every time.

`Ledger` takes events as they happen and is cheap: it stores. `resolve` turns the events of a closed
window into the evidence of its record.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import numpy as np

from otel_grpo.core.atomic import at_once
from otel_grpo.core.columns import Ints, total

RolloutId = str | int
# rollout id, first index, number of samples
Run = tuple[RolloutId, int, int]

# Trained lengths of earlier windows are kept for this many samples (8 bytes each): a visit of an
# older one still counts, its tokens are then not known.
HISTORY_SAMPLES = 2_000_000
# And the ids of this many visits (8 bytes each) that wait for an update: a loop may report none.
WAITING_SAMPLES = 4_000_000

# The columns of evidence that `consumed` may give, one value per sample.
COLUMNS = (
    "prompt_lengths",
    "completion_lengths",
    "trained_lengths",
    "environment_lengths",
    "group_ids",
    "policy_lag",
)


@dataclass(frozen=True, slots=True)
class Samples:
    """Ids of samples of one rollout: ``(rollout_id, index)`` for each index, in order.

    Slices, index lists and masks give ids again: ``samples[:8]``, ``samples[[3, 1]]``. What names no
    sample gives none and raises nothing: the training goes on where its batch could not be counted.
    """

    rollout_id: RolloutId
    indices: Sequence[int] | Ints

    def __len__(self) -> int:
        return len(self.indices)

    def __iter__(self) -> Iterator[tuple[RolloutId, int]]:
        return ((self.rollout_id, index) for index in self.indices)

    def __getitem__(self, key: int | slice | Sequence[int]) -> Samples:
        if isinstance(key, slice):
            return Samples(self.rollout_id, self.indices[key])
        n = len(self.indices)
        try:
            keys = [key] if isinstance(key, (int, np.integer)) else list(key)
            if len(keys) == n and all(isinstance(each, (bool, np.bool_)) for each in keys):
                keys = [position for position, marked in enumerate(keys) if marked]
            chosen = [self.indices[position] for position in keys if -n <= position < n]
        except Exception:  # whatever a user's object raises
            chosen = []
        return Samples(self.rollout_id, chosen)


class Batch(NamedTuple):
    """Consecutive samples of one rollout as they are consumed, with the columns that are known."""

    rollout_id: RolloutId
    first: int
    n: int
    columns: dict[str, Ints]
    truncated: Ints | None  # positions inside the batch

    def read(self) -> Batch:
        return self


class UnreadBatch:
    """The same while its columns are what the trainer made: who needs them reads them, once.

    Args:
        reader: gives the batch. Where it raises, the samples are known and their columns are not.
    """

    __slots__ = ("_batch", "_reader", "first", "n", "rollout_id")

    def __init__(
        self, rollout_id: RolloutId, first: int, n: int, reader: Callable[[], Batch]
    ) -> None:
        self.rollout_id = rollout_id
        self.first = first
        self.n = n
        self._batch = Batch(rollout_id, first, n, {}, None)
        self._reader: Callable[[], Batch] | None = reader

    def __len__(self) -> int:
        return self.n

    @property
    def unread(self) -> bool:
        """Whether what the trainer made is held still."""
        return self._reader is not None

    def read(self) -> Batch:
        reader, self._reader = self._reader, None
        if reader is not None:
            self._batch = reader()
        return self._batch


class Visit(NamedTuple):
    """A training pass over samples of one rollout: a slice of a batch, or any of them."""

    rollout_id: RolloutId
    indices: Ints | range


class UpdateEvent(NamedTuple):
    """An attempted update with the visits that were accumulated into it."""

    step: int
    start_ns: int
    end_ns: int
    samples: int
    nominal: int | None
    status: str
    reason: str | None
    ranks: tuple[int, ...]


@dataclass(slots=True)
class WindowEvents:
    """What was reported in one window, in the order of the reports."""

    consumed: list[Batch | UnreadBatch] = field(default_factory=list)
    visits: list[Visit] = field(default_factory=list)
    generated: list[Run] = field(default_factory=list)
    discarded: list[tuple[str, int, int | None]] = field(default_factory=list)
    updates: list[UpdateEvent] = field(default_factory=list)
    padding: int | None = None
    pending: int = 0


class Ledger:
    """Events of the open window, and the levels that go on over windows."""

    def __init__(self) -> None:
        self.window = WindowEvents()
        self.applied = 0
        self.pending = 0
        self._waiting: deque[Visit] = deque()  # visits that no update has taken, oldest first
        self._unnamed = 0  # those before them, whose ids are forgotten
        self._known: dict[RolloutId, list[tuple[int, int]]] = {}
        self.trained = TrainedLengths()

    def consume(self, batch: Batch | UnreadBatch) -> int:
        """Count the samples of a batch that were never consumed before; returns their number.

        A sample that comes again (replay) is no new sample: its visits are `revisited`.
        """
        known = self._known.setdefault(batch.rollout_id, [])
        start, stop = batch.first, batch.first + batch.n
        if not known and batch.n:  # the usual case, as below
            self.window.consumed.append(batch)
            known.append((start, batch.n))
            self.trained.remember(batch)
            return batch.n
        fresh: list[tuple[int, int]] = []  # what lies between the known ones
        # Sorted and disjoint: those before the batch's neighbour can't reach into it.
        at = max(bisect_left(known, (start,)) - 1, 0)
        while at < len(known) and known[at][0] < stop:
            if start < known[at][0]:
                fresh.append((start, known[at][0]))
            start = max(start, sum(known[at]))
            at += 1
        if start < stop:
            fresh.append((start, stop))
        for start, stop in fresh:
            part = _part(batch, start - batch.first, stop - batch.first)
            self.window.consumed.append(part)
            at = bisect_left(known, (start,))
            if at and sum(known[at - 1]) == start:
                known[at - 1] = (known[at - 1][0], known[at - 1][1] + part.n)
            else:
                known.insert(at, (start, part.n))
            self.trained.remember(part)
        return sum(stop - start for start, stop in fresh)

    def visit(self, visits: Iterable[Visit]) -> None:
        """Count one training pass over each sample."""
        for visit in visits:
            at_once(
                partial(self.window.visits.append, visit),
                partial(self._waiting.append, visit),
                partial(setattr, self, "pending", self.pending + len(visit.indices)),
            )
            while self.pending - self._unnamed > WAITING_SAMPLES:
                unnamed = self._unnamed + len(self._waiting[0].indices)
                at_once(self._waiting.popleft, partial(setattr, self, "_unnamed", unnamed))

    def mark(self) -> LedgerMark:
        """What `take` and `update` change, to go `back_to` where one of them was interrupted."""
        return LedgerMark(
            self.applied,
            self.pending,
            self._waiting.copy(),
            self._unnamed,
            len(self.window.updates),
        )

    def back_to(self, mark: LedgerMark) -> None:
        """Undo an update that was not told to its end."""
        self.applied, self.pending, self._waiting, self._unnamed, updates = mark
        del self.window.updates[updates:]

    def take(self, samples: int | None = None) -> list[Visit]:
        """The visits that an update is made from: the oldest `samples` waiting ones, or all.

        Fewer are given where ids of the oldest are forgotten.
        """
        if samples is None:
            taken, self._waiting = list(self._waiting), deque()
            self.pending = self._unnamed = 0
            return taken
        if not 0 <= samples <= self.pending:
            raise ValueError(f"an update of {samples} samples after {self.pending} pending visits")
        taken = []
        unnamed = min(samples, self._unnamed)
        left = samples - unnamed
        self._unnamed -= unnamed
        while left:
            visit = self._waiting.popleft()
            if len(visit.indices) > left:
                self._waiting.appendleft(Visit(visit.rollout_id, visit.indices[left:]))
                visit = Visit(visit.rollout_id, visit.indices[:left])
            taken.append(visit)
            left -= len(visit.indices)
        self.pending -= samples
        return taken

    def update(
        self,
        start_ns: int,
        end_ns: int,
        samples: int,
        nominal: int | None,
        status: str,
        reason: str | None = None,
        ranks: tuple[int, ...] = (),
    ) -> UpdateEvent:
        """Count an attempted update; only `applied` ones advance the step."""
        if status == "applied":
            self.applied += 1
        event = UpdateEvent(self.applied, start_ns, end_ns, samples, nominal, status, reason, ranks)
        self.window.updates.append(event)
        return event

    def close(self) -> WindowEvents:
        """The events since the last call."""
        events = self.closing()
        self.window = WindowEvents()
        return events

    def closing(self) -> WindowEvents:
        """The events of the window as they would be closed now."""
        self.window.pending = self.pending
        return self.window


class LedgerMark(NamedTuple):
    """A state of the ledger between two updates."""

    applied: int
    pending: int
    waiting: deque[Visit]
    unnamed: int
    updates: int


class WindowCounts(NamedTuple):
    """The evidence of one window: columns over the consumed samples, in the order consumed."""

    samples: list[Run]
    columns: dict[str, Ints]  # those that are known for every consumed sample
    visit_counts: Ints
    truncated: list[int] | None
    revisited: list[tuple[RolloutId, int, int, int, int | None]]

    def status(self, updates: Iterable[UpdateEvent], *, discarded: bool) -> str:
        """`complete`, or `partial` for a tail, an unvisited sample or a dropped batch."""
        tail = any(
            u.status == "applied" and u.nominal is not None and u.samples < u.nominal
            for u in updates
        )
        unvisited = len(self.visit_counts) > 0 and int(self.visit_counts.min()) == 0
        dropped = discarded and not self.samples
        return "partial" if tail or unvisited or dropped else "complete"


class TrainedLengths:
    """Tokens under the loss mask of each sample, the oldest samples forgotten beyond a bound."""

    def __init__(self, bound: int = HISTORY_SAMPLES) -> None:
        self._bound = bound
        self._held = 0
        self._parts: OrderedDict[tuple[RolloutId, int], Ints | UnreadBatch] = OrderedDict()
        self._firsts: dict[RolloutId, list[int]] = defaultdict(list)

    def remember(self, batch: Batch | UnreadBatch) -> None:
        lengths = batch.columns.get("trained_lengths") if isinstance(batch, Batch) else batch
        if lengths is None:
            return
        self._parts[batch.rollout_id, batch.first] = lengths
        insort(self._firsts[batch.rollout_id], batch.first)
        self._held += batch.n
        while self._held > self._bound:
            (rollout_id, first), oldest = self._parts.popitem(last=False)
            firsts = self._firsts[rollout_id]
            del firsts[bisect_left(firsts, first)]
            self._held -= len(oldest)

    def of(self, rollout_id: RolloutId, indices: Ints | range) -> Ints:
        """Length of each sample, in order; -1 where it is not known. Shape of `indices`."""
        known = self._firsts.get(rollout_id, ())
        if isinstance(indices, range) and (at := bisect_right(known, indices.start)):
            first = known[at - 1]
            part = self._part(rollout_id, first)
            if part is not None and indices.stop <= first + len(part):
                return part[indices.start - first : indices.stop - first]
        indices = _array(indices)
        lengths = np.full(len(indices), -1, dtype=np.int64)
        firsts = np.array(known, dtype=np.int64)
        part_of = np.searchsorted(firsts, indices, side="right") - 1
        for position in np.flatnonzero(np.bincount(part_of + 1)[1:]).tolist():
            first = int(firsts[position])
            part = self._part(rollout_id, first)
            if part is not None:
                inside = (part_of == position) & (indices < first + len(part))
                lengths[inside] = part[indices[inside] - first]
        return lengths

    def _part(self, rollout_id: RolloutId, first: int) -> Ints | None:
        part = self._parts.get((rollout_id, first))
        if not isinstance(part, UnreadBatch):
            return part
        known = part.read().columns.get("trained_lengths")
        lengths = np.full(part.n, -1, dtype=np.int64) if known is None else known
        self._parts[rollout_id, first] = lengths
        return lengths

    def total(self, visits: Iterable[Visit]) -> int | None:
        """Tokens of one pass over all of them; None when one is not known."""
        tokens = 0
        for rollout_id, indices in _by_rollout(visits).items():
            lengths = self.of(rollout_id, indices)
            if len(lengths) and int(lengths.min()) < 0:
                return None
            tokens += total(lengths)
        return tokens


_NO_PLACES = (np.zeros(0, dtype=np.int64),) * 3


def resolve(events: WindowEvents, trained: TrainedLengths) -> WindowCounts:
    """The evidence of a closed window."""
    batches = [batch.read() for batch in events.consumed]
    places = _places(batches)
    visit_counts = np.zeros(sum(batch.n for batch in batches), dtype=np.int64)
    earlier: dict[RolloutId, Ints] = {}
    for rollout_id, visited in _by_rollout(events.visits).items():
        firsts, ends, offsets = places.get(rollout_id, _NO_PLACES)
        if isinstance(visited, range):
            at = np.searchsorted(firsts, visited.start, side="right") - 1
            if at >= 0 and visited.stop <= ends[at]:
                row = offsets[at] + visited.start - firsts[at]
                visit_counts[row : row + len(visited)] += 1
                continue
        indices = _array(visited)
        part_of = np.searchsorted(firsts, indices, side="right") - 1
        inside = part_of >= 0
        inside[inside] = indices[inside] < ends[part_of[inside]]
        part_of = part_of[inside]
        rows = offsets[part_of] + indices[inside] - firsts[part_of]
        visit_counts += np.bincount(rows, minlength=len(visit_counts))
        earlier[rollout_id] = indices[~inside]
    return WindowCounts(
        samples=merge_runs((b.rollout_id, b.first, b.n) for b in batches),
        columns={
            name: np.concatenate([batch.columns[name] for batch in batches])
            for name in COLUMNS
            if batches and all(name in batch.columns for batch in batches)
        },
        visit_counts=visit_counts,
        truncated=_truncated(batches),
        revisited=[
            row
            for rollout_id, indices in earlier.items()
            if len(indices)
            for row in _revisited(rollout_id, indices, trained)
        ],
    )


def _by_rollout(visits: Iterable[Visit]) -> dict[RolloutId, Ints | range]:
    """The indices of all visits of each rollout, in the order visited.

    A range where they are slices that follow each other, as in a pass over a batch: the usual case,
    which needs no look at each sample.
    """
    parts: dict[RolloutId, list[Ints | range]] = defaultdict(list)
    for rollout_id, indices in visits:
        if not len(indices):
            continue
        those = parts[rollout_id]
        last = those[-1] if those else None
        if isinstance(indices, range) and isinstance(last, range) and _continues(last, indices):
            those[-1] = range(last.start, indices.stop)
        else:
            those.append(indices)
    return {
        rollout_id: those[0]
        if len(those) == 1 and isinstance(those[0], range) and those[0].step == 1
        else np.concatenate([*map(_array, those)])
        for rollout_id, those in parts.items()
    }


def _continues(last: range, indices: range) -> bool:
    return last.step == indices.step == 1 and last.stop == indices.start


def _array(indices: Ints | range) -> Ints:
    if isinstance(indices, range):
        return np.arange(indices.start, indices.stop, indices.step, dtype=np.int64)
    return indices


def _places(batches: Sequence[Batch]) -> dict[RolloutId, tuple[Ints, Ints, Ints]]:
    """For each rollout its batches by first index: firsts, ends, and rows in the columns."""
    rows: dict[RolloutId, list[tuple[int, int, int]]] = defaultdict(list)
    offset = 0
    for batch in batches:
        rows[batch.rollout_id].append((batch.first, batch.first + batch.n, offset))
        offset += batch.n
    return {
        rollout_id: tuple(np.array(sorted(each), dtype=np.int64).T)
        for rollout_id, each in rows.items()
    }


def _revisited(
    rollout_id: RolloutId, indices: Ints, trained: TrainedLengths
) -> list[tuple[RolloutId, int, int, int, int | None]]:
    """Rows of samples of earlier windows, neighbours with equal visits as one row."""
    unique, counts = np.unique(indices, return_counts=True)
    lengths = trained.of(rollout_id, unique)
    known = lengths >= 0
    breaks = np.diff(unique) != 1
    breaks |= np.diff(counts) != 0
    breaks |= known[1:] != known[:-1]
    rows: list[tuple[RolloutId, int, int, int, int | None]] = []
    for part in np.split(np.arange(len(unique)), np.flatnonzero(breaks) + 1):
        start = part[0]
        tokens = total(lengths[part]) if known[start] else None
        rows.append((rollout_id, int(unique[start]), len(part), int(counts[start]), tokens))
    return rows


def visit_runs(visits: Iterable[Visit]) -> list[Run]:
    """Visits as runs, sorted by index inside a rollout; a sample visited twice stands twice."""
    runs: list[Run] = []
    for rollout_id, indices in _by_rollout(visits).items():
        if isinstance(indices, range):
            runs.append((rollout_id, indices.start, len(indices)))
            continue
        unique, counts = np.unique(indices, return_counts=True)
        while len(unique):
            breaks = np.flatnonzero(np.diff(unique) != 1) + 1
            runs += [(rollout_id, int(part[0]), len(part)) for part in np.split(unique, breaks)]
            unique, counts = unique[counts > 1], counts[counts > 1] - 1
    return runs


def merge_runs(runs: Iterable[Run]) -> list[Run]:
    """Consecutive runs of one rollout that continue each other as one run."""
    merged: list[Run] = []
    for rollout_id, first, n in runs:
        if merged and merged[-1][0] == rollout_id and merged[-1][1] + merged[-1][2] == first:
            merged[-1] = (rollout_id, merged[-1][1], merged[-1][2] + n)
        else:
            merged.append((rollout_id, first, n))
    return merged


def _part(given: Batch | UnreadBatch, start: int, stop: int) -> Batch | UnreadBatch:
    if start == 0 and stop == given.n:
        return given
    batch = given.read()
    truncated = batch.truncated
    if truncated is not None:
        truncated = truncated[(truncated >= start) & (truncated < stop)] - start
    columns = {name: column[start:stop] for name, column in batch.columns.items()}
    return Batch(batch.rollout_id, batch.first + start, stop - start, columns, truncated)


def _truncated(batches: Sequence[Batch]) -> list[int] | None:
    """Positions in the window's columns; None where one batch did not say."""
    if not batches:
        return None
    positions: list[int] = []
    offset = 0
    for batch in batches:
        if batch.truncated is None:
            return None
        positions.extend((batch.truncated + offset).tolist())
        offset += batch.n
    return sorted(positions)
