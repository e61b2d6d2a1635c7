"""What a process sends: its spans, its metrics, and what it says of them."""

from __future__ import annotations

import math
import os
import random
import subprocess
import sys
import textwrap
import threading
import time

import pytest
from opentelemetry import context as otel_context, metrics as otel_metrics, trace as otel_trace
from opentelemetry.instrumentation.utils import is_instrumentation_enabled
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import AggregationTemporality, InMemoryMetricReader
from receivers import RESOURCE, Reply, dead_port, hang, http, over_grpc, raw, span

import otel_grpo.otlp
from otel_grpo import semconv
from otel_grpo.metrics.catalogue import MOST_METHODS
from otel_grpo.otlp import live, over_http
from otel_grpo.records.model import Call, SinkCounts
from otel_grpo.tracing.guard import Guard
from otel_grpo.tracing.live import Live


def put(one, n, first=1):
    for number in range(first, first + n):
        one.span(span(number))


def close(one, timeout_s=60.0):  # whatever else the machine is at
    one.hurry()
    one.close(timeout_s)
    return one.counts()


def points(receiver):
    """The points of all exports: name and labels -> values, in order."""
    found = {}
    for request in receiver.metrics:
        for metric in request.resource_metrics[0].scope_metrics[0].metrics:
            data = getattr(metric, metric.WhichOneof("data"))
            for point in data.data_points:
                labels = tuple(sorted((a.key, a.value.string_value) for a in point.attributes))
                found.setdefault((metric.name, labels), []).append(point)
    return found


def test_is_a_live(make):
    """As the run knows it."""
    with http() as receiver:
        one: Live = make(endpoint=receiver.url)
        assert close(one)["otlp_spans"] == SinkCounts(unconfirmed=0)


@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
def test_spans_and_metrics_arrive(make, protocol):
    """Each span once, and metrics of the process with its resource."""
    with http() if protocol != "grpc" else over_grpc() as receiver:
        one = make(endpoint=receiver.url, protocol=protocol)
        put(one, 2000)
        counts = close(one)
    assert counts["otlp_spans"] == SinkCounts(created=2000, written=2000, unconfirmed=0)
    assert receiver.spans == {number.to_bytes(8, "big"): 1 for number in range(1, 2001)}
    metrics = counts["otlp_metrics"]
    assert metrics.created == metrics.written == len(receiver.metrics) >= 1
    resource = receiver.metrics[-1].resource_metrics[0].resource
    assert {a.key: a.value.string_value or a.value.int_value for a in resource.attributes} == {
        semconv.SERVICE_NAME: "test",
        semconv.RANK: 0,
    }


def test_counters_are_seen_at_0_first(make):
    """The first export comes at once, or an increase from nothing would be no increase."""
    with http() as receiver:
        one = make(endpoint=receiver.url)
        until(lambda: receiver.metrics)
        close(one)
    windows = points(receiver)[semconv.LOOP_WINDOWS, ((semconv.WINDOW_STATUS, "complete"),)]
    assert windows[0].as_int == windows[-1].as_int == 0


def test_metrics_are_sent_every_interval(make):
    """By the interval of the standard variable, cumulative where nobody wants it otherwise."""
    with http() as receiver:
        one = make(endpoint=receiver.url, METRIC_EXPORT_INTERVAL="30")
        until(lambda: len(receiver.metrics) >= 4)
        close(one)
    for request in receiver.metrics:
        for metric in request.resource_metrics[0].scope_metrics[0].metrics:
            if metric.WhichOneof("data") in ("sum", "histogram"):
                data = getattr(metric, metric.WhichOneof("data"))
                assert data.aggregation_temporality == 2  # cumulative


