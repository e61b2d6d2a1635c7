"""OTLP over gRPC, with all that the standard variables say, as the released exporter reads them.

The exporter itself is not asked to export, see `over_http`: its channel is used, see `_Seam`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import grpc
from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter

from otel_grpo.otlp.answer import TOO_LARGE, Answer, SeamError, shortened, without
from otel_grpo.otlp.response import retry_delay_s, taken

if TYPE_CHECKING:
    from otel_grpo.otlp.answer import Signal

_METHODS: dict[Signal, str] = {
    "traces": "/opentelemetry.proto.collector.trace.v1.TraceService/Export",
    "metrics": "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export",
}
_AGAIN = frozenset(
    {
        grpc.StatusCode.ABORTED,
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.DATA_LOSS,
        grpc.StatusCode.OUT_OF_RANGE,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        grpc.StatusCode.UNAVAILABLE,
    }
)
_MEND = {
    grpc.StatusCode.UNAUTHENTICATED: "OTEL_EXPORTER_OTLP_HEADERS needs a valid token",
    grpc.StatusCode.PERMISSION_DENIED: "the token of OTEL_EXPORTER_OTLP_HEADERS may not write",
    grpc.StatusCode.UNIMPLEMENTED: "it is a gRPC server, but no OTLP receiver",
}
#: What gRPC says where no status came from the receiver: words, reason, what to mend, and whether
#: the request may have arrived.
_NETWORK: tuple[tuple[tuple[str, ...], str, str, bool], ...] = (
    (
        ("http1", "http/1", "parsing http/2", "http2 header", "settings frame", "http2 handshake"),
        "not_grpc",
        "does not speak gRPC; is it an HTTP port (OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf)?",
        False,
    ),
    (
        ("ssl", "tls", "handshake", "certificate"),
        "tls",
        "has no trusted certificate (OTEL_EXPORTER_OTLP_CERTIFICATE), or no TLS: http://...",
        False,
    ),
    (
        ("dns", "resolving", "resolution", "lookup"),
        "dns",
        "has a host name that is not known",
        False,
    ),
    (("proxy",), "proxy", "is behind a proxy that fails; NO_PROXY names exceptions", False),
    (("failed to connect", "connection refused"), "unreachable", "is not reached", False),
    (
        ("socket closed", "connection reset", "goaway", "stream removed", "broken pipe", "recvmsg"),
        "connection_lost",
        "ends the connection without an answer",
        True,
    ),
)


@dataclass(frozen=True, slots=True)
class _Seam:
    """What is taken out of a released exporter."""

    channel: grpc.Channel
    reconnect: Callable[[], object]
    headers: Sequence[tuple[str, str]]
    endpoint: str
    timeout_s: float

    @classmethod
    def of(cls, exporter: Any) -> _Seam:
        try:
            return cls(
                exporter._channel,
                exporter._initialize_channel_and_stub,
                exporter._headers,
                exporter._endpoint,
                exporter._timeout,
            )
        except AttributeError as error:
            raise SeamError(f"opentelemetry-exporter-otlp-proto-grpc: {error}") from error


class GrpcTransport:
    """Sends to the endpoint of a signal. Made on the thread that starts the run: it imports."""

    def __init__(self, signal: Signal) -> None:
        self.exporter = OTLPSpanExporter() if signal == "traces" else OTLPMetricExporter()
        self._signal = signal
        self._connect()
        self.timeout_s = self._seam.timeout_s
        self.where = self._seam.endpoint

    def send(self, body: bytes, timeout_s: float) -> Answer:
        return without((value for _, value in self._seam.headers), self._send(body, timeout_s))

    def close(self) -> None:
        self._seam.channel.close()

    def _send(self, body: bytes, timeout_s: float) -> Answer:
        try:
            # No serializers: bytes go and bytes come.
            answer = self._call(body, timeout=timeout_s, metadata=self._seam.headers)
        except grpc.RpcError as error:
            return self._failure(error)
        return taken(self._signal, answer, self.where)

    def _connect(self) -> None:
        self._seam = _Seam.of(self.exporter)
        self._call = self._seam.channel.unary_unary(_METHODS[self._signal])

    def _failure(self, error: Any) -> Answer:
        code, details = error.code(), error.details() or ""
        reason = f"grpc_{code.name.lower()}"
        told = f"{self.where}: {_MEND.get(code) or shortened(details)}"
        if code is grpc.StatusCode.DEADLINE_EXCEEDED:
            return Answer("failed", "timeout", f"{self.where} does not answer in time", sent=True)
        if code is grpc.StatusCode.RESOURCE_EXHAUSTED and "larger than max" in details.lower():
            return Answer("too_large", TOO_LARGE)
        if code in {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN}:
            words = details.lower()
            for signs, network_reason, mend, sent in _NETWORK:
                if any(sign in words for sign in signs):
                    self._reconnect()
                    told = f"{self.where} {mend} ({shortened(details)})"
                    return Answer("failed", network_reason, told, sent=sent)
        if code in _AGAIN:
            return Answer("failed", reason, told, retry_after_s=_retry_after_s(error))
        return Answer("refused", reason, told)

    def _reconnect(self) -> None:
        """gRPC's own pause after failures grows to two minutes: ours decides."""
        self._seam.channel.close()
        self._seam.reconnect()
        self._connect()


def _retry_after_s(error: Any) -> float | None:
    for key, value in error.trailing_metadata() or ():
        if key == "grpc-status-details-bin":
            return retry_delay_s(value)
    return None
