"""Requests of OTLP written by hand, to send what no SDK would."""

from __future__ import annotations

import json
import secrets
import time
import urllib.request
from typing import Any

CUMULATIVE, DELTA = 2, 1


def post(endpoint: str, signal: str, request: dict[str, Any]) -> dict[str, Any]:
    """What the server answers; an `HTTPError` where it refuses."""
    found = urllib.request.Request(
        f"{endpoint}/v1/{signal}",
        data=json.dumps(request).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(found, timeout=10) as answer:
        said: dict[str, Any] = json.loads(answer.read() or "{}")  # Prometheus says nothing
    return said


def attributes(values: dict[str, object]) -> list[dict[str, Any]]:
    return [{"key": key, "value": {"stringValue": str(value)}} for key, value in values.items()]


def now_ns() -> int:
    return time.time_ns()


def spans_request(
    spans: list[dict[str, Any]], resource: dict[str, object] | None = None
) -> dict[str, Any]:
    return {
        "resourceSpans": [
            {
                "resource": _resource(resource),
                "scopeSpans": [{"scope": {"name": "by hand"}, "spans": spans}],
            }
        ]
    }


def span(
    name: str, *, events: list[dict[str, Any]] | None = None, **values: object
) -> dict[str, Any]:
    return {
        "traceId": secrets.token_hex(16),
        "spanId": secrets.token_hex(8),
        "name": name,
        "kind": 1,
        "startTimeUnixNano": str(now_ns() - 1_000_000),
        "endTimeUnixNano": str(now_ns()),
        "attributes": attributes(values),
        "events": events or [],
    }


def event(name: str, **values: object) -> dict[str, Any]:
    return {"name": name, "timeUnixNano": str(now_ns()), "attributes": attributes(values)}


def metrics_request(
    metrics: list[dict[str, Any]], resource: dict[str, object] | None = None
) -> dict[str, Any]:
    return {
        "resourceMetrics": [
            {
                "resource": _resource(resource),
                "scopeMetrics": [{"scope": {"name": "by hand"}, "metrics": metrics}],
            }
        ]
    }


def gauge(name: str, value: float, *, at_ns: int | None = None, **values: object) -> dict[str, Any]:
    return {"name": name, "gauge": {"dataPoints": [_point(value, at_ns, None, values)]}}


def counter(
    name: str,
    value: float,
    *,
    start_ns: int,
    at_ns: int | None = None,
    temporality: int = CUMULATIVE,
    **values: object,
) -> dict[str, Any]:
    return {
        "name": name,
        "sum": {
            "aggregationTemporality": temporality,
            "isMonotonic": True,
            "dataPoints": [_point(value, at_ns, start_ns, values)],
        },
    }


def _point(
    value: float, at_ns: int | None, start_ns: int | None, values: dict[str, object]
) -> dict[str, Any]:
    start = {} if start_ns is None else {"startTimeUnixNano": str(start_ns)}
    at = now_ns() if at_ns is None else at_ns
    return {"asDouble": value, "timeUnixNano": str(at), "attributes": attributes(values), **start}


def _resource(values: dict[str, object] | None) -> dict[str, Any]:
    named = {"service.name": "by-hand", "service.instance.id": "1", **(values or {})}
    return {"attributes": attributes(named)}
