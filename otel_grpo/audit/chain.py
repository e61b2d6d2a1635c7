"""The lines of ``metrics_raw.jsonl`` one by one, each judged by the hash chain.

A line is released when its successor is known, for only that says what a bad line is:

* the successor goes on from the line before it: the bad line was put in, or torn by a kill;
* the successor goes on from the bad line as it is: the writer wrote what this audit can't read;
* neither: its bytes were changed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from otel_grpo.audit.decode import Record, is_json, prev_of, record
from otel_grpo.audit.report import Findings, InputFault
from otel_grpo.records.model import Summary

FILE = "metrics_raw.jsonl"
# A record of 1,024 ranks and 8,192 samples stays under 1 MiB.
MAX_LINE = 256 << 20


@dataclass(frozen=True)
class Line:
    """One line of the file: a record, or the reason why it is none; or several of the latter."""

    number: int
    until: int
    digest: str
    ended: bool
    cut: bool  # it begins like a record and is no JSON: a kill can do that
    record: Record | None
    why: str
    prev: str | None
    prev_known: bool


def _lines(path: Path) -> Iterator[Line]:
    with path.open("rb") as file:
        number = 0
        while data := file.readline(MAX_LINE):
            number += 1
            ended = data.endswith(b"\n")
            if not ended and len(data) == MAX_LINE:
                raise InputFault(FILE, number, f"a line of more than {MAX_LINE} bytes")
            body = data[:-1] if ended else data
            digest = hashlib.sha256(body).hexdigest()
            found, why, prev, known, cut = None, "", None, True, False
            try:
                found = record(body)
                prev = found.head.prev
            except ValueError as error:
                why = str(error)
                cut = body.startswith(b"{") and not is_json(body)
                try:
                    prev = prev_of(body)
                except ValueError:
                    known = False
            yield Line(number, number, digest, ended, cut, found, why, prev, known)


class _Links:
    """Lays each broken link of the chain to a line.

    A line whose both links are broken was changed in its ``prev``; a single broken link says that
    the line before it was changed, or that lines between the two were taken out or put in.
    """

    def __init__(self, findings: Findings) -> None:
        self._findings = findings
        self._open: tuple[int | None, int | None] | None = None

    def feed(self, before: int | None, after: int | None, *, holds: bool) -> None:
        """The next link, between two line numbers; None: the beginning, or the summary's head."""
        if self._open is not None:
            first, second = self._open
            self._open = None
            self.blame((first or second) if holds else second)
        elif not holds:
            self._open = (before, after)

    def settle(self) -> None:
        """No further link is known here."""
        if self._open is not None:
            self.blame(self._open[0] or self._open[1])
            self._open = None

    def blame(self, number: int | None, why: str = "") -> None:
        """Reports one line."""
        message = "the hash chain breaks: this line was changed, or lines beside it are not the "
        message += f"ones that were written{why and f'; {why}'}"
        self._findings.add("error", FILE, number, "prev", message)


class Chain:
    """Iterates over the whole records of the file, then checks the head of the chain."""

    def __init__(
        self, path: Path, findings: Findings, summary: Summary | None, *, final: bool
    ) -> None:
        self.path = path
        self.findings = findings
        self.summary = summary
        self.final = final  # whether the summary is the last word on this file
        self.lines = 0
        self.unreadable = 0  # changed lines whose evidence is lost
        self._attempt = 1
        self._links = _Links(findings)
        self._digest: str | None = None  # of the last line that takes part
        self._number: int | None = None  # of the same
        self._intact = True  # whether the next line's prev has to be that digest
        self._head_at: int | None = None

    def __iter__(self) -> Iterator[Line]:
        held: Line | None = None
        for line in _lines(self.path):
            if held is None or (held.record is None and line.prev_known):
                if held is not None:
                    self._bad(held, line)
                held = line
            elif held.record is not None:
                yield from self._good(held, line)
                held = line
            elif line.ended:  # several unreadable lines are judged as one
                held = replace(held, until=line.number, cut=held.cut and line.cut)
            else:
                raise InputFault(FILE, held.number, held.why)
        if held is not None:
            yield from self._last(held)
        self._head()

    def _good(self, line: Line, successor: Line | None) -> Iterator[Line]:
        record, after = line.record, None if successor is None else successor.record
        if record is None:
            return
        if (
            after is not None
            and after.head.attempt > record.head.attempt
            and self._intact
            and after.head.prev == line.prev == self._digest
        ):
            self._torn(line, "it had no line end before the next attempt went on")
            return
        if self._intact:
            self._links.feed(self._number, line.number, holds=line.prev == self._digest)
        self._accept(line)
        self._intact = True
        self._attempt = record.head.attempt
        yield line

    def _bad(self, line: Line, successor: Line) -> None:
        """A line that is no record, judged by where the next one goes on from."""
        after = successor.record
        if successor.prev == line.digest:
            raise InputFault(FILE, line.number, line.why)
        if not self._intact or successor.prev != self._digest:
            self._spoilt(line)
        elif line.cut and after is not None and after.head.attempt > self._attempt:
            self._torn(line, line.why)
        else:
            raise InputFault(FILE, line.number, f"not of the chain: {line.why}")

    def _last(self, line: Line) -> Iterator[Line]:
        """The last line has no successor: the summary's head speaks for it, if it is final."""
        head = self.summary.head if self.final and self.summary is not None else None
        if line.record is not None and (line.ended or (self.final and head != self._digest)):
            yield from self._good(line, None)
        elif not line.ended and (not self.final or head == self._digest):
            why = line.why or "no line end"
            if self.final and self.summary is not None and self.summary.status != "interrupted":
                raise InputFault(FILE, line.number, f"torn line after an orderly end: {why}")
            self._torn(line, why)
        elif self.final and head not in {line.digest, self._digest}:
            self._spoilt(line)
        else:
            raise InputFault(FILE, line.number, line.why)

    def _accept(self, line: Line) -> None:
        self._digest, self._number = line.digest, line.number
        self.lines += 1
        if self.summary is not None and self.summary.head == line.digest:
            self._head_at = line.number

    def _spoilt(self, line: Line) -> None:
        self._links.settle()
        self._links.blame(line.number, f"unreadable: {line.why}")
        self._accept(line)
        self.unreadable += 1
        self._intact = False

    def _torn(self, line: Line, why: str) -> None:
        for number in range(line.number, line.until + 1):
            self.findings.add("note", FILE, number, "", f"torn line set apart: {why}")

    def _head(self) -> None:
        stored = None if self.summary is None else self.summary.head
        if self.final and self._intact:
            holds = stored == self._digest
            self._links.feed(self._number, None, holds=holds)
            at = "" if self._head_at is None else f"; it is the hash of line {self._head_at}"
            message = f"the last line or the head in summary.json was changed{at}"
            self.findings.equal(FILE, self._number, "head", stored, self._digest, message)
        elif stored is not None and self._head_at is None and self._intact:
            message = "the head of the running summary is the hash of no line"
            self.findings.add("error", "summary.json", None, "head", message, stored)
        self._links.settle()
