"""What the ranks contributed to one window, held against the samples of its record.

Rank 0 writes the record and contributes nothing on file, so what it counted itself is known only as
what no other rank explains. Each law here holds whatever that was.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from msgspec import UnsetType

from otel_grpo.audit.chain import FILE
from otel_grpo.audit.peers import Devices
from otel_grpo.audit.report import ABSENT, Findings, Severity, Value
from otel_grpo.audit.rollout import COLUMNS
from otel_grpo.audit.workers import Peer
from otel_grpo.records.model import Contribution, RolloutAttributes, SampleRun

SampleId = tuple[str | int, int]


def ids(runs: Iterable[SampleRun] | UnsetType) -> Iterator[SampleId]:
    """The samples of runs one by one."""
    for rollout, first, n in () if isinstance(runs, UnsetType) else runs:
        for k in range(n):
            yield rollout, first + k


@dataclass(frozen=True)
class Spoken:
    """A contribution and where it stands."""

    peer: Peer
    line: int
    contribution: Contribution
    devices: Devices

    @property
    def attributes(self) -> RolloutAttributes:
        """What the rank counted."""
        return self.contribution.attributes

    def fits(self) -> str:
        """Why its columns do not fit together; empty where they do."""
        a = self.attributes
        n = sum(run[2] for run in ([] if isinstance(a.samples, UnsetType) else a.samples))
        for name in COLUMNS:
            values = getattr(a, name)
            if not isinstance(values, UnsetType) and len(values) != n:
                return f"{len(values)} {name} for {n} samples"
        c = self.contribution
        if not len(a.updates) == len(c.update_samples) == len(c.update_trained):
            return "not as many update_samples and update_trained as updates"
        return ""


@dataclass(frozen=True)
class Place:
    """A record under audit; what is said of it names a rank and its line as well."""

    findings: Findings
    line: int
    iteration: int
    disagreed: bool  # the writer says that ranks gave different values for one sample

    def wrong(
        self,
        name: str,
        message: str,
        by: Spoken | None = None,
        stored: Value = None,
        recomputed: Value = None,
        *,
        severity: Severity = "error",
        line: int | None = None,
    ) -> None:
        """One finding, on the record's line unless another one is given."""
        where = f"iteration {self.iteration}"
        if by is not None:
            where += f", rank {by.contribution.rank}: {by.peer.file}:{by.line}"
        message = f"{message}; {where}" if message else where
        line = self.line if line is None else line
        self.findings.add(severity, FILE, line, name, message, stored, recomputed)

    def checked(self, n: int) -> None:
        """So many fields were compared."""
        self.findings.checked += n


def check_samples(at: Place, a: RolloutAttributes, spoken: Iterable[Spoken]) -> None:
    """Every sample of every contribution is in the record, as the lowest rank that holds it says.

    Args:
        at: The record.
        a: Its evidence, whose columns are of one length.
        spoken: Contributions that fit, by rank.
    """
    positions = {each: k for k, each in enumerate(ids(a.samples))}
    cut = None if isinstance(a.truncated, UnsetType) else set(a.truncated)
    visits: dict[int, tuple[int, Spoken, bool]] = {}  # position -> most, by whom, all whole
    held: set[int] = set()
    for each in spoken:
        own = [positions.get(sample) for sample in ids(each.attributes.samples)]
        if None in own:
            lost = [s for s in ids(each.attributes.samples) if s not in positions]
            message = f"{len(lost)} samples of the rank are not in the record, first {lost[0]}"
            at.wrong("attributes.samples", message, each, ABSENT, str(lost[0]))
        fresh = [(k, p) for k, p in enumerate(own) if p is not None and p not in held]
        held.update(p for _, p in fresh)
        _columns(at, a, each, fresh)
        _truncated(at, cut, each, fresh)
        _visits(visits, each, own)
    if isinstance(a.visit_counts, UnsetType):
        return
    at.checked(len(visits))
    for position, (most, each, whole) in visits.items():
        stored = a.visit_counts[position]
        # A rank that broke off may have visited less than rank 0, which holds the sample as well.
        if stored < most or (stored > most and whole):
            at.wrong(f"attributes.visit_counts[{position}]", "", each, stored, most)
            return


