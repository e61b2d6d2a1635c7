"""Files of whole lines beside the records, and the law of ``spans/``."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np

from otel_grpo.audit.laws import is_id
from otel_grpo.audit.report import Findings, InputFault

# JSON can be nested deeper than a parser follows.
UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


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


def lines(path: Path, findings: Findings) -> Iterator[tuple[str, int, bytes]]:
    """Every whole line of a file, with the file's name and its number; a torn last one is noted."""
    file = f"{path.parent.name}/{path.name}"
    with path.open("rb") as content:
        for number, line in enumerate(content, 1):
            if line.endswith(b"\n"):
                yield file, number, line
            else:
                findings.add("note", file, number, "", "torn line at the end set apart")


def count_lines(path: Path) -> int:
    """How many lines there are, 0 where there is no file; the last one may lack its end."""
    if not path.exists():
        return 0
    with path.open("rb") as content:
        return sum(1 for _ in content)


def check_spans(folder: Path, findings: Findings) -> int:
    """Ids in hex and not zero, ends not before starts, no span id twice in the whole run.

    Eight bytes are kept for each span. Returns how many there are.
    """
    decoder, ids = msgspec.json.Decoder(_Request), array("Q")

    def spans() -> Iterator[tuple[str, int, _Span]]:
        for path in sorted(folder.glob("*.jsonl")):
            for file, number, line in lines(path, findings):
                try:
                    request = decoder.decode(line)
                except UNREADABLE as error:
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
