"""Columns of thousands of samples: right in every bucket, and no thread waits long for them."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import AggregationTemporality, InMemoryMetricReader
from opentelemetry.trace import INVALID_SPAN_CONTEXT

from otel_grpo.metrics import book
from otel_grpo.metrics.catalogue import BY_NAME
from otel_grpo.metrics.columns import Columns
from otel_grpo.testing import recorded_run


def window(metrics: Any, view: Any, clock: Any, prompt: Any, completion: Any, lag: Any) -> None:
    with recorded_run(clock=clock, live=view) as recorded, recorded.run.iteration() as it:
        it.consumed(
            1,
            prompt_lengths=prompt,
            completion_lengths=completion,
            versions=[100 - n for n in lag],
            trainer_version=100,
        )


@pytest.mark.parametrize("make", [list, np.array])
def test_every_value_is_in_its_bucket(metrics: Any, view: Any, clock: Any, make: Any) -> None:
    """Against a count by hand; bounds are inclusive; lists and arrays give the same."""
    draw = random.Random(5)
    edges = [0, 15, 16, 17, 32, 33, 2**20, 2**20 + 1]
    lengths = edges + [draw.randrange(5000) for _ in range(500)]
    lag = [draw.randrange(6) for _ in lengths]
    window(metrics, view, clock, make([3] * len(lengths)), make(lengths), lag)
    points = metrics.points()
    point = points["rl.sample.length"][("output",)]
    bounds = [2**power for power in range(4, 21)]
    expected = [0] * 18
    for value in lengths:
        expected[sum(value > bound for bound in bounds)] += 1
    assert list(point.bucket_counts) == expected
    assert (point.count, point.sum) == (len(lengths), sum(lengths))
    lags = points["rl.policy.lag"][()]
    assert list(lags.bucket_counts)[:6] == [lag.count(n) for n in range(6)]
    assert (lags.count, lags.sum) == (len(lag), sum(lag))


def test_others_get_the_interpreter_between_chunks(
    metrics: Any, view: Any, clock: Any, monkeypatch: Any
) -> None:
    """Three columns of 1,000 values: a pause after each 32, none after the last; at once in ours."""
    pauses: list[float] = []
    monkeypatch.setattr(book, "sleep", pauses.append)
    window(metrics, view, clock, [1] * 1000, [2] * 1000, [0] * 1000)
    assert pauses == ([book.PAUSE_S] * 3 * 31 if metrics.columns is None else [])


def test_a_column_may_tell_what_is_new() -> None:
    """With the delta temporality each collection has the values since the one before it."""
    columns = Columns(AggregationTemporality.DELTA)
    metric = BY_NAME["rl.worker.duration"]
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader], shutdown_on_exit=False)
    provider.get_meter("test").create_counter("n").add(1)
    told = []
    for values in ([10**9, 2 * 10**9], [3 * 10**9], []):
        if values:
            columns.add(metric, np.array(values), {"rl.worker.method": "fit"}, INVALID_SPAN_CONTEXT)
        data = columns.added_to(reader.get_metrics_data())
        assert data is not None
        told.append(
            [
                (point.count, point.sum, point.min, point.max, point.exemplars)
                for found in data.resource_metrics[0].scope_metrics[0].metrics
                if found.name == metric.name
                for point in found.data.data_points
            ]
        )
    assert told == [[(2, 3.0, 1.0, 2.0, [])], [(1, 3.0, 3.0, 3.0, [])], []]
    assert columns.added_to(None) is None
    provider.shutdown()


def test_what_a_histogram_can_not_hold_is_left_out(
    metrics: Any, view: Any, clock: Any, caplog: Any
) -> None:
    """A lag below 0, which makes no sense, costs no warning for each sample."""
    window(metrics, view, clock, [1, 1], [1, 1], [-3, 2])
    assert metrics.values()["rl.policy.lag"] == {(): (1, 2)}
    assert not [record for record in caplog.records if "opentelemetry" in record.name]


def test_labels_are_bounded(metrics: Any, view: Any, clock: Any) -> None:
    """10,000 phases, reasons and scalars are few series, and their sums are whole."""
    with recorded_run(clock=clock, live=view) as recorded, recorded.run.iteration() as it:
        for number in range(10_000):
            it.discarded(f"reason-{number}", 2)
        for number in range(200):
            with it.phase(f"phase-{number}"):
                clock.advance(1)
        recorded.run.log_scalars({f"scalar-{n}": float("inf") for n in range(1000)}, step=1)
    said = metrics.values()
    for name, most, total in (
        ("rl.sample.discarded", 16, 20_000),
        ("rl.phase.time", 32, 200),
        ("rl.rank.phase.time", 32, 200),
        ("rl.train.nonfinite", 64, recorded.summary.nonfinite),
    ):
        assert len(said[name]) <= most + 1
        assert sum(said[name].values()) == total
        assert said[name][("other",)] > 0
    assert len(said["rl.phase.duration"]) <= 3 * 33
    assert recorded.summary.nonfinite == 1000


def test_a_value_that_is_known_keeps_its_place(metrics: Any, view: Any, clock: Any) -> None:
    """However many others came first."""
    with recorded_run(clock=clock, live=view) as recorded, recorded.run.iteration() as it:
        for number in range(100):
            with it.phase(f"phase-{number}"):
                clock.advance(1)
        with it.phase("evaluation"):
            clock.advance(5)
    assert metrics.values()["rl.phase.time"][("evaluation",)] == 5
