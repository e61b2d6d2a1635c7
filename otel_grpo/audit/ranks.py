"""Updates, memory and busy time of the ranks of one window, held against its record."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from msgspec import UnsetType

from otel_grpo.audit.chain import FILE
from otel_grpo.audit.contributed import Place, SampleId, Spoken, ids
from otel_grpo.audit.peers import COLUMNS, Row, rows
from otel_grpo.audit.report import ABSENT
from otel_grpo.records.model import RolloutAttributes, TrainAttributes, Update

_STATES = ("applied", "skipped", "failed", "unconfirmed")


def agreed(said: Sequence[str | None]) -> str:
    """The status of an update from what each expected rank says of it; None: nothing."""
    if "failed" in said:
        return "failed"
    one = said[0]
    return one if one in {"applied", "skipped"} and set(said) == {one} else "unconfirmed"


def check_updates(at: Place, a: RolloutAttributes, spoken: Sequence[Spoken]) -> None:
    """Each update has a status that follows from the ranks' and from any that rank 0 can have."""
    for each in spoken:
        if len(each.attributes.updates) > len(a.updates):
            n = len(each.attributes.updates)
            at.wrong("attributes.updates", "more than the record's", each, len(a.updates), n)
    for k, u in enumerate(a.updates):
        name = f"attributes.updates[{k}]"
        said = {each.contribution.rank: status_of(each, k) for each in spoken}
        said |= dict.fromkeys(a.ranks.missing)
        possible = {agreed([own, *said.values()]) for own in (*_STATES, None)}
        at.checked(2)
        if u.status not in possible:
            told = ", ".join(f"rank {r} {s or 'did not say'}" for r, s in sorted(said.items()))
            at.wrong(f"{name}.status", told, None, u.status, " or ".join(sorted(possible)))
            continue
        left_out = _blamed(u.status, k, spoken, said) - set(u.ranks)
        if left_out:
            message = f"does not name {sorted(left_out)}"
            at.wrong(f"{name}.ranks", message, None, str(u.ranks))
        if a.ranks.missing and u.nominal is not None and u.nominal != u.samples:
            message = "a rank is missing, so no tail can be told"
            at.wrong(f"{name}.nominal", message, None, u.nominal, u.samples)


def status_of(each: Spoken, k: int) -> str | None:
    """What a rank says of its own part in the k-th update; None: nothing."""
    updates = each.attributes.updates
    if k >= len(updates):
        return None
    u = updates[k]
    others_only = u.ranks and each.contribution.rank not in u.ranks
    return claim(u) if u.status == "unconfirmed" and others_only else u.status


def claim(u: Update) -> str:
    """Of an unconfirmed update: what was to be confirmed. A skip has a reason, an applied none."""
    return "applied" if u.reason is None else "skipped"


def _blamed(
    status: str, k: int, spoken: Iterable[Spoken], said: Mapping[int, str | None]
) -> set[int]:
    """The ranks that an update must name: those that failed, or did not speak."""
    if status == "unconfirmed":
        return {rank for rank, word in said.items() if word is None}
    failed = [each for each in spoken if status == "failed" == status_of(each, k)]
    return {r for e in failed for r in e.attributes.updates[k].ranks or [e.contribution.rank]}


def visits_of(each: Spoken, k: int) -> Counter[SampleId]:
    """The visits that went into the rank's k-th update, by sample."""
    runs = each.contribution.update_samples
    return Counter(ids(runs[k])) if k < len(runs) else Counter()


def check_trains(
    at: Place,
    a: RolloutAttributes,
    spoken: Sequence[Spoken],
    trains: Sequence[tuple[int, TrainAttributes]],
) -> None:
    """Each update's record holds the visits of every rank, a sample of several ranks once."""
    lengths: Mapping[SampleId, int] | None = None
    if not isinstance(a.trained_lengths, UnsetType):
        lengths = dict(zip(ids(a.samples), a.trained_lengths, strict=True))
    for k, (line, train) in enumerate(trains):
        stored = Counter(ids(train.samples))
        united: dict[SampleId, int] = {}
        least = 0  # tokens of the ranks whose samples nobody else has
        for each in spoken:
            own = visits_of(each, k)
            lost = next((sample for sample, n in own.items() if stored[sample] < n), None)
            if lost is not None:
                message = f"{own[lost]} visit(s) of {lost}, {stored[lost]} of them in the update"
                at.wrong("attributes.samples", message, each, line=line)
            if not any(sample in united for sample in own):
                least += each.contribution.update_trained[k] or 0 if own else 0
            for sample, n in own.items():
                united[sample] = max(n, united.get(sample, 0))
        at.checked(3)
        if train.n < stored.total():
            at.wrong("attributes.n", "", None, train.n, stored.total(), line=line)
        if isinstance(train.trained, UnsetType) or at.disagreed:
            continue
        if lengths is not None and lengths.keys() >= stored.keys() and train.n == stored.total():
            tokens = sum(lengths[sample] * n for sample, n in stored.items())
            at.findings.equal(FILE, line, "attributes.trained", train.trained, tokens, "by sample")
        elif train.trained < least:
            message = "less than the ranks' own"
            at.wrong("attributes.trained", message, None, train.trained, least, line=line)


