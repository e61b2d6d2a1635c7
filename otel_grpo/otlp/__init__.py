"""Spans and metrics over the network, by OTLP, while a training goes on.

Nothing here can slow the training or lose a line of its files: what the network does not take is
counted and left out. Libraries are imported when `live` finds that something is to be sent.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

from otel_grpo.tracing.guard import logger

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from opentelemetry.metrics import MeterProvider

    from otel_grpo.otlp.answer import Signal, Transport
    from otel_grpo.otlp.settings import Protocol
    from otel_grpo.tracing.guard import Guard
    from otel_grpo.tracing.live import Live

__all__ = ["live"]

_FORK_SUPPORT = "GRPC_ENABLE_FORK_SUPPORT"
_EXTRAS = {"http/protobuf": "otlp", "grpc": "otlp-grpc"}


def live(
    guard: Guard,
    *,
    spans: bool = True,
    meter_provider: MeterProvider | None = None,
    environ: Mapping[str, str] = os.environ,
) -> Live | None:
    """What sends the spans and metrics of this process; None where nobody asks for it.

    The standard variables of OpenTelemetry say whether, where to and how; see docs/live.md. For the
    thread that starts the run: libraries are imported here, for a thread that imports while another
    one forks leaves its child with an import that never ends.

    Args:
        guard: told of variables that make no sense.
        spans: False where a provider of the user's sends them.
        meter_provider: takes the metrics, and sends them as it likes.
        environ: the standard variables.
    """
    from otel_grpo.otlp.settings import read

    settings = read(environ, guard)
    missing: set[Protocol] = set()
    traces = _transport("traces", settings.spans, missing) if spans else None
    metrics = None
    if meter_provider is None:
        metrics = _transport("metrics", settings.metrics, missing)
    if traces is None and metrics is None and meter_provider is None:
        return None
    from otel_grpo.otlp.sending import OtlpLive

    return OtlpLive(guard, settings, traces, metrics, meter_provider)


def _transport(
    signal: Signal, protocol: Protocol | None, missing: set[Protocol]
) -> Transport | None:
    """A way to the receiver, or one line that says why there is none."""
    if protocol is None or protocol in missing:
        return None
    try:
        if protocol == "grpc":
            with _no_fork_handlers():
                from otel_grpo.otlp.over_grpc import GrpcTransport

                return GrpcTransport(signal)
        from otel_grpo.otlp.over_http import HttpTransport

        return HttpTransport(signal)
    except ModuleNotFoundError as error:
        missing.add(protocol)
        extra = _EXTRAS[protocol]
        logger.warning(
            "otel-grpo: nothing is sent by OTLP, %s is not installed: pip install 'otel-grpo[%s]'"
            " (training goes on)",
            error.name,
            extra,
        )
    except Exception as error:  # a variable that the exporter can't read, or its own change
        logger.warning("otel-grpo: no %s are sent by OTLP (training goes on): %s", signal, error)
    return None


@contextlib.contextmanager
def _no_fork_handlers() -> Iterator[None]:
    """For the import of gRPC and its first use, which is when it decides about them.

    They are for children that go on to use the channels of their parent; ours never do. A child that
    is forked during a call can hang in them for good: a worker of a data loader, and so the training.
    """
    if _FORK_SUPPORT in os.environ:  # the user knows better
        yield
        return
    os.environ[_FORK_SUPPORT] = "0"
    try:
        yield
    finally:
        os.environ.pop(_FORK_SUPPORT, None)
