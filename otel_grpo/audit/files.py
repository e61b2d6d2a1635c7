"""The other files of a run: ``spans/`` and ``workers/``."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np

from otel_grpo.audit.laws import is_id
from otel_grpo.audit.report import Findings, InputFault
from otel_grpo.records.model import PublicationCompleted, WindowOpened

# JSON can be nested deeper than a parser follows.
_UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


class _Span(msgspec.Struct):
    traceId: str  # noqa: N815 - OTLP's name
    spanId: str  # noqa: N815
    startTimeUnixNano: str | int  # noqa: N815
    endTimeUnixNano: str | int  # noqa: N815
    parentSpanId: str = ""  # noqa: N815


class _Scope(msgspec.Struct):
    spans: list[_Span] = []


class _Resource(msgspec.Struct):
    scopeSpans: list[_Scope] = []  # noqa: N815


class _Request(msgspec.Struct):
    resourceSpans: list[_Resource]  # noqa: N815


class _Kind(msgspec.Struct):
    kind: str


def _lines(folder: Path, findings: Findings) -> Iterator[tuple[str, int, bytes]]:
    """Every whole line of every file of a folder; a torn last line is set apart."""
    for path in sorted(folder.glob("*.jsonl")):
        file = f"{folder.name}/{path.name}"
        with path.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                if line.endswith(b"\n"):
                    yield file, number, line
                else:
                    findings.add("note", file, number, "", "torn line at the end set apart")


def count_lines(path: Path) -> int:
    """How many lines there are, 0 where there is no file; the last one may lack its end."""
    if not path.exists():
        return 0
    with path.open("rb") as lines:
        return sum(1 for _ in lines)


def check_spans(folder: Path, findings: Findings) -> int:
    """Ids in hex and not zero, ends not before starts, no span id twice in the whole run.

    Eight bytes are kept for each span. Returns how many there are.
    """
    decoder, ids = msgspec.json.Decoder(_Request), array("Q")

    def spans() -> Iterator[tuple[str, int, _Span]]:
        for file, number, line in _lines(folder, findings):
            try:
                request = decoder.decode(line)
            except _UNREADABLE as error:
                raise InputFault(file, number, f"not an OTLP request: {error}") from error
            for resource in request.resourceSpans:
                for scope in resource.scopeSpans:
                    for span in scope.spans:
                        yield file, number, span

    count = 0
    for file, number, span in spans():
        count += 1
        if is_id(span.spanId, 16):
            ids.append(int(span.spanId, 16))
        else:
            findings.add("error", file, number, "spanId", "not 16 hex digits, or 0", span.spanId)
        if not is_id(span.traceId, 32):
            findings.add("error", file, number, "traceId", "not 32 hex digits, or 0", span.traceId)
        if span.parentSpanId and not is_id(span.parentSpanId, 16):
            findings.add("error", file, number, "parentSpanId", "not an id", span.parentSpanId)
        try:
            backwards = int(span.endTimeUnixNano) < int(span.startTimeUnixNano)
        except ValueError as error:
            raise InputFault(file, number, f"not an OTLP instant: {error}") from error
        if backwards:
            findings.add("error", file, number, f"span {span.spanId}", "ends before it starts")
    known = np.sort(np.frombuffer(ids, np.uint64)) if ids else np.zeros(0, np.uint64)
    repeated = set(known[1:][known[1:] == known[:-1]].tolist())
    if not repeated:
        return count
    quiet, seen = Findings(), set[int]()
    findings, loud = quiet, findings
    for file, number, span in spans():
        value = int(span.spanId, 16) if is_id(span.spanId, 16) else 0
        if value in seen:
            loud.add("error", file, number, "spanId", "the same span id twice", span.spanId)
        elif value in repeated:
            seen.add(value)
    return count


class _Numbers:
    """A set of whole numbers that mostly follow each other, kept as ranges."""

    def __init__(self) -> None:
        self.ranges: list[list[int]] = []

    def add(self, n: int) -> None:
        if self.ranges and self.ranges[-1][1] == n - 1:
            self.ranges[-1][1] = n
        elif n not in self:
            self.ranges.append([n, n])

    def __contains__(self, n: int) -> bool:
        return any(low <= n <= high for low, high in reversed(self.ranges))

    def __len__(self) -> int:
        return sum(high - low + 1 for low, high in self.ranges)


class Workers:
    """The late notices of ``workers/``: windows that were opened, publications confirmed later."""

    def __init__(self) -> None:
        self.opened: dict[int, _Numbers] = {}
        self.late: dict[tuple[int, int, int], int] = {}  # attempt, iteration, version -> instant
        self.last: dict[int, int] = {}  # attempt -> the last instant of its lines
        self.lines = 0

    def read(self, folder: Path, run_id: str, findings: Findings) -> None:
        """Takes in every file; lines of kinds that this version does not know are left alone."""
        for file, number, line in _lines(folder, findings):
            self.lines += 1
            try:
                kind = msgspec.json.decode(line, type=_Kind).kind
                if kind not in {"window_opened", "publication_completed"}:
                    continue
                notice = msgspec.json.decode(line, type=WindowOpened | PublicationCompleted)
            except _UNREADABLE as error:
                raise InputFault(file, number, str(error)) from error
            findings.equal(file, number, "run_id", notice.run_id, run_id, "one run id in all lines")
            if isinstance(notice, WindowOpened):
                instant = notice.start_ns
                self.opened.setdefault(notice.attempt, _Numbers()).add(notice.iteration)
            else:
                instant = notice.completed_ns
                self.late[notice.attempt, notice.iteration, notice.version] = instant
            self.last[notice.attempt] = max(instant, self.last.get(notice.attempt, instant))
