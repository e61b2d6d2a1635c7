"""Sample ids of several processes as arrays, so that the same sample is never counted twice."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from otel_grpo.core.columns import Ints
from otel_grpo.core.ledger import Visit, visit_runs
from otel_grpo.records.model import RolloutId, SampleRun


class Ids:
    """A whole number, its *code*, for each sample of some runs; neighbours have neighbouring codes.

    Between samples that are no neighbours there is at least one code that means none. ``size`` is
    larger than every code.
    """

    def __init__(self, runs: Iterable[SampleRun]) -> None:
        parts: dict[RolloutId, list[tuple[int, int]]] = defaultdict(list)
        for rollout_id, first, n in runs:
            if n:
                parts[rollout_id].append((first, first + n))
        self.size = 0
        self._segments: dict[RolloutId, tuple[list[int], list[int]]] = {}  # firsts, their codes
        self._codes: list[int] = []
        self._names: list[tuple[RolloutId, int]] = []
        for rollout_id, each in parts.items():
            firsts: list[int] = []
            codes: list[int] = []
            end: int | None = None
            for first, stop in sorted(each):
                if end is None or first > end:
                    self.size += end is not None
                    firsts.append(first)
                    codes.append(self.size)
                    self._codes.append(self.size)
                    self._names.append((rollout_id, first))
                    end = first
                self.size += max(stop - end, 0)
                end = max(end, stop)
            self.size += 1
            self._segments[rollout_id] = firsts, codes

    def of(self, runs: Iterable[SampleRun]) -> Ints:
        """The codes of runs, in order: one for each of their samples."""
        found: list[tuple[int, int]] = []
        for rollout_id, first, n in runs:
            if n:
                firsts, codes = self._segments[rollout_id]
                at = bisect_right(firsts, first) - 1
                found.append((codes[at] + first - firsts[at], n))
        starts, lengths = np.array(found, dtype=np.int64).reshape(-1, 2).T
        # All of them counted through, and each run moved to its start.
        ends = np.cumsum(lengths)
        moves: Ints = np.repeat(starts - (ends - lengths), lengths)
        return moves + np.arange(len(moves))

    def runs(self, codes: Ints) -> list[SampleRun]:
        """The samples of codes as runs, in order; those that continue each other are one."""
        if not len(codes):
            return []
        starts = np.concatenate(([0], np.flatnonzero(np.diff(codes) != 1) + 1))
        lengths = np.diff(np.concatenate((starts, [len(codes)])))
        return [
            (*self._name(code), n)
            for code, n in zip(codes[starts].tolist(), lengths.tolist(), strict=True)
        ]

    def visits(self, codes: Ints, times: Ints) -> list[SampleRun]:
        """The same for sorted codes that occur so many times each: one stands as often as that."""
        visits = []
        at = 0
        for rollout_id, first, n in self.runs(codes):
            indices = np.repeat(np.arange(first, first + n, dtype=np.int64), times[at : at + n])
            visits.append(Visit(rollout_id, indices))
            at += n
        return visit_runs(visits)

    def _name(self, code: int) -> tuple[RolloutId, int]:
        at = bisect_right(self._codes, code) - 1
        rollout_id, first = self._names[at]
        return rollout_id, first + code - self._codes[at]


class Union(NamedTuple):
    """Samples that several ranks name, each as often as the rank that names it most often.

    Attributes:
        codes, times: of each sample, sorted.
        new: for each rank, in order: how many of its samples none before it had named.
        gain: a row (code, rank, times) for each of those.
    """

    codes: Ints
    times: Ints
    new: Ints
    gain: Ints


def unite(codes: Ints, sizes: Sequence[int]) -> Union:
    """The union of the samples of some ranks: so many codes of the first, then of the next."""
    n = len(sizes)
    rank = np.repeat(np.arange(n), sizes)
    keys, times = np.unique(codes * n + rank, return_counts=True)
    codes, rank = keys // n, keys % n
    # A running maximum inside each code: the code itself lifts it above all of the one before.
    lift = codes * (int(times.max(initial=0)) + 1)
    reached = np.maximum.accumulate(times + lift)
    gain = reached - np.maximum(np.concatenate(([0], reached))[:-1], lift)
    new = np.zeros(n, dtype=np.int64)
    np.add.at(new, rank, gain)
    first = np.flatnonzero(np.diff(codes, prepend=-1))
    totals = np.add.reduceat(gain, first) if len(first) else gain
    rows = np.stack((codes, rank, gain))[:, gain > 0]
    return Union(codes[first], totals, new, rows)
