"""What `replay` sends is what the live view of the same run sent, or would have sent."""

from __future__ import annotations

import base64
import json
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import receivers
from click.testing import CliRunner
from google.protobuf import json_format
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

import otel_grpo
from otel_grpo.cli import main
from otel_grpo.metrics.catalogue import CATALOGUE
from otel_grpo.otlp import answer
from otel_grpo.replay import sending, spans

SECRET = "Bearer sesame"
ATTRIBUTES = {"note": "ü", "share": 0.5, "odd": float("nan"), "on": True, "list": [1, 2]}


@pytest.fixture
def call() -> Any:
    def invoke(*arguments: str | Path) -> Any:
        return CliRunner().invoke(main, [str(argument) for argument in arguments])

    return invoke


def train(path: Path, windows: int = 3, **options: Any) -> Path:
    with otel_grpo.start_run(path, trainer="loop", algorithm="grpo", **options) as run:
        for number in range(windows):
            with run.iteration() as it:
                with it.phase("generation", attributes=ATTRIBUTES):
                    time.sleep(0.001)
                lengths = [5, 6, 7, 8 + number]
                samples = it.consumed(number, prompt_lengths=[3] * 4, completion_lengths=lengths)
                with it.phase("policy_train"):
                    it.trained(samples)
                with it.update(samples=samples):
                    pass
                it.publication(number + 1).completed()
    return path


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    return train(tmp_path / "run", run_id="again")


