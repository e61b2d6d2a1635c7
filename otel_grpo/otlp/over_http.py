"""OTLP over HTTP, with all that the standard variables say, as the released exporter reads them.

The exporter itself is not asked to export: it draws from Python's global random numbers, tries again
on its own, and logs. Its settings and its session are used, see `_Seam`.
"""

from __future__ import annotations

import io
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timezone
from email.utils import parsedate_to_datetime
from http.client import BadStatusLine, HTTPException, HTTPResponse, RemoteDisconnected
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import requests
import urllib3
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.exceptions import NameResolutionError, NewConnectionError

from otel_grpo.otlp.answer import TOO_LARGE, Answer, SeamError, shortened, without
from otel_grpo.otlp.response import status_message, taken

if TYPE_CHECKING:
    import socket

    from _typeshed import WriteableBuffer

    from otel_grpo.otlp.answer import Signal

_AGAIN = frozenset({429, 502, 503, 504})
_MEND = {
    401: "OTEL_EXPORTER_OTLP_HEADERS needs a valid token",
    403: "the token of OTEL_EXPORTER_OTLP_HEADERS may not write",
    404: "no OTLP receiver is at this path: OTEL_EXPORTER_OTLP_ENDPOINT goes without /v1/...",
    405: "no OTLP receiver is at this path: OTEL_EXPORTER_OTLP_ENDPOINT goes without /v1/...",
    407: "the proxy of HTTP_PROXY or HTTPS_PROXY wants a password",
}
_ANSWER_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class _Seam:
    """What is taken out of a released exporter."""

    session: requests.Session
    endpoint: str
    headers: Mapping[str, str]
    timeout_s: float
    compress: Callable[[bytes], bytes]

    @classmethod
    def of(cls, exporter: OTLPSpanExporter | OTLPMetricExporter) -> _Seam:
        try:
            client: Any = exporter._client
            return cls(
                client._transport._session,
                client._endpoint,
                client._headers,
                client._timeout,
                client._compress,
            )
        except AttributeError as error:
            raise SeamError(f"opentelemetry-exporter-otlp-proto-http: {error}") from error


class HttpTransport:
    """Sends to the endpoint of a signal. Made on the thread that starts the run: it imports."""

    def __init__(self, signal: Signal) -> None:
        exporter = OTLPSpanExporter() if signal == "traces" else OTLPMetricExporter()
        self.exporter = exporter
        seam = _Seam.of(exporter)
        self._session = seam.session
        for adapter in self._session.adapters.values():
            if isinstance(adapter, requests.adapters.HTTPAdapter):
                adapter.poolmanager.pool_classes_by_scheme = _POOLS
        self._signal = signal
        self._endpoint = seam.endpoint
        self._headers = dict(seam.headers)
        self._compress = seam.compress
        self.timeout_s = seam.timeout_s
        self.where = _without_secrets(seam.endpoint)

    def send(self, body: bytes, timeout_s: float) -> Answer:
        return without(self._headers.values(), self._send(body, timeout_s))

    def close(self) -> None:
        self._session.close()

    def _send(self, body: bytes, timeout_s: float) -> Answer:
        try:
            response = self._session.post(
                self._endpoint,
                data=self._compress(body),
                headers=self._headers,
                timeout=timeout_s,
                # Said here, for else REQUESTS_CA_BUNDLE would win over OTEL_EXPORTER_OTLP_CERTIFICATE.
                verify=self._session.verify,
                cert=self._session.cert,
                allow_redirects=False,
                stream=True,  # an answer of any size is read to a bound
            )
        except (requests.RequestException, urllib3.exceptions.HTTPError, OSError) as error:
            return self._failure(error)
        with response:
            try:
                answer = response.raw.read(_ANSWER_BYTES, decode_content=True)
            except (urllib3.exceptions.HTTPError, OSError):
                answer = b""  # its status was read
            return self._answer(response, answer)

    def _answer(self, response: requests.Response, body: bytes) -> Answer:
        status = response.status_code
        reason, kind = f"http_{status}", response.headers.get("content-type", "")
        if 200 <= status < 300:
            if "html" in kind:
                told = f"{self.where} answers with a web page: it is no OTLP receiver"
                return Answer("refused", "not_otlp", told)
            return taken(self._signal, body, self.where)
        if status == 413:
            return Answer("too_large", TOO_LARGE)
        mend = _MEND.get(status) or status_message(body) or shortened(response.reason or "")
        if 300 <= status < 400:
            mend = f"redirects to {_without_secrets(response.headers.get('location', '?'))}"
        told = f"{self.where} answers {status}: {mend}"
        if status in _AGAIN:
            after = _retry_after_s(response.headers.get("retry-after"))
            return Answer("failed", reason, told, retry_after_s=after)
        return Answer("refused", reason, told)

    def _failure(self, error: Exception) -> Answer:
        where = self.where
        causes = tuple(_causes(error))

        def caused_by(*kinds: type[BaseException]) -> bool:
            return any(isinstance(cause, kinds) for cause in causes)

        exceptions = requests.exceptions
        if isinstance(error, exceptions.ProxyError):
            told = "the proxy of HTTP_PROXY or HTTPS_PROXY is in the way; NO_PROXY names exceptions"
            return Answer("failed", "proxy", f"{where}: {told} ({shortened(causes[-1])})")
        if isinstance(error, exceptions.SSLError):
            told = "its certificate is not trusted, see OTEL_EXPORTER_OTLP_CERTIFICATE, or it speaks no TLS"
            return Answer("failed", "tls", f"{where}: {told} ({shortened(causes[-1])})")
        if isinstance(error, exceptions.ConnectTimeout):
            return Answer("failed", "timeout", f"{where} can't be reached in time")
        if isinstance(error, exceptions.Timeout) or caused_by(TimeoutError):
            return Answer("failed", "timeout", f"{where} does not answer in time", sent=True)
        if caused_by(NameResolutionError):
            return Answer("failed", "dns", f"{where}: its host name is not known")
        if caused_by(NewConnectionError):
            return Answer("failed", "unreachable", f"{where}: {shortened(causes[-1])}")
        if caused_by(BadStatusLine) and not caused_by(RemoteDisconnected):
            told = "does not speak HTTP/1.1; is it a gRPC port (OTEL_EXPORTER_OTLP_PROTOCOL=grpc)?"
            return Answer("failed", "not_http", f"{where} {told}")
        if isinstance(error, exceptions.ConnectionError) or caused_by(HTTPException):
            told = f"{where} ends the connection without an answer"
            return Answer("failed", "connection_lost", told, sent=True)
        if isinstance(error, exceptions.InvalidHeader):
            told = "OTEL_EXPORTER_OTLP_HEADERS holds what no header may hold"
            return Answer("refused", "bad_header", f"{where}: {told}")
        if isinstance(error, ValueError):  # its text may repeat a password
            told = "is no URL such as http://localhost:4318"
            return Answer("refused", "bad_url", f"{where} {told}")
        return Answer("refused", "tls", f"{where}: {shortened(error)}")  # a certificate's file


