"""What is encoded stays below the receivers' limit, and says what it lost."""

from __future__ import annotations

import itertools
import math

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import Event, ReadableSpan
from receivers import RESOURCE, span

from otel_grpo import semconv
from otel_grpo.otlp.limits import cut_span, encoded_metrics, encoded_spans

MB = 2**20


def decoded(body):
    """The one span of a request."""
    request = ExportTraceServiceRequest.FromString(body)
    return request.resource_spans[0].scope_spans[0].spans[0]


def attributes(message):
    return {each.key: each.value for each in message.attributes}


def test_an_attribute_of_1_mb_is_sent_whole():
    """It is below the limit: nothing is cut."""
    message = decoded(encoded_spans([span(1, note="x" * MB)]))
    assert len(attributes(message)["note"].string_value) == MB


def test_nan_is_sent_as_nan():
    """A span may say that a number is none."""
    value = attributes(decoded(encoded_spans([span(1, loss=math.nan)])))["loss"]
    assert value.WhichOneof("value") == "double_value"
    assert math.isnan(value.double_value)


def test_the_largest_attributes_are_cut_first():
    """3 + 2 + 1 MB into 4 MB: the largest loses its end, the others are whole."""
    told = []
    body = cut_span(span(1, b="b" * 2 * MB, a="a" * 3 * MB, c="c" * MB), 4 * MB, told.append)
    found = attributes(decoded(body))
    assert len(body) < 4 * MB
    assert {key: len(found[key].string_value) for key in "abc"} == {
        "a": 256,
        "b": 2 * MB,
        "c": MB,
    }
    assert found[semconv.PHASE].string_value == semconv.GENERATION
    assert [each.string_value for each in found[semconv.CUT].array_value.values] == ["a"]
    assert len(told) == 1
    assert "span rl.sample has 62" in told[0]
    assert told[0].endswith("a cut")


def test_lists_events_and_links_are_cut():
    """Of a list nothing is left; events go when attributes were not enough."""
    whole = span(1, list=["x" * MB] * 5)
    events = [Event("e", {"text": "y" * MB}, 1) for _ in range(5)]
    whole = ReadableSpan(
        whole.name,
        whole.context,
        resource=whole.resource,
        attributes=whole.attributes,
        events=events,
        instrumentation_scope=whole.instrumentation_scope,
    )
    message = decoded(cut_span(whole, 4 * MB, lambda _: None))
    cut = attributes(message)[semconv.CUT].array_value.values
    assert cut[0].string_value == "list"
    assert cut[-1].string_value == "events"
    assert attributes(message)["list"].WhichOneof("value") is None
    assert list(message.events) == []


def test_a_span_that_cannot_be_cut():
    """A name of 5 MB can't be helped."""
    huge = ReadableSpan("x" * 5 * MB, span(1).context, resource=RESOURCE)
    assert cut_span(huge, 4 * MB, lambda _: None) is None


@pytest.fixture(scope="module")
def data():
    """Twenty histograms of 100 points."""
    reader = InMemoryMetricReader()
    meter = MeterProvider([reader], RESOURCE, shutdown_on_exit=False).get_meter("m")
    for name in range(20):
        histogram = meter.create_histogram(f"h{name}")
        for label in range(100):
            histogram.record(1, {"label": str(label)})
    return reader.get_metrics_data()


def test_metrics_that_fit_are_one_request(data):
    """The usual case."""
    assert len(encoded_metrics(data)) == 1


@pytest.mark.parametrize("limit", [40_000, 100_000])
def test_metrics_are_split_between_metrics(data, limit):
    """Each request is below the limit, with resource and scope, and together they hold each metric once."""
    bodies = encoded_metrics(data, limit)
    assert max(map(len, bodies)) <= limit
    # A request is as full as it can be: two in a row would be too large for one.
    assert all(len(a) + len(b) > limit for a, b in itertools.pairwise(bodies))
    whole = ExportMetricsServiceRequest.FromString(encoded_metrics(data)[0])
    parts = [ExportMetricsServiceRequest.FromString(body) for body in bodies]
    scopes = [part.resource_metrics[0].scope_metrics[0] for part in parts]
    assert [m for scope in scopes for m in scope.metrics] == list(
        whole.resource_metrics[0].scope_metrics[0].metrics
    )
    for part, scope in zip(parts, scopes, strict=True):
        assert part.resource_metrics[0].resource == whole.resource_metrics[0].resource
        assert scope.scope == whole.resource_metrics[0].scope_metrics[0].scope
