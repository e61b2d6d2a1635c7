"""What an audit found: findings, counts, the verdict, and its plain text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Literal

Severity = Literal["input", "error", "warning", "note"]
State = Literal["finished", "not finished", "unreadable"]
Value = int | float | str | None

# Stands for a field that is not there, on either side.
ABSENT = "absent"
# Findings are kept up to this many, so that a spoilt file of any size fits in memory.
MAX_FINDINGS = 1_000


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong or worth saying; ``line`` counts from 1."""

    line: int | None
    file: str
    field: str
    stored: Value
    recomputed: Value
    message: str
    severity: Severity

    def __str__(self) -> str:
        where = self.file if self.line is None else f"{self.file}:{self.line}"
        values = ""
        if self.stored is not None:
            values = f" stored {self.stored}"
        if self.recomputed is not None:
            values += f"{',' * bool(values)} recomputed {self.recomputed}"
        name = f" {self.field}" if self.field else ""
        message = f" ({self.message})" if self.message and values else f" {self.message}"
        return f"{self.severity}: {where}:{name}{values}{message}".rstrip()


@dataclass(frozen=True)
class Report:
    """The result of an audit; ``exit_status``: 0 good, 1 something is wrong, 2 the input is bad."""

    run_dir: str
    state: State
    exit_status: int
    fields_checked: int
    lines: int
    attempts: int
    records: dict[str, int]
    coverage: float | None
    findings: list[Finding] = field(default_factory=list)
    findings_left_out: int = 0

    def to_dict(self) -> dict[str, object]:
        """Plain types only, for ``--json``."""
        return asdict(self)


class InputFault(Exception):  # noqa: N818 - a fault of the input, not an error of ours
    """The input is not what an audit can judge: no file, another tool's, garbage, wrong types."""

    def __init__(self, file: str, line: int | None, message: str) -> None:
        super().__init__(message)
        self.file = file
        self.line = line
        self.message = message


class Findings:
    """Collects findings and counts each field that was computed again."""

    def __init__(self) -> None:
        self.kept: list[Finding] = []
        self.left_out = 0
        self.checked = 0
        self.worst = 0

    def add(
        self,
        severity: Severity,
        file: str,
        line: int | None,
        name: str,
        message: str = "",
        stored: Value = None,
        recomputed: Value = None,
    ) -> None:
        """Keeps one finding, or counts it where there are too many."""
        self.worst = max(self.worst, {"input": 2, "error": 1}.get(severity, 0))
        if len(self.kept) < MAX_FINDINGS:
            self.kept.append(Finding(line, file, name, stored, recomputed, message, severity))
        else:
            self.left_out += 1

    def equal(
        self,
        file: str,
        line: int | None,
        name: str,
        stored: Value,
        recomputed: Value,
        message: str = "",
    ) -> bool:
        """Whether both are the same, an integer and a float never being so."""
        self.checked += 1
        same = type(stored) is type(recomputed) and stored == recomputed
        if not same:
            self.add("error", file, line, name, message, stored, recomputed)
        return same

    def compare(
        self,
        file: str,
        line: int | None,
        prefix: str,
        stored: Mapping[str, Value],
        recomputed: Mapping[str, Value],
    ) -> None:
        """Both ways: what is stored must be derivable, what is derivable must be stored."""
        for name, value in recomputed.items():
            self.equal(file, line, prefix + name, stored.get(name, ABSENT), value)
        for name, value in stored.items():
            if name not in recomputed:
                self.equal(file, line, prefix + name, value, ABSENT, "the evidence gives no such")


def render(report: Report) -> str:
    """One line a finding, then the verdict."""
    lines = [str(finding) for finding in report.findings]
    if report.findings_left_out:
        lines.append(f"... and {report.findings_left_out} more")
    kinds = ", ".join(f"{n} {kind}" for kind, n in report.records.items())
    if report.coverage is not None:
        lines.append(f"coverage: {report.coverage:.1%} of the windows' wall time is in a phase")
    verdict = {0: "PASSED", 1: "FAILED", 2: "BAD INPUT"}[report.exit_status]
    if report.exit_status == 0 and report.state != "finished":
        verdict += f" ({report.state})"
    lines.append(
        f"audit {verdict}: {report.fields_checked} fields recomputed, {report.lines} lines "
        f"({kinds or 'no records'}), {report.attempts} attempt(s), {report.run_dir}"
    )
    return "\n".join(lines)
