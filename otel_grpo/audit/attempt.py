"""One attempt: its lines in order, the laws between them, and its totals against what is stored."""

from __future__ import annotations

import copy
from collections import Counter, defaultdict

from msgspec import UnsetType

from otel_grpo.audit import rollout, train
from otel_grpo.audit.chain import FILE
from otel_grpo.audit.decode import KINDS, Header, Json, Record, flat
from otel_grpo.audit.job import Job
from otel_grpo.audit.laws import Laws
from otel_grpo.audit.report import Findings, Value
from otel_grpo.audit.totals import FORMULA, Totals
from otel_grpo.audit.updates import Updates
from otel_grpo.audit.workers import Attempts, Workers
from otel_grpo.records.model import (
    Attempt,
    RolloutAttributes,
    RunAttributes,
    SinkCounts,
    Totals as StoredTotals,
    TrainAttributes,
    World,
)

# Counts whose absence from the file means 0: the writer leaves defaults out.
_DEFAULTS = ("publications", "publications_pending", "nonfinite", "ranks.late")
# Blocks that an attempt without a window may leave out as well as fill with zeros.
_COUNTS = ("samples.", "updates.")
_SUMMARY = "summary.json"
# What of a summary is not a total.
_APART = ("attempt", "attempts", "observed", "open")


