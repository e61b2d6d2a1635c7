"""Histograms that take a whole column at once.

The SDK's take one value at a time, at some ten microseconds each: a window of 8,192 samples would
keep the interpreter busy for a third of a second. Beside a provider of ours they are made here, and
added to what its reader gives.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from threading import Lock
from time import time_ns
from typing import TYPE_CHECKING

import numpy as np
from opentelemetry.sdk.environment_variables import OTEL_METRICS_EXEMPLAR_FILTER
from opentelemetry.sdk.metrics import Exemplar
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricsData,
)

from otel_grpo.core.columns import Ints, total

if TYPE_CHECKING:
    from opentelemetry.trace import SpanContext

    from otel_grpo.metrics.catalogue import Metric as Described

Labels = Mapping[str, str]


class Columns:
    """Histograms of a process, with the buckets of the catalogue.

    Args:
        temporality: what each collection tells: everything until then, or what is new.
    """

    def __init__(
        self, temporality: AggregationTemporality = AggregationTemporality.CUMULATIVE
    ) -> None:
        self._temporality = temporality
        told = os.environ.get(OTEL_METRICS_EXEMPLAR_FILTER, "").strip().lower()
        self._exemplars = told != "always_off"
        self._columns: dict[tuple[str, frozenset[tuple[str, str]]], _Column] = {}
        self._lock = Lock()

    def add(self, metric: Described, values: Ints, labels: Labels, span: SpanContext) -> None:
        """Add values from 0 on, in nanoseconds where the unit is s; a valid span is the exemplar's."""
        key = metric.name, frozenset(labels.items())
        with self._lock:
            column = self._columns.get(key)
            if column is None:
                column = self._columns[key] = _Column(metric, labels)
            column.add(values, span if self._exemplars and span.is_valid else None)

    def added_to(self, data: MetricsData | None) -> MetricsData | None:
        """What a reader gave, with these histograms beside its first ones."""
        if data is None:
            return None
        resource = data.resource_metrics[0]
        scope = resource.scope_metrics[0]
        scope = replace(scope, metrics=[*scope.metrics, *self._collect()])
        return MetricsData([replace(resource, scope_metrics=[scope, *resource.scope_metrics[1:]])])

    def _collect(self) -> Iterator[Metric]:
        now = time_ns()
        points: dict[Described, list[HistogramDataPoint]] = {}
        with self._lock:
            for column in self._columns.values():
                points.setdefault(column.metric, []).append(column.point(now))
            if self._temporality is AggregationTemporality.DELTA:
                self._columns.clear()
        for metric, of_metric in points.items():
            histogram = Histogram(of_metric, self._temporality)
            yield Metric(metric.name, metric.description, metric.unit, histogram)


class _Column:
    """The values of one series."""

    def __init__(self, metric: Described, labels: Labels) -> None:
        self.metric = metric
        self._labels = labels
        self._per = 1e9 if metric.unit == "s" else 1
        self._start_ns = time_ns()
        self._counts = np.zeros(len(metric.boundaries) + 1, np.int64)
        self._sum = 0  # in nanoseconds, so that it is exact
        self._least: float = float("inf")
        self._most: float = 0
        self._exemplars: list[Exemplar] = []

    def add(self, values: Ints, span: SpanContext | None) -> None:
        places = np.searchsorted(self.metric.boundaries, values / self._per, side="left")
        self._counts += np.bincount(places, minlength=len(self._counts))
        self._sum += total(values)
        most = self._told(int(values.max()))
        self._least = min(self._least, self._told(int(values.min())))
        self._most = max(self._most, most)
        if span is not None:
            self._exemplars = [Exemplar({}, most, time_ns(), span.span_id, span.trace_id)]

    def point(self, now_ns: int) -> HistogramDataPoint:
        exemplars, self._exemplars = self._exemplars, []
        return HistogramDataPoint(
            attributes=dict(self._labels),
            start_time_unix_nano=self._start_ns,
            time_unix_nano=now_ns,
            count=int(self._counts.sum()),
            sum=self._told(self._sum),
            bucket_counts=self._counts.tolist(),
            explicit_bounds=self.metric.boundaries,
            min=self._least,
            max=self._most,
            exemplars=exemplars,
        )

    def _told(self, value: int) -> float:
        return value if self._per == 1 else value / self._per
