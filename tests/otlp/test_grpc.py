"""Answers over gRPC: what each receiver's behaviour is called, and what a person is told to mend."""

from __future__ import annotations

import time

import grpc
import pytest
from google.protobuf.any_pb2 import Any
from google.protobuf.duration_pb2 import Duration
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTracePartialSuccess,
    ExportTraceServiceResponse,
)
from receivers import (
    CERTIFICATE,
    dead_port,
    free_port,
    half_close,
    hang,
    http,
    over_grpc,
    raw,
    span,
)

from otel_grpo.otlp.answer import Answer
from otel_grpo.otlp.limits import encoded_spans
from otel_grpo.otlp.over_grpc import GrpcTransport

BODY = encoded_spans([span(1), span(2)])


@pytest.fixture
def ask(monkeypatch):
    """Sends to a receiver, with variables in short (headers: OTEL_EXPORTER_OTLP_HEADERS)."""
    used = []

    def ask_it(receiver, timeout_s=5.0, **variables):
        url = receiver if isinstance(receiver, str) else receiver.url
        for name, value in {"endpoint": url, **variables}.items():
            monkeypatch.setenv(f"OTEL_EXPORTER_OTLP_{name.upper()}", value)
        used.append(GrpcTransport("traces"))
        return used[-1].send(BODY, timeout_s)

    yield ask_it
    for transport in used:
        transport.close()


def abort(code, details="because", **metadata):
    def behave(_, context):
        told = [(key.replace("_", "-"), value) for key, value in metadata.items()]
        context.set_trailing_metadata(told)
        context.abort(code, details)

    return behave


def test_taken(ask):
    """The spans are there, with the headers of the variables."""
    with over_grpc() as receiver:
        answer = ask(receiver, headers="x-scope=a%20b", compression="gzip")
    assert answer == Answer("taken")
    assert list(receiver.spans.elements()) == [bytes(7) + b"\1", bytes(7) + b"\2"]
    assert receiver.requests[0].headers["x-scope"] == "a b"


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("UNAUTHENTICATED", "OTEL_EXPORTER_OTLP_HEADERS needs a valid token"),
        ("PERMISSION_DENIED", "may not write"),
        ("UNIMPLEMENTED", "no OTLP receiver"),
        ("INVALID_ARGUMENT", "because"),
        ("INTERNAL", "because"),
    ],
)
def test_refused(ask, code, words):
    """It would be refused again; the message says what to mend."""
    with over_grpc(abort(grpc.StatusCode[code])) as receiver:
        answer = ask(receiver)
    assert (answer.kind, answer.reason) == ("refused", f"grpc_{code.lower()}")
    assert answer.message.startswith(receiver.url.removeprefix("http://"))
    assert words in answer.message


def test_secrets_are_not_repeated(ask):
    """A receiver that shows the key that it does not like is not quoted with it."""
    behave = abort(grpc.StatusCode.INVALID_ARGUMENT, "key 1234-abcd is bad")
    with over_grpc(behave) as receiver:
        answer = ask(receiver, headers="api-key=1234-abcd")
    assert answer.message.endswith("key ... is bad")


@pytest.mark.parametrize(
    "code", ["UNAVAILABLE", "RESOURCE_EXHAUSTED", "ABORTED", "CANCELLED", "OUT_OF_RANGE"]
)
def test_failed_for_now(ask, code):
    """It may be taken later; the receiver answered, so it is known not to have it."""
    with over_grpc(abort(grpc.StatusCode[code])) as receiver:
        answer = ask(receiver)
    assert (answer.kind, answer.reason, answer.sent) == ("failed", f"grpc_{code.lower()}", False)
    assert answer.retry_after_s is None


