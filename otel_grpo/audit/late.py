"""A window as it is once the contributions that came after its record are in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from otel_grpo.audit.contributed import SampleId, Spoken, ids
from otel_grpo.audit.peers import COLUMNS as READINGS, Row, rows
from otel_grpo.audit.placed import Late
from otel_grpo.audit.ranks import confirmed, visits_of
from otel_grpo.audit.rollout import COLUMNS
from otel_grpo.records.model import (
    Memory,
    RevisitRow,
    RolloutAttributes,
    SampleRun,
    TrainAttributes,
    Update,
)


def with_late(
    a: RolloutAttributes,
    spoken: Sequence[Spoken],
    late: Sequence[Spoken],
    trains: Sequence[TrainAttributes],
    placed: Late,
) -> RolloutAttributes:
    """The evidence with what was late.

    Args:
        a: The record's.
        spoken: Contributions that are in the record.
        late: Those that are not, by rank.
        trains: The window's updates.
        placed: Late calls and readings of workers.
    """
    changes: dict[str, Any] = {}
    if late:
        came = {each.contribution.rank for each in late}
        missing = [rank for rank in a.ranks.missing if rank not in came]
        received = a.ranks.expected - len(missing)
        changes["ranks"] = msgspec.structs.replace(a.ranks, received=received, missing=missing)
        changes |= _samples(a, late)
        changes |= _amounts(a, late)
        changes["updates"] = _updates(a, spoken, late, trains, whole=not missing)
    readings = [row for each in late for row in _rows(each)] + placed.readings
    if readings:
        stored = [] if isinstance(a.memory, UnsetType) else rows(a.memory)
        changes["memory"] = _memory(stored + readings)
    if placed.calls:
        workers = {m: {r: list(ns) for r, ns in ranks.items()} for m, ranks in a.workers.items()}
        for method, rank, ns in placed.calls:
            workers.setdefault(method, {}).setdefault(str(rank), []).append(ns)
        changes["workers"] = workers
    return msgspec.structs.replace(a, **changes)


def _samples(a: RolloutAttributes, late: Sequence[Spoken]) -> dict[str, Any]:
    """The columns with the samples that only late ranks hold, each once."""
    columns = {name: getattr(a, name) for name in (*COLUMNS, "truncated")}
    table: dict[SampleId, dict[str, int]] = {
        sample: _row(a, k, columns) for k, sample in enumerate(ids(a.samples))
    }
    for each in late:
        own = {name: getattr(each.attributes, name) for name in columns}
        for k, sample in enumerate(ids(each.attributes.samples)):
            row = _row(each.attributes, k, own)
            if sample not in table:
                table[sample] = row
            elif "visit_counts" in row:
                visits = table[sample].get("visit_counts", 0)
                table[sample]["visit_counts"] = max(visits, row["visit_counts"])
    if not table:
        return {}
    changes: dict[str, Any] = {"samples": _runs(table)}
    for name in columns:
        known = all(name in row for row in table.values())
        changes[name] = [row[name] for row in table.values()] if known else UNSET
    if changes["truncated"] is not UNSET:
        changes["truncated"] = [k for k, cut in enumerate(changes["truncated"]) if cut]
    return changes


def _row(a: RolloutAttributes, k: int, columns: Mapping[str, Any]) -> dict[str, int]:
    row = {name: values[k] for name, values in columns.items() if name != "truncated" and values}
    if columns["truncated"] is not UNSET:
        row["truncated"] = int(k in columns["truncated"])
    return row


def _runs(samples: Mapping[SampleId, object]) -> list[SampleRun]:
    return [(rollout, index, 1) for rollout, index in samples]


def _amounts(a: RolloutAttributes, late: Sequence[Spoken]) -> dict[str, Any]:
    changes: dict[str, Any] = {}
    others = [each.attributes for each in late]
    if not isinstance(a.generated, UnsetType):
        united = dict.fromkeys(ids(a.generated))
        for other in others:
            united |= dict.fromkeys(ids(other.generated))
        changes["generated"] = _runs(united)
    changes["discarded"] = [row for each in (a, *others) for row in each.discarded]
    for name in ("pending", "padding"):
        values = [getattr(each, name) for each in (a, *others)]
        known = [value for value in values if value is not UNSET]
        changes[name] = sum(known) if known else UNSET
    rows: dict[tuple[object, ...], RevisitRow] = {}
    for each in (a, *others):
        for row in each.revisited:
            rows.setdefault((type(row[0]), *row[:3]), row)
    changes["revisited"] = list(rows.values())
    return changes


def _updates(
    a: RolloutAttributes,
    spoken: Sequence[Spoken],
    late: Sequence[Spoken],
    trains: Sequence[TrainAttributes],
    *,
    whole: bool,
) -> list[Update]:
    updates = []
    for k, u in enumerate(a.updates):
        visits = Counter(ids(trains[k].samples)) if k < len(trains) else Counter()
        samples, nominal = u.samples, u.nominal
        said: dict[int, str | None] = {}
        for each in (*spoken, *late):
            rows = each.attributes.updates
            said[each.contribution.rank] = rows[k].status if k < len(rows) else None
        for each in late:
            rows, own = each.attributes.updates, visits_of(each, k)
            new = own - visits
            if new:
                samples += new.total()
                visits |= own
                theirs = rows[k].nominal
                nominal = None if nominal is None or theirs is None else nominal + theirs
        status = confirmed(u, said, [each.contribution.rank for each in late])
        updates.append(
            msgspec.structs.replace(
                u, samples=samples, nominal=nominal if whole else samples, status=status
            )
        )
    return updates


def _rows(each: Spoken) -> list[Row]:
    memory = each.attributes.memory
    return [] if isinstance(memory, UnsetType) else rows(memory, each.devices)


def _memory(readings: Sequence[Row]) -> Memory:
    rank, host, pid, device, instant, *columns = (
        list(each) for each in zip(*readings, strict=True)
    )
    given: dict[str, Any] = {
        name: values
        for name, values in zip(("device", *READINGS), (device, *columns), strict=True)
        if any(value is not None for value in values)
    }
    return Memory(instant=instant, rank=rank, host=host, pid=pid, **given)
