"""The other processes, each as a group of rows: calls of workers, phases of ranks.

What they tell is placed on the clock of the process that writes the records. One whose clock was never
compared with it stands by its own, in a group that says so.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from pathlib import Path

from otel_grpo.records.clocks import WorkerClock
from otel_grpo.records.model import Call, Joined
from otel_grpo.records.reader import BadLine, Torn, read_workers
from otel_grpo.records.spans import Span, plain, read_spans
from otel_grpo.report.index import Index
from otel_grpo.report.rows import Rows, Slice
from otel_grpo.report.track_events import Trace, Value
from otel_grpo.semconv import ITERATION, PHASE, SPAN_LOOP, SPAN_RUN

# So many calls are laid out at a time: they come in the order of their ends.
_AT_ONCE = 10_000
_ERROR = 2  # OTLP's status

Wanted = Callable[[int], bool]


@dataclass(frozen=True)
class _Process:
    attempt: int
    clock: WorkerClock
    group: int

    def place(self, instant_ns: int) -> tuple[int, dict[str, Value]]:
        """By the driver's clock, and how well that is known."""
        placed = self.clock.place(instant_ns)
        if placed is None:
            return instant_ns, {"clock": "its own"}
        return placed.instant_ns, {"clock bound ns": placed.bound_ns}


class Others:
    """All of a run.

    Attributes:
        apart: names of the processes that stand by their own clock.
    """

    def __init__(self, trace: Trace, run_dir: Path, indices: dict[int, Index], rank: int) -> None:
        """Args:
        rank: the place of the first one among the processes.
        """
        self._trace = trace
        self._run_dir = run_dir
        self._indices = indices
        self._rank = rank
        self.apart: list[str] = []

    def draw_calls(self, wanted: Wanted) -> None:
        """Timed methods of workers; `wanted` says of an instant whether it is in the picture."""
        process: _Process | None = None
        rows: Rows | None = None
        file, n = None, 0
        for path, line in read_workers(self._run_dir):
            if path != file:
                if rows is not None:
                    rows.flush()
                file, process, rows = path, None, None
            if isinstance(line, Torn):
                continue
            value = line.value
            if isinstance(value, Joined) and value.rank is None:
                if rows is not None:
                    rows.flush()
                process, rows = self._process(path.name, value), None
            if not isinstance(value, Call) or process is None:
                continue
            end, about = process.place(value.end_ns)
            if not wanted(end):
                continue
            rows = rows or Rows(self._trace, "calls", process.group, 0)
            # Its place is that of its end, as in the records; its duration is by its own clock.
            start = end - (value.end_ns - value.start_ns)
            if value.error:
                about["error"] = True
            rows.add(Slice(start, end, "calls", value.method, about))
            n += 1
            if n % _AT_ONCE == 0:
                rows.flush()
        if rows is not None:
            rows.flush()

    def draw_ranks(self, iterations: range | None) -> None:
        """Phases of the ranks of an SPMD trainer, from their spans."""
        for index in self._indices.values():
            for name, joined in sorted(index.joined.items()):
                if joined.rank is not None:
                    process = self._process(name, joined)
                    path = self._run_dir / "spans" / name
                    if process is not None and path.exists():
                        self._draw_rank(path, process, iterations)

    def _process(self, name: str, joined: Joined) -> _Process | None:
        for index in self._indices.values():
            if index.joined.get(name) == joined:
                break
        else:
            return None
        clock = index.clock(joined)
        said = f"{joined.name}, {joined.host}, pid {joined.pid}"
        if clock.place(joined.started_unix_ns) is None:
            self.apart.append(joined.name)
            said += ", BY ITS OWN CLOCK"
        number = index.number(joined)
        if joined.rank is None and number is not None:
            said = f"{number} {said}"
        rank = self._rank + (len(index.joined) if number is None else number)
        group = self._trace.track(said, self._trace.root, rank)
        return _Process(index.attempt.attempt, clock, group)

    def _draw_rank(self, path: Path, process: _Process, iterations: range | None) -> None:
        windows = Rows(self._trace, "iterations", process.group, 0)
        rows = Rows(self._trace, "phases", process.group, 1000)
        waiting: list[Span] = []

        def draw() -> None:
            for span, top in with_tops(waiting):
                end, about = process.place(span.end_ns)
                start = end - (span.end_ns - span.start_ns)
                rows.add(Slice(start, end, top, phase_of(span), about_of(span) | about))
            rows.flush()
            waiting.clear()

        for span, iteration in spans_of(path, process.attempt):
            if iterations is not None and iteration not in iterations:
                continue
            if span.name == SPAN_LOOP:
                end, about = process.place(span.end_ns)
                start = end - (span.end_ns - span.start_ns)
                windows.add(Slice(start, end, 0, f"iteration {iteration}", about))
                windows.flush()
            else:
                waiting.append(span)
            if span.name == SPAN_LOOP or len(waiting) >= _AT_ONCE:
                draw()
        draw()


def spans_of(path: Path, attempt: int) -> Iterator[tuple[Span, int | None]]:
    """The spans of an attempt but for `rl.run`, with their iterations."""
    for line in read_spans(path):
        if isinstance(line, Torn) or line.value.attempt not in {0, attempt}:
            continue
        for resource in line.value.resource_spans:
            for scope in resource.scope_spans:
                for span in scope.spans:
                    if not (span.start_time_unix_nano + span.end_time_unix_nano).isdecimal():
                        raise BadLine(path, line.line.number, "has an instant that is no number")
                    if span.name != SPAN_RUN:
                        yield span, plain(span.attributes).get(ITERATION)


def phase_of(span: Span) -> str:
    """Its phase; its name where it has none."""
    return str(plain(span.attributes).get(PHASE, span.name))


def about_of(span: Span) -> dict[str, Value]:
    """What a slice says of its span."""
    about: dict[str, Value] = {"span id": span.span_id}
    if span.status.code == _ERROR:
        about["flags"] = "error"
    return about


def with_tops(spans: list[Span]) -> Iterator[tuple[Span, Hashable]]:
    """Each with the uppermost of the spans that it lies below, itself if none."""
    parents = {span.span_id: span.parent_span_id for span in spans}
    for span in spans:
        top, seen = span.span_id, set[str]()
        while parents.get(top) in parents and top not in seen:
            seen.add(top)
            top = parents[top]
        yield span, top
