"""New weights on their way to the generator."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from otel_grpo.records.model import Publication as Row
from otel_grpo.tracing import given
from otel_grpo.tracing.event import Event

if TYPE_CHECKING:
    from otel_grpo.records.model import PublicationKind
    from otel_grpo.tracing.run import Run
    from otel_grpo.tracing.sampler import Request


class Publication:
    """A publication that is due. It counts when somebody confirms it, and only then."""

    def __init__(self, run: Run, iteration: int) -> None:
        self.iteration = iteration
        self.version = 0
        self.kind: PublicationKind = "unknown"
        self.started_ns = 0
        self.completed_ns: int | None = None
        self.bytes: int | None = None
        self.queue: int | None = None
        self.request: Request | None = None  # the reading of its snapshot
        self.snapshot: dict[str, int | None] = {}
        # Its window's record is made: a later completion is a line of its own.
        self.recorded = False
        self._run = run

    def take_snapshot(self) -> None:
        """Resources at its completion: the version, the queue, the memory of this process.

        Fills what its row has already: the reading comes after the row was made.
        """
        if self.completed_ns is None:
            return
        self.snapshot["version"] = self.version
        if self.queue is not None:
            self.snapshot["queue"] = self.queue
        readings = (self.request and self.request.readings) or ()
        for name in ("process_rss", "host_used", "device_used", "allocator_allocated"):
            values = [
                value for reading in readings if (value := getattr(reading, name)) is not None
            ]
            if values:
                # Of a process and of a host there is one, whatever the number of its devices.
                one = name in ("process_rss", "host_used")
                self.snapshot[name] = values[0] if one else sum(values)

    def completed(
        self, at_ns: int | None = None, *, bytes: int | None = None, queue: int | None = None
    ) -> None:
        """The last receiver has the weights. From any thread, also after the iteration.

        Args:
            at_ns: instant in Unix nanoseconds of the run's clock; default: now.
            bytes: size of what was transferred.
            queue: rollouts that wait to be trained on at this moment.
        """
        run = self._run
        completed_ns = run._instant("publication", at_ns)
        event = Event(run, "publication", run.window, needed=False)
        with event:
            if not event.locked:
                return
            if self.completed_ns is not None:
                run._misuse("publication_twice", "a publication was completed twice")
                return
            self.completed_ns = completed_ns
            self.bytes = run._checked("publication", bytes, _as_bytes)
            self.queue = run._checked("publication", queue, _as_queue)
            if self.recorded:
                run.output.published_late(self.iteration, self.version, completed_ns)
            elif self.request is None and run.sampler is not None:
                self.request = run.sampler.ask(run.opened_samples(), asked=False)
            run.handover.release_windows(run.clock.now())

    def moved(self, version: int, at_ns: int) -> None:
        """A later version takes its place: a window publishes its last one."""
        run = self._run
        event = Event(run, "publication", run.window, needed=False)
        with event:
            if self.recorded or not event.locked:
                return
            self.version, self.started_ns = version, at_ns
            if self.completed_ns is not None:
                self.completed_ns = at_ns
            run.version = max(run.version, version)

    def row(self, window_end_ns: int) -> Row:
        """What the record of its window says of it."""
        done = self.completed_ns
        return Row(
            kind=self.kind,
            version=self.version,
            started_ns=self.started_ns,
            completed_ns=done,
            in_window=done is not None and done <= window_end_ns,
            bytes=self.bytes,
            snapshot=self.snapshot,
        )


def _as_bytes(value: Any) -> int:
    return given.natural(value, "bytes")


def _as_queue(value: Any) -> int:
    return given.natural(value, "the length of the queue")
