"""Receivers of OTLP, good ones and bad ones, each on a free port of this machine."""

from __future__ import annotations

import atexit
import contextlib
import gzip
import socket
import ssl
import threading
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent import futures
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import grpc
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, TraceFlags

from otel_grpo import semconv

RESOURCE = Resource({semconv.SERVICE_NAME: "test", semconv.RANK: 0})
#: A key and its certificate, for 127.0.0.1, made for these tests.
CERTIFICATE = str(Path(__file__).with_name("localhost.pem"))
_SCOPE = InstrumentationScope(semconv.SCOPE, "1")
_DECODE = {"none": bytes, "gzip": gzip.decompress, "deflate": zlib.decompress}
_METHOD = {
    "/opentelemetry.proto.collector.trace.v1.TraceService/Export": "traces",
    "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export": "metrics",
}


def span(number: int, trace: int = 1, **attributes: object) -> ReadableSpan:
    """A span of ours with that number as its id."""
    return ReadableSpan(
        "rl.sample",
        SpanContext(trace, number, is_remote=False, trace_flags=TraceFlags(1)),
        resource=RESOURCE,
        attributes={semconv.PHASE: semconv.GENERATION, **attributes},  # type: ignore[dict-item]
        start_time=1,
        end_time=2,
        instrumentation_scope=_SCOPE,
    )


@dataclass
class Reply:
    """What an HTTP receiver says, and after how long; whether it keeps what it got."""

    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    after_s: float = 0.0
    keeps: bool = True


@dataclass
class Got:
    """What a receiver was sent."""

    signal: str
    headers: dict[str, str]
    body: bytes
    at: float


class Receiver:
    """What it was sent, and what it kept."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.connections = 0
        self.requests: list[Got] = []
        self.spans: Counter[bytes] = Counter()
        self.metrics: list[ExportMetricsServiceRequest] = []
        self._lock = threading.Lock()

    def got(self, signal: str, headers: Mapping[str, str], body: bytes) -> Got:
        told = {key.lower(): value for key, value in headers.items()}
        got = Got(signal, told, body, time.monotonic())
        with self._lock:
            self.requests.append(got)
        return got

    def keep(self, got: Got) -> None:
        with self._lock:
            if got.signal == "metrics":
                self.metrics.append(ExportMetricsServiceRequest.FromString(got.body))
                return
            for resource in ExportTraceServiceRequest.FromString(got.body).resource_spans:
                for scope in resource.scope_spans:
                    self.spans.update(span.span_id for span in scope.spans)


@contextlib.contextmanager
def http(
    behave: Callable[[Got], Reply] = lambda _: Reply(), tls: ssl.SSLContext | None = None
) -> Iterator[Receiver]:
    """A receiver that speaks HTTP and behaves so."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1  # an answer is one packet
        disable_nagle_algorithm = True

        def setup(self) -> None:
            receiver.connections += 1
            super().setup()

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            body = _DECODE[self.headers.get("content-encoding", "none")](body)
            got = receiver.got(self.path.rpartition("/")[2], dict(self.headers), body)
            reply = behave(got)
            time.sleep(reply.after_s)
            if reply.keeps and 200 <= reply.status < 300:
                receiver.keep(got)
            self.send_response(reply.status)
            for key, value in {"content-length": str(len(reply.body)), **reply.headers}.items():
                self.send_header(key, value)
            self.end_headers()
            self.wfile.write(reply.body)

        def log_message(self, *args: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *args: object) -> None:
            """A client that left is what some tests are about."""

    server = Server(("127.0.0.1", 0), Handler)
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    scheme = "http" if tls is None else "https"
    receiver = Receiver(f"{scheme}://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield receiver
    finally:
        server.shutdown()
        server.server_close()


@contextlib.contextmanager
def over_grpc(
    behave: Callable[[Got, grpc.ServicerContext], bytes] = lambda *_: b"",
    limit: int | None = None,
    *,
    tls: bool = False,
    port: int = 0,
) -> Iterator[Receiver]:
    """A receiver that speaks gRPC; `limit`: the largest message that it takes."""

    class Handler(grpc.GenericRpcHandler):  # type: ignore[misc]
        def service(self, call: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
            headers = {key: str(value) for key, value in call.invocation_metadata}

            def take(body: bytes, context: grpc.ServicerContext) -> bytes:
                got = receiver.got(_METHOD[call.method], headers, body)
                answer = behave(got, context)
                receiver.keep(got)
                return answer

            return grpc.unary_unary_rpc_method_handler(take)

    options = [] if limit is None else [("grpc.max_receive_message_length", limit)]
    server = grpc.server(futures.ThreadPoolExecutor(4), options=options)
    server.add_generic_rpc_handlers((Handler(),))
    if tls:
        pem = Path(CERTIFICATE).read_bytes()
        credentials = grpc.ssl_server_credentials([(pem, pem)])
        bound = server.add_secure_port(f"127.0.0.1:{port}", credentials)
    else:
        bound = server.add_insecure_port(f"127.0.0.1:{port}")
    receiver = Receiver(f"{'https' if tls else 'http'}://127.0.0.1:{bound}")
    server.start()
    try:
        yield receiver
    finally:
        server.stop(0)


@contextlib.contextmanager
def raw(converse: Callable[[socket.socket], object]) -> Iterator[Receiver]:
    """A socket that accepts, and on each connection does so in a thread."""
    server = socket.create_server(("127.0.0.1", 0))
    kept: list[socket.socket] = []

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = server.accept()
                kept.append(connection)  # not closed by the garbage collector
                threading.Thread(target=speak, args=(connection,), daemon=True).start()

    def speak(connection: socket.socket) -> None:
        with contextlib.suppress(OSError):
            converse(connection)

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield Receiver(f"http://127.0.0.1:{server.getsockname()[1]}")
    finally:
        server.close()
        for connection in kept:
            connection.close()


def tls_context(*, client: bool = False) -> ssl.SSLContext:
    """Of a server that nobody has a reason to trust; `client`: it wants to see a certificate, too."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATE)
    if client:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(CERTIFICATE)
    return context


def hang(connection: socket.socket) -> None:
    """Takes everything, says nothing."""
    while connection.recv(65536):
        pass
    time.sleep(60)


def trickle(connection: socket.socket) -> None:
    """Answers one byte a second."""
    connection.recv(65536)
    for byte in b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n":
        connection.sendall(bytes([byte]))
        time.sleep(1)


def half_close(connection: socket.socket) -> None:
    """Will not say a word, and says so at once."""
    connection.shutdown(socket.SHUT_WR)
    hang(connection)


def free_port() -> int:
    """A port where nobody listens now."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def dead_port() -> int:
    """A port where nobody will ever listen: it stays bound, so that no other process is given it."""
    held = socket.socket()
    held.bind(("127.0.0.1", 0))
    atexit.register(held.close)
    return int(held.getsockname()[1])
