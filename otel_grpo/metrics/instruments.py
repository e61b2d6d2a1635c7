"""The metrics of a run, from its records: what is counted equals the files to the integer.

What happens once a window is counted on the writer's thread when the record is made. What is a level
is asked for when metrics are collected. The training pays for neither.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from otel_grpo import semconv
from otel_grpo.devices.reading import OnError, ignore
from otel_grpo.metrics.book import Book
from otel_grpo.metrics.catalogue import SCALARS
from otel_grpo.metrics.watch import watch
from otel_grpo.metrics.window import Windows
from otel_grpo.records.model import (
    Call,
    Contribution,
    PublicationCompleted,
    RolloutRecord,
    TrainRecord,
)

if TYPE_CHECKING:
    from opentelemetry.metrics import Meter

    from otel_grpo.metrics.columns import Columns
    from otel_grpo.records.model import Record, SinkCounts
    from otel_grpo.tracing.live import LiveSources


class Instruments:
    """The metrics of one process, and of its job where it makes the records.

    No other process makes the metrics of the job: whoever sums over processes counts nothing twice.

    Args:
        meter: of any provider; what an earlier run counted with it stays.
        sources: of the process.
        sent: counts of what is sent, to stand beside those of the files.
        traced: whether the trace of that id can be looked up: what is counted in its window then
            carries it as an exemplar. For a provider with the views of `views` only: the SDK's own
            reservoirs draw from Python's `random`, whose numbers belong to the training.
        columns: take lengths, lags and calls, where whoever reads adds them to what he has read;
            else they go into the SDK's histograms one by one.
        on_error: told of what could not be answered when metrics were collected.
    """

    def __init__(
        self,
        meter: Meter,
        sources: LiveSources,
        *,
        sent: Callable[[], Mapping[str, SinkCounts]] = dict,
        traced: Callable[[int], bool] = lambda _: False,
        columns: Columns | None = None,
        on_error: OnError = ignore,
    ) -> None:
        # Whoever has this sink makes the records.
        job = "metrics_raw" in sources.files()
        self._book = Book(meter, job=job, traced=traced, columns=columns)
        self._windows = Windows(self._book)
        watch(meter, self._book, sources, sent, on_error)

    def made(self, item: Record | Contribution | Call | PublicationCompleted) -> None:
        """Count what was made for the files. On the writer's thread; may raise."""
        book = self._book
        if isinstance(item, RolloutRecord):
            with book.within(item.trace_id, item.span_id):
                self._windows.add(item)
        elif isinstance(item, TrainRecord):
            for name, value in item.attributes.scalars.items():
                if name in SCALARS and value is not None:
                    book.tell(SCALARS[name], [({}, value)])
        elif isinstance(item, PublicationCompleted):  # after the record of its window
            book.add(semconv.PUBLICATIONS, 1)
            book.tell(semconv.WEIGHTS_VERSION, [({}, item.version)])
        elif isinstance(item, Contribution):
            for phase, ns in item.busy_ns.items():
                book.add(semconv.RANK_PHASE_TIME, ns, book.named(semconv.PHASE, phase))
        elif isinstance(item, Call):
            labels = book.named(semconv.WORKER_METHOD, item.method)
            book.add(semconv.WORKER_TIME, item.end_ns - item.start_ns, labels)
