"""The samples of a window from all ranks as one table."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec import UNSET, UnsetType

from otel_grpo.core.columns import Ints, as_array
from otel_grpo.records.build import COLUMNS
from otel_grpo.records.inventory import ragged
from otel_grpo.records.model import Contribution
from otel_grpo.records.union import Ids

# What two ranks that hold the same sample must agree on.
_LENGTHS = ("prompt_lengths", "completion_lengths")


class SampleTable:
    """The samples of some ranks with their columns: rows of the lowest rank first, none twice.

    Attributes:
        row: for each code its row, -1 for what is no sample of this window.
        visits, trained: columns, None where they are not known.
        disagreements: samples of which two ranks say different lengths.
    """

    def __init__(self, shares: Sequence[Contribution], ids: Ids) -> None:
        self._ids = ids
        self._shares = [share.attributes for share in shares if share.attributes.samples]
        self._sizes = [sum(n for _, _, n in share.samples or ()) for share in self._shares]
        self._codes = ids.of(run for share in self._shares for run in share.samples or ())
        _, first, same = np.unique(self._codes, return_index=True, return_inverse=True)
        self._kept = np.sort(first)
        self._counts_for = first[same.reshape(-1)]  # of each row, the one that counts
        # Only a rank that brings a sample has a say in which columns there are.
        ends = np.searchsorted(self._kept, np.cumsum([0, *self._sizes]))
        self._brings = np.diff(ends) > 0
        self.row = np.full(ids.size, -1, dtype=np.int64)
        self.row[self._codes[self._kept]] = np.arange(len(self._kept))
        self.visits = self._most_visits()
        self.trained = self._column("trained_lengths")
        self.disagreements = self._disagreements()

    def fields(self) -> dict[str, Any]:
        """The fields of the record that hold samples."""
        if not len(self._kept):
            return {"samples": UNSET}
        columns = {name: self._column(name) for name in COLUMNS} | {"visit_counts": self.visits}
        return {
            "samples": self._ids.runs(self._codes[self._kept]),
            **{name: UNSET if column is None else column for name, column in columns.items()},
            "truncated": self._truncated(),
        }

    def add_visits(self, codes: Ints, visits: int) -> None:
        """Samples of this window that another rank visited without having consumed them."""
        if self.visits is not None:
            np.maximum.at(self.visits, self.row[codes], visits)

    def _column(self, name: str) -> Ints | None:
        """One value per sample; None unless each rank that brings one has it."""
        values, known = self._values(name)
        return values[self._kept] if bool((known | ~self._brings).all()) else None

    def _values(self, name: str) -> tuple[Ints, npt.NDArray[np.bool_]]:
        """A column over all rows, 0 where a rank lacks it, and which ranks have it."""
        columns = [getattr(share, name) for share in self._shares]
        known = np.array([column is not UNSET for column in columns], dtype=bool)
        parts = [
            [0] * n if column is UNSET else column
            for column, n in zip(columns, self._sizes, strict=True)
        ]
        # The first is rank 0's own, which may be an array; a thousand small ones would take long.
        arrays = map(as_array, (*parts[:1], list(chain.from_iterable(parts[1:]))))
        return np.concatenate(list(arrays)), known

    def _most_visits(self) -> Ints | None:
        values, known = self._values("visit_counts")
        if not (known | ~self._brings).all():
            return None
        counts = np.zeros(len(self._kept), dtype=np.int64)
        np.maximum.at(counts, self.row[self._codes], values)
        return counts

    def _truncated(self) -> list[int] | UnsetType:
        positions: list[int] = []
        start = 0
        for share, n, brings in zip(self._shares, self._sizes, self._brings.tolist(), strict=True):
            if share.truncated is not UNSET:
                positions += [start + position for position in share.truncated]
            elif brings:
                return UNSET
            start += n
        flags = np.zeros(len(self._codes), dtype=bool)
        flags[positions] = True
        kept: list[int] = np.flatnonzero(flags[self._kept]).tolist()
        return kept

    def _disagreements(self) -> int:
        if len(self._kept) == len(self._codes):
            return 0
        differ = np.zeros(len(self._codes), dtype=bool)
        for name in _LENGTHS:
            values, ranks = self._values(name)
            known = np.repeat(ranks, self._sizes)
            first = self._counts_for
            differ |= known & known[first] & (values != values[first])
        return len(np.unique(self._counts_for[differ]))


def flaw(share: Contribution) -> str | None:
    """Why a share that somebody wrote can't be merged; None where it can."""
    a = share.attributes
    n = sum(run[2] for run in a.samples or ())
    for name in COLUMNS:
        column = getattr(a, name)
        if column is not UNSET and len(column) != n:
            return f"{len(column)} {name} for {n} samples"
    if any(not 0 <= position < n for position in a.truncated or ()):
        return "a truncated sample that is not there"
    if any(table is not UNSET and ragged(table) for table in (a.memory, a.hardware)):
        return "readings with columns of different lengths"
    if not len(a.updates) == len(share.update_samples) == len(share.update_trained):
        return "updates without their samples"
    for update, runs in zip(a.updates, share.update_samples, strict=True):
        if sum(run[2] for run in runs) > update.samples:
            return "an update with more samples than it says"
    parts = (a.samples or (), a.generated or (), a.revisited, *share.update_samples)
    if any(run[2] < 0 for runs in parts for run in runs):
        return "a negative number of samples"
    return None
