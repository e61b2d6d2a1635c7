"""One record for the whole job: what each process says of a window, united by sample id.

Of several ranks that hold a sample the lowest one's row counts and the others confirm. A merged window
may be merged again with ranks that came late: the numbers are those of one merge of all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar, cast

import msgspec
import numpy as np
from msgspec import UNSET, UnsetType

from otel_grpo.core.columns import Ints, total
from otel_grpo.records.agree import agree
from otel_grpo.records.model import (
    Contribution,
    Device,
    DiscardRow,
    Hardware,
    Memory,
    Process,
    Ranks,
    RevisitRow,
    RolloutAttributes,
    SampleRun,
    Update,
    WindowStatus,
)
from otel_grpo.records.sample_table import SampleTable
from otel_grpo.records.union import Ids, unite

Table = TypeVar("Table", Memory, Hardware)


@dataclass(frozen=True)
class Gathered:
    """What the other processes of a job said of one window.

    Attributes:
        spmd: they are ranks, which contribute; else workers, whose driver gives all counts.
        ranks: whose word is in.
        contributions: of the other ranks; devices are numbered as in `inventory`.
        workers: durations in ns of the timed calls that ended in the window, by method and number.
        memory: readings of workers in the window, by the driver's clock, ranks and devices numbered.
        processes: all others that were heard of so far, for `run.json`; it only grows.
        inventory: all devices of the job that are known so far, for `run.json`; it only grows.
        devices: their places in `inventory` with their roles; None: not known.
    """

    spmd: bool
    ranks: Ranks
    contributions: dict[int, Contribution] = field(default_factory=dict)
    workers: dict[str, dict[int, list[int]]] = field(default_factory=dict)
    memory: list[Memory] = field(default_factory=list)
    processes: list[Process] = field(default_factory=list)
    inventory: list[Device] = field(default_factory=list)
    devices: list[tuple[int, list[str]]] | None = None


class Merged(NamedTuple):
    """One window of the whole job.

    Attributes:
        attributes: of its record. Updates are rank 0's, merged; where another rank attempted more,
            those follow.
        update_samples, update_trained: of each update, as in a `Contribution`.
        steps: number of an update as rank 0 counts them, to its number in the merged account.
        disagreements: samples whose lengths differ between two ranks that hold them.
    """

    attributes: RolloutAttributes
    update_samples: list[list[SampleRun]]
    update_trained: list[int | None]
    steps: dict[int, int]
    disagreements: int


def merge(own: Contribution, gathered: Gathered, applied: int) -> Merged:
    """The window of `own`, rank 0's or a merged one, with what the others said of it.

    `own.attributes` are those of the record that it alone would make. `applied` is the number of
    updates applied before the window, in the merged account.
    """
    others = [gathered.contributions[rank] for rank in sorted(gathered.contributions)]
    attributes = _with_readings(own.attributes, gathered, others)
    if not gathered.spmd:
        steps = {update.step: update.step for update in attributes.updates}
        return Merged(attributes, own.update_samples, own.update_trained, steps, 0)
    shares = [own, *others]
    ids = Ids(
        run
        for share in shares
        for runs in (
            share.attributes.samples or (),
            share.attributes.generated or (),
            (row[:3] for row in share.attributes.revisited),
            *share.update_samples,
        )
        for run in runs
    )
    table = SampleTable(shares, ids)
    revisited = _revisited(shares, ids, table)
    updates = _updates(shares, gathered.ranks, ids, table, applied)
    attributes = msgspec.structs.replace(
        attributes,
        **table.fields(),
        revisited=revisited,
        generated=_generated(shares, ids),
        discarded=_discarded(shares),
        pending=_sum(share.attributes.pending for share in shares),
        padding=_sum(share.attributes.padding for share in shares),
        updates=updates.rows,
        per_rank=(own.attributes.per_rank or {str(own.rank): own.busy_ns})
        | {str(share.rank): share.busy_ns for share in others},
    )
    window = msgspec.structs.replace(attributes.window, status=_status(attributes))
    return Merged(
        msgspec.structs.replace(attributes, window=window),
        updates.samples,
        updates.trained,
        {
            mine.step: merged.step
            for mine, merged in zip(own.attributes.updates, updates.rows, strict=False)
        },
        table.disagreements,
    )


def _revisited(shares: Sequence[Contribution], ids: Ids, table: SampleTable) -> list[RevisitRow]:
    """Rows of samples of earlier windows; what the row of a lower rank has, none after it has."""
    rows: list[RevisitRow] = []
    seen = np.zeros(ids.size, dtype=bool)
    for share in shares:
        for row in share.attributes.revisited:
            rollout_id, first, n, visits, _ = row
            codes = ids.of([(rollout_id, first, n)])
            here = table.row[codes] >= 0
            table.add_visits(codes[here], visits)
            fresh = codes[~here & ~seen[codes]]
            seen[codes] = True
            if len(fresh) == n:
                rows.append(row)
            else:  # the tokens of a part of them are not known
                rows += [(*run, visits, None) for run in ids.runs(fresh)]
    return rows


def _generated(shares: Sequence[Contribution], ids: Ids) -> list[SampleRun] | UnsetType:
    """Rank 0's as they are, then what only others have."""
    runs: list[SampleRun] = list(shares[0].attributes.generated or ())
    others = ids.of(run for share in shares[1:] for run in share.attributes.generated or ())
    _, first = np.unique(others, return_index=True)
    others = others[np.sort(first)]
    runs += ids.runs(others[~np.isin(others, ids.of(runs))])
    return runs or UNSET


