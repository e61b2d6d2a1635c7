"""Whether spans and metrics are sent, by which variables, and whether a collector takes them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from otel_grpo.cli import endpoint, receiver
from otel_grpo.cli.checks.finding import Finding
from otel_grpo.cli.problem import Problem
from otel_grpo.semconv import SCOPE
from otel_grpo.tracing.guard import Guard

if TYPE_CHECKING:
    from otel_grpo.otlp.answer import Answer, Signal
    from otel_grpo.otlp.settings import Protocol

TOPIC = "Sending by OTLP"
TIMEOUT_S = 5.0

# Variables whose values hold no secret. Of all others it is said that they are set.
_OPEN = (
    "OTEL_EXPORTER_OTLP_PROTOCOL",
    "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL",
    "OTEL_EXPORTER_OTLP_METRICS_PROTOCOL",
    "OTEL_EXPORTER_OTLP_COMPRESSION",
    "OTEL_EXPORTER_OTLP_TIMEOUT",
    "OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE",
    "OTEL_TRACES_EXPORTER",
    "OTEL_METRICS_EXPORTER",
    "OTEL_TRACES_SAMPLER",
    "OTEL_TRACES_SAMPLER_ARG",
    "OTEL_SDK_DISABLED",
    "OTEL_BSP_MAX_QUEUE_SIZE",
    "OTEL_BSP_MAX_EXPORT_BATCH_SIZE",
    "OTEL_BSP_SCHEDULE_DELAY",
    "OTEL_METRIC_EXPORT_INTERVAL",
)
_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")
_TEMPORALITY = "OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE"


# What the message of a live view does not say: there it may mend itself.
_MEND = {
    "unreachable": "; nothing listens there: start a collector, or name another",
    "timeout": "; is it up, and does a firewall let it through?",
    "dns": "; mend the name",
}


class _Told(Guard):
    """Keeps what is said of variables that make no sense."""

    def __init__(self) -> None:
        super().__init__(strict=False)
        self.said: list[str] = []

    def misuse(self, what: str, message: str) -> None:
        self.said.append(message)


def collector(url: str | None) -> Iterator[Finding]:
    """Of this environment, or of a URL as if `run` had been told it. Sends two empty requests."""
    from otel_grpo.otlp.settings import read

    if url is not None:
        receiver.point_to(url)
    yield from _variables(os.environ)
    guard = _Told()
    settings = read(os.environ, guard)
    for message in guard.said:
        yield Finding(TOPIC, "bad", message)
    protocols: dict[Signal, Protocol | None] = {
        "traces": settings.spans,
        "metrics": settings.metrics,
    }
    if not any(protocols.values()):
        yield Finding(TOPIC, *_off(os.environ))
        return
    if os.environ.get(_TEMPORALITY, "").strip().lower() == "delta":
        text = f"{_TEMPORALITY} is delta: Prometheus refuses that; leave it cumulative"
        yield Finding(TOPIC, "note", text)
    for signal, protocol in protocols.items():
        if protocol is None:
            yield Finding(TOPIC, "note", f"{signal} are not sent: the variables say so")
        else:
            yield _asked(signal, protocol)


def _variables(environ: Mapping[str, str]) -> Iterator[Finding]:
    told: dict[str, str] = {}
    for name in sorted(environ):
        upper = name.upper()
        if not environ[name].strip() or not (upper.startswith("OTEL_") or upper in _PROXIES):
            continue
        if name in _OPEN:
            told[name] = environ[name]
        elif name in {endpoint.ENDPOINT, *endpoint.OF_SIGNALS}:
            told[name] = without_secrets(environ[name])
        else:
            told[name] = "(set)"
    if told:
        text = ", ".join(f"{name}={value}" for name, value in told.items())
        yield Finding(TOPIC, "good", text, {"variables": told})


def without_secrets(url: str) -> str:
    """A URL without user, password and query."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "(no URL)"
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="").geturl()


def _off(environ: Mapping[str, str]) -> tuple[Any, str]:
    if endpoint.told(environ):
        return "bad", "an endpoint is told, and other variables switch sending off: unset those"
    return "note", (
        f"off: nothing names a collector. `otel-grpo run --otlp URL`, or {endpoint.ENDPOINT}, does"
    )


def _nothing(signal: Signal) -> bytes:
    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
        ExportMetricsServiceRequest,
    )
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    if signal == "traces":
        spans = ExportTraceServiceRequest()
        spans.resource_spans.add().scope_spans.add().scope.name = SCOPE
        return spans.SerializeToString()
    metrics = ExportMetricsServiceRequest()
    metrics.resource_metrics.add().scope_metrics.add().scope.name = SCOPE
    return metrics.SerializeToString()


def _asked(signal: Signal, protocol: Protocol) -> Finding:
    """What the collector says to a request without spans or points: it leaves nothing behind."""
    about: dict[str, Any] = {"signal": signal, "protocol": protocol}
    try:
        way = receiver.transport(signal, protocol)
    except Problem as problem:
        return Finding(TOPIC, "bad", problem.format_message(), about | {"reason": "not_installed"})
    try:
        answer: Answer = way.send(_nothing(signal), min(way.timeout_s, TIMEOUT_S))
    finally:
        way.close()
    about |= {"where": way.where, "reason": answer.reason}
    if answer.kind == "taken":
        return Finding(TOPIC, "good", f"{signal}: {way.where} takes them, by {protocol}", about)
    said = answer.message or f"{way.where}: {answer.reason}"
    mend = _MEND.get(answer.reason, "")
    return Finding(TOPIC, "bad", f"{signal}: {said}{mend}", about)
