"""What Prometheus and Jaeger answer, by the APIs that Grafana asks them by."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")


def get(url: str, **parameters: object) -> Any:
    """The JSON at `url`; an `HTTPError` says what the server refused."""
    if parameters:
        url = f"{url}?{urllib.parse.urlencode(parameters, doseq=True)}"
    with urllib.request.urlopen(url, timeout=30) as answer:
        return json.load(answer)


def wait_for(question: Callable[[], T], accept: Callable[[T], bool], *, within_s: float = 30) -> T:
    """The first answer that is accepted, or the last one when the time is over."""
    deadline = time.monotonic() + within_s
    while not accept(answer := question()) and time.monotonic() < deadline:
        time.sleep(0.2)
    return answer


@dataclass(frozen=True)
class Sample:
    labels: dict[str, str]
    value: float


@dataclass(frozen=True)
class Prometheus:
    url: str

    def query(self, expression: str, *, at: float | None = None) -> list[Sample]:
        """The vector that `expression` is, now or `at` a time in seconds of the epoch."""
        when = {} if at is None else {"time": at}
        answer = get(f"{self.url}/api/v1/query", query=expression, **when)
        result = answer["data"]["result"]
        if answer["data"]["resultType"] == "scalar":
            return [Sample({}, float(result[1]))]
        return [Sample(each["metric"], float(each["value"][1])) for each in result]

    def value(self, expression: str, *, at: float | None = None) -> float | None:
        """The one value that `expression` is, None where there is none."""
        found = self.query(expression, at=at)
        if len(found) > 1:
            raise ValueError(f"{len(found)} values, where one was expected: {expression}")
        return found[0].value if found else None

    def range(
        self, expression: str, *, start: float, end: float, step: float
    ) -> list[tuple[dict[str, str], list[tuple[float, float]]]]:
        """Labels, and instants with values, of each series."""
        answer = get(
            f"{self.url}/api/v1/query_range", query=expression, start=start, end=end, step=step
        )
        return [
            (each["metric"], [(float(t), float(value)) for t, value in each["values"]])
            for each in answer["data"]["result"]
        ]

    def exemplars(self, expression: str, *, start: float, end: float) -> list[dict[str, Any]]:
        answer = get(f"{self.url}/api/v1/query_exemplars", query=expression, start=start, end=end)
        found: list[dict[str, Any]] = answer["data"]
        return found

    def series(self, match: str) -> list[dict[str, str]]:
        found: list[dict[str, str]] = get(f"{self.url}/api/v1/series", **{"match[]": match})["data"]
        return found

    def label_values(self, label: str, *, match: str | None = None) -> list[str]:
        only = {} if match is None else {"match[]": match}
        found: list[str] = get(f"{self.url}/api/v1/label/{label}/values", **only)["data"]
        return found

    def alerts(self) -> list[dict[str, Any]]:
        """Those that are pending or fire."""
        found: list[dict[str, Any]] = get(f"{self.url}/api/v1/alerts")["data"]["alerts"]
        return found


@dataclass(frozen=True)
class Jaeger:
    url: str

    def trace(self, trace_id: str) -> list[dict[str, Any]]:
        """The spans of a trace, none where Jaeger has none."""
        try:
            found = get(f"{self.url}/api/traces/{trace_id}")["data"]
        except urllib.error.HTTPError as error:
            if error.code != 404:
                raise
            return []
        return [_with_process(span, trace) for trace in found for span in trace["spans"]]

    def traces(
        self, service: str, *, tags: dict[str, str] | None = None, limit: int = 100
    ) -> list[list[dict[str, Any]]]:
        """The spans of each trace of `service` that has a span with all `tags`."""
        only = {"tags": json.dumps(tags)} if tags else {}
        found = get(f"{self.url}/api/traces", service=service, limit=limit, **only)["data"]
        return [[_with_process(span, trace) for span in trace["spans"]] for trace in found]

    def services(self) -> list[str]:
        found: list[str] = get(f"{self.url}/api/services")["data"] or []
        return found


def _with_process(span: dict[str, Any], trace: dict[str, Any]) -> dict[str, Any]:
    """The span with its tags and its resource as plain dictionaries, and the id of its parent."""
    resource = trace["processes"][span["processID"]]
    return {
        **span,
        "tags": {tag["key"]: tag["value"] for tag in span["tags"]},
        "resource": {tag["key"]: tag["value"] for tag in resource["tags"]},
        "parent": next(
            (ref["spanID"] for ref in span["references"] if ref["refType"] == "CHILD_OF"), None
        ),
    }
