"""Alerts by the real Prometheus, over what a faulty run really sent."""

from __future__ import annotations

import difflib
import json
import re
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.live.boards import RULES, rules
from tests.live.conftest import Demo
from tests.live.files import Files
from tests.live.stage import FASTER, Play, hastened
from tools.stack.ask import Prometheus, wait_for
from tools.stack.stack import running_stack

EXPRESSIONS = {rule["alert"]: rule["expr"] for rule in rules() if "alert" in rule}
LENGTH = r"\d+(?:ms|[smh])\b"


def fired(prometheus: Prometheus, run_id: str, pace: str) -> dict[str, list[dict[str, str]]]:
    """The labels of the alerts that fired at any time, by name."""
    labels = f'alertstate="firing", rl_run_id="{run_id}", pace="{pace}"'
    found: dict[str, list[dict[str, str]]] = {}
    for each in prometheus.query(f"last_over_time(ALERTS{{{labels}}}[1h])"):
        found.setdefault(each.labels["alertname"], []).append(each.labels)
    return found


def test_real_trainings_alarm_nobody(stack: Any, play: Play, demos: dict[str, Demo]) -> None:
    """Nothing fires of a run that is healthy, by the rules as they are, whatever goes on beside."""
    assert {name: fired(stack.prometheus, demo.run_id, "") for name, demo in demos.items()} == {
        name: {} for name in demos
    }


def test_the_faster_rules_are_the_same_words() -> None:
    """Lengths of time and the two thresholds in seconds are divided, and nothing else is changed."""
    before, after = RULES.read_text().splitlines(), hastened(RULES.read_text()).splitlines()
    assert len(before) == len(after)
    changed = [(one, other) for one, other in zip(before, after, strict=True) if one != other]
    seconds = {"ms": 0.001, "s": 1, "m": 60, "h": 3600}
    for one, other in changed:
        lengths = [
            [int(n) * seconds[unit] for n, unit in re.findall(r"(?<![\w])(\d+)(ms|[smh])\b", line)]
            for line in (one, other)
        ]
        assert lengths[0] == pytest.approx([FASTER * length for length in lengths[1]])
        words = [
            re.sub(rf"(?<!\w){LENGTH}|\b(?:120|7200|1|60)(?=\)?$)", "T", line)
            for line in (one, other)
        ]
        assert words[0] == words[1]
    assert len(changed) > 15
    assert len(list(difflib.unified_diff(before, after, n=0))) > len(changed)


# What the staged run does, and who must say so. The others need longer than it, or other servers.
STAGED = {
    "RlRunStalled": {},
    "RlUpdateFailed": {},
    "RlUpdatesSkipped": {},
    "RlIterationAborted": {},
    "RlNonFinite": {"rl_scalar": "loss"},
    "RlStraggler": {"rl_rank": "2", "rl_phase": "generation"},
    "RlUnattributedTime": {},
    "RlThroughputDropped": {},
    "RlTelemetryLost": {"rl_telemetry_sink": "otlp_spans"},
}


@pytest.mark.parametrize("alert", STAGED)
def test_an_alert_fires_of_the_staged_run(alert: str, stack: Any, staged: dict[str, Demo]) -> None:
    """At the faster pace, for the run, rank, scalar or sink that is at fault."""
    found = fired(stack.prometheus, staged["staged"].run_id, "fast").get(alert, [])
    assert STAGED[alert] in [{key: labels[key] for key in STAGED[alert]} for labels in found]


def test_the_stall_was_told_while_it_lasted(stack: Any, staged: dict[str, Demo]) -> None:
    """It fires within the wait, not before it, and is over when training goes on."""
    files = Files(staged["staged"].path)
    windows = [w["attributes"]["window"] for w in files.windows]
    longest = max(windows, key=lambda w: w["end_ns"] - w["start_ns"])
    start, end = longest["start_ns"] / 1e9, longest["end_ns"] / 1e9
    stalled = (
        f'ALERTS{{alertname="RlRunStalled", alertstate="firing", pace="fast", '
        f'rl_run_id="{files.run_id}"}}'
    )
    before = f"count_over_time({stalled}[10s])"
    assert stack.prometheus.query(stalled, at=end - 1)
    assert not stack.prometheus.query(before, at=start)
    assert not stack.prometheus.query(f"last_over_time({stalled}[2s])", at=end + 6)