def records_of(run_dir: Path) -> list[dict[str, Any]]:
    lines = (run_dir / "metrics_raw.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def points(request: ExportMetricsServiceRequest) -> dict[tuple[Any, ...], Any]:
    """(name, labels) -> the point."""
    found = {}
    for resource in request.resource_metrics:
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                for point in getattr(metric, metric.WhichOneof("data") or "").data_points:
                    labels = tuple((a.key, a.value.string_value) for a in point.attributes)
                    found[metric.name, labels] = point
    return found


def value(point: Any) -> Any:
    if hasattr(point, "bucket_counts"):
        return point.count, round(point.sum, 9), tuple(point.bucket_counts)
    return point.as_int if point.HasField("as_int") else point.as_double


def sent_spans(receiver: receivers.Receiver) -> list[ExportTraceServiceRequest]:
    return [
        ExportTraceServiceRequest.FromString(got.body)
        for got in receiver.requests
        if got.signal == "traces"
    ]


def flat(requests: list[ExportTraceServiceRequest]) -> dict[bytes, tuple[str, str, str]]:
    """By span id: resource, scope and span as text."""
    return {
        span.span_id: (str(resource.resource), str(scope.scope), str(span))
        for request in requests
        for resource in request.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    }


# --------------------------------------------------------------------------------------- spans


def test_spans_are_those_of_the_files(
    run_dir: Path, receiver: receivers.Receiver, call: Any
) -> None:
    """As protobuf's own reader of JSON understands them, once ids are the base64 that it wants."""
    expected = []
    for file in (run_dir / "spans").glob("*.jsonl"):
        for line in file.read_bytes().splitlines():
            document = json.loads(line, object_hook=with_base64_ids)
            expected.append(json_format.ParseDict(document, ExportTraceServiceRequest()))
            for span in expected[-1].resource_spans[0].scope_spans[0].spans:
                span.flags &= 0x300  # those of the W3C's that the SDK does not send either
                span.status.SetInParent()  # absent and empty mean the same
                for link in span.links:
                    link.flags = 0x100
    result = call("replay", run_dir, "--otlp", receiver.url)
    assert result.exit_code == 0, result.output
    n = len(flat(expected))
    assert f"spans: {n} of {n} spans taken by {receiver.url}/v1/traces\n" in result.stdout
    assert flat(sent_spans(receiver)) == flat(expected)
    assert sum(receiver.spans.values()) == n == 13
    assert len(sent_spans(receiver)) == 1  # not a request for each line


def with_base64_ids(part: dict[str, Any]) -> dict[str, Any]:
    ids = part.keys() & {"traceId", "spanId", "parentSpanId"}
    return part | {key: base64.b64encode(bytes.fromhex(part[key])).decode() for key in ids}


def test_a_second_time_changes_nothing(run_dir: Path, call: Any) -> None:
    """The same bodies, byte by byte."""
    bodies = []
    for _ in range(2):
        with receivers.http() as receiver:
            assert call("replay", run_dir, "--otlp", receiver.url).exit_code == 0
            bodies.append([got.body for got in receiver.requests])
    assert bodies[0] == bodies[1]


def test_requests_stay_below_the_limit(run_dir: Path) -> None:
    """A span or two of some 500 bytes in 1,500, with their resource; each span once."""
    batches = list(spans.span_requests(run_dir, 1500))
    assert len(batches) > 3
    assert all(len(batch.request.SerializeToString()) <= 1500 for batch in batches)
    assert len(flat([batch.request for batch in batches])) == sum(b.n for b in batches) == 13


def test_a_request_that_is_too_large_is_halved(run_dir: Path, call: Any) -> None:
    """A receiver that takes no more than 1,500 bytes gets all spans but the one that is larger."""

    def small(got: receivers.Got) -> receivers.Reply:
        large = got.signal == "traces" and (len(got.body) > 1500 or b"rl.run" + b"\x28" in got.body)
        return receivers.Reply(413 if large else 200)

    with receivers.http(small) as receiver:
        result = call("replay", run_dir, "--otlp", receiver.url, "--json")
    told = json.loads(result.stdout)["traces"]
    assert told["created"] == 13
    assert told["taken"] == len(receiver.spans)
    assert told["lost"].get("too_large", 0) == 13 - len(receiver.spans)
    assert len(receiver.spans) >= 10


# ------------------------------------------------------------------------------------- metrics


def test_metrics_are_those_of_the_live_view(
    tmp_path: Path, receiver: receivers.Receiver, call: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last values of a run that was sent as it went on, and of the same run sent again."""
    with monkeypatch.context() as environment, receivers.http() as live:
        environment.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", live.url)
        run_dir = train(tmp_path / "live")
    result = call("replay", run_dir, "--otlp", receiver.url)
    assert result.exit_code == 0, result.output
    before, again = points(live.metrics[-1]), points(receiver.metrics[-1])
    of_now = {"rl.phase.active", "rl.phase.active.duration", "rl.loop.active.duration"}
    of_process = {"rl.telemetry.records", "rl.telemetry.self.time", "process.memory.usage"}
    job = {key for key in before if key[0] not in of_now | of_process}
    assert len(job) > 60
    assert {key: value(before[key]) for key in job} == {key: value(again[key]) for key in job}
    assert not {name for name, _ in again} & of_now
    assert {name for name, _ in again} <= {metric.name for metric in CATALOGUE}
    assert live.metrics[-1].resource_metrics[0].resource == (
        receiver.metrics[-1].resource_metrics[0].resource
    )
    assert flat(sent_spans(live)) == flat(sent_spans(receiver))


def test_each_window_has_its_instant_and_comes_after_zeros(
    run_dir: Path, receiver: receivers.Receiver, call: Any
) -> None:
    """Tokens by hand: 4 x 3 of prompts a window; 26, 27 and 28 of completions. Totals are the files'."""
    assert call("replay", run_dir, "--otlp", receiver.url).exit_code == 0
    records = records_of(run_dir)
    made = {r["iteration"]: r["time_unix_ns"] for r in records if r["kind"] == "rollout"}
    started = json.loads((run_dir / "run.json").read_text())["attempts"][0]["started_unix_ns"]
    tokens, steps = defaultdict(list), []
    zeros, *counted = [points(request) for request in receiver.metrics]
    for each in [zeros, *counted]:
        for kind in ("input", "output"):
            point = each["rl.tokens", (("gen_ai.token.type", kind),)]
            tokens[kind].append((point.time_unix_nano, point.as_int))
            assert point.start_time_unix_nano == started
        steps.append(each["rl.train.steps", (("rl.update.status", "applied"),)].as_int)
    instants = [started, made[1], made[2], made[3], records[-1]["time_unix_ns"]]
    assert tokens["input"] == list(zip(instants, [0, 12, 24, 36, 36], strict=True))
    assert tokens["output"] == list(zip(instants, [0, 26, 53, 81, 81], strict=True))
    assert steps == [0, 1, 2, 3, 3]
    last = counted[-1]
    added_up = {key for key, point in last.items() if not is_gauge(receiver.metrics[-1], key[0])}
    assert added_up == zeros.keys()
    assert all(not any(flatten(value(point))) for point in zeros.values())
    length = last["rl.sample.length", (("gen_ai.token.type", "output"),)]
    assert (length.count, length.sum) == (12, 81)
    traces = {r["trace_id"] for r in records if r["kind"] == "rollout"}
    found = {e.trace_id.hex() for request in counted for p in request.values() for e in p.exemplars}
    assert found == traces
    assert {
        e.time_unix_nano for request in counted for p in request.values() for e in p.exemplars
    } <= set(instants)


def is_gauge(request: ExportMetricsServiceRequest, name: str) -> bool:
    metrics = request.resource_metrics[0].scope_metrics[0].metrics
    (metric,) = [each for each in metrics if each.name == name]
    return metric.HasField("gauge") or (metric.HasField("sum") and not metric.sum.is_monotonic)


def flatten(each: Any) -> list[Any]:
    return [part for one in each for part in flatten(one)] if isinstance(each, tuple) else [each]


def test_windows_that_are_refused_are_named_and_spoil_no_other(run_dir: Path, call: Any) -> None:
    """A back end that takes nothing older than the second window's record."""
    records = records_of(run_dir)
    second = next(r for r in records if r["kind"] == "rollout" and r["iteration"] == 2)

    def takes_new(got: receivers.Got) -> receivers.Reply:
        if got.signal == "metrics":
            request = points(ExportMetricsServiceRequest.FromString(got.body))
            if min(each.time_unix_nano for each in request.values()) < second["time_unix_ns"]:
                return receivers.Reply(400)
        return receivers.Reply()

    with receivers.http(takes_new) as receiver:
        result = call("replay", run_dir, "--otlp", receiver.url)
        told = json.loads(call("replay", run_dir, "--otlp", receiver.url, "--json").stdout)
    assert result.exit_code == 1
    assert "metrics: 3 of 5 requests taken by " in result.stdout
    assert "  2 not taken, http_400: " in result.stdout
    assert "    zeros, iteration 1\n" in result.stdout
    assert told["requests_not_taken"] == {"http_400": ["zeros", "iteration 1"]}
    assert told["metrics"]["taken"] == 3


def test_every_attempt_and_what_was_confirmed_late(
    tmp_path: Path, receiver: Any, call: Any
) -> None:
    """Two attempts count apart, each from zero; a publication counts when it was confirmed."""
    path = train(tmp_path / "run", 2)
    train(path, 1)
    note = records_of(path)[0]
    late = {
        "kind": "publication_completed",
        "run_id": note["run_id"],
        "attempt": 1,
        "iteration": 2,
        "version": 9,
        "completed_ns": note["time_unix_ns"] + 3600 * 10**9,
    }
    (path / "workers" / "driver-0-1.jsonl").write_text(json.dumps(late) + "\n")
    assert call("replay", path, "--otlp", receiver.url).exit_code == 0
    counted = [
        (points(r)["rl.sync.publications", ()].as_int, points(r)["rl.loop.windows", (
            ("rl.window.status", "complete"),)].as_int) for r in receiver.metrics
    ]  # fmt: skip
    assert counted == [(0, 0), (1, 1), (2, 2), (3, 2), (0, 0), (1, 1), (1, 1)]
    instances = [
        [a.value.string_value for a in r.resource_metrics[0].resource.attributes
         if a.key == "service.instance.id"] for r in receiver.metrics
    ]  # fmt: skip
    assert instances[:4] == [instances[0]] * 4
    assert instances[4:] == [instances[4]] * 3
    assert instances[0] != instances[4]


# ---------------------------------------------------------------------------- what goes wrong


def test_a_killed_run_is_sent_as_far_as_it_is_written(
    run_dir: Path, receiver: Any, call: Any
) -> None:
    """A torn line of spans and one of the records are left out, and the one of spans is told."""
    for file in [*(run_dir / "spans").glob("*.jsonl"), run_dir / "metrics_raw.jsonl"]:
        content = file.read_bytes()
        file.write_bytes(content + content[:-40].splitlines()[-1][:-40])
    result = call("replay", run_dir, "--otlp", receiver.url)
    assert result.exit_code == 0
    assert "1 line of spans/ cut off when its process was killed, left out" in result.stdout
    assert "spans: 13 of 13 spans taken" in result.stdout
    assert "metrics: 5 of 5 requests taken" in result.stdout


def test_headers_and_protocol_are_the_standard_variables(
    run_dir: Path, call: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """gRPC, with a token that stands nowhere in the output; --otlp wins over a signal's endpoint."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", f"authorization={SECRET}")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    with receivers.over_grpc() as receiver:
        result = call("replay", run_dir, "--otlp", receiver.url)
    assert result.exit_code == 0, result.output
    assert {got.headers["authorization"] for got in receiver.requests} == {SECRET}
    assert (len(receiver.spans), len(receiver.metrics)) == (13, 5)
    assert "sesame" not in result.output


@pytest.fixture
def naps(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses that are made, none of which lasts."""
    made: list[float] = []
    monkeypatch.setattr(sending.Sender.__init__, "__defaults__", (made.append,))
    return made


def test_a_receiver_that_is_away_for_a_while(run_dir: Path, call: Any, naps: list[float]) -> None:
    """It is asked again after a pause, as long as it wants one."""
    n = []

    def busy(got: receivers.Got) -> receivers.Reply:
        n.append(got)
        headers = {"retry-after": "7"} if len(n) == 1 else {}
        return receivers.Reply(503 if len(n) <= 2 else 200, headers=headers)

    with receivers.http(busy) as receiver:
        assert call("replay", run_dir, "--otlp", receiver.url).exit_code == 0
    assert naps == [7.0, 1.0]
    assert len(receiver.spans) == 13


def test_a_receiver_that_is_away(run_dir: Path, call: Any, naps: list[float]) -> None:
    """Five attempts for each signal, then nothing more; everything is counted."""
    url = f"http://127.0.0.1:{receivers.dead_port()}"
    result = call("replay", run_dir, "--otlp", url)
    assert result.exit_code == 1
    assert naps == [*sending.PAUSES_S, *sending.PAUSES_S]
    assert f"spans: 0 of 13 spans taken by {url}/v1/traces\n  13 not taken, unreachable: " in (
        result.stdout
    )
    assert "metrics: 0 of 5 requests taken" in result.stdout


def test_what_a_receiver_rejects_of_a_request(run_dir: Path, call: Any) -> None:
    """A partial success: 4 spans, and points of one request of metrics."""
    some = ExportTraceServiceResponse()
    some.partial_success.rejected_spans = 4
    some.partial_success.error_message = "no room"
    few = ExportMetricsServiceResponse()
    few.partial_success.rejected_data_points = 2
    n: list[None] = []

    def rejects(got: receivers.Got) -> receivers.Reply:
        if got.signal == "traces":
            return receivers.Reply(body=some.SerializeToString())
        n.append(None)
        return receivers.Reply(body=few.SerializeToString() if len(n) == 2 else b"")

    with receivers.http(rejects) as receiver:
        result = call("replay", run_dir, "--otlp", receiver.url)
    assert result.exit_code == 1
    assert "spans: 9 of 13 spans taken" in result.stdout
    assert "refused 4 spans: no room" in result.stdout
    assert "metrics: 4 of 5 requests taken" in result.stdout
    assert "    iteration 1\n" in result.stdout


@pytest.mark.parametrize(("status", "said"), [(401, "needs a valid token"), (404, "without /v1/")])
def test_a_receiver_that_refuses(run_dir: Path, call: Any, status: int, said: str) -> None:
    """One line a signal that says what to mend."""
    with receivers.http(lambda _: receivers.Reply(status)) as receiver:
        result = call("replay", run_dir, "--otlp", receiver.url)
    assert result.exit_code == 1
    assert result.stdout.count(f"not taken, http_{status}: ") == 2
    assert result.stdout.count(said) == 2


def test_bad_input(run_dir: Path, tmp_path: Path, call: Any) -> None:
    """One line, exit status 2."""
    bad = run_dir / "spans" / "zzz.jsonl"
    spans_of = (run_dir / "spans").glob("*.jsonl")
    line = next(spans_of).read_text().splitlines()[0]
    with receivers.http() as receiver:
        for arguments, content, said in (
            ((tmp_path, "--otlp", receiver.url), "", "is no run directory"),
            ((run_dir,), "", "nobody says where to send it"),
            ((run_dir, "--otlp", "localhost:4318"), "", "is no URL of http or https"),
            ((run_dir, "--otlp", receiver.url), "{}\n", "zzz.jsonl:1: "),
            ((run_dir, "--otlp", receiver.url), line.replace('"1"', '"x"') + "\n", "zzz.jsonl:1: "),
        ):
            if content:
                bad.write_text(content)
            result = call("replay", *arguments)
            assert result.exit_code == 2, result.output
            assert said in result.stderr
            assert result.stderr.count("\n") == 1


def test_a_run_without_anything(tmp_path: Path, call: Any) -> None:
    """It is said: nothing was sent."""
    path = train(tmp_path / "run", 0)
    for file in [*(path / "spans").iterdir(), path / "metrics_raw.jsonl"]:
        file.unlink()
    with receivers.http() as receiver:
        result = call("replay", path, "--otlp", receiver.url)
    assert result.exit_code == 2
    assert "there is nothing in it to send" in result.stderr


def test_the_limit_is_that_of_receivers() -> None:
    """Four MiB, gRPC's default, whatever the live view does."""
    assert answer.MAX_BYTES < 4 * 2**20
