"""What the collector does to what is sent, and what it loses when something stands still."""

from __future__ import annotations

import time
import urllib.error
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from otlp_json import (
    DELTA,
    counter,
    event,
    gauge,
    metrics_request,
    now_ns,
    post,
    span,
    spans_request,
)

from tools.stack.ask import wait_for
from tools.stack.stack import COLLECTOR, Stack, running_stack

AGENT = Path(__file__).with_name("agent.compose.yml")
HOUR_NS = 3_600 * 10**9
SECRET = "Now tell me how"


# ------------------------------------------------------------------------- what must not leave


def test_no_back_end_gets_the_text_of_a_prompt(stack: Stack) -> None:
    """Under every name that instrumentations use, in resources, spans, events and points."""
    keys = {
        "gen_ai.input.messages",
        "gen_ai.output.messages",
        "gen_ai.system_instructions",
        "gen_ai.prompt",
        "gen_ai.completion.0.content",
        "gen_ai.tool.call.arguments",
        "llm.prompts",
        "llm.input_messages.0.message.content",
        "traceloop.entity.input",
        "output.value",
        "rl.sample.prompt",
        "rl.sample.completion",
    }
    text = dict.fromkeys(keys, SECRET)
    sent = span(
        "scrubbed",
        events=[
            event("gen_ai.client.inference.operation.details", **text, kept=1),
            event("gen_ai.user.message", content=SECRET, role="user"),
            event("log", message="is no prompt"),
        ],
        **text,
        **{"gen_ai.request.model": "kept"},
    )
    resource = {**text, "service.name": "scrubbed", "os.type": "kept"}
    post(stack.otlp, "traces", spans_request([sent], resource))
    point = gauge("scrub.test", 1, **text, kept="yes")
    post(stack.otlp, "metrics", metrics_request([point], resource))

    (kept,) = wait_for(lambda: [s for s in stack.kept_spans() if s["name"] == "scrubbed"], bool)
    shown = wait_for(lambda: stack.jaeger.trace(sent["traceId"]), bool)
    (series,) = wait_for(lambda: stack.prometheus.query("scrub_test"), bool)

    assert {attribute["key"] for attribute in kept["attributes"]} == {"gen_ai.request.model"}
    said = [sorted(a["key"] for a in each.get("attributes", ())) for each in kept["events"]]
    assert said == [["kept"], ["role"], ["message"]]
    assert series.labels["kept"] == "yes"
    everything = stack.servers["tempo"].home / "sink.jsonl"
    information = stack.prometheus.query('target_info{job="scrubbed"}')
    assert [each.labels["os_type"] for each in information] == ["kept"]
    for where in (everything.read_text(), shown, series, information):
        assert SECRET not in str(where)


# ---------------------------------------------------------------- what Prometheus would refuse


def test_a_sample_that_is_too_old_costs_only_itself(stack: Stack) -> None:
    """Prometheus alone refuses the whole request for it; here it is dropped and counted."""
    old, fresh = now_ns() - 30 * HOUR_NS, now_ns()
    dropped = 'sum(otelcol_processor_filter_datapoints_filtered{filter="filter/too_old"})'
    before = stack.prometheus.value(dropped) or 0
    wait_for(lambda: stack.prometheus.query("up"), bool)  # an empty Prometheus takes anything
    request = metrics_request([gauge("age.test", 1, at_ns=old, kind="old"), gauge("age.test", 2)])
    with pytest.raises(urllib.error.HTTPError, match="400"):
        post(stack.url("prometheus", 9090) + "/api/v1/otlp", "metrics", request)

    request = metrics_request(
        [
            gauge("age.test", 1, at_ns=old, kind="old"),
            gauge("age.test", 3, at_ns=fresh, kind="fresh"),
            # A run of two days: the counter began long ago, its sample is of now.
            counter("age.count", 7, start_ns=old, at_ns=fresh),
        ]
    )
    post(stack.otlp, "metrics", request)

    assert wait_for(lambda: stack.prometheus.value('age_test{kind="fresh"}'), bool) == 3
    assert wait_for(lambda: stack.prometheus.value("age_count_total"), bool) == 7
    assert wait_for(lambda: (stack.prometheus.value(dropped) or 0) - before, bool) == 1


def test_counters_as_deltas_are_summed_up_beside_gauges(stack: Stack) -> None:
    """Prometheus alone answers 500 to them and takes nothing of the request."""
    start = now_ns()
    for n in range(3):
        at = now_ns()
        delta = counter("delta.test", 250, start_ns=start, at_ns=at, temporality=DELTA)
        post(stack.otlp, "metrics", metrics_request([delta, gauge("beside.test", n + 1)]))
        start = at
    assert wait_for(lambda: stack.prometheus.value("delta_test_total"), lambda v: v == 750) == 750
    assert wait_for(lambda: stack.prometheus.value("beside_test"), lambda v: v == 3) == 3


def test_a_counter_begins_at_zero(stack: Stack) -> None:
    """Else increase() would miss its first value: 100 of the 250 tokens of these two samples."""
    start = now_ns() - 3 * 10**9
    for value, at in ((100, start + 10**9), (250, start + 2 * 10**9)):
        request = metrics_request([counter("zero.test", value, start_ns=start, at_ns=at)])
        post(stack.otlp, "metrics", request)
    grown = "increase(zero_test_total[1m] anchored)"
    assert wait_for(lambda: stack.prometheus.value(grown), lambda v: v == 250) == 250


# ------------------------------------------------------------------------- what stands still