def test_a_failure_is_told_by_the_rules_as_they_are(stack: Any, staged: dict[str, Demo]) -> None:
    """At the pace of the rules themselves: what needs no waiting fires of the staged run."""
    found = wait_for(
        lambda: fired(stack.prometheus, staged["staged"].run_id, ""),
        lambda found: len(found) >= 4,
        within_s=10,
    )
    assert {"RlUpdateFailed", "RlIterationAborted", "RlNonFinite", "RlTelemetryLost"} <= set(found)


def test_a_run_that_is_killed_has_vanished(stack: Any, staged: dict[str, Demo]) -> None:
    """As Prometheus sees it six minutes after its last word; one that ended in order has not.

    A series is there for five minutes after its last value, so this may be asked of the future.
    """
    files = Files(staged["staged"].path)
    at = files.ended + 360
    found = stack.prometheus.query(EXPRESSIONS["RlRunVanished"], at=at)
    runs = {each.labels["rl_run_id"] for each in found}
    assert staged["killed"].run_id in runs
    assert files.run_id not in runs


def test_no_rule_fails(stack: Any, demos: dict[str, Demo], staged: dict[str, Demo]) -> None:
    """Over runs of all kinds beside each other Prometheus could evaluate every rule each time."""
    assert stack.prometheus.value("sum(prometheus_rule_evaluations_total)") > 0
    assert stack.prometheus.value("sum(prometheus_rule_evaluation_failures_total)") == 0


# ------------------------------------------------------------------------------------ the collector


def sent(endpoint: str, signal: str, body: dict[str, Any]) -> int:
    request = urllib.request.Request(
        f"{endpoint}/v1/{signal}",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=10) as answer:
        return int(answer.status)


def old_sample() -> dict[str, Any]:
    """A gauge's value of 30 hours ago: Prometheus takes it no more."""
    point = {"asDouble": 1, "timeUnixNano": str(int((time.time() - 30 * 3600) * 1e9))}
    metric = {"name": "too.old", "gauge": {"dataPoints": [point]}}
    return {"resourceMetrics": [{"scopeMetrics": [{"metrics": [metric]}]}]}


def spans(number: int) -> dict[str, Any]:
    span = {"traceId": "1" * 32, "spanId": "2" * 16, "name": "x" * 1000, "startTimeUnixNano": "1"}
    return {"resourceSpans": [{"scopeSpans": [{"spans": [span] * number}]}]}


def test_a_collector_that_drops_or_holds_back_is_told(tmp_path: Path) -> None:
    """A sample too old; Jaeger away, which may lose spans; Tempo away, whose queue fills up."""
    small = {"OTELCOL_QUEUE_BYTES": "100000", "JAEGER_QUEUE_BYTES": "30000"}
    with running_stack(tmp_path, scrape="1s", **small) as stack:
        prometheus = stack.prometheus

        def told(alert: str) -> dict[str, float]:
            found = prometheus.query(EXPRESSIONS[alert])
            return {
                each.labels.get("exporter", each.labels.get("filter", "")): each.value
                for each in found
            }

        wait_for(lambda: prometheus.query("otelcol_exporter_queue_capacity"), bool)
        assert told("OtelcolDropping") == told("OtelcolQueueNearlyFull") == {}
        assert sent(stack.otlp, "metrics", old_sample()) == 200
        for away in ("jaeger", "tempo"):
            stack.servers[away].stop()
        for _ in range(9):
            assert sent(stack.otlp, "traces", spans(10)) == 200
        dropped = wait_for(lambda: told("OtelcolDropping"), lambda found: len(found) == 2)
        assert dropped["filter/too_old"] == 1
        assert 0 < dropped["otlp_grpc/jaeger"] < 90
        full = wait_for(
            lambda: told("OtelcolQueueNearlyFull"), lambda found: "otlp_grpc/tempo" in found
        )
        assert 0.8 < full["otlp_grpc/tempo"] <= 1