class AttemptAudit:
    """Takes the records of one attempt in the order of the file."""

    def __init__(
        self, facts: Attempt, workers: Workers, attempts: Attempts, findings: Findings
    ) -> None:
        self.facts = facts
        self.records: Counter[str] = Counter()
        self.totals = Totals()
        self.end: RunAttributes | None = None
        self.gap = 0  # lines that `seq` says are lost
        self.incomplete = False  # evidence of this attempt is unreadable: no totals
        self.sink: SinkCounts | None = None
        self.worst: tuple[float, int] | None = None  # least covered window: share, line
        self._workers = workers
        self._findings = findings
        self._laws = Laws(findings)
        self._job = Job(facts, workers, attempts, findings)
        self._with_late: Totals | None = None  # totals with what came after the records, if it did
        self._last = facts.started_unix_ns
        self._iteration: int | None = None
        self._merged = False  # the summary is of those
        self._pending: int | None = 0
        self._whole = True  # the window before lacked no rank
        self._gap_before = 0
        self._late = 0  # publications of its windows that were confirmed after their record
        self._opened_recorded = 0
        self._updates = Updates(findings)
        self._ramps: dict[str, train.Ramp] = defaultdict(train.Ramp)

    @property
    def number(self) -> int:
        """Counts from 1."""
        return self.facts.attempt

    # --- lines

    def add(self, line: int, record: Record) -> None:
        """One record: recomputed, then held against the ones before it."""
        head, attributes = record.head, record.attributes
        if self.end is not None:
            self._wrong(line, "kind", "a record after the `run` record of its attempt", head.kind)
        self.records[head.kind] += 1
        self._last = max(self._last, head.time_unix_ns)
        self._laws.sinks(FILE, line, record.observed)
        if isinstance(attributes, RolloutAttributes):
            self._rollout(line, record, attributes)
        elif isinstance(attributes, TrainAttributes):
            self._train(line, record, attributes)
        else:
            self._run(line, record, attributes)

    def _wrong(self, line: int | None, name: str, message: str, stored: Value = None) -> None:
        self._findings.add("error", FILE, line, name, message, stored)

    def _rollout(self, line: int, record: Record, a: RolloutAttributes) -> None:
        self._order(line, record.head, a)
        devices = len(self.facts.world.devices) or None
        try:
            if not self._laws.rollout(line, record, a, devices):
                raise ValueError("evidence that does not fit together")
            # A rank that a window lacks may bring its visits to the next one, or take them along.
            whole, self._whole = self._whole, not a.ranks.missing
            window = rollout.derive(a, self._pending if whole and self._whole else None)
        except (ValueError, OverflowError) as error:
            self._wrong(line, "metrics", f"cannot be recomputed: {error}")
            self.incomplete = True
            return
        m = window.metrics
        self._laws.columns(line, window.columns)
        self._findings.compare(FILE, line, "metrics.", record.metrics, m)
        self._findings.equal(FILE, line, "attributes.window.status", a.window.status, window.status)
        self._laws.segments(line, a, window.account.segments)
        if not isinstance(a.pending, UnsetType):
            level = m.get("samples.pending")
            self._findings.equal(
                FILE,
                line,
                "attributes.pending",
                a.pending,
                int(level) if level is not None else None,
            )
        level = m.get("samples.pending")
        self._pending = level if isinstance(level, int) else None
        self._add(line, record, a, window)
        self._last = max(self._last, a.window.end_ns)
        wall = m["time.wall_ns"]
        if wall:
            share = 1 - m["time.unattributed_ns"] / wall
            self.worst = min(self.worst or (2.0, 0), (share, line))
        for p in a.publications:
            if p.completed_ns is None:
                instant = self._workers.late.get(
                    (self.number, record.head.iteration or 0, p.version)
                )
                self._late += instant is not None
        rate, tokens = m.get("throughput.device"), m.get("tokens.total")
        if isinstance(rate, float) and isinstance(tokens, int):
            # Seconds alone that shrink so are chance: a sum since the start is of tokens.
            summed = self._ramps["tokens.total"].grows(tokens)
            self._ramp(line, "metrics.throughput.device", rate, also=summed)
        self._updates.window(line, record.head, a)

    def _add(
        self, line: int, record: Record, a: RolloutAttributes, window: rollout.Derived
    ) -> None:
        """The window into the totals, and into those that know what came later."""
        spans = window.account
        busy = {name: spans.metrics[f"phase.{name}.busy_ns"] for name in spans.phases}
        trains = self._updates.records(record.head.iteration)
        merged = self._job.window(line, record, a, busy, trains)
        if merged is not None and self._with_late is None:
            self._with_late = copy.deepcopy(self.totals)
        self.totals.add(a, window)
        if merged is not None and self._with_late is not None:
            self._with_late.add(merged, rollout.derive(merged, None))
        elif self._with_late is not None:
            self._with_late.add(a, window)

    def _order(self, line: int, head: Header, a: RolloutAttributes) -> None:
        """Iterations one after the other, windows disjoint and in order."""
        lost = self.gap > self._gap_before or self.incomplete
        expected = (self._iteration or 0) + 1
        if head.iteration is None or head.iteration < expected:
            self._wrong(line, "iteration", f"must grow, at least {expected}", head.iteration)
        elif head.iteration > expected and not lost:
            self._findings.equal(FILE, line, "iteration", head.iteration, expected, "none is lost")
        if self.incomplete or (head.iteration or 0) > expected:
            self._pending = None
            self._updates.applied = None
        self._gap_before = self.gap
        self._iteration = head.iteration if head.iteration is not None else self._iteration
        opened = self._workers.opened.get(self.number)
        if opened is not None and head.iteration is not None:
            self._opened_recorded += head.iteration in opened
        if self.totals.last_end is not None and a.window.start_ns < self.totals.last_end:
            self._wrong(line, "attributes.window.start_ns", "overlaps the window before")
        if a.window.start_ns < self.facts.started_unix_ns:
            self._wrong(line, "attributes.window.start_ns", "before the attempt started")

    def _train(self, line: int, record: Record, a: TrainAttributes) -> None:
        self._laws.train(line, a)
        try:
            self._findings.compare(FILE, line, "metrics.", record.metrics, train.derive(a))
        except OverflowError as error:
            self._wrong(line, "metrics", f"cannot be recomputed: {error}")
        for name, value in a.scalars.items():
            if value is not None and train.is_rate(name):
                self._ramp(line, f"attributes.scalars.{name}", float(value))
        self._updates.train(line, record.head, a)

    def _ramp(self, line: int, name: str, value: float, *, also: bool = True) -> None:
        if self._ramps[name].grows(value) and also:
            self._findings.add(
                "warning",
                FILE,
                line,
                name,
                "grows like 1 : 2 : 3 : 4: the sign of a sum since the start over one step's time",
                value,
            )

    # --- the end

    def _run(self, line: int, record: Record, a: RunAttributes) -> None:
        self.end = a
        self.sink = record.observed.sinks.get("metrics_raw")
        numbers = flat(record.raw)
        metrics = {
            name: value
            for name, value in record.metrics.items()
            if value or name in numbers or name not in _DEFAULTS
        }
        self._findings.compare(FILE, line, "metrics.", metrics, numbers)
        if self._iteration is not None or record.head.iteration is not None:
            self._findings.equal(FILE, line, "iteration", record.head.iteration, self._iteration)
        if self._updates.applied is not None and not self.incomplete:
            self._findings.equal(
                FILE, line, "optimizer_step", record.head.optimizer_step, self._updates.applied
            )
        after = sum(
            key[0] == self.number and at > a.ended_unix_ns for key, at in self._workers.late.items()
        )
        self._totals(FILE, line, "attributes.", a, record.raw, {}, max(0, self._late - after))

    def finish(self) -> None:
        """After the last line of the attempt: each attempted update has its ``train`` record."""
        self._job.finish()
        if self.incomplete or self.gap or self.end is None:
            return  # what is lost may be what is missing
        self._updates.finish()

    def say_late(self) -> None:
        """After the summary: what other processes wrote and no record has."""
        self._job.say_late(merged=self._merged)

    def check_summary(self, prefix: str, stored: StoredTotals, raw: Json) -> None:
        """The block of this attempt in ``summary.json``."""
        numbers = {f"records.{kind}": self.records[kind] for kind in KINDS}
        self._totals(_SUMMARY, None, prefix, stored, raw, numbers, self._late)

    def _totals(
        self,
        file: str,
        line: int | None,
        prefix: str,
        stored: StoredTotals,
        raw: Json,
        more: dict[str, int],
        late: int,
    ) -> None:
        """Every number of the totals, then what they say in words."""
        facts, findings = self.facts, self._findings
        if self.incomplete:
            findings.add(
                "note", file, line, prefix.rstrip("."), "totals not recomputed: evidence is lost"
            )
            return
        status, ended, lost = "interrupted", self._last, 0
        if self.end is not None:
            status, ended = self.end.status, self.end.ended_unix_ns
        else:
            ended = max(ended, self._workers.last.get(self.number, ended))
            lost = len(self._workers.opened.get(self.number, ())) - self._opened_recorded
        numbers = flat({k: v for k, v in raw.items() if k not in _APART})

        totals, came = self.totals, 0
        if file == _SUMMARY and numbers.get("ranks.late") and self._with_late is not None:
            totals, came = self._with_late, self._job.late
            self._merged = True
        expected = totals.blocks(
            facts.started_unix_ns, ended, lost=lost, late=late, ranks=facts.world.size
        )
        expected["ranks.late"] = came
        expected |= more
        expected |= {f"base.{name}": value for name, value in facts.base.items()}
        expected["world.size"] = facts.world.size
        lenient = (*_DEFAULTS, "records.") + (() if self.totals.count else _COUNTS)
        for name in [n for n, v in expected.items() if v == 0 and n not in numbers]:
            if name.startswith(lenient):
                del expected[name]
        for name in [n for n, v in numbers.items() if v == 0 and n not in expected]:
            if name.startswith(lenient):
                del numbers[name]
        findings.compare(file, line, prefix, numbers, expected)
        findings.equal(file, line, f"{prefix}status", stored.status, status)
        for name in ("startup_ns", "between_ns", "shutdown_ns"):
            part = expected[f"time.{name}"]
            if isinstance(part, int) and part < 0:
                findings.add("error", file, line, f"{prefix}time.{name}", "negative", part)
        # `finish` counts devices of ranks whose files came later.
        worlds = (facts.world, World(facts.world.size, self._job.devices))
        for name, known in (("trainer", (facts.trainer,)), ("world", worlds)):
            if getattr(stored, name) not in known:
                findings.add("error", file, line, f"{prefix}{name}", "is not what run.json says")
        formula = stored.throughput.get("formula")
        if formula is not None or any(n.startswith("throughput.") for n in expected):
            findings.equal(file, line, f"{prefix}throughput.formula", formula, FORMULA)

    def coverage(self) -> tuple[int, int]:
        """Nanoseconds of windows inside a phase, and in all."""
        wall = self.totals.sums["time.wall_ns"]
        return wall - self.totals.sums["time.unattributed_ns"], wall