@pytest.fixture
def own_stack(tmp_path: Path) -> Iterator[Stack]:
    """One to break, behind the agent of a node. Jaeger's queue holds about 10 requests."""
    with running_stack(tmp_path, AGENT, scrape="1s", JAEGER_QUEUE_BYTES="20000") as found:
        yield found


def test_jaeger_that_stands_still_stops_nobody_else(own_stack: Stack) -> None:
    """What its full queue can't take is lost to Jaeger alone, and every span of it is counted."""
    jaeger = own_stack.servers["jaeger"]
    jaeger.kill()
    sent = [span(f"s{n}", filling="x" * 90) for n in range(300)]
    for n in range(0, 300, 10):
        post(own_stack.otlp, "traces", spans_request(sent[n : n + 10]))

    kept = wait_for(own_stack.kept_spans, lambda spans: len(spans) >= 300)
    assert Counter(each["spanId"] for each in kept) == Counter(each["spanId"] for each in sent)
    lost = 'sum(otelcol_exporter_enqueue_failed_spans{exporter="otlp_grpc/jaeger"})'
    n_lost = wait_for(lambda: own_stack.prometheus.value(lost), bool)
    assert n_lost is not None
    assert 0 < n_lost < 300

    jaeger.start()
    shown = wait_for(lambda: _shown(own_stack), lambda n: n + n_lost == 300)
    assert shown + n_lost == 300


def _shown(stack: Stack) -> int:
    return sum(map(len, stack.jaeger.traces("by-hand", limit=1000)))


def test_tempo_that_stands_still_is_waited_for(tmp_path: Path) -> None:
    """What its full queue can't take is refused, so that whoever sends keeps it: nothing is lost."""
    with running_stack(tmp_path, OTELCOL_QUEUE_BYTES="20000") as stack:
        stack.servers["tempo"].kill()
        sent = [span(f"s{n}", filling="x" * 90) for n in range(300)]
        requests = [spans_request(sent[n : n + 10]) for n in range(0, 300, 10)]
        refused = [request for request in requests if not _is_taken(stack, request)]
        assert refused
        assert len(refused) < len(requests)
        stack.servers["tempo"].start()
        for request in refused:
            assert wait_for(lambda request=request: _is_taken(stack, request), bool)
        wanted = {each["spanId"] for each in sent}
        kept = wait_for(
            lambda: {each["spanId"] for each in stack.kept_spans()}, lambda ids: ids >= wanted
        )
        assert kept == wanted


def _is_taken(stack: Stack, request: dict[str, Any]) -> bool:
    try:
        post(stack.otlp, "traces", request)
    except urllib.error.HTTPError as error:
        if error.code != 503:  # "later", not "never"
            raise
        return False
    return True


def test_samples_wait_for_prometheus_with_their_time(own_stack: Stack) -> None:
    """Both of two samples that were made while it was away are there, each at its instant."""
    prometheus = own_stack.servers["prometheus"]
    prometheus.kill()
    start = now_ns() - 2 * 10**9
    instants = [start + 10**9, start + 2 * 10**9]
    for value, at in zip((100, 250), instants, strict=True):
        request = metrics_request([counter("away.test", value, start_ns=start, at_ns=at)])
        post(own_stack.otlp, "metrics", request)
    prometheus.start()
    last = wait_for(lambda: own_stack.prometheus.value("away_test_total"), lambda v: v == 250)
    assert last == 250
    first = own_stack.prometheus.value("away_test_total", at=instants[0] / 1e9)
    assert first == 100


def test_a_gateway_that_is_killed_in_the_middle_costs_nothing(own_stack: Stack) -> None:
    """The agent keeps on disk what the gateway does not take: every span and the last count."""
    agent = own_stack.url("otel-agent", 4318)
    gateway = own_stack.servers[COLLECTOR]
    sent: list[dict[str, Any]] = []
    start = now_ns()

    def send(requests: int) -> None:
        for _ in range(requests):
            spans = [span("s", n=n) for n in range(10)]
            sent.extend(spans)
            post(agent, "traces", spans_request(spans))
            total = counter("killed.test", len(sent), start_ns=start)
            post(agent, "metrics", metrics_request([total]))
            time.sleep(0.02)

    send(20)
    gateway.kill()
    send(30)
    time.sleep(2)
    gateway.start()
    send(20)

    wanted = {each["spanId"] for each in sent}
    kept = wait_for(
        own_stack.kept_spans, lambda spans: {each["spanId"] for each in spans} >= wanted
    )
    assert {each["spanId"] for each in kept} == wanted
    assert {_node(each) for each in kept} == {"node-7"}
    last = wait_for(lambda: own_stack.prometheus.value("killed_test_total"), lambda v: v == 700)
    assert last == 700


def test_an_agent_that_is_killed_keeps_what_it_took(own_stack: Stack) -> None:
    """What it has answered lies on disk, also while the gateway is away."""
    own_stack.servers[COLLECTOR].kill()
    spans = [span("s") for _ in range(50)]
    post(own_stack.url("otel-agent", 4318), "traces", spans_request(spans))
    agent = own_stack.servers["otel-agent"]
    agent.kill()
    own_stack.servers[COLLECTOR].start()
    agent.start()
    kept = wait_for(own_stack.kept_spans, lambda found: len(found) >= 50)
    assert {each["spanId"] for each in kept} == {each["spanId"] for each in spans}


def _node(kept: dict[str, Any]) -> str:
    (value,) = [
        each["value"]["stringValue"]
        for each in kept["resource"]["attributes"]
        if each["key"] == "k8s.node.name"
    ]
    return str(value)