def test_delta_loses_nothing_while_the_receiver_is_away(make):
    """What could not be sent is in a later delta: their sum is what was counted."""
    away = threading.Event()

    def behave(_):
        return Reply(503 if away.is_set() else 200)

    with http(behave) as receiver:
        one = make(
            endpoint=receiver.url,
            metrics_temporality_preference="delta",
            METRIC_EXPORT_INTERVAL="20",
        )
        for number in range(30):
            if number == 10:
                away.set()
            if number == 20:
                away.clear()
            one.made(call("forward", 10**9))
            time.sleep(0.01)
        close(one)
    sums = points(receiver)[semconv.WORKER_TIME, ((semconv.WORKER_METHOD, "forward"),)]
    assert sum(point.as_double for point in sums) == 30


def call(method, ns):
    return Call("run", 1, method, start_ns=0, end_ns=ns)


def test_10000_label_values(make):
    """No more label sets than the stated bound, however many methods there are."""
    with http() as receiver:
        one = make(endpoint=receiver.url)
        for number in range(10_000):
            one.made(call(f"method-{number}", 1))
        close(one)
    names = {labels for name, labels in points(receiver) if name == semconv.WORKER_TIME}
    assert len(names) == MOST_METHODS + 1  # and `other`
    assert max(len(got.body) for got in receiver.requests) < 100_000


def test_a_share_of_the_traces(make):
    """By trace id, as the SDK's sampler decides: a trace goes as a whole or not at all."""
    traces = [random.Random(7).getrandbits(128) for _ in range(200)]
    sent = {trace for trace in traces if trace & (2**64 - 1) < 2**62}  # a quarter
    with http() as receiver:
        one = make(endpoint=receiver.url, TRACES_SAMPLER="traceidratio", TRACES_SAMPLER_ARG="0.25")
        for number, trace in enumerate(traces):
            one.span(span(2 * number + 1, trace))
            one.span(Ended(span(2 * number + 2, trace)))
        counts = close(one)["otlp_spans"]
        # Of the others no exemplar speaks.
        assert {trace for trace in traces if one._is_sent(trace)} == sent
    assert counts == SinkCounts(created=2 * len(sent), written=2 * len(sent), unconfirmed=0)
    expected = {
        number.to_bytes(8, "big")
        for at, trace in enumerate(traces)
        if trace in sent
        for number in (2 * at + 1, 2 * at + 2)
    }
    assert set(receiver.spans) == expected


class Ended:
    """A phase that becomes a span on the thread that sends it."""

    def __init__(self, span):
        self.span = span

    def readable(self):
        return self.span


def test_no_spans_no_exemplars(make):
    """Where spans are not sent, no metric points at one."""
    with http() as receiver:
        one = make(endpoint=receiver.url, TRACES_EXPORTER="none")
        assert one.span(span(1)) is None
        assert not one._is_sent(1)
        assert set(close(one)) == {"otlp_metrics"}
    assert receiver.spans.total() == 0


def test_a_span_that_cannot_be_read(make):
    """Counted as a fault, alone."""
    guard = Guard()
    with http() as receiver:
        one = make(guard, endpoint=receiver.url)
        put(one, 10)
        one.span(Ended(None))
        counts = close(one)["otlp_spans"]
    assert counts == SinkCounts(
        created=11, written=10, dropped=1, reasons={"error": 1}, unconfirmed=0
    )
    assert guard.snapshot() == {"otlp_spans": 1}


def test_a_span_that_is_too_large(make, caplog):
    """Cut, sent, named, and counted."""
    guard = Guard()
    with http() as receiver:
        one = make(guard, endpoint=receiver.url)
        put(one, 3)
        one.span(span(9, big="x" * (5 * 2**20)))
        assert close(one)["otlp_spans"].written == 4
    assert receiver.spans.total() == 4
    assert max(len(got.body) for got in receiver.requests) < 4 * 2**20
    assert guard.snapshot() == {"api.span_size": 1}
    assert "span rl.sample has 52" in caplog.text


def test_nan(make):
    """A number that is none reaches the receiver as such."""
    with http() as receiver:
        one = make(endpoint=receiver.url)
        one.span(span(1, loss=math.nan))
        assert close(one)["otlp_spans"].written == 1
    assert receiver.spans.total() == 1


