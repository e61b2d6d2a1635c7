"""Runs whose metrics are made beside their files, and a reader of what was made."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import (
    HistogramDataPoint,
    InMemoryMetricReader,
    NumberDataPoint,
)
from opentelemetry.sdk.resources import Resource

from otel_grpo.metrics import Instruments
from otel_grpo.metrics.columns import Columns
from otel_grpo.metrics.views import views
from otel_grpo.records.model import SinkCounts
from otel_grpo.testing import FakeClock
from otel_grpo.tracing.live import LiveSources

Point = NumberDataPoint | HistogramDataPoint


class Metrics:
    """A provider and what it holds: one like ours, or one that is the user's `own`."""

    def __init__(
        self, *, own: bool = False, reader: InMemoryMetricReader | None = None, **options: Any
    ) -> None:
        self.reader = reader or InMemoryMetricReader()
        self.columns = None if own else Columns()
        self.provider = MeterProvider(
            metric_readers=[self.reader],
            shutdown_on_exit=False,
            **({} if own else {"views": views()}),
            **options,
        )

    def instruments(self, sources: LiveSources, **options: Any) -> Instruments:
        meter = self.provider.get_meter("test")
        return Instruments(meter, sources, columns=self.columns, **options)

    def points(self) -> dict[str, dict[tuple[str, ...], Point]]:
        """``{metric: {(values of the labels, by the names of the labels): point}}``."""
        data = self.reader.get_metrics_data()
        if self.columns is not None:
            data = self.columns.added_to(data)
        return {
            metric.name: {
                tuple(str(value) for _, value in sorted((point.attributes or {}).items())): point
                for point in metric.data.data_points
            }
            for resource in (data.resource_metrics if data else ())
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }

    def values(self) -> dict[str, dict[tuple[str, ...], Any]]:
        """The same with the value of each point; of a histogram (count, sum)."""
        return {
            name: {
                labels: (point.count, point.sum) if hasattr(point, "sum") else point.value
                for labels, point in points.items()
            }
            for name, points in self.points().items()
        }


class View:
    """A live view that makes metrics and sends none: with it a run's own thread feeds them."""

    def __init__(self, metrics: Metrics, **options: Any) -> None:
        self._metrics = metrics
        self._options = options

    def start(self, resource: Resource, sources: LiveSources) -> None:
        self.sources = sources
        self.instruments = self._metrics.instruments(sources, **self._options)

    def made(self, item: Any) -> None:
        self.instruments.made(item)

    def span(self, span: Any) -> None: ...
    def counts(self) -> dict[str, SinkCounts]:
        return {}

    def hurry(self) -> None: ...
    def close(self, timeout_s: float) -> None: ...


@pytest.fixture(params=["ours", "own"])
def metrics(request: pytest.FixtureRequest) -> Iterator[Metrics]:
    """In both kinds of provider the numbers are the same."""
    made = Metrics(own=request.param == "own")
    yield made
    made.provider.shutdown()


@pytest.fixture
def view(metrics: Metrics) -> View:
    return View(metrics)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(1_700_000_000 * 10**9)


@pytest.fixture
def sources(clock: FakeClock) -> Callable[..., LiveSources]:
    """What a process without a run says: by default one that makes the records."""

    def make(files: Mapping[str, SinkCounts] | None = None, **about: Any) -> LiveSources:
        counts = {"metrics_raw": SinkCounts()} if files is None else dict(files)
        return LiveSources(
            clock,
            open_window=about.pop("open_window", lambda: None),
            self_ns=about.pop("self_ns", lambda: 0),
            files=lambda: counts,
            **about,
        )

    return make