def test_retry_after(ask):
    """The details of the status say how long to stay away."""
    detail = Any()
    detail.Pack(RetryInfo(retry_delay=Duration(seconds=7, nanos=500_000_000)))
    details = Status(code=14, details=[detail]).SerializeToString()
    behave = abort(grpc.StatusCode.UNAVAILABLE, grpc_status_details_bin=details)
    with over_grpc(behave) as receiver:
        assert ask(receiver).retry_after_s == 7.5
    behave = abort(grpc.StatusCode.UNAVAILABLE, grpc_status_details_bin=b"\xff")
    with over_grpc(behave) as receiver:
        assert ask(receiver).retry_after_s is None


def test_too_large(ask):
    """The library says so before the receiver's code runs."""
    with over_grpc(limit=50) as receiver:
        assert ask(receiver).kind == "too_large"
    assert receiver.requests == []


def test_partial_success(ask):
    """As over HTTP."""
    response = ExportTraceServiceResponse(
        partial_success=ExportTracePartialSuccess(rejected_spans=2, error_message="too old")
    )
    with over_grpc(lambda *_: response.SerializeToString()) as receiver:
        answer = ask(receiver)
    assert (answer.kind, answer.rejected) == ("taken", 2)
    assert answer.message.endswith("refused 2 spans: too old")


@pytest.mark.parametrize("converse", [hang, lambda _: time.sleep(10)])
def test_no_answer(ask, converse):
    """A deadline holds for the whole call."""
    with raw(converse) as receiver:
        began = time.monotonic()
        answer = ask(receiver, timeout_s=0.3)
        assert time.monotonic() - began < 0.3 * 10
    assert (answer.kind, answer.reason, answer.sent) == ("failed", "timeout", True)


def test_a_server_that_hangs(ask):
    """Also where the connection is good."""
    with over_grpc(lambda *_: time.sleep(1) or b"") as receiver:
        answer = ask(receiver, timeout_s=0.3)
    assert (answer.reason, answer.sent) == ("timeout", True)


def test_half_closed(ask):
    """No connection comes about."""
    with raw(half_close) as receiver:
        answer = ask(receiver)
    assert (answer.kind, answer.sent) == ("failed", False)


@pytest.mark.parametrize(
    ("url", "reason", "words"),
    [
        ("http://127.0.0.1:{port}", "unreachable", "Connection refused"),
        ("http://nowhere.invalid:4317", "dns", "host name that is not known"),
    ],
)
def test_wrong_endpoints(ask, url, reason, words):
    """Nobody there, and no such name."""
    answer = ask(url.format(port=dead_port()))
    assert (answer.kind, answer.reason, answer.sent) == ("failed", reason, False)
    assert words in answer.message


def test_an_http_port(ask):
    """The message names the variable of the protocol."""
    with http() as receiver:
        answer = ask(receiver)
    assert (answer.kind, answer.reason) == ("failed", "not_grpc")
    assert "OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf" in answer.message


def test_tls(ask):
    """A certificate that nobody trusts names its variable; with the variable it is trusted."""
    with over_grpc(tls=True) as receiver:
        answer = ask(receiver)
        assert (answer.kind, answer.reason, answer.sent) == ("failed", "tls", False)
        assert "OTEL_EXPORTER_OTLP_CERTIFICATE" in answer.message
        assert ask(receiver, certificate=CERTIFICATE) == Answer("taken")


def test_no_scheme_means_tls(ask):
    """An endpoint without http:// is taken for one with TLS: the message says so."""
    with over_grpc() as receiver:
        answer = ask(receiver.url.removeprefix("http://"))
    assert (answer.kind, answer.reason) == ("failed", "tls")
    assert "or no TLS: http://" in answer.message


def test_it_connects_again_as_soon_as_it_is_asked(ask, monkeypatch):
    """gRPC's own pause after failures is not sat out: the next attempt reaches a receiver that came."""
    port = free_port()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{port}")
    transport = GrpcTransport("traces")
    for _ in range(4):
        assert transport.send(BODY, 5).reason == "unreachable"
    with over_grpc(port=port) as receiver:
        assert transport.send(BODY, 5) == Answer("taken")
    assert receiver.spans.total() == 2
    transport.close()
