"""The standard variables: what is sent, how, and what becomes of values that make no sense."""

from __future__ import annotations

import pytest

from otel_grpo.otlp.settings import Settings, read
from otel_grpo.tracing.guard import ApiError, Guard

HTTP, GRPC = "http/protobuf", "grpc"
URL = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://localhost:4318"}


@pytest.mark.parametrize(
    ("environ", "spans", "metrics"),
    [
        ({}, None, None),
        (URL, HTTP, HTTP),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": " "}, None, None),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://x"}, HTTP, None),
        ({"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://x"}, None, HTTP),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, HTTP, None),
        ({"OTEL_METRICS_EXPORTER": "console, otlp"}, None, HTTP),
        ({**URL, "OTEL_TRACES_EXPORTER": "none"}, None, HTTP),
        ({**URL, "OTEL_METRICS_EXPORTER": "prometheus"}, HTTP, None),
        ({**URL, "OTEL_SDK_DISABLED": "True"}, None, None),
        ({**URL, "OTEL_SDK_DISABLED": "1"}, HTTP, HTTP),  # only "true" is true
        ({**URL, "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, GRPC, GRPC),
        ({**URL, "OTEL_EXPORTER_OTLP_METRICS_PROTOCOL": "grpc"}, HTTP, GRPC),
        ({"OTEL_TRACES_EXPORTER": "otlp_proto_grpc"}, GRPC, None),
        ({**URL, "OTEL_TRACES_SAMPLER": "always_off"}, None, HTTP),
    ],
)
def test_what_is_sent(environ, spans, metrics):
    """Sent is what somebody asks for, by an endpoint or an exporter's name, and nothing else."""
    guard = Guard()
    settings = read(environ, guard)
    assert (settings.spans, settings.metrics) == (spans, metrics)
    assert guard.snapshot() == {}


def test_numbers():
    """Sizes and times are those of the batch processor and of the metric reader."""
    told = {
        "OTEL_BSP_MAX_QUEUE_SIZE": "100",
        "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "10",
        "OTEL_BSP_SCHEDULE_DELAY": "250",
        "OTEL_METRIC_EXPORT_INTERVAL": "1500",
        "OTEL_TRACES_SAMPLER": "parentbased_traceidratio",
        "OTEL_TRACES_SAMPLER_ARG": "0.25",
    }
    assert read({**URL, **told}, Guard()) == Settings(
        HTTP, HTTP, queue=100, batch=10, delay_s=0.25, interval_s=1.5, share=0.25
    )


def test_numbers_that_nobody_tells():
    """A queue of 16,384 spans, batches of 512 every 5 s, metrics every 10 s, all traces."""
    assert read(URL, Guard()) == Settings(
        HTTP, HTTP, queue=16384, batch=512, delay_s=5, interval_s=10, share=1
    )


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("OTEL_BSP_MAX_QUEUE_SIZE", "many", "16384 is taken"),
        ("OTEL_BSP_MAX_QUEUE_SIZE", "0", "16384 is taken"),
        ("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "99999", "at most the queue's size, 16384"),
        ("OTEL_BSP_SCHEDULE_DELAY", "1.5", "5000 is taken"),
        ("OTEL_METRIC_EXPORT_INTERVAL", f"{10**30}", "10000 is taken"),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json", "http/protobuf is taken"),
        ("OTEL_TRACES_SAMPLER", "jaeger_remote", "always_on is taken"),
    ],
)
def test_bad_values(variable, value, message, caplog):
    """Each is named once in a warning, counted, and the default goes on."""
    guard = Guard()
    read({**URL, variable: value}, guard)
    assert guard.snapshot() == {f"api.{variable}": 1}
    assert [record.getMessage().count(f"{variable}={value}") for record in caplog.records] == [1]
    assert message in caplog.text


@pytest.mark.parametrize("share", ["2", "half", "-0.1"])
def test_bad_share(share, caplog):
    """A share of the traces that is none leaves all of them."""
    told = {"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": share}
    assert read({**URL, **told}, Guard()).share == 1
    assert "a number from 0 to 1" in caplog.text


def test_bad_values_in_strict_mode():
    """Where tests want to know, a bad value raises."""
    with pytest.raises(ApiError, match="OTEL_BSP_MAX_QUEUE_SIZE=-1"):
        read({**URL, "OTEL_BSP_MAX_QUEUE_SIZE": "-1"}, Guard(strict=True))