@pytest.mark.parametrize("receiver", ["dead", "503", "429", "good"])
@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
def test_the_random_numbers_of_the_training(make, receiver, protocol):
    """Python's global ones are not drawn from, whatever the receiver does."""
    random.seed(1)
    before = random.getstate()
    answer = Reply(int(receiver)) if receiver.isdigit() else Reply()
    with http(lambda _: answer) as good:
        url = f"http://127.0.0.1:{dead_port()}" if receiver == "dead" else good.url
        one = make(endpoint=url, protocol=protocol, METRIC_EXPORT_INTERVAL="10")
        put(one, 600)
        one.made(call("forward", 1))
        time.sleep(0.05)
        close(one, 0.5)
    assert random.getstate() == before


def test_nothing_global_is_touched(make):
    """No provider is set, and the context of the caller is as it was."""
    context = otel_context.get_current()
    with http() as receiver:
        one = make(endpoint=receiver.url)
        put(one, 10)
        close(one)
    assert otel_context.get_current() == context
    assert not isinstance(otel_metrics.get_meter_provider(), MeterProvider)
    assert type(otel_trace.get_tracer_provider()).__name__ == "ProxyTracerProvider"


def test_requests_are_not_instrumented(make, monkeypatch):
    """A user's instrumentation of HTTP makes no spans of our requests."""
    seen = []
    send = over_http.HttpTransport.send

    def spy(self, body, timeout_s):
        seen.append(is_instrumentation_enabled())
        return send(self, body, timeout_s)

    monkeypatch.setattr(over_http.HttpTransport, "send", spy)
    with http() as receiver:
        one = make(endpoint=receiver.url)
        put(one, 1)
        close(one)
    assert set(seen) == {False}
    assert is_instrumentation_enabled()


def test_a_meter_provider_of_the_user(monkeypatch, sources):
    """It gets the metrics, and OTLP only the spans."""
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader], RESOURCE, shutdown_on_exit=False)
    with http() as receiver:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url)
        one = live(Guard(), meter_provider=provider)
        one.start(RESOURCE, sources)
        one.made(call("forward", 10**9))
        put(one, 1)
        assert set(close(one)) == {"otlp_spans"}
    names = {
        metric.name
        for resource in reader.get_metrics_data().resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }
    assert semconv.WORKER_TIME in names
    assert receiver.metrics == []


def test_a_meter_provider_alone(sources):
    """Without an endpoint there is something to feed all the same, and nothing to send."""
    one = live(Guard(), meter_provider=MeterProvider(shutdown_on_exit=False))
    one.start(RESOURCE, sources)
    one.span(span(1))
    assert close(one) == {}


def test_nobody_asks():
    """No endpoint, no thread, nothing."""
    assert live(Guard()) is None


def test_spans_wait_until_the_run_is_known(monkeypatch, sources):
    """What was put before the start is sent after it; what is never started is dropped in time."""
    with http() as receiver:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url)
        one, other = live(Guard()), live(Guard())
        for each in (one, other):
            put(each, 3)
        one.start(RESOURCE, sources)
        assert close(one)["otlp_spans"].written == 3
        assert close(other)["otlp_spans"].reasons == {"closed": 3}
    assert receiver.spans.total() == 3


@pytest.mark.parametrize(
    ("module", "protocol", "extra"),
    [
        ("opentelemetry.exporter.otlp.proto.http.trace_exporter", "http/protobuf", "otlp"),
        ("grpc", "grpc", "otlp-grpc"),
    ],
)
def test_a_missing_package(module, protocol, extra):
    """One line names the extra, and the run goes on without."""
    code = f"""
        import os, sys
        sys.modules["{module}"] = None
        os.environ.update(
            OTEL_EXPORTER_OTLP_ENDPOINT="http://x", OTEL_EXPORTER_OTLP_PROTOCOL="{protocol}"
        )
        from otel_grpo.otlp import live
        from otel_grpo.tracing.guard import Guard
        assert live(Guard()) is None
    """
    child = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True
    )
    told = [line for line in child.stderr.splitlines() if "otel-grpo" in line]
    assert len(told) == 1
    assert f"pip install 'otel-grpo[{extra}]'" in told[0]


