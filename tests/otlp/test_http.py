"""Answers over HTTP: what each receiver's behaviour is called, and what a person is told to mend."""

from __future__ import annotations

import time
from email.utils import formatdate

import certifi
import pytest
from google.rpc.status_pb2 import Status
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsPartialSuccess,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTracePartialSuccess,
    ExportTraceServiceResponse,
)
from receivers import (
    CERTIFICATE,
    Reply,
    dead_port,
    half_close,
    hang,
    http,
    over_grpc,
    raw,
    span,
    tls_context,
    trickle,
)

from otel_grpo.otlp.answer import Answer
from otel_grpo.otlp.limits import encoded_spans
from otel_grpo.otlp.over_http import HttpTransport

BODY = encoded_spans([span(1), span(2)])


@pytest.fixture
def ask(monkeypatch):
    """Sends to a receiver, with variables in short (headers: OTEL_EXPORTER_OTLP_HEADERS)."""
    used = []

    def ask_it(receiver, signal="traces", timeout_s=5.0, **variables):
        url = receiver if isinstance(receiver, str) else receiver.url
        for name, value in {"endpoint": url, **variables}.items():
            monkeypatch.setenv(f"OTEL_EXPORTER_OTLP_{name.upper()}", value)
        used.append(HttpTransport(signal))
        return used[-1].send(BODY if signal == "traces" else b"", timeout_s)

    yield ask_it
    for transport in used:
        transport.close()


def status(number, body=b"", **headers):
    return lambda _: Reply(number, body, {k.replace("_", "-"): v for k, v in headers.items()})


def test_taken(ask):
    """The spans are there, on the path of their signal."""
    with http() as receiver:
        assert ask(receiver) == Answer("taken")
    assert list(receiver.spans.elements()) == [bytes(7) + b"\1", bytes(7) + b"\2"]
    assert receiver.requests[0].signal == "traces"
    assert receiver.requests[0].headers["content-type"] == "application/x-protobuf"


@pytest.mark.parametrize("compression", ["gzip", "deflate"])
def test_variables(ask, compression):
    """Headers and compression are as the standard variables say."""
    with http() as receiver:
        ask(receiver, compression=compression, headers="x-scope=a%20b,authorization=Bearer 1")
    headers = receiver.requests[0].headers
    assert headers["content-encoding"] == compression
    assert (headers["x-scope"], headers["authorization"]) == ("a b", "Bearer 1")
    assert receiver.spans.total() == 2