def _columns(at: Place, a: RolloutAttributes, each: Spoken, fresh: list[tuple[int, int]]) -> None:
    for name in COLUMNS:
        stored, own = getattr(a, name), getattr(each.attributes, name)
        if name == "visit_counts" or isinstance(stored, UnsetType) or not fresh:
            continue
        if isinstance(own, UnsetType):
            message = "stored, though the rank does not know it"
            at.wrong(f"attributes.{name}", message, each)
            continue
        at.checked(len(fresh))
        for k, position in fresh:
            if stored[position] != own[k]:
                at.wrong(
                    f"attributes.{name}[{position}]",
                    "ranks disagree, as the record says" if at.disagreed else "",
                    each,
                    stored[position],
                    own[k],
                    severity="warning" if at.disagreed else "error",
                )
                break


def _truncated(at: Place, cut: set[int] | None, each: Spoken, fresh: list[tuple[int, int]]) -> None:
    if cut is None or not fresh:
        return
    if isinstance(each.attributes.truncated, UnsetType):
        at.wrong("attributes.truncated", "stored, though the rank does not know it", each)
        return
    own = set(each.attributes.truncated)
    at.checked(len(fresh))
    for k, position in fresh:
        if (position in cut) != (k in own):
            stored, said = (int(position in cut), int(k in own))
            at.wrong(f"attributes.truncated{{{position}}}", "", each, stored, said)
            return


def _visits(
    visits: dict[int, tuple[int, Spoken, bool]], each: Spoken, own: list[int | None]
) -> None:
    counts = each.attributes.visit_counts
    if isinstance(counts, UnsetType):
        return
    ended = each.attributes.window.status != "aborted"
    for position, n in zip(own, counts, strict=True):
        if position is not None:
            most, by, whole = visits.get(position, (n, each, True))
            visits[position] = (max(most, n), each if n > most else by, whole and ended)


def check_amounts(at: Place, a: RolloutAttributes, spoken: Iterable[Spoken]) -> None:
    """Generated and revisited samples are in the record; sums over ranks are not below their parts."""
    generated = None if isinstance(a.generated, UnsetType) else set(ids(a.generated))
    revisits = _revisits(a)
    parts: Counter[str] = Counter()
    for each in spoken:
        own = each.attributes
        if generated is not None:
            lost = next((s for s in ids(own.generated) if s not in generated), None)
            if lost is not None:
                at.wrong("attributes.generated", "not in the record", each, ABSENT, str(lost))
        for sample, n in _revisits(own).items():
            if revisits[sample] < n:
                at.wrong("attributes.revisited", f"visits of {sample}", each, revisits[sample], n)
                break
        for reason, n, _ in own.discarded:
            parts[f"discarded.{reason}"] += n
        for name in ("pending", "padding"):
            value = getattr(own, name)
            if not isinstance(value, UnsetType):
                parts[name] += value
        at.checked(2)
    whole: Counter[str] = Counter()
    for reason, n, _ in a.discarded:
        whole[f"discarded.{reason}"] += n
    for name, n in parts.items():
        stored = whole[name] if name.startswith("discarded") else getattr(a, name)
        if isinstance(stored, UnsetType):
            continue
        at.checked(1)
        if stored < n:
            at.wrong(f"attributes.{name}", "less than the ranks' own", None, stored, n)


def _revisits(a: RolloutAttributes) -> Counter[SampleId]:
    counts: Counter[SampleId] = Counter()
    for rollout, first, n, visits, _ in a.revisited:
        for k in range(n):
            counts[rollout, first + k] += visits
    return counts
