"""A window as it is once the contributions that came after its record are in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from otel_grpo.audit.contributed import SampleId, Spoken, ids
from otel_grpo.audit.peers import COLUMNS as READINGS, Row, rows
from otel_grpo.audit.ranks import calls_of, confirmed, status_of, visits_of
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
    late: Sequence[Spoken],
    trains: Sequence[TrainAttributes],
) -> RolloutAttributes:
    """The evidence with what late ranks contributed.

    Args:
        a: The record's.
        late: Contributions that are not in the record, by rank.
        trains: The window's updates.
    """
    came = {each.contribution.rank for each in late}
    missing = [rank for rank in a.ranks.missing if rank not in came]
    received = a.ranks.expected - len(missing)
    changes: dict[str, Any] = {
        "ranks": msgspec.structs.replace(a.ranks, received=received, missing=missing),
        "devices": _devices(a, late),
        "updates": _updates(a, late, trains, whole=not missing),
        "workers": _workers(a, late),
        "memory": _memory(a, late),
        **_samples(a, late),
        **_amounts(a, late),
    }
    return msgspec.structs.replace(a, **changes)


def _devices(
    a: RolloutAttributes, late: Sequence[Spoken]
) -> list[tuple[int, list[str]]] | UnsetType:
    """The record's, where it knows them, and those of the late ranks."""
    if isinstance(a.devices, UnsetType):
        return a.devices
    roles = {index: set(names) for index, names in a.devices}
    for each in late:
        for index, (_, names) in zip(each.devices.all(), each.peer.joined.devices, strict=True):
            roles.setdefault(index, set()).update(names)
    return [(index, sorted(names)) for index, names in sorted(roles.items())]


def _samples(a: RolloutAttributes, late: Sequence[Spoken]) -> dict[str, Any]:
    """The columns with the samples that only late ranks hold, each once, and what was visited."""
    columns = (*COLUMNS, "truncated")
    shares = [a, *(each.attributes for each in late)]
    table: dict[SampleId, dict[str, int]] = {}
    for share in shares:
        given = {name: getattr(share, name) for name in columns}
        for k, sample in enumerate(ids(share.samples)):
            row = _row(k, given)
            if sample not in table:
                table[sample] = row
            elif "visit_counts" in row and "visit_counts" in table[sample]:
                table[sample]["visit_counts"] = max(
                    table[sample]["visit_counts"], row["visit_counts"]
                )
    changes: dict[str, Any] = {"revisited": _revisited(shares, table)}
    if not table:
        return changes
    changes["samples"] = _runs(table)
    for name in columns:
        known = all(name in row for row in table.values())
        changes[name] = [row[name] for row in table.values()] if known else UNSET
    if changes["truncated"] is not UNSET:
        changes["truncated"] = [k for k, cut in enumerate(changes["truncated"]) if cut]
    return changes


def _revisited(
    shares: Sequence[RolloutAttributes], table: dict[SampleId, dict[str, int]]
) -> list[RevisitRow]:
    """Each sample by the first that names it; one of this window has its visits in the table."""
    result: list[RevisitRow] = []
    seen: set[SampleId] = set()
    for share in shares:
        for row in share.revisited:
            samples = list(ids([row[:3]]))
            fresh = [sample for sample in samples if sample not in table and sample not in seen]
            seen.update(samples)
            for sample in samples:
                if "visit_counts" in table.get(sample, ()):
                    table[sample]["visit_counts"] = max(table[sample]["visit_counts"], row[3])
            if len(fresh) == len(samples):
                result.append(row)
            else:  # the tokens of a part of them are not known
                result += [(*run, row[3], None) for run in _runs(dict.fromkeys(fresh))]
    return result


def _row(k: int, columns: Mapping[str, Any]) -> dict[str, int]:
    row = {name: values[k] for name, values in columns.items() if name != "truncated" and values}
    if columns["truncated"] is not UNSET:
        row["truncated"] = int(k in columns["truncated"])
    return row


def _runs(samples: Mapping[SampleId, object]) -> list[SampleRun]:
    return [(rollout, index, 1) for rollout, index in samples]


def _amounts(a: RolloutAttributes, late: Sequence[Spoken]) -> dict[str, Any]:
    changes: dict[str, Any] = {}
    others = [each.attributes for each in late]
    generated = {sample: None for each in (a, *others) for sample in ids(each.generated)}
    changes["generated"] = _runs(generated) or UNSET
    changes["discarded"] = [row for each in (a, *others) for row in each.discarded]
    for name in ("pending", "padding"):
        values = [getattr(each, name) for each in (a, *others)]
        known = [value for value in values if value is not UNSET]
        changes[name] = sum(known) if known else UNSET
    return changes


def _updates(
    a: RolloutAttributes, late: Sequence[Spoken], trains: Sequence[TrainAttributes], *, whole: bool
) -> list[Update]:
    updates = []
    for k in range(max(len(each.updates) for each in (a, *(e.attributes for e in late)))):
        said = {each.contribution.rank: status_of(each, k) for each in late}
        told = [each.attributes.updates[k] for each in late if k < len(each.attributes.updates)]
        if k < len(a.updates):
            u = a.updates[k]
            status = confirmed(u, said)
        else:  # rank 0 knows nothing of it
            u = msgspec.structs.replace(told[0], samples=0, nominal=0)
            status = "failed" if "failed" in said.values() else "unconfirmed"
        visits = Counter(ids(trains[k].samples)) if k < len(trains) else Counter()
        samples, nominal = u.samples, u.nominal
        for each in late:
            if said[each.contribution.rank] is None:
                continue
            row, own = each.attributes.updates[k], visits_of(each, k)
            new = (own - visits).total() + row.samples - own.total()
            samples += new
            visits |= own
            if new:
                both = nominal is not None and row.nominal is not None
                nominal = (nominal or 0) + (row.nominal or 0) if both else None
        if nominal is not None and not whole:
            nominal = samples
        changed = {"samples": samples, "nominal": nominal, "status": status}
        updates.append(msgspec.structs.replace(u, **changed))
    return updates


def _workers(a: RolloutAttributes, late: Sequence[Spoken]) -> dict[str, dict[str, list[int]]]:
    workers = {method: dict(by_rank) for method, by_rank in a.workers.items()}
    for each in late:
        for method, durations in calls_of(each).items():
            workers.setdefault(method, {})[str(each.contribution.rank)] = durations
    return workers


def _memory(a: RolloutAttributes, late: Sequence[Spoken]) -> Memory | UnsetType:
    readings: list[Row] = [] if isinstance(a.memory, UnsetType) else rows(a.memory)
    for each in late:
        memory = each.attributes.memory
        readings += [] if isinstance(memory, UnsetType) else rows(memory, each.devices)
    if not readings:
        return UNSET
    rank, host, pid, device, instant, *columns = (
        list(each) for each in zip(*readings, strict=True)
    )
    given: dict[str, Any] = {
        name: values
        for name, values in zip(("device", *READINGS), (device, *columns), strict=True)
        if any(value is not None for value in values)
    }
    return Memory(instant=instant, rank=rank, host=host, pid=pid, **given)