def test_what_the_exporter_cannot_read(monkeypatch, caplog):
    """A value that stops the exporter stops what it would send, and nothing else."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://x")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "soon")
    one = live(Guard())
    assert set(one.counts()) == {"otlp_metrics"}
    assert "no traces are sent by OTLP" in caplog.text
    assert "soon" in caplog.text


def test_nothing_is_imported_before_it_is_needed():
    """Neither the package nor a run that sends nothing loads a library of the network."""
    code = """
        import sys
        import otel_grpo.api, otel_grpo.otlp
        from otel_grpo.tracing.guard import Guard
        assert otel_grpo.otlp.live(Guard()) is None
        print([name for name in ("requests", "grpc", "google.protobuf") if name in sys.modules])
    """
    environ = {k: v for k, v in os.environ.items() if not k.startswith("OTEL_")}
    child = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        check=True,
        env=environ,
    )
    assert child.stdout == "[]\n"


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_sends_nothing(make):
    """Its spans are nobody's, its end takes no time, and the parent's arrive."""
    with http() as receiver:
        one = make(endpoint=receiver.url)
        put(one, 10)
        child = os.fork()
        if child == 0:
            put(one, 10, first=11)
            one.made(call("forward", 1))
            close(one, 60)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert close(one)["otlp_spans"].written == 10
    assert receiver.spans.total() == 10


def test_grpc_has_no_part_in_a_fork():
    """Its own handlers, in which a child can hang for good, are not there; the variable is as it was."""
    code = """
        import os, threading, time
        from otel_grpo.otlp import live
        from otel_grpo.tracing.guard import Guard
        one = live(Guard())
        assert "GRPC_ENABLE_FORK_SUPPORT" not in os.environ
        transport = one._pumps[0]._transport
        threading.Thread(target=transport.send, args=(b"", 10), daemon=True).start()
        time.sleep(0.2)
        for _ in range(3):
            child = os.fork()
            if child == 0:
                os._exit(0)
            os.waitpid(child, 0)
    """
    with raw(hang) as receiver:
        environ = {
            **os.environ,
            "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url,
            "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc",
        }
        child = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", textwrap.dedent(code)],
            capture_output=True,
            text=True,
            check=True,
            env=environ,
            timeout=60,
        )
    assert child.stderr == ""  # else it says which handlers it left out


def test_the_loss_is_told_once(make, caplog):
    """One line at the end says how much, also if the end is begun twice."""
    one = make(endpoint=f"http://127.0.0.1:{dead_port()}")
    put(one, 7)
    close(one)
    close(one)
    lines = [record.getMessage() for record in caplog.records]
    lost = "otlp_spans 7, otlp_metrics 1"
    assert [line for line in lines if "otlp_spans 7" in line] == [
        f"otel-grpo: not taken, or nobody said that it arrived: {lost} (training goes on)"
    ]


# --- what is taken out of the released exporters


@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
@pytest.mark.parametrize("signal", ["traces", "metrics"])
def test_the_seam(monkeypatch, protocol, signal):
    """The released exporters have inside what we use: else this package needs a change."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:4")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "a=b")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "3")
    transport = otel_grpo.otlp._transport(signal, protocol, set())
    assert transport.timeout_s == 3
    assert "127.0.0.1:4" in transport.where
    if signal == "metrics":
        preferred = transport.exporter._preferred_temporality
        assert set(preferred.values()) <= set(AggregationTemporality)
        assert isinstance(transport.exporter._preferred_aggregation, dict)


def test_an_exporter_of_another_make(monkeypatch, caplog):
    """Where an exporter lacks what we use, it is named, and the run goes on without."""
    monkeypatch.setattr(over_http, "OTLPSpanExporter", object)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://x")
    assert live(Guard()) is None
    assert "opentelemetry-exporter-otlp-proto-http: 'object' object has no" in caplog.text


def until(condition, timeout_s=10):
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.002)
