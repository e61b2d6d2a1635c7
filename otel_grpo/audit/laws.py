"""What must hold inside one record, whatever its numbers are."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from msgspec import UnsetType

from otel_grpo.audit.chain import FILE
from otel_grpo.audit.columns import Column
from otel_grpo.audit.decode import KINDS, Header, Record
from otel_grpo.audit.report import Findings, Value
from otel_grpo.audit.rollout import COLUMNS
from otel_grpo.records.model import (
    CONTINUED,
    OPEN_AT_END,
    Hardware,
    IntervalRow,
    Memory,
    Observed,
    RolloutAttributes,
    TrainAttributes,
)

_HEX = {16: re.compile(r"[0-9a-f]{16}"), 32: re.compile(r"[0-9a-f]{32}")}


def is_id(text: str, digits: int) -> bool:
    """Whether a text is a valid, non-zero trace or span id in lower-case hex."""
    return _HEX[digits].fullmatch(text) is not None and text != "0" * digits


class Laws:
    """Checks one record at a time and reports under its line number."""

    def __init__(self, findings: Findings) -> None:
        self._findings = findings

    def _wrong(self, line: int, name: str, message: str, stored: Value = None) -> None:
        self._findings.add("error", FILE, line, name, message, stored)

    def header(self, line: int, head: Header, run_id: str) -> None:
        """Scope and stage of its kind, the run's id, ids in hex."""
        scope, stage = KINDS[head.kind]
        self._findings.equal(FILE, line, "scope", head.scope, scope)
        self._findings.equal(FILE, line, "stage", head.stage, stage)
        self._findings.equal(FILE, line, "run_id", head.run_id, run_id, "one run id in all lines")
        for name, value, digits in (("trace_id", head.trace_id, 32), ("span_id", head.span_id, 16)):
            if value is not None and not is_id(value, digits):
                self._wrong(line, name, f"not {digits} hex digits, or zero", value)

    def sinks(self, file: str, line: int | None, observed: Observed) -> None:
        """In each sink created = written + dropped + pending + unconfirmed."""
        for name, sink in observed.sinks.items():
            unconfirmed = sink.unconfirmed or 0  # files have none
            self._findings.equal(
                file,
                line,
                f"observed.sinks.{name}.created",
                sink.created,
                sink.written + sink.dropped + sink.pending + unconfirmed,
                "created = written + dropped + pending + unconfirmed",
            )

    def intervals(self, line: int, rows: Sequence[IntervalRow]) -> None:
        """Unique ids, ends after starts, no circle of parents, children inside their parents."""
        by_id = {row[0]: row for row in rows}
        if len(by_id) != len(rows):
            twice = Counter(row[0] for row in rows).most_common(1)[0][0]
            self._wrong(line, "attributes.intervals", "the same span id twice", twice)
        for span, up, phase, start, end, lane, flags in rows:
            name = f"attributes.intervals[{span}]"
            if end is not None and end < start:
                self._wrong(line, name, f"{phase} ends before it starts")
            if end is None and not flags & OPEN_AT_END:
                self._wrong(line, name, f"{phase} has no end and no flag that it was open")
            parent = by_id.get(up) if up else None
            if parent is None or parent[5] != lane:
                continue
            late = parent[4] is not None and (end is None or end > parent[4])
            if start < parent[3] or late:
                self._wrong(line, name, f"{phase} is not inside its parent {parent[2]} {parent[0]}")
        parents = {row[0]: row[1] for row in rows}
        sound: set[str] = set()
        for span in parents:
            path: set[str] = set()
            at: str | None = span
            while at in parents and at not in sound and at not in path:
                path.add(at)
                at = parents[at]
            if at in path:
                self._wrong(line, "attributes.intervals", "parents in a circle", span)
                return
            sound |= path

    def rollout(self, line: int, record: Record, a: RolloutAttributes, devices: int | None) -> bool:
        """All that the metrics of a window rest on; False where they cannot be computed."""
        window, computable = a.window, True
        if window.end_ns < window.start_ns:
            self._wrong(line, "attributes.window", "ends before it starts")
            computable = False
        self.intervals(line, a.intervals)
        for span, _, phase, start, _, _, flags in a.intervals:
            if flags & CONTINUED and start >= window.start_ns:
                name = f"attributes.intervals[{span}]"
                self._wrong(line, name, f"{phase} is marked as continued and starts in the window")
        runs = [] if isinstance(a.samples, UnsetType) else a.samples
        consumed = sum(run[2] for run in runs)
        if any(run[2] < 0 for run in runs):
            self._wrong(line, "attributes.samples", "a negative number of samples")
            computable = False
        self._unique(line, runs)
        for name in COLUMNS:
            values = getattr(a, name)
            if isinstance(values, UnsetType):
                continue
            if len(values) != consumed:
                message = f"{len(values)} entries for {consumed} samples"
                self._wrong(line, f"attributes.{name}", message)
                computable = False
        if not isinstance(a.truncated, UnsetType) and (
            len(set(a.truncated)) != len(a.truncated)
            or any(not 0 <= position < consumed for position in a.truncated)
        ):
            self._wrong(line, "attributes.truncated", "not distinct positions of samples")
        if not isinstance(a.memory, UnsetType):
            computable &= self._memory(line, a.memory)
        if not isinstance(a.hardware, UnsetType):
            computable &= self._table(line, "hardware", a.hardware) is not None
        if not isinstance(a.devices, UnsetType) and devices is not None:
            for index, _ in a.devices:
                if not 0 <= index < devices:
                    self._wrong(line, "attributes.devices", "not in the inventory", index)
        ranks = a.ranks
        if ranks.received + len(ranks.missing) != ranks.expected:
            self._wrong(line, "attributes.ranks", "expected is not received + missing")
        for k, p in enumerate(a.publications):
            inside = p.completed_ns is not None and p.completed_ns <= window.end_ns
            self._findings.equal(
                FILE, line, f"attributes.publications[{k}].in_window", p.in_window, inside
            )
        self._stored(line, record)
        return computable

    def _memory(self, line: int, memory: Memory) -> bool:
        """Columns of one length, and at least as many resets of peaks as the rows show."""
        columns = self._table(line, "memory", memory)
        if columns is None:
            return False
        nothing: list[int | None] = [None] * len(memory.instant)
        owners = zip(
            memory.rank, memory.host, memory.pid, columns.get("device", nothing), strict=True
        )
        peaks = [columns.get(f"allocator_peak_{n}", nothing) for n in ("allocated", "reserved")]
        last: dict[object, tuple[int | None, ...]] = {}
        fell = 0
        for owner, now in zip(owners, zip(*peaks, strict=True), strict=True):
            before = last.get(owner, now)
            fell += any(
                b is not None and n is not None and n < b for b, n in zip(before, now, strict=True)
            )
            last[owner] = now
        if fell > memory.peak_resets:
            message = f"peaks fell {fell} times in the rows"
            self._wrong(line, "attributes.memory.peak_resets", message, memory.peak_resets)
        return True

    def _table(
        self, line: int, table: str, rows: Memory | Hardware
    ) -> dict[str, list[int | None]] | None:
        """The columns that are known; None where they are not of one length."""
        columns = {
            name: values
            for name in rows.__struct_fields__
            if isinstance(values := getattr(rows, name), list)
        }
        whole = True
        for name, values in columns.items():
            if len(values) != len(rows.instant):
                self._wrong(line, f"attributes.{table}.{name}", "columns of different lengths")
                whole = False
        return columns if whole else None

    def columns(self, line: int, columns: Mapping[str, Column | None]) -> None:
        """Lengths and visits count something: none is negative."""
        for name, values in columns.items():
            if values is not None and len(values) and name not in {"group_ids", "policy_lag"}:
                least = int(values.min())
                if least < 0:
                    self._wrong(line, f"attributes.{name}", "a negative entry", least)

    def _unique(self, line: int, runs: Iterable[tuple[int | str, int, int]]) -> None:
        spans: dict[tuple[type, int | str], list[tuple[int, int]]] = {}
        for rollout, first, n in runs:
            spans.setdefault((type(rollout), rollout), []).append((first, first + n))
        for (_, rollout), ranges in spans.items():
            ranges.sort()
            if any(a[1] > b[0] for a, b in itertools.pairwise(ranges)):
                message = f"samples of rollout {rollout!r} are counted twice"
                self._wrong(line, "attributes.samples", message)

    def _stored(self, line: int, record: Record) -> None:
        """Identities between stored numbers: they hold whatever the evidence says."""
        m = record.metrics

        def adds_up(whole: str, parts: Iterable[str], message: str) -> None:
            values = [m.get(name) for name in parts]
            if whole in m and all(isinstance(value, int) for value in values):
                total = sum(value for value in values if isinstance(value, int))
                self._findings.equal(FILE, line, f"metrics.{whole}", m[whole], total, message)

        adds_up("tokens.total", ("tokens.prompt", "tokens.completion"), "prompt + completion")
        states = [f"updates.{s}" for s in ("applied", "skipped", "failed", "unconfirmed")]
        adds_up("updates.attempted", states, "applied + skipped + failed + unconfirmed")
        tops = [name for name in m if name.startswith("phase.") and name.endswith(".top_ns")]
        rest = ["time.overlapped_ns", "time.log_ns", "time.unattributed_ns"]
        adds_up("time.wall_ns", tops + rest, "top of all phases + overlapped + log + unattributed")
        a = record.attributes
        if not isinstance(a, RolloutAttributes):
            return
        wall = a.window.end_ns - a.window.start_ns
        self._findings.equal(
            FILE, line, "attributes.segments", sum(row[1] for row in a.segments), wall, "sum = wall"
        )
        visits, consumed = m.get("samples.visits"), m.get("samples.consumed")
        if a.window.status == "complete" and not isinstance(a.visit_counts, UnsetType):
            short = isinstance(visits, int) and isinstance(consumed, int) and visits < consumed
            if short:
                self._wrong(line, "metrics.samples.visits", "fewer visits than samples", visits)

    def segments(
        self, line: int, a: RolloutAttributes, derived: Mapping[tuple[str, ...], int]
    ) -> None:
        """The stored partition, row by row, and its order."""
        stored = {tuple(phases): ns for phases, ns in a.segments}
        name = "attributes.segments{%s}"
        self._findings.compare(
            FILE,
            line,
            "",
            {name % ",".join(key): ns for key, ns in stored.items()},
            {name % ",".join(key): ns for key, ns in derived.items() if ns},
        )
        keys = [tuple(phases) for phases, _ in a.segments]
        if keys != sorted(set(keys)) or any(key != tuple(sorted(key)) for key in keys):
            self._wrong(line, "attributes.segments", "rows are not sorted, or one set stands twice")

    def train(self, line: int, a: TrainAttributes) -> None:
        """Evidence of an update."""
        if a.interval[1] < a.interval[0]:
            self._wrong(line, "attributes.interval", "ends before it starts")
        self.intervals(line, a.intervals)