def test_the_timeout_of_the_variables(monkeypatch):
    """The variable of the signal wins."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "7")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_METRICS_TIMEOUT", "2.5")
    assert HttpTransport("traces").timeout_s == 7
    assert HttpTransport("metrics").timeout_s == 2.5


@pytest.mark.parametrize(
    ("number", "reason", "words"),
    [
        (301, "http_301", "redirects to http://elsewhere/x"),
        (400, "http_400", "answers 400: no such field"),
        (401, "http_401", "OTEL_EXPORTER_OTLP_HEADERS needs a valid token"),
        (403, "http_403", "may not write"),
        (404, "http_404", "OTEL_EXPORTER_OTLP_ENDPOINT goes without /v1/..."),
        (500, "http_500", "answers 500: no such field"),
    ],
)
def test_refused(ask, number, reason, words):
    """It would be refused again; the message says what to mend."""
    behave = status(
        number,
        Status(message="no such\n field").SerializeToString(),
        location="http://me:secret@elsewhere/x?token=1",
    )
    with http(behave) as receiver:
        answer = ask(receiver)
    assert (answer.kind, answer.reason, answer.sent) == ("refused", reason, False)
    assert answer.message.startswith(f"{receiver.url}/v1/traces ")
    assert words in answer.message


@pytest.mark.parametrize("number", [429, 502, 503, 504])
def test_failed_for_now(ask, number):
    """It may be taken later; nobody said when."""
    with http(status(number)) as receiver:
        answer = ask(receiver)
    assert (answer.kind, answer.reason, answer.sent) == ("failed", f"http_{number}", False)
    assert answer.retry_after_s is None


@pytest.mark.parametrize(
    ("value", "low", "high"),
    [("17", 17, 17), ("0.5", 0.5, 0.5), ("-3", 0, 0), ("DATE", 58, 60), ("PAST", 0, 0)],
)
def test_retry_after(ask, value, low, high):
    """Seconds or a date, never before now."""
    now = time.time()
    dates = {"DATE": formatdate(now + 60, usegmt=True), "PAST": formatdate(now - 60)}
    with http(status(429, retry_after=dates.get(value, value))) as receiver:
        answer = ask(receiver)
    assert low <= answer.retry_after_s <= high


@pytest.mark.parametrize("value", ["soon", "nan", "inf", ""])
def test_retry_after_that_makes_no_sense(ask, value):
    """As if it had not been said."""
    with http(status(503, retry_after=value)) as receiver:
        assert ask(receiver).retry_after_s is None


def test_too_large(ask):
    """Not a failure: less of it may pass."""
    with http(status(413)) as receiver:
        assert ask(receiver).kind == "too_large"


def test_partial_success(ask):
    """Spans are rejected one by one; a rejected point spoils its export of metrics."""
    spans = ExportTraceServiceResponse(
        partial_success=ExportTracePartialSuccess(rejected_spans=1, error_message="too old")
    )
    points = ExportMetricsServiceResponse(
        partial_success=ExportMetricsPartialSuccess(rejected_data_points=9)
    )
    with http(status(200, spans.SerializeToString())) as receiver:
        answer = ask(receiver)
    assert (answer.kind, answer.rejected) == ("taken", 1)
    assert answer.message == f"{receiver.url}/v1/traces refused 1 spans: too old"
    with http(status(200, points.SerializeToString())) as receiver:
        answer = ask(receiver, signal="metrics")
    assert (answer.kind, answer.rejected) == ("taken", 1)
    assert "refused 9 points: it does not say why" in answer.message


@pytest.mark.parametrize("body", [b"{}", b"\xff\xff", b"x" * 10**6])
def test_taken_with_an_odd_answer(ask, body):
    """The status counts: back ends answer with JSON, or with anything."""
    with http(status(200, body)) as receiver:
        assert ask(receiver) == Answer("taken")


def test_a_web_page_is_no_receiver(ask):
    """A web server takes everything and keeps nothing."""
    with http(status(200, b"<html>", content_type="text/html")) as receiver:
        answer = ask(receiver)
    assert (answer.kind, answer.reason) == ("refused", "not_otlp")


@pytest.mark.parametrize(
    ("converse", "reason", "words"),
    [
        (hang, "timeout", "does not answer in time"),
        (trickle, "timeout", "does not answer in time"),
        (half_close, "connection_lost", "without an answer"),
        (lambda it: it.recv(9) and it.close(), "connection_lost", "without an answer"),
    ],
)
def test_no_answer(ask, converse, reason, words):
    """The receiver may have it all the same; an answer that drips in has no more time than another."""
    with raw(converse) as receiver:
        began = time.monotonic()
        answer = ask(receiver, timeout_s=0.3)
        assert time.monotonic() - began < 0.3 * 10
    assert (answer.kind, answer.reason, answer.sent) == ("failed", reason, True)
    assert words in answer.message


def test_a_body_that_never_ends(ask):
    """The status was read: it is taken, and the rest is not waited for."""

    def converse(connection):
        connection.recv(65536)
        connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 999\r\n\r\n")
        hang(connection)

    with raw(converse) as receiver:
        began = time.monotonic()
        assert ask(receiver, timeout_s=0.3) == Answer("taken")
        assert time.monotonic() - began < 0.3 * 10


@pytest.mark.parametrize(
    ("url", "kind", "reason", "words"),
    [
        ("http://127.0.0.1:{port}", "failed", "unreachable", "refused"),
        ("http://me:secret@nowhere.invalid:1", "failed", "dns", "http://nowhere.invalid:1/"),
        ("localhost:4318", "refused", "bad_url", "no URL such as http://localhost:4318"),
        ("ftp://localhost", "refused", "bad_url", "no URL such as"),
        ("http://me:secret@[::1", "refused", "bad_url", "no URL such as"),
        ("http://me:secret@x:y", "refused", "bad_url", "no URL such as"),
    ],
)
def test_wrong_endpoints(ask, url, kind, reason, words):
    """Nobody there, no such name, no URL: named without the password."""
    answer = ask(url.format(port=dead_port()))
    assert (answer.kind, answer.reason, answer.sent) == (kind, reason, False)
    assert words in answer.message
    assert "secret" not in answer.message


def test_a_grpc_port(ask):
    """The message names the variable of the protocol."""
    with over_grpc() as receiver:
        answer = ask(receiver)
    assert (answer.kind, answer.reason) == ("failed", "not_http")
    assert "OTEL_EXPORTER_OTLP_PROTOCOL=grpc" in answer.message


def test_secrets_are_not_repeated(ask):
    """A receiver that shows the key that it does not like is not quoted with it."""
    body = Status(message="key 1234-abcd is bad").SerializeToString()
    with http(status(400, body)) as receiver:
        answer = ask(receiver, headers="api-key=1234-abcd")
    assert answer.message.endswith("answers 400: key ... is bad")


def test_a_header_that_is_none(monkeypatch):
    """What no header may hold is not sent, and not shown."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    transport = HttpTransport("traces")
    transport._headers["api-key"] = "1234-abcd\nevil"
    answer = transport.send(BODY, 1)
    assert (answer.kind, answer.reason) == ("refused", "bad_header")
    assert "1234" not in answer.message


