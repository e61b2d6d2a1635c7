"""The load of `benchmarks.stack`: what the ranks of a large job would send, node by node."""

from __future__ import annotations

import http.client
import json
import secrets
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import AggregationTemporality
from opentelemetry.proto.resource.v1.resource_pb2 import Resource

from otel_grpo.metrics.catalogue import PHASES
from tools.stack.ask import wait_for
from tools.stack.build import SERVERS, binary
from tools.stack.stack import Stack, running_stack

RANKS = 1024
ITERATIONS = 50
RANKS_OF_A_NODE = 8
RUN = "load"
SPANS = ("data", "generation", "reward", "adv_pipeline", "policy_train", "optimizer", "weight_sync")
SENDERS = 4


def main() -> None:
    if not all(binary(server.name).exists() for server in SERVERS):
        print(json.dumps({}))
        return
    with tempfile.TemporaryDirectory() as home, running_stack(Path(home)) as stack:
        print(json.dumps(measure(stack)))


def measure(stack: Stack) -> dict[str, object]:
    peaks: dict[str, int] = {}
    over = threading.Event()
    watch = threading.Thread(target=_watch, args=(stack, peaks, over))
    watch.start()
    nodes = [range(first, first + RANKS_OF_A_NODE) for first in range(0, RANKS, RANKS_OF_A_NODE)]
    start_ns = time.time_ns()
    began = time.monotonic()
    with ThreadPoolExecutor(SENDERS) as pool:
        senders = [
            pool.submit(_send, stack.otlp, nodes[sender::SENDERS], start_ns)
            for sender in range(SENDERS)
        ]
        points, spans = map(sum, zip(*(sender.result() for sender in senders), strict=True))
    # Every rank's counters have arrived at their last value when this many iterations are there.
    expression = f'sum(rl_rank_phase_time_seconds_total{{rl_run_id="{RUN}"}})'
    wanted = RANKS * len(PHASES) * ITERATIONS
    arrived = wait_for(
        lambda: stack.prometheus.value(expression) or 0, lambda n: n >= wanted, within_s=300
    )
    kept = wait_for(lambda: _count(stack), lambda found: found[0] >= spans, within_s=300)
    seconds = time.monotonic() - began
    over.set()
    watch.join()
    names = [each["__name__"] for each in stack.prometheus.series(f'{{rl_run_id="{RUN}"}}')]
    return {
        "ranks": RANKS,
        "iterations": ITERATIONS,
        "points": points,
        "spans": spans,
        "seconds": seconds,
        "lost_points": wanted - arrived,
        "lost_spans": spans - kept[0],
        "twice": kept[1],
        "series": len(names),
        "recorded": sum(":" in name for name in names),
        "memory": peaks,
    }


def _watch(stack: Stack, peaks: dict[str, int], over: threading.Event) -> None:
    while not over.wait(0.2):
        for name, server in stack.servers.items():
            peaks[name] = max(peaks.get(name, 0), server.memory())


def _count(stack: Stack) -> tuple[int, int]:
    """Spans where Tempo would be, and how many of them came again."""
    lines = (stack.servers["tempo"].home / "sink.jsonl").read_bytes()
    ids = [part[:18] for part in lines.split(b'"spanId":')[1:]]
    return len(set(ids)), len(ids) - len(set(ids))


def _send(endpoint: str, nodes: list[range], start_ns: int) -> tuple[int, int]:
    """All iterations of some nodes. How many points and spans that was."""
    address = urlsplit(endpoint).netloc
    connection = http.client.HTTPConnection(address)
    points = spans = 0
    for iteration in range(1, ITERATIONS + 1):
        trace_id = iteration.to_bytes(16, "big")  # one trace for an iteration of all ranks
        for node in nodes:
            traces, metrics = ExportTraceServiceRequest(), ExportMetricsServiceRequest()
            for rank in node:
                spans += _add_spans(traces, rank, iteration, trace_id)
                points += _add_points(metrics, rank, iteration, start_ns)
            for signal, request in (("traces", traces), ("metrics", metrics)):
                _post(connection, signal, request.SerializeToString())
    return points, spans


def _post(connection: http.client.HTTPConnection, signal: str, body: bytes) -> None:
    headers = {"Content-Type": "application/x-protobuf"}
    while True:
        connection.request("POST", f"/v1/{signal}", body, headers)
        answer = connection.getresponse()
        answer.read()
        if answer.status == 200:
            return
        time.sleep(0.05)  # it asks for that: its memory is full for now


def _add_spans(
    request: ExportTraceServiceRequest, rank: int, iteration: int, trace_id: bytes
) -> int:
    group = request.resource_spans.add(resource=_resource(rank))
    scope = group.scope_spans.add()
    now = time.time_ns()
    for phase in SPANS:
        scope.spans.add(
            trace_id=trace_id,
            span_id=secrets.token_bytes(8),
            name=f"rl.{phase}",
            start_time_unix_nano=now - 10**9,
            end_time_unix_nano=now,
            attributes=[
                _text("rl.run.id", RUN),
                _text("rl.phase", phase),
                KeyValue(key="rl.rank", value=AnyValue(int_value=rank)),
                KeyValue(key="rl.loop.iteration", value=AnyValue(int_value=iteration)),
            ],
        )
    return len(SPANS)


def _add_points(
    request: ExportMetricsServiceRequest, rank: int, iteration: int, start_ns: int
) -> int:
    group = request.resource_metrics.add(resource=_resource(rank))
    scope = group.scope_metrics.add()
    now = time.time_ns()
    busy = scope.metrics.add(name="rl.rank.phase.time", unit="s").sum
    busy.is_monotonic = True
    busy.aggregation_temporality = AggregationTemporality.AGGREGATION_TEMPORALITY_CUMULATIVE
    active = scope.metrics.add(name="rl.phase.active").gauge
    for phase in PHASES:
        label = [_text("rl.phase", phase)]
        busy.data_points.add(
            start_time_unix_nano=start_ns,
            time_unix_nano=now,
            as_double=iteration,  # a second an iteration, so the sum says what has arrived
            attributes=label,
        )
        active.data_points.add(time_unix_nano=now, as_int=0, attributes=label)
    memory = scope.metrics.add(name="process.memory.usage", unit="By").gauge
    memory.data_points.add(time_unix_nano=now, as_int=rank << 20)
    return 2 * len(PHASES) + 1


def _resource(rank: int) -> Resource:
    return Resource(
        attributes=[
            _text("service.name", "otel-grpo"),
            _text("service.instance.id", f"{RUN}-{rank}"),
            _text("rl.run.id", RUN),
            _text("rl.role", "policy"),
            KeyValue(key="rl.rank", value=AnyValue(int_value=rank)),
            _text("host.name", f"node-{rank // RANKS_OF_A_NODE}"),
        ]
    )


def _text(key: str, value: str) -> KeyValue:
    return KeyValue(key=key, value=AnyValue(string_value=value))


if __name__ == "__main__":
    main()