def check_memory(at: Place, a: RolloutAttributes, spoken: Iterable[Spoken]) -> None:
    """Every reading of every rank is a row of the record, its device by the inventory."""
    stored: Counter[Row] = Counter()
    resets = 0
    if not isinstance(a.memory, UnsetType):
        stored.update(rows(a.memory))
        resets = a.memory.peak_resets
    for each in spoken:
        memory = each.attributes.memory
        if isinstance(memory, UnsetType):
            continue
        try:
            own = rows(memory, each.devices)
        except ValueError:
            at.wrong("attributes.memory", "the rank's columns are of different lengths", each)
            continue
        at.checked(len(own))
        resets -= memory.peak_resets
        for row in own:
            if stored[row] > 0:
                stored[row] -= 1
            else:
                _lost(at, each, row, stored)
                break
    if resets < 0:
        at.wrong("attributes.memory.peak_resets", "less than the ranks' own")


def _lost(at: Place, each: Spoken, row: Row, stored: Iterable[Row]) -> None:
    """A reading that is not there, or of which one value is another."""
    names = ("rank", "host", "pid", "device", "instant", *COLUMNS)
    for other in stored:
        differ = [k for k in range(len(row)) if row[k] != other[k]]
        if len(differ) == 1:
            (k,) = differ
            values = [None if v[k] is None else str(v[k]) for v in (other, row)]
            at.wrong(f"attributes.memory.{names[k]}", "", each, *(v or ABSENT for v in values))
            return
    message = f"a reading of instant {row[4]} is not in the record"
    at.wrong("attributes.memory", message, each)


def check_busy(
    at: Place, a: RolloutAttributes, spoken: Iterable[Spoken], own: Mapping[str, int]
) -> None:
    """``per_rank`` has the busy times of the received ranks; ``own``: those of the record itself."""
    received = {str(r) for r in range(a.ranks.expected)} - {str(r) for r in a.ranks.missing}
    at.checked(1)
    if set(a.per_rank) != received:
        ranks = [
            ", ".join(sorted(each, key=lambda r: (len(r), r)))
            for each in (set(a.per_rank), received)
        ]
        at.wrong("attributes.per_rank", "not the received ranks", None, *ranks)
    sources: list[tuple[int, Spoken | None, Mapping[str, int]]] = [(0, None, own)]
    sources += [(each.contribution.rank, each, each.contribution.busy_ns) for each in spoken]
    for rank, by, busy in sources:
        stored = a.per_rank.get(str(rank))
        if stored is None:
            continue
        at.checked(len(busy))
        for phase in sorted(busy.keys() | stored.keys()):
            # A phase without time may be left out.
            if stored.get(phase, 0) != busy.get(phase, 0):
                name = f"attributes.per_rank.{rank}.{phase}"
                at.wrong(name, "", by, stored.get(phase, ABSENT), busy.get(phase, ABSENT))


def check_devices(at: Place, a: RolloutAttributes, spoken: Iterable[Spoken]) -> None:
    """The devices of every rank are the job's."""
    if isinstance(a.devices, UnsetType):
        return
    known = {index for index, _ in a.devices}
    for each in spoken:
        at.checked(1)
        for index in each.devices.all():
            if index not in known:
                at.wrong("attributes.devices", "lacks a device of the rank", each, ABSENT, index)
        if each.devices.unknown:
            message = "a device of the rank is not in the inventory of run.json"
            at.wrong("attributes.memory.device", message, each, min(each.devices.unknown))
            each.devices.unknown.clear()


def check_calls(at: Place, a: RolloutAttributes, spoken: Iterable[Spoken]) -> None:
    """The timed calls of a rank are in the record under its number, and no others."""
    for each in spoken:
        own = calls_of(each)
        rank = str(each.contribution.rank)
        stored = {method: calls[rank] for method, calls in a.workers.items() if rank in calls}
        at.checked(len(own))
        for method in sorted(own.keys() | stored.keys()):
            values = [found.get(method) for found in (stored, own)]
            if values[0] != values[1]:
                name = f"attributes.workers.{method}.{rank}"
                at.wrong(name, "", each, *(ABSENT if v is None else str(v) for v in values))


def calls_of(each: Spoken) -> dict[str, list[int]]:
    """Durations in nanoseconds of a rank's own timed calls, by method."""
    return {
        method: [ns for calls in by_rank.values() for ns in calls]
        for method, by_rank in each.attributes.workers.items()
    }


def confirmed(u: Update, said: Mapping[int, str | None]) -> str:
    """The status of an update of a record once late ranks have spoken too."""
    if "failed" in (u.status, *said.values()):
        return "failed"
    if u.status != "unconfirmed":
        return u.status
    agreeing = {rank for rank, word in said.items() if word == claim(u)}
    return claim(u) if agreeing == said.keys() and not set(u.ranks) - agreeing else "unconfirmed"
