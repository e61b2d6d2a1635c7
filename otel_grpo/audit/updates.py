"""The updates of one attempt: rows of the windows, their own records, and how they are numbered."""

from __future__ import annotations

from collections import defaultdict

from otel_grpo.audit.chain import FILE
from otel_grpo.audit.decode import Header
from otel_grpo.audit.report import Findings
from otel_grpo.records.model import RolloutAttributes, TrainAttributes, Update


class Updates:
    """Takes windows and ``train`` records in the order of the file; forgets what is settled."""

    def __init__(self, findings: Findings) -> None:
        self.applied: int | None = 0  # so far; None: records are lost, so it is not known
        self._findings = findings
        self._rows: dict[int, list[Update]] = {}
        self._trained: dict[int, list[tuple[int, TrainAttributes, Header]]] = defaultdict(list)

    def records(self, iteration: int | None) -> list[tuple[int, TrainAttributes]]:
        """The records of a window's updates that came before it, with their lines."""
        found = self._trained.get(iteration or 0, ())
        return [(line, attributes) for line, attributes, _ in found]

    def window(self, line: int, head: Header, a: RolloutAttributes) -> None:
        """``step`` counts the updates applied so far, and so does the record's optimizer step."""
        applied = self.applied
        if applied is None and a.updates:
            first = a.updates[0]
            applied = first.step - (first.status == "applied")
        for k, u in enumerate(a.updates):
            applied = (applied or 0) + (u.status == "applied")
            self._findings.equal(FILE, line, f"attributes.updates[{k}].step", u.step, applied)
            if u.end_ns < u.start_ns:
                name = f"attributes.updates[{k}]"
                self._findings.add("error", FILE, line, name, "ends before it starts")
        self.applied = head.optimizer_step if applied is None else applied
        if applied is not None:
            self._findings.equal(FILE, line, "optimizer_step", head.optimizer_step, applied)
        if head.iteration is not None:
            self._rows[head.iteration] = a.updates
            self._match(head.iteration, line)

    def train(self, line: int, head: Header, a: TrainAttributes) -> None:
        """The record of one update."""
        if head.iteration is not None:
            self._trained[head.iteration].append((line, a, head))
            self._match(head.iteration, line)

    def _match(self, iteration: int, line: int) -> None:
        """A window's update rows and its ``train`` records, once both are all there."""
        rows, found = self._rows.get(iteration), self._trained.get(iteration, [])
        if rows is None or len(found) < len(rows):
            return
        if len(found) > len(rows):
            message = f"{len(found)} train records for {len(rows)} updates"
            self._findings.add("error", FILE, line, "attributes.updates", message)
        for (at, a, head), row in zip(found, rows, strict=False):
            self._findings.equal(FILE, at, "attributes.status", a.status, row.status, "its window")
            self._findings.equal(FILE, at, "attributes.n", a.n, row.samples, "its window")
            self._findings.equal(FILE, at, "optimizer_step", head.optimizer_step, row.step)
        del self._rows[iteration]
        self._trained.pop(iteration, None)

    def finish(self) -> None:
        """After the last line: each attempted update has its record, and the other way round."""
        for iteration, rows in self._rows.items():
            found = len(self._trained.get(iteration, ()))
            message = f"iteration {iteration} has {len(rows)} updates and {found} train records"
            self._findings.add("error", FILE, None, "attributes.updates", message)
        for iteration, records in self._trained.items():
            if records and iteration not in self._rows:
                message = "no window tells of this update"
                self._findings.add("error", FILE, records[0][0], "iteration", message, iteration)
