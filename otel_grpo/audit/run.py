"""The audit of one run directory, file by file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from msgspec import UnsetType

from otel_grpo.audit.attempt import AttemptAudit
from otel_grpo.audit.chain import FILE, Chain
from otel_grpo.audit.decode import Json, run_file, summary_file
from otel_grpo.audit.files import check_spans, count_lines
from otel_grpo.audit.laws import Laws
from otel_grpo.audit.report import Findings, InputFault, Report, State
from otel_grpo.audit.workers import Attempts, Workers
from otel_grpo.records.model import Observed, RunFile, Summary

_T = TypeVar("_T")

_SUMMARY = "summary.json"


def audit(run_dir: Path, *, min_coverage: float | None = None) -> Report:
    """Computes every derived number of a run directory again and checks the laws between lines.

    Args:
        run_dir: The directory with ``run.json`` and ``metrics_raw.jsonl``.
        min_coverage: Share of the windows' wall time, 0 to 1, that must lie in a phase.

    Returns:
        The report. Bad input never raises: it is a finding of severity ``input``, exit status 2.
    """
    if min_coverage is not None and not 0 <= min_coverage <= 1:
        raise ValueError(f"min_coverage is a share from 0 to 1, not {min_coverage}")
    job = _Audit(Path(run_dir), min_coverage)
    try:
        job.go()
    except InputFault as fault:
        job.state = "unreadable"
        job.findings.add("input", fault.file, fault.line, "", fault.message)
    except OSError as error:
        job.state = "unreadable"
        file = str(error.filename or run_dir)
        job.findings.add("input", file, None, "", error.strerror or str(error))
    return job.report()


def _read(path: Path, parse: Callable[[bytes], _T]) -> _T:
    try:
        return parse(path.read_bytes())
    except FileNotFoundError:
        raise InputFault(path.name, None, f"no such file in {path.parent}") from None
    except (ValueError, RecursionError) as error:
        raise InputFault(path.name, None, str(error)) from error


class _Audit:
    """The state of one audit."""

    def __init__(self, run_dir: Path, min_coverage: float | None) -> None:
        self.dir = run_dir
        self.min_coverage = min_coverage
        self.findings = Findings()
        self.state: State = "finished"
        self.attempts: dict[int, AttemptAudit] = {}
        self.lines = 0
        self._seq = -1

    def go(self) -> None:
        """All files, in the order in which they explain each other."""
        if not self.dir.is_dir():
            raise InputFault(str(self.dir), None, "not a directory")
        if not any((self.dir / name).exists() for name in ("run.json", FILE, _SUMMARY)):
            raise InputFault(str(self.dir), None, "not a run directory: it has none of our files")
        run = _read(self.dir / "run.json", run_file)
        if not run.attempts:
            raise InputFault("run.json", None, "no attempt")
        numbers = [facts.attempt for facts in run.attempts]
        if numbers != list(range(1, len(numbers) + 1)):
            self.findings.add("error", "run.json", None, "attempts", "not 1, 2, 3...", str(numbers))
        summary, raw = self._summary(run)
        attempts, workers = Attempts(run), Workers()
        workers.read(self.dir / "workers", attempts, self.findings)
        for facts in run.attempts:
            self.attempts[facts.attempt] = AttemptAudit(facts, workers, attempts, self.findings)
        self._records(run, summary)
        if summary is not None:
            self._compare(run, summary, raw)
        for attempt in self.attempts.values():
            attempt.say_late()
        self._losses(summary)
        self._coverage()
        spans = check_spans(self.dir / "spans", self.findings)
        flat = count_lines(self.dir / "metrics.jsonl")
        self._gone(summary, {"spans": spans, "workers": workers.lines, "metrics": flat})

    def _gone(self, summary: Summary | None, found: dict[str, int]) -> None:
        """No number rests on these files alone, so one may leave them out, but not unseen."""
        sinks = {} if summary is None else summary.observed.sinks
        for name, n in found.items():
            if name in sinks and n < sinks[name].written:
                message = f"{sinks[name].written} were written, {n} are in the files"
                self.findings.add("warning", name, None, "", message)

    def _summary(self, run: RunFile) -> tuple[Summary | None, Json]:
        path = self.dir / _SUMMARY
        latest = run.attempts[-1].attempt
        summary, raw = _read(path, summary_file) if path.exists() else (None, {})
        if summary is None or summary.status == "running" or summary.attempt != latest:
            self.state = "not finished"
            message = "no final summary: run `otel-grpo finish DIR`"
            if summary is not None and summary.open is not None:
                message += f"; window {summary.open.iteration} was open when it was written"
            self.findings.add("note", _SUMMARY, None, "", message)
        return summary, raw

    def _records(self, run: RunFile, summary: Summary | None) -> None:
        path = self.dir / FILE
        final = self.state == "finished"
        size = path.stat().st_size if path.exists() else 0
        if not size and (summary is None or summary.head is not None):
            # A young run has no line yet, and a summary that says so.
            raise InputFault(
                FILE, None, "is empty" if path.exists() else f"no such file in {self.dir}"
            )
        if not size:
            return
        laws, current, unreadable = Laws(self.findings), 0, 0
        chain = Chain(path, self.findings, summary, final=final)
        for line in chain:
            self.lines = chain.lines
            if line.record is None:
                continue
            head = line.record.head
            laws.header(line.number, head, run.run_id)
            if head.attempt not in self.attempts:
                message = "an attempt that run.json does not have"
                self.findings.add("error", FILE, line.number, "attempt", message, head.attempt)
                for attempt in self.attempts.values():
                    attempt.incomplete = True
                self._seq = max(self._seq, head.seq)
                continue
            if head.attempt < current:
                message = f"comes after a record of attempt {current}"
                self.findings.add("error", FILE, line.number, "attempt", message, head.attempt)
            attempt = self.attempts[head.attempt]
            if chain.unreadable > unreadable:
                for spoilt in {current, head.attempt} & self.attempts.keys():
                    self.attempts[spoilt].incomplete = True
            self._order(line.number, head.seq, attempt, known=chain.unreadable == unreadable)
            current, unreadable = max(current, head.attempt), chain.unreadable
            attempt.add(line.number, line.record)
        self.lines = chain.lines
        if chain.unreadable > unreadable and (current or 1) in self.attempts:
            self.attempts[current or 1].incomplete = True
        for attempt in self.attempts.values():
            attempt.finish()

    def _order(self, line: int, seq: int, attempt: AttemptAudit, *, known: bool) -> None:
        """``seq`` counts the records that were made: one that is missing was lost."""
        expected = self._seq + 1
        if seq < expected:
            message = "already used: must grow by 1"
            self.findings.add("error", FILE, line, "seq", message, seq, expected)
        elif known:
            self.findings.checked += 1
            attempt.gap += seq - expected
        self._seq = max(self._seq, seq)

    def _compare(self, run: RunFile, summary: Summary, raw: Json) -> None:
        findings = self.findings
        findings.equal(_SUMMARY, None, "run_id", summary.run_id, run.run_id)
        Laws(findings).sinks(_SUMMARY, None, summary.observed)
        own = self.attempts.get(summary.attempt)
        if own is None:
            message = "an attempt that run.json does not have"
            findings.add("error", _SUMMARY, None, "attempt", message, summary.attempt)
        elif summary.status != "running":
            own.check_summary("", summary, raw)
        earlier = list(range(1, summary.attempt))
        listed = [entry.attempt for entry in summary.attempts]
        findings.equal(_SUMMARY, None, "attempts", str(listed), str(earlier))
        for k, entry in enumerate(summary.attempts):
            if entry.attempt in self.attempts and entry.attempt != summary.attempt:
                block = raw["attempts"][k]
                self.attempts[entry.attempt].check_summary(f"attempts[{k}].", entry, block)

    def _losses(self, summary: Summary | None) -> None:
        """A gap in ``seq`` is a loss; one that is declared is a warning, another one an error."""
        latest = max(self.attempts)
        for number, attempt in self.attempts.items():
            sink = attempt.sink
            if summary is not None and summary.attempt == number:
                sink = summary.observed.sinks.get("metrics_raw", sink)
            declared = 0 if sink is None else sink.dropped
            if attempt.gap:
                # Nothing keeps the sink counts of an earlier attempt that was killed.
                says = "its count of drops is lost" if sink is None else f"it says {declared}"
                self.findings.add(
                    "warning" if sink is None or declared >= attempt.gap else "error",
                    FILE,
                    None,
                    "seq",
                    f"attempt {number} lost {attempt.gap} record(s) by the gaps in seq; {says}",
                )
            elif declared and not attempt.incomplete:
                message = f"attempt {number} says that {declared} record(s) were dropped at its end"
                self.findings.add("warning", FILE, None, "seq", message)
            orderly = attempt.end is not None and number == latest and self.state == "finished"
            if orderly and summary is not None and not attempt.incomplete:
                self._written(summary.observed, attempt)

    def _written(self, observed: Observed, attempt: AttemptAudit) -> None:
        """What was written stands in the file; what was pending at that instant may, too."""
        sink, lines = observed.sinks.get("metrics_raw"), sum(attempt.records.values())
        if sink is None or attempt.end is None:
            return
        most = sink.written + sink.pending
        if isinstance(observed.time_unix_ns, UnsetType):
            later = False
        else:
            # A reading from before the end (`finish` has no other) knows nothing of later lines.
            later = observed.time_unix_ns < attempt.end.ended_unix_ns
        if sink.written <= lines and (later or lines <= most):
            self.findings.checked += 1
            return
        name = "observed.sinks.metrics_raw.written"
        self.findings.equal(_SUMMARY, None, name, sink.written, lines, "lines of the attempt")

    def _coverage(self) -> None:
        inside, wall = self._covered()
        if self.min_coverage is None or not wall or inside / wall >= self.min_coverage:
            return
        share, line = min(a.worst for a in self.attempts.values() if a.worst is not None)
        self.findings.add(
            "error",
            FILE,
            None,
            "time.unattributed_ns",
            f"coverage {inside / wall:.1%} of wall instrumented; {1 - inside / wall:.1%} "
            f"unaccounted; the floor is {self.min_coverage:.1%}; lowest on line {line}: {share:.1%}",
        )

    def _covered(self) -> tuple[int, int]:
        parts = [attempt.coverage() for attempt in self.attempts.values()]
        return sum(inside for inside, _ in parts), sum(wall for _, wall in parts)

    def report(self) -> Report:
        """What was found."""
        records: Counter[str] = Counter()
        for attempt in self.attempts.values():
            records.update(attempt.records)
        inside, wall = self._covered()
        return Report(
            run_dir=str(self.dir),
            state=self.state,
            exit_status=self.findings.worst,
            fields_checked=self.findings.checked,
            lines=self.lines,
            attempts=len(self.attempts),
            records=dict(records),
            coverage=inside / wall if wall else None,
            findings=self.findings.kept,
            findings_left_out=self.findings.left_out,
        )
