"""What the ranks contributed to one window, held against the samples of its record.

Rank 0 writes the record and contributes nothing on file, so what it counted itself is known only as
what no other rank explains. Each law here holds whatever that was.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
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
        if not isinstance(a.truncated, UnsetType) and any(not 0 <= k < n for k in a.truncated):
            return "truncated is not of its samples"
        c = self.contribution
        if not len(a.updates) == len(c.update_samples) == len(c.update_trained):
            return "not as many update_samples and update_trained as updates"
        for update, runs in zip(a.updates, c.update_samples, strict=True):
            if sum(run[2] for run in runs) > update.samples:
                return "an update with more samples than it says"
        parts = [a.samples, a.generated, [row[:3] for row in a.revisited], *c.update_samples]
        if any(run[2] < 0 for runs in parts if not isinstance(runs, UnsetType) for run in runs):
            return "a negative number of samples"
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
        _visits(at, a, each, positions)


def _columns(at: Place, a: RolloutAttributes, each: Spoken, fresh: list[tuple[int, int]]) -> None:
    for name in COLUMNS:
        stored, own = getattr(a, name), getattr(each.attributes, name)
        if name == "visit_counts" or isinstance(stored, UnsetType) or isinstance(own, UnsetType):
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
    if cut is None or isinstance(each.attributes.truncated, UnsetType):
        return
    own = set(each.attributes.truncated)
    at.checked(len(fresh))
    for k, position in fresh:
        if (position in cut) != (k in own):
            stored, said = (int(position in cut), int(k in own))
            at.wrong(f"attributes.truncated{{{position}}}", "", each, stored, said)
            return


def _visits(
    at: Place, a: RolloutAttributes, each: Spoken, positions: Mapping[SampleId, int]
) -> None:
    """A sample has as many visits as the rank that visited it most; rank 0 may be that one."""
    if isinstance(a.visit_counts, UnsetType):
        return
    own = each.attributes
    visits = revisits(own)
    if not isinstance(own.visit_counts, UnsetType):
        visits.update(dict(zip(ids(own.samples), own.visit_counts, strict=True)))
    at.checked(len(visits))
    for sample, n in visits.items():
        position = positions.get(sample)
        if position is not None and a.visit_counts[position] < n:
            stored = a.visit_counts[position]
            at.wrong(f"attributes.visit_counts[{position}]", "", each, stored, n)
            return


def check_amounts(at: Place, a: RolloutAttributes, spoken: Iterable[Spoken]) -> None:
    """Generated and revisited samples are in the record; sums over ranks are not below their parts."""
    generated, known = set(ids(a.generated)), revisits(a).keys() | set(ids(a.samples))
    parts: Counter[str] = Counter()
    for each in spoken:
        own = each.attributes
        for name, lost in (
            ("generated", next((s for s in ids(own.generated) if s not in generated), None)),
            ("revisited", next((s for s in revisits(own) if s not in known), None)),
        ):
            if lost is not None:
                at.wrong(f"attributes.{name}", "not in the record", each, ABSENT, str(lost))
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


def revisits(a: RolloutAttributes) -> Counter[SampleId]:
    """Visits of samples that the process did not consume in this window."""
    counts: Counter[SampleId] = Counter()
    for rollout, first, n, visits, _ in a.revisited:
        for k in range(n):
            counts[rollout, first + k] += visits
    return counts
