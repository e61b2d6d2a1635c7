"""One trace for each iteration in Jaeger, with every span that the files have, below the right one."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from tools.stack.ask import wait_for
from tools.stack.stack import Stack

if TYPE_CHECKING:
    from conftest import Demo

DEMOS = ("trl", "colocated", "async")


@pytest.fixture(params=DEMOS)
def demo(request: pytest.FixtureRequest, demos: dict[str, Demo]) -> Demo:
    found: Demo = demos[request.param]
    return found


def by_trace(spans: list[dict[str, Any]]) -> dict[str, dict[str, dict[str, Any]]]:
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for span in spans:
        found.setdefault(span["traceId"], {})[span["spanId"]] = span
    return found


def test_every_span_of_every_iteration_is_there(stack: Stack, demo: Demo) -> None:
    """Names, parents and durations are those of the files, in each process's own resource."""
    files = by_trace(demo.spans())
    windows = [record["trace_id"] for record in demo.records()]
    assert len(windows) == 3
    assert set(windows) <= set(files)
    for trace_id, spans in files.items():
        shown = {
            span["spanID"]: span
            for span in wait_for(
                lambda trace_id=trace_id: stack.jaeger.trace(trace_id),
                lambda found, spans=spans: len(found) >= len(spans),
            )
        }
        assert set(shown) == set(spans)
        for span_id, span in spans.items():
            there = shown[span_id]
            assert there["operationName"] == span["name"]
            assert there["parent"] == (span.get("parentSpanId") or None)
            length_ns = int(span["endTimeUnixNano"]) - int(span["startTimeUnixNano"])
            assert abs(there["duration"] - length_ns / 1000) <= 1  # Jaeger keeps microseconds
            assert there["resource"]["rl.run.id"] == demo.run_id
            assert there["tags"]["rl.role"] == there["resource"]["rl.role"]


def test_an_iteration_is_found_by_its_number(stack: Stack, demo: Demo) -> None:
    """As one would look for it on Jaeger's page: one trace, whose root is the iteration."""
    for record in demo.records():
        tags = {"rl.run.id": demo.run_id, "rl.loop.iteration": str(record["iteration"])}
        traces = stack.jaeger.traces("otel-grpo", tags=tags)
        ids = {trace[0]["traceID"]: trace for trace in traces}
        assert record["trace_id"] in ids
        (root,) = [span for span in ids[record["trace_id"]] if span["parent"] is None]
        assert root["operationName"] == "rl.loop"
        assert root["spanID"] == record["span_id"]


@pytest.mark.parametrize("name", ["colocated", "async"])
def test_calls_of_workers_hang_below_the_phase_that_made_them(
    stack: Stack, demos: dict[str, Demo], name: str
) -> None:
    """Each in the resource of its own process, and never below another worker."""
    demo = demos[name]
    shown = [span for record in demo.records() for span in stack.jaeger.trace(record["trace_id"])]
    names = {span["spanID"]: span["operationName"] for span in shown}
    calls = [span for span in shown if span["operationName"].startswith("rl.worker.")]
    assert len({span["resource"]["service.instance.id"] for span in calls}) >= 8
    for call in calls:
        assert call["parent"] in names
        assert not names[call["parent"]].startswith("rl.worker.")


def test_what_tempo_gets_is_what_the_files_have(demo: Demo) -> None:
    """Each span once: nothing was sent twice when nothing stood still."""
    assert sorted(demo.kept) == sorted(span["spanId"] for span in demo.spans())


def test_the_metrics_of_spans_count_the_spans(stack: Stack, demo: Demo) -> None:
    """The collector's own count of them, by name; it says them once a second."""
    wanted = Counter(span["name"] for span in demo.spans())
    calls = f'traces_span_metrics_calls_total{{rl_run_id="{demo.run_id}"}}'
    samples = stack.prometheus.query(
        f"sum by (span_name) (last_over_time({calls}[1h]))", at=demo.arrived
    )
    assert {sample.labels["span_name"]: sample.value for sample in samples} == wanted
