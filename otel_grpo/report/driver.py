"""The process that writes the records, as a group of rows: its windows, phases and updates."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Hashable

from msgspec import UNSET

from otel_grpo.records.model import (
    DEVICE_OUTSTANDING,
    ERROR,
    FOREIGN,
    FUSED_OPTIMIZER,
    NOT_DEVICE_SYNCED,
    OWN_LOG,
    IntervalRow,
    OpenWindow,
    Publication,
    RolloutRecord,
    TrainRecord,
    Update,
)
from otel_grpo.report.counters import Counters
from otel_grpo.report.index import Index
from otel_grpo.report.rows import Rows, Slice
from otel_grpo.report.track_events import Trace, Value

# Lanes that have rows of their own; a thousand asyncio tasks share those of the rest.
_MOST_LANES = 8
_REST = -1
# Rows of one kind before their order among the others is lost.
_APART = 1000

_FLAGS = {
    ERROR: "error",
    FOREIGN: "made by another library",
    OWN_LOG: "own log work",
    DEVICE_OUTSTANDING: "device work outstanding",
    FUSED_OPTIMIZER: "optimizer fused in backward",
    NOT_DEVICE_SYNCED: "not device-synced",
}


class Driver:
    """Draws one attempt, record by record.

    Attributes:
        group: the track of the process.
        last_ns: the last instant that is known of it.
    """

    def __init__(self, trace: Trace, index: Index, rank: int) -> None:
        """Args:
        rank: the place of the group among the processes.
        """
        attempt = index.attempt
        own = (each.role for each in attempt.processes if each.rank == 0)
        self._trace = trace
        self._index = index
        name = f"{next(own, 'driver')} 0, {attempt.host}, pid {attempt.pid}"
        self.group = trace.track(name, trace.root, rank)
        self._windows = self._rows("iterations", 0)
        self._updates = self._rows("updates", 1)
        self._publications = self._rows("publications", 2)
        self._logs = self._rows("log calls of the trainer", 3)
        self._lanes: dict[int, Rows] = {}
        place = (5 + _MOST_LANES) * _APART
        self._counters = Counters(trace, self.group, place, attempt.world)
        # By span id: the lane of its window, its row.
        self._open: dict[str, tuple[int | None, IntervalRow]] = {}
        self._trains: dict[int | None, list[TrainRecord]] = defaultdict(list)
        self._recorded: set[int | None] = set()
        self.last_ns = attempt.started_unix_ns

    def _rows(self, name: str, place: int) -> Rows:
        return Rows(self._trace, name, self.group, place * _APART)

    def seen(self, instant_ns: int) -> None:
        """Something is known of this instant."""
        self.last_ns = max(self.last_ns, instant_ns)

    # --- records

    def train(self, record: TrainRecord) -> None:
        """The trainer's scalars. The update is drawn with its window."""
        self.seen(record.time_unix_ns)
        self._trains[record.iteration].append(record)
        a = record.attributes
        about: dict[str, Value] = {
            name: value for name, value in a.scalars.items() if value is not None
        }
        if about:
            about["covers updates"] = ", ".join(map(str, a.covers))
            self._logs.mark(record.time_unix_ns, "log", about)

    def rollout(self, record: RolloutRecord) -> None:
        """A window and all that is in it."""
        a = record.attributes
        self._recorded.add(record.iteration)
        self._trains.pop(record.iteration, None)
        self.seen(record.time_unix_ns)
        self.seen(a.window.end_ns)
        numbers = {name: value for name, value in record.metrics.items() if value is not None}
        about: dict[str, Value] = {"status": a.window.status, "trace id": record.trace_id or ""}
        self._window(record.iteration, a.window.start_ns, a.window.end_ns, {**about, **numbers})
        for row in a.intervals:
            self._interval(row, a.window.lane)
        self._flush()
        for update in a.updates:
            self._update(update)
        for publication in a.publications:
            self._publish(record.iteration, publication)
        self._updates.flush()
        self._publications.flush()
        self._counters.window(a.window.start_ns, numbers)
        if a.memory is not UNSET:
            self._counters.memory(a.memory)
        if a.hardware is not UNSET:
            self._counters.hardware(a.hardware)

    def _window(
        self, iteration: int | None, start_ns: int, end_ns: int, about: dict[str, Value]
    ) -> None:
        self._windows.add(Slice(start_ns, end_ns, 0, f"iteration {iteration}", about))
        self._windows.flush()

    def _interval(
        self, row: IntervalRow, window_lane: int | None, open_until_ns: int | None = None
    ) -> None:
        span_id, parent, phase, start, end, lane, flags = row
        about: dict[str, Value] = {"span id": span_id, "lane": lane}
        if end is None and open_until_ns is None:  # the next record repeats it, with its start
            self._open[span_id] = window_lane, row
            return
        if end is None:
            about["open"] = True
        self._open.pop(span_id, None)
        if parent is not None:
            about["parent"] = parent
        if said := [word for flag, word in _FLAGS.items() if flags & flag]:
            about["flags"] = ", ".join(said)
        until = end if end is not None else open_until_ns or start
        self.seen(until)
        self._lane(lane, window_lane).add(Slice(start, until, lane, phase, about))

    def _lane(self, lane: int, window_lane: int | None) -> Rows:
        if lane not in self._lanes and len(self._lanes) >= _MOST_LANES:
            lane = _REST
        rows = self._lanes.get(lane)
        if rows is None:
            name = f"lane {lane}" if lane != _REST else "further lanes"
            name += " (the loop)" * (lane == window_lane)
            rows = self._lanes[lane] = self._rows(name, 4 + len(self._lanes))
        return rows

    def _flush(self) -> None:
        since: dict[Hashable, int] = {}
        for _, (_, _, _, start, _, lane, _) in self._open.values():
            since[lane] = min(start, since.get(lane, start))
        for rows in self._lanes.values():
            rows.flush(since)

    def _update(self, update: Update) -> None:
        about: dict[str, Value] = {
            "optimizer step": update.step,
            "samples": update.samples,
            "status": update.status,
        }
        if update.nominal is not None:
            about["nominal samples"] = update.nominal
        if update.reason is not None:
            about["reason"] = update.reason
        if update.ranks:
            about["ranks"] = ", ".join(map(str, update.ranks))
        name = "update" if update.status == "applied" else f"update {update.status}"
        self._updates.add(Slice(update.start_ns, update.end_ns, 0, name, about))
        self.seen(update.end_ns)

    def _publish(self, iteration: int | None, publication: Publication) -> None:
        version, start, end = publication.version, publication.started_ns, publication.completed_ns
        about: dict[str, Value] = {"version": version, "kind": publication.kind}
        if publication.bytes is not None:
            about["bytes"] = publication.bytes
        if end is None:
            end = self._index.completed.get((iteration or 0, version))
        if end is None:
            self._publications.mark(start, f"publication {version}, not confirmed", about)
        else:
            name = f"publication {version}"
            self._publications.add(Slice(start, end, version, name, about))
        self.seen(start if end is None else end)

    # --- what no record tells

    def without_record(self, iterations: Container[int] | None) -> dict[int, int]:
        """Windows that were opened and have no record: iteration -> start."""
        return {
            iteration: start
            for iteration, start in sorted(self._index.opened.items())
            if iteration not in self._recorded and (iterations is None or iteration in iterations)
        }

    def finish(
        self,
        lost: dict[int, int],
        open_window: OpenWindow | None,
        ended: Container[tuple[str, int]],
    ) -> None:
        """Draws what was never closed, to the last instant.

        Args:
            lost: see `without_record`.
            open_window: as the last summary has it.
            ended: phases of these windows that are drawn already: name and start.
        """
        for iteration in lost:
            for record in self._trains.pop(iteration, ()):
                a, step = record.attributes, record.optimizer_step or 0
                self._update(Update(step, *a.interval, a.n, None, a.status, a.reason))
        self._updates.flush()
        starts = sorted(self._index.opened.values())
        for iteration, start in lost.items():
            end = next((each for each in starts if each > start), max(start, self.last_ns))
            self._window(iteration, start, end, {"status": "no record", "open": True})
            self.seen(end)
        for window_lane, row in list(self._open.values()):
            self._interval(row, window_lane, self.last_ns)
        if open_window is not None and open_window.iteration in lost:
            for phase in open_window.phases:
                if (phase.phase, phase.start_ns) not in ended:
                    row = ("", None, phase.phase, phase.start_ns, None, phase.lane, 0)
                    self._interval(row, None, self.last_ns)
        self._flush()