def _discarded(shares: Sequence[Contribution]) -> list[DiscardRow]:
    rows = [row for share in shares for row in share.attributes.discarded]
    if len(shares) == 1:
        return rows
    sums: dict[str, tuple[int, int | None]] = {}
    for reason, n, tokens in rows:
        before, known = sums.get(reason, (0, 0))
        sums[reason] = before + n, None if known is None or tokens is None else known + tokens
    return [(reason, n, tokens) for reason, (n, tokens) in sums.items()]


def _sum(values: Iterable[int | UnsetType]) -> int | UnsetType:
    """Of those that are known."""
    known = [value for value in values if not isinstance(value, UnsetType)]
    return sum(known) if known else UNSET


class _Updates(NamedTuple):
    rows: list[Update]
    samples: list[list[SampleRun]]
    trained: list[int | None]


def _updates(
    shares: Sequence[Contribution], ranks: Ranks, ids: Ids, table: SampleTable, applied: int
) -> _Updates:
    """The k-th update of each rank are one."""
    merged = _Updates([], [], [])
    for k in range(max(len(share.attributes.updates) for share in shares)):
        said = [share for share in shares if len(share.attributes.updates) > k]
        first = said[0].attributes.updates[k]
        verdict = agree(shares, ranks, k)
        applied += verdict.status == "applied"
        sizes = [sum(n for _, _, n in _samples(share, k)) for share in said]
        union = unite(ids.of(run for share in said for run in _samples(share, k)), sizes)
        new = union.new.tolist()
        unnamed = [
            max(share.attributes.updates[k].samples - size, 0)
            for share, size in zip(said, sizes, strict=True)
        ]
        counted = [
            share.attributes.updates[k].nominal
            for share, brings, more in zip(said, new, unnamed, strict=True)
            if share is said[0] or brings or more
        ]
        samples = int(union.times.sum()) + sum(unnamed)
        nominal = _sum_known(counted)
        merged.rows.append(
            Update(
                step=applied,
                start_ns=first.start_ns,
                end_ns=first.end_ns,
                samples=samples,
                # Without a rank nobody knows whether there is a tail: none is claimed.
                nominal=samples if ranks.missing and nominal is not None else nominal,
                status=verdict.status,
                reason=verdict.reason,
                ranks=verdict.ranks,
            )
        )
        merged.samples.append(ids.visits(union.codes, union.times))
        merged.trained.append(
            _sum_known(
                _trained(share, k, position, new[position], union.gain, table)
                for position, share in enumerate(said)
            )
        )
    return merged


def _samples(share: Contribution, k: int) -> list[SampleRun]:
    return share.update_samples[k] if k < len(share.update_samples) else []


def _sum_known(values: Iterable[int | None]) -> int | None:
    """None if one is not known."""
    known = list(values)
    return None if None in known else sum(cast("list[int]", known))


def _trained(
    share: Contribution, k: int, position: int, new: int, gain: Ints, table: SampleTable
) -> int | None:
    """Tokens under the loss mask of the visits that this rank adds to those before it."""
    named = sum(n for _, _, n in _samples(share, k))
    said = share.update_trained[k] if k < len(share.update_trained) else None
    if new == named and said is not None:
        return said
    if named < share.attributes.updates[k].samples:
        return None
    codes, _, times = gain[:, gain[1] == position]
    rows = table.row[codes]
    if not len(rows):
        return 0
    return None if table.trained is None or rows.min() < 0 else total(table.trained[rows], times)


def _status(a: RolloutAttributes) -> WindowStatus:
    if a.window.status == "aborted":
        return "aborted"
    tail = any(
        u.status == "applied" and u.nominal is not None and u.samples < u.nominal for u in a.updates
    )
    unvisited = a.visit_counts is not UNSET and 0 in a.visit_counts
    dropped = bool(a.discarded) and not a.samples
    return "partial" if tail or unvisited or dropped else "complete"


def _with_readings(
    own: RolloutAttributes, gathered: Gathered, others: Sequence[Contribution]
) -> RolloutAttributes:
    """What is united by process: timed calls, memory, devices."""
    workers = {method: dict(calls) for method, calls in own.workers.items()}
    for share in others:
        for method, calls in share.attributes.workers.items():
            mine = [duration for each in calls.values() for duration in each]
            workers.setdefault(method, {})[str(share.rank)] = mine
    for method, by_rank in gathered.workers.items():
        workers.setdefault(method, {}).update((str(rank), ns) for rank, ns in by_rank.items())
    shares = [share.attributes for share in others]
    return msgspec.structs.replace(
        own,
        ranks=gathered.ranks,
        devices=own.devices if gathered.devices is None else gathered.devices,
        memory=_united(Memory, [own.memory, *(s.memory for s in shares), *gathered.memory]),
        hardware=_united(Hardware, [own.hardware, *(s.hardware for s in shares)]),
        workers=workers,
    )


def _united(kind: type[Table], given: Sequence[Table | UnsetType]) -> Table | UnsetType:
    """The rows of all tables; a column that one of them lacks is null there."""
    tables = [table for table in given if not isinstance(table, UnsetType)]
    if len(tables) <= 1:
        return tables[0] if tables else UNSET
    columns: dict[str, Any] = {}
    for name in kind.__struct_fields__:
        parts = [getattr(table, name) for table in tables]
        if name == "peak_resets":
            columns[name] = sum(parts)
        elif any(part is not UNSET for part in parts):
            columns[name] = [
                value
                for table, part in zip(tables, parts, strict=True)
                for value in ([None] * len(table.instant) if part is UNSET else part)
            ]
    return kind(**columns)
