"""What is sent while the run goes on. The files are the record; this is a copy that may fail."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Protocol

from otel_grpo.records.writer import Batch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import ReadableSpan

    from otel_grpo.core.clock import Clock
    from otel_grpo.records.model import (
        Call,
        Contribution,
        Device,
        OpenWindow,
        PublicationCompleted,
        Record,
        SinkCounts,
    )
    from otel_grpo.records.writer import Writer
    from otel_grpo.tracing.spans import Ended
    from otel_grpo.tracing.window import Reading

#: At its end a run waits so long for what is still to be sent, all signals together.
CLOSE_S = 3.0


@dataclass(frozen=True, slots=True)
class LiveSources:
    """What the sending threads ask of the process while it is observed.

    Attributes:
        open_window: the window and the phases that are open now; None between windows.
        self_ns: what the observer cost the threads of the training until now.
        files: counts of the file sinks.
        devices: that the readings' `device` points into.
        readings: the last ones of memory and devices.
    """

    clock: Clock
    open_window: Callable[[], OpenWindow | None]
    self_ns: Callable[[], int]
    files: Callable[[], dict[str, SinkCounts]]
    devices: Sequence[Device] = ()
    readings: Callable[[], Sequence[Reading]] = tuple


class Live(Protocol):
    """Sends spans and metrics from threads of its own. No method raises, and only `close` waits.

    In a forked child it is dead.
    """

    def start(self, resource: Resource, sources: LiveSources) -> None:
        """The run is known, and what was handed over until now can be sent. Called once."""

    def span(self, span: ReadableSpan | Ended) -> object:
        """A span is over; see `light.finished`. On any thread."""

    def made(self, item: Record | Contribution | Call | PublicationCompleted) -> None:
        """What metrics are made of. On the writer's thread."""

    def counts(self) -> dict[str, SinkCounts]:
        """By signal; created = written + dropped + pending + unconfirmed at every instant."""

    def hurry(self) -> None:
        """The end has begun: what waits for company is sent now."""

    def close(self, timeout_s: float) -> None:
        """Send what is left within the time; what then is not settled is counted as such.

        Called again after an interrupt, it goes on with the time that is left.
        """


def span_sink(
    writer: Writer, live: Live | None
) -> tuple[Callable[[ReadableSpan | Ended], object], Batch]:
    """Where a span goes when it is over. Files and network never wait for each other.

    Returns a function that takes it, and what takes it without a call while it has room.
    """
    put = partial(writer.put, "spans")
    if live is None:
        return put, writer.batch("spans")
    send = live.span

    def both(span: ReadableSpan | Ended) -> None:
        put(span)
        send(span)

    return both, Batch()


def counts_of(writer: Writer, live: Live | None) -> dict[str, SinkCounts]:
    """Of all sinks of a process."""
    return writer.counts() if live is None else {**writer.counts(), **live.counts()}