def _causes(error: BaseException | None) -> list[BaseException]:
    """An exception and what it stands for, the outermost first."""
    found: list[BaseException] = []
    while isinstance(error, BaseException) and error not in found:
        found.append(error)
        inner = getattr(error, "reason", None)
        if not isinstance(inner, BaseException):
            inner = next(
                (arg for arg in reversed(error.args) if isinstance(arg, BaseException)), None
            )
        error = inner or error.__cause__ or error.__context__
    return found


def _retry_after_s(value: str | None) -> float | None:
    """Seconds, or an HTTP date."""
    if value is None:
        return None
    try:
        seconds = float(value)
    except ValueError:
        try:
            at = parsedate_to_datetime(value)
        except (TypeError, ValueError):
            return None
        if at.tzinfo is None:
            at = at.replace(tzinfo=timezone.utc)
        seconds = at.timestamp() - time.time()
    return max(0.0, seconds) if math.isfinite(seconds) else None


def _without_secrets(url: str) -> str:
    """A URL as it may be shown: without user, password and query."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "the endpoint"
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="").geturl()


# --- an answer that comes one byte at a time ends, too: requests bounds each read, not their sum


class _Bounded(io.RawIOBase):
    """A socket's bytes, for as long altogether as the socket would wait for the first."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._raw = sock.makefile("rb", buffering=0)
        self._until = time.monotonic() + (sock.gettimeout() or math.inf)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int | None:
        left = self._until - time.monotonic()
        if left <= 0:
            raise TimeoutError("the answer takes too long")
        if left < math.inf:
            self._sock.settimeout(left)
        return self._raw.readinto(buffer)

    def close(self) -> None:
        self._raw.close()
        super().close()


class _Response(HTTPResponse):
    def __init__(self, sock: socket.socket, *args: Any, **kwargs: Any) -> None:
        super().__init__(sock, *args, **kwargs)
        self.fp.close()
        self.fp = io.BufferedReader(_Bounded(sock))


class _Connection(HTTPConnection):
    response_class = _Response


class _TlsConnection(HTTPSConnection):
    response_class = _Response


class _Pool(HTTPConnectionPool):
    ConnectionCls = _Connection


class _TlsPool(HTTPSConnectionPool):
    ConnectionCls = _TlsConnection


_POOLS = {"http": _Pool, "https": _TlsPool}
