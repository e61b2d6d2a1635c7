"""What a worker sends over the network, beside its files."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import ray
from actors import Timed
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from ray_support import until

from otel_grpo.ray.variables import to_hand_over


class Receiver(ThreadingHTTPServer):
    """Takes whatever is sent."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.traces: list[ExportTraceServiceRequest] = []
        self.metrics: list[ExportMetricsServiceRequest] = []

    def spans(self) -> dict[str, int]:
        return {
            span.name: span.end_time_unix_nano - span.start_time_unix_nano
            for request in list(self.traces)
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        }

    def times(self) -> dict[str, float]:
        """The busy seconds of each method, as last told."""
        return {
            point.attributes[0].value.string_value: point.as_double
            for request in list(self.metrics)
            for resource in request.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
            if metric.name == "rl.worker.time"
            for point in metric.sum.data_points
        }


class Handler(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        if self.path == "/v1/traces":
            self.server.traces.append(ExportTraceServiceRequest.FromString(body))
        else:
            self.server.metrics.append(ExportMetricsServiceRequest.FromString(body))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def test_a_worker_sends_its_spans_and_its_busy_time(observed, start, receiver) -> None:
    """The same durations as in its file, under an instance id of its own, while it lives."""
    environment = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{receiver.server_port}",
        "OTEL_BSP_SCHEDULE_DELAY": "100",
        "OTEL_METRIC_EXPORT_INTERVAL": "100",
    }
    actor = start(Timed, runtime_env={"env_vars": environment})
    assert ray.get([actor.step.remote(1), actor.carried.remote(2)]) == [2, 2]
    until(lambda: len(receiver.spans()) == 2 and len(receiver.times()) == 2)
    calls = {call.method: call.end_ns - call.start_ns for call in observed.calls(actor, 2)}
    assert receiver.spans() == {f"rl.worker.{name}": ns for name, ns in calls.items()}
    assert receiver.times() == {name: ns / 1e9 for name, ns in calls.items()}
    resource = receiver.traces[0].resource_spans[0].resource
    told = {item.key: item.value.string_value for item in resource.attributes}
    assert told["rl.run.id"] == observed.run.run_id
    assert told["service.instance.id"]
    driver = observed.run._tracers.light.resource.attributes["service.instance.id"]
    assert told["service.instance.id"] != driver


def test_no_secret_is_handed_to_ray() -> None:
    """Where to send, but neither headers, nor keys, nor a password in an address."""
    environ = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": "http://agent:4318",
        "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc",
        "OTEL_EXPORTER_OTLP_HEADERS": "authorization=secret",
        "OTEL_EXPORTER_OTLP_TRACES_HEADERS": "authorization=secret",
        "OTEL_EXPORTER_OTLP_CLIENT_KEY": "/key",
        "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "https://me:secret@host",
        "OTEL_BSP_SCHEDULE_DELAY": "100",
        "OTEL_RESOURCE_ATTRIBUTES": "a=b",
        "PATH": "/bin",
    }
    assert to_hand_over(environ) == {
        "OTEL_EXPORTER_OTLP_ENDPOINT": "http://agent:4318",
        "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc",
        "OTEL_BSP_SCHEDULE_DELAY": "100",
    }
