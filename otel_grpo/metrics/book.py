"""The instruments of a process, made from the catalogue, and what is counted in them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import product
from time import sleep
from typing import TYPE_CHECKING

from opentelemetry.context import Context
from opentelemetry.trace import (
    INVALID_SPAN,
    NonRecordingSpan,
    SpanContext,
    TraceFlags,
    get_current_span,
    set_span_in_context,
)

from otel_grpo import semconv
from otel_grpo.core.columns import Ints, as_array
from otel_grpo.metrics.catalogue import BY_NAME, CATALOGUE
from otel_grpo.metrics.labels import Bounded

if TYPE_CHECKING:
    from opentelemetry.metrics import Counter, Histogram, Meter

    from otel_grpo.metrics.catalogue import Metric
    from otel_grpo.metrics.columns import Columns

#: So many values go into a histogram at a stretch. Then the other threads of the process get the
#: interpreter: one that trains would have to wait for it.
CHUNK = 32
PAUSE_S = 50e-6

Labels = Mapping[str, str]

# A context without a trace; an empty one would stand for the current one.
_NO_TRACE = set_span_in_context(INVALID_SPAN, Context())


class Book:
    """Counts, distributions, and the gauges that records tell. What has the unit s goes in as ns.

    Args:
        meter: of any provider.
        job: whether the metrics of the job are made here, beside those of the process.
        traced: whether the trace of that id is one that can be looked up.
        columns: takes whole columns.
    """

    def __init__(
        self,
        meter: Meter,
        *,
        job: bool,
        traced: Callable[[int], bool],
        columns: Columns | None = None,
    ) -> None:
        #: Values of gauges, with their labels, as the last record told them.
        self.told: dict[str, list[tuple[Labels, float]]] = {}
        self._traced = traced
        self._trace = _NO_TRACE
        self._columns = columns
        self._counters: dict[str, Counter] = {}
        self._histograms: dict[str, Histogram] = {}
        self._bounds: dict[str, Bounded] = {}
        for metric in CATALOGUE:
            for label in metric.labels:
                if label.most is not None:  # it has the same values in all metrics
                    self._bounds.setdefault(label.name, Bounded(label.most)).know(label.values)
            if job or metric.scope == "process":
                self._make(meter, metric)

    def _make(self, meter: Meter, metric: Metric) -> None:
        about = metric.name, metric.unit, metric.description
        if metric.kind == "histogram":
            self._histograms[metric.name] = meter.create_histogram(
                *about, explicit_bucket_boundaries_advisory=metric.boundaries
            )
        elif metric.kind == "counter" and not metric.asked:
            self._counters[metric.name] = meter.create_counter(*about)
            names = [label.name for label in metric.labels]
            # Prometheus' `increase` sees a first value only where a 0 stands before it.
            for values in product(*(label.values for label in metric.labels)):
                self.add(metric.name, 0, dict(zip(names, values, strict=True)))

    # --- labels

    def named(self, label: str, value: str) -> Labels:
        """One label; a value beyond its bound is `other`."""
        return {label: self._bounds[label].of(value)}

    def seen(self, label: str) -> tuple[str, ...]:
        """The values of a label that occurred."""
        return self._bounds[label].seen

    def meet(self, phase: str) -> str:
        """A phase that is open, as it is told: its counters are 0 before they are anything else."""
        before = self.seen(semconv.PHASE)
        labels = self.named(semconv.PHASE, phase)
        told = labels[semconv.PHASE]
        if told not in before:
            self.add(semconv.RANK_PHASE_TIME, 0, labels)
            if told != semconv.LOG:
                self.add(semconv.PHASE_TIME, 0, labels)
        return told

    # --- what is counted

    @contextmanager
    def within(self, trace_id: str | None, span_id: str | None) -> Iterator[None]:
        """What is counted in this block belongs to that span, and carries it as an exemplar."""
        if trace_id is not None and span_id is not None and self._traced(int(trace_id, 16)):
            flags = TraceFlags(TraceFlags.SAMPLED)
            span = SpanContext(int(trace_id, 16), int(span_id, 16), False, flags)
            self._trace = set_span_in_context(NonRecordingSpan(span), Context())
        try:
            yield
        finally:
            self._trace = _NO_TRACE

    def add(self, name: str, amount: int, labels: Labels | None = None) -> None:
        counter = self._counters.get(name)
        if counter is not None:  # else another process makes it
            counter.add(_told(name, amount), labels, self._trace if amount else _NO_TRACE)

    def record(self, name: str, value: int, labels: Labels | None = None) -> None:
        self._histograms[name].record(_told(name, value), labels, self._trace)

    def record_all(
        self, name: str, values: Sequence[int] | Ints, labels: Labels | None = None
    ) -> None:
        """A whole column. Its largest value carries the trace: it is the one that people look for."""
        column = as_array(values)
        column = column[column >= 0]  # no histogram takes others
        if not len(column):
            return
        if self._columns is not None:
            span = get_current_span(self._trace).get_span_context()
            self._columns.add(BY_NAME[name], column, labels or {}, span)
            return
        record = self._histograms[name].record
        *others, largest = [_told(name, value) for value in sorted(column.tolist())]
        for start in range(0, len(others), CHUNK):
            if start:
                sleep(PAUSE_S)
            for value in others[start : start + CHUNK]:
                record(value, labels, _NO_TRACE)
        record(largest, labels, self._trace)

    def tell(self, name: str, points: list[tuple[Labels, float]]) -> None:
        """A gauge has these values until it is told others."""
        self.told[name] = points


def _told(name: str, value: int) -> float:
    return value / 1e9 if BY_NAME[name].unit == "s" else value
