"""What OpenTelemetry's standard variables say about sending. A bad value is warned about, once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from opentelemetry.sdk.trace.sampling import TraceIdRatioBased

from otel_grpo.tracing.guard import is_true

if TYPE_CHECKING:
    from collections.abc import Mapping

    from otel_grpo.tracing.guard import Guard

Protocol = Literal["http/protobuf", "grpc"]

#: Spans that wait: eight times the SDK's default, some 30 MB at the most.
QUEUE = 16384
BATCH = 512
DELAY_MS = 5000
#: A training is watched more closely than a server, whose default is a minute.
INTERVAL_MS = 10_000

_MOST = 2**31 - 1
_PROTOCOLS: dict[str, Protocol] = {"http/protobuf": "http/protobuf", "grpc": "grpc"}
#: Names of exporters: the standard one, and those of Python, which name the protocol, too.
_EXPORTERS: dict[str, Protocol | None] = {
    "otlp": None,
    "otlp_proto_http": "http/protobuf",
    "otlp_proto_grpc": "grpc",
}


@dataclass(frozen=True, slots=True)
class Settings:
    """What to send, and how.

    Attributes:
        spans: by which protocol; None: not at all.
        metrics: likewise.
        queue: spans that may wait.
        batch: spans of one request.
        delay_s: how long spans wait for others.
        interval_s: between two exports of metrics.
        share: of the traces, 0 to 1; a trace is sent as a whole or not at all.
    """

    spans: Protocol | None
    metrics: Protocol | None
    queue: int = QUEUE
    batch: int = BATCH
    delay_s: float = DELAY_MS / 1000
    interval_s: float = INTERVAL_MS / 1000
    share: float = 1.0


def read(environ: Mapping[str, str], guard: Guard) -> Settings:
    """The settings; nothing is read but whether to send where nobody asks for it."""
    variables = _Variables(environ, guard)
    if is_true(variables.get("OTEL_SDK_DISABLED")):
        return Settings(None, None)
    spans, metrics = variables.protocol("TRACES"), variables.protocol("METRICS")
    share = 1.0 if spans is None else variables.share()
    if spans is None and metrics is None:
        return Settings(None, None)
    queue = variables.positive("OTEL_BSP_MAX_QUEUE_SIZE", QUEUE)
    batch = variables.positive("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", min(BATCH, queue))
    if batch > queue:
        variables.bad("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", f"at most the queue's size, {queue}", queue)
        batch = queue
    return Settings(
        spans if share else None,
        metrics,
        queue=queue,
        batch=batch,
        delay_s=variables.positive("OTEL_BSP_SCHEDULE_DELAY", DELAY_MS) / 1000,
        interval_s=variables.positive("OTEL_METRIC_EXPORT_INTERVAL", INTERVAL_MS) / 1000,
        share=share,
    )


class _Variables:
    """The environment; a variable that is set to nothing counts as not set."""

    def __init__(self, environ: Mapping[str, str], guard: Guard) -> None:
        self._environ = environ
        self._guard = guard
        self._told: set[str] = set()

    def get(self, name: str) -> str:
        return self._environ.get(name, "").strip()

    def bad(self, name: str, wanted: str, taken: object) -> None:
        if name not in self._told:  # both signals may ask for it
            self._told.add(name)
            self._guard.misuse(name, f"{name}={self.get(name)} is not {wanted}; {taken} is taken")

    def protocol(self, signal: str) -> Protocol | None:
        """How a signal is sent. Without a word about it, it is: nobody is connected to unasked."""
        own, common = f"OTEL_EXPORTER_OTLP_{signal}_", "OTEL_EXPORTER_OTLP_"
        exporters = [name.strip() for name in self.get(f"OTEL_{signal}_EXPORTER").split(",")]
        if exporters == [""]:
            if not (self.get(f"{own}ENDPOINT") or self.get(f"{common}ENDPOINT")):
                return None
            exporters = ["otlp"]
        named = [_EXPORTERS[name] for name in exporters if name in _EXPORTERS]
        if not named:
            return None
        if named[0] is not None:
            return named[0]
        variable = next((v for v in (f"{own}PROTOCOL", f"{common}PROTOCOL") if self.get(v)), "")
        if not variable:
            return "http/protobuf"
        told = _PROTOCOLS.get(self.get(variable))
        if told is None:
            self.bad(variable, f"one of {', '.join(_PROTOCOLS)}", "http/protobuf")
        return told or "http/protobuf"

    def positive(self, name: str, default: int) -> int:
        told = self.get(name)
        if not told:
            return default
        try:
            number = int(told)
        except ValueError:
            number = 0
        if 1 <= number <= _MOST:
            return number
        self.bad(name, f"a whole number from 1 to {_MOST}", default)
        return default

    def share(self) -> float:
        """Share of the traces that the sampler lets through.

        Windows are roots of their traces, so what a sampler says of remote parents has no bearing.
        """
        sampler = self.get("OTEL_TRACES_SAMPLER").removeprefix("parentbased_")
        if sampler in {"", "always_on"}:
            return 1.0
        if sampler == "always_off":
            return 0.0
        if sampler != "traceidratio":
            known = "always_on, always_off, traceidratio or one of them after parentbased_"
            self.bad("OTEL_TRACES_SAMPLER", known, "always_on")
            return 1.0
        told = self.get("OTEL_TRACES_SAMPLER_ARG") or "1"
        try:
            return TraceIdRatioBased(float(told)).rate
        except ValueError:  # no number, or none from 0 to 1
            self.bad("OTEL_TRACES_SAMPLER_ARG", "a number from 0 to 1", 1.0)
            return 1.0