def test_tls(ask, monkeypatch):
    """A certificate that nobody trusts names its variable; with the variable it is trusted."""
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", certifi.where())  # of the whole machine: ours wins
    with http(tls=tls_context()) as receiver:
        answer = ask(receiver)
        assert (answer.kind, answer.reason, answer.sent) == ("failed", "tls", False)
        assert "OTEL_EXPORTER_OTLP_CERTIFICATE" in answer.message
        assert ask(receiver, certificate=CERTIFICATE) == Answer("taken")


def test_client_certificate(ask):
    """A receiver that wants to know who writes."""
    told = {
        "certificate": CERTIFICATE,
        "client_certificate": CERTIFICATE,
        "client_key": CERTIFICATE,
    }
    with http(tls=tls_context(client=True)) as receiver:
        assert ask(receiver, **told) == Answer("taken")


def test_tls_to_a_port_without(ask):
    """https:// where http:// would be right."""
    with http() as receiver:
        answer = ask(receiver.url.replace("http:", "https:"))
    assert (answer.kind, answer.reason) == ("failed", "tls")
    assert "speaks no TLS" in answer.message


def test_a_certificate_that_is_not_there(ask):
    """The file is named."""
    answer = ask("https://127.0.0.1:1", certificate="/no/such.pem")
    assert (answer.kind, answer.reason) == ("refused", "tls")
    assert "/no/such.pem" in answer.message


def test_proxies(ask, monkeypatch):
    """A proxy of the environment is used, blamed by its variable, and NO_PROXY exempts."""
    monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{dead_port()}")
    with http() as receiver:
        answer = ask(receiver)
        assert (answer.kind, answer.reason, answer.sent) == ("failed", "proxy", False)
        assert "HTTP_PROXY" in answer.message
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        assert ask(receiver) == Answer("taken")


def test_connections_are_kept(monkeypatch):
    """Ten requests use one connection."""
    with http() as receiver:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url)
        transport = HttpTransport("traces")
        for _ in range(10):
            assert transport.send(BODY, 5) == Answer("taken")
        transport.close()
    assert (len(receiver.requests), receiver.connections) == (10, 1)
