"""Exemplars carry the trace of the window; the training's random numbers are its own."""

from __future__ import annotations

import random
from typing import Any

import pytest
from opentelemetry.sdk.metrics import AlwaysOnExemplarFilter, Histogram
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.metrics.view import ExponentialBucketHistogramAggregation

from otel_grpo.testing import recorded_run

# A provider like ours: no other has exemplars.
pytestmark = pytest.mark.parametrize("metrics", ["ours"], indirect=True)


def two_windows(view: Any, clock: Any) -> Any:
    with recorded_run(clock=clock, live=view) as recorded:
        for rollout in (1, 2):
            with recorded.run.iteration() as it, it.phase("generation"):
                clock.advance(rollout)
                it.consumed(rollout, prompt_lengths=[1] * 9, completion_lengths=range(10, 19))
    return recorded


def exemplars(metrics: Any) -> dict[str, set[tuple[int, int]]]:
    return {
        name: {(e.trace_id, e.span_id) for point in points.values() for e in point.exemplars}
        for name, points in metrics.points().items()
    }


def test_a_window_s_trace_is_on_what_was_counted_in_it(metrics: Any, view: Any, clock: Any) -> None:
    """Of two windows between two collections each bucket has the last one; a level has none."""
    view._options["traced"] = lambda trace_id: True
    recorded = two_windows(view, clock)
    ids = [(int(r.trace_id or "", 16), int(r.span_id or "", 16)) for r in recorded.rollouts]
    found = exemplars(metrics)
    # 1 s and 2 s are in two buckets.
    assert found["rl.loop.duration"] == set(ids)
    assert found["rl.phase.duration"] == set(ids)
    assert found["rl.tokens"] == found["rl.phase.time"] == {ids[1]}
    assert found["rl.telemetry.records"] == set()


def test_the_longest_sample_has_it(metrics: Any, view: Any, clock: Any) -> None:
    """18 tokens, in each window; no other length."""
    view._options["traced"] = lambda trace_id: True
    two_windows(view, clock)
    point = metrics.points()["rl.sample.length"][("output",)]
    assert [exemplar.value for exemplar in point.exemplars] == [18]


def test_only_a_trace_that_can_be_looked_up(metrics: Any, view: Any, clock: Any) -> None:
    """A sampler that keeps every other one is asked for each."""
    asked: list[int] = []

    def traced(trace_id: int) -> bool:
        asked.append(trace_id)
        return len(asked) == 1

    view._options["traced"] = traced
    recorded = two_windows(view, clock)
    ids = [int(record.trace_id or "", 16) for record in recorded.rollouts]
    assert asked == ids
    assert {trace for trace, _ in exemplars(metrics)["rl.loop.duration"]} == {ids[0]}


def test_a_provider_of_one_s_own_gets_none(metrics: Any, view: Any, clock: Any) -> None:
    """Unless it is told that a trace can be looked up."""
    two_windows(view, clock)
    assert not any(exemplars(metrics).values())


@pytest.mark.parametrize("always", [False, True])
def test_no_random_number_is_drawn(metrics: Any, view: Any, clock: Any, always: bool) -> None:
    """Whatever the filter and the aggregation: with our views nothing asks Python's `random`."""
    options: dict[str, Any] = {"exemplar_filter": AlwaysOnExemplarFilter()} if always else {}
    ours = type(metrics)(**options)
    view._metrics = ours
    view._options["traced"] = lambda trace_id: True
    before = random.getstate()
    two_windows(view, clock)
    ours.points()
    assert random.getstate() == before
    assert ours.points()["rl.loop.duration"]
    ours.provider.shutdown()


def test_no_random_number_is_drawn_for_exponential_histograms(
    metrics: Any, view: Any, clock: Any
) -> None:
    """As `OTEL_EXPORTER_OTLP_METRICS_DEFAULT_HISTOGRAM_AGGREGATION` has them made."""
    reader = InMemoryMetricReader(
        preferred_aggregation={Histogram: ExponentialBucketHistogramAggregation()}
    )
    view._metrics = ours = type(metrics)(reader=reader)
    view._options["traced"] = lambda trace_id: True
    before = random.getstate()
    two_windows(view, clock)
    assert random.getstate() == before
    points = ours.points()
    point = points["rl.loop.duration"][("wall",)]
    assert hasattr(point, "scale")
    assert (point.count, point.sum) == (2, 3)
    assert {exemplar.value for exemplar in point.exemplars} == {2}
    # A column has its buckets in any case.
    assert points["rl.sample.length"][("output",)].bucket_counts[1] == 4
    ours.provider.shutdown()


def test_the_sdk_s_own_reservoirs_would_draw(metrics: Any) -> None:
    """Why the views are there: without them the SDK draws from the training's stream."""
    from opentelemetry.context import Context
    from opentelemetry.trace import (
        NonRecordingSpan,
        SpanContext,
        TraceFlags,
        set_span_in_context,
    )

    span = NonRecordingSpan(SpanContext(1, 2, False, TraceFlags(TraceFlags.SAMPLED)))
    bare = type(metrics)(own=True)
    counter = bare.provider.get_meter("bare").create_counter("n")
    before = random.getstate()
    for _ in range(2):
        counter.add(1, context=set_span_in_context(span, Context()))
    assert random.getstate() != before
    random.setstate(before)
    bare.provider.shutdown()


def test_the_standard_variable_switches_them_off(
    metrics: Any, view: Any, clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In columns, too."""
    monkeypatch.setenv("OTEL_METRICS_EXEMPLAR_FILTER", "always_off")
    view._metrics = silent = type(metrics)()
    view._options["traced"] = lambda trace_id: True
    two_windows(view, clock)
    assert not any(exemplars(silent).values())
    silent.provider.shutdown()
