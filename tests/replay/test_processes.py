"""Other processes of a job are sent with resources of their own, as they would have sent themselves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)

from otel_grpo.records.model import (
    Call,
    ClockPair,
    Contribution,
    Device,
    Joined,
    Memory,
    Ranks,
    RolloutAttributes,
    Window,
    WorkerMemory,
)
from otel_grpo.records.reader import read_run_file
from otel_grpo.replay.metrics import metric_requests
from otel_grpo.testing import FakeClock, recorded_run

START = 1_700_000_000 * 10**9
SECOND = 10**9
GPU = Device("GPU-1", "cuda", "h")


def job(path: Path) -> Path:
    """Two windows of ten seconds each, recorded as they end."""
    clock = FakeClock(START)
    with recorded_run(path, clock=clock, run_id="job") as recorded:
        for _ in range(2):
            with recorded.run.iteration() as it, it.phase("generation"):
                clock.advance(10)
    raw = path / "metrics_raw.jsonl"
    records = [json.loads(line) for line in raw.read_text().splitlines()]
    for record in records:  # made on the writer's thread, by a clock that was turned meanwhile
        window = record["attributes"].get("window", {})
        record["time_unix_ns"] = window.get("end_ns", START + 20 * SECOND)
    raw.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def say(path: Path, name: str, lines: list[Any], spans: dict[str, Any] | None = None) -> None:
    (path / "workers" / name).write_bytes(msgspec.json.Encoder().encode_lines(lines))
    if spans is not None:
        (path / "spans" / name).write_text(json.dumps({"resourceSpans": [spans]}) + "\n")


def joined(name: str, rank: int | None, devices: Any = ()) -> Joined:
    clock = ClockPair("b", START, 0)
    return Joined("job", 1, "trainer", name, rank, None, "h", 9, clock, START, list(devices))


def memory(instant: int, rss: int, used: int) -> Memory:
    return Memory([instant], [0], ["h"], [9], device=[0], process_rss=[rss], device_used=[used])


def sent(path: Path) -> list[tuple[str, int, ExportMetricsServiceRequest]]:
    """Which, its one instant, the request."""
    found = []
    for request, what in metric_requests(path, read_run_file(path)):
        (instant,) = {point.time_unix_nano for _, point in points(request)}
        found.append((what, instant, request))
    return found


def points(request: ExportMetricsServiceRequest) -> list[Any]:
    return [
        (metric.name, point)
        for resource in request.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
        for point in getattr(metric, metric.WhichOneof("data") or "").data_points
    ]


def one(request: ExportMetricsServiceRequest, name: str, label: str) -> Any:
    (point,) = [
        point
        for metric, point in points(request)
        if metric == name and label in [a.value.string_value for a in point.attributes]
    ]
    return point.as_double if point.HasField("as_double") else point.as_int


def test_a_rank_s_busy_time_grows_window_by_window(tmp_path: Path) -> None:
    """3 s and 4 s of generation: 0, 3, 7, at the instants of the records, with its own resource."""
    path = job(tmp_path / "run")

    def share(iteration: int, seconds: int, attempt: int = 1) -> Contribution:
        window = Window(0, 1, "complete", 0)
        attributes = RolloutAttributes(
            window, [], [], Ranks(1, 1), memory=memory(iteration, 1000 * iteration, 5)
        )
        return Contribution(
            "job", attempt, 1, iteration, attributes, {"generation": seconds * SECOND}
        )

    attributes = [{"key": "service.instance.id", "value": {"stringValue": "rank-1"}}]
    lines = [
        joined("trainer-1", 1, [(GPU, ["train"])]),
        share(1, 3),
        share(2, 4),
        share(3, 9),  # its window has no record
    ]
    say(path, "trainer-1-9.jsonl", lines, {"resource": {"attributes": attributes}})
    theirs = [each for each in sent(path) if each[0].startswith("trainer-1")]
    assert [(what, instant) for what, instant, _ in theirs] == [
        ("trainer-1, zeros", START),
        ("trainer-1, iteration 1", START + 10 * SECOND),
        ("trainer-1, iteration 2", START + 20 * SECOND),
    ]
    requests = [request for _, _, request in theirs]
    name = "rl.rank.phase.time"
    assert [one(request, name, "generation") for request in requests] == [0, 3, 7]
    assert [one(request, "hw.gpu.memory.usage", "GPU-1") for request in requests[1:]] == [5, 5]
    for request in requests:
        (resource,) = request.resource_metrics
        assert [a.value.string_value for a in resource.resource.attributes] == ["rank-1"]
    names = {metric for request in requests for metric, _ in points(request)}
    assert (
        not {"rl.tokens", "rl.loop.duration", "rl.telemetry.records"} & names
    )  # of the job, not known


def test_a_worker_s_calls_count_when_they_ended(tmp_path: Path) -> None:
    """Two calls in the first window, one after the second: 0, 3, 8 seconds; without spans a resource."""
    path = job(tmp_path / "run")

    def called(end: int, seconds: int) -> Call:
        at = START + end * SECOND
        return Call("job", 1, "compute", at - seconds * SECOND, at)

    readings = WorkerMemory("job", 1, memory(START + 4 * SECOND, 77, 6))
    lines = [
        joined("policy-0", None, [(GPU, [])]),
        called(2, 1),
        readings,
        called(6, 2),
        called(25, 5),
    ]
    say(path, "policy-0-9.jsonl", lines)
    theirs = [each for each in sent(path) if each[0].startswith("policy-0")]
    assert [(what, (instant - START) // SECOND) for what, instant, _ in theirs] == [
        ("policy-0, zeros", 0),
        ("policy-0, iteration 2", 20),
        ("policy-0, end", 25),
    ]
    requests = [request for _, _, request in theirs]
    assert [one(request, "rl.worker.time", "compute") for request in requests] == [0, 3, 8]
    assert [v.as_int for n, v in points(requests[1]) if n == "process.memory.usage"] == [77]
    known = {
        a.key: a.value.string_value for a in requests[0].resource_metrics[0].resource.attributes
    }
    assert known == {
        "service.name": "otel-grpo",
        "service.instance.id": "job-1-policy-0",
        "rl.run.id": "job",
        "rl.system": "test",
        "rl.role": "trainer",
    }
