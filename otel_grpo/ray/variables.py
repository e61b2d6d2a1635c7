"""OpenTelemetry's standard variables, as a driver hands them to its workers on other machines."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping

_PREFIXES = (
    "OTEL_BSP_",
    "OTEL_EXPORTER_OTLP_",
    "OTEL_METRICS_EXPORTER",
    "OTEL_METRIC_EXPORT_INTERVAL",
    "OTEL_SDK_DISABLED",
    "OTEL_TRACES_EXPORTER",
    "OTEL_TRACES_SAMPLER",
)
# What Ray is told it keeps where others can read it: a worker has these from its own machine, or not.
_SECRET = ("_HEADERS", "_CLIENT_KEY", "_CLIENT_CERTIFICATE")


def to_hand_over(environ: Mapping[str, str]) -> dict[str, str]:
    """Those that say where spans and metrics go, without secrets."""
    return {
        name: value
        for name, value in environ.items()
        if name.startswith(_PREFIXES) and not name.endswith(_SECRET) and "@" not in value
    }


@contextlib.contextmanager
def lent(variables: Mapping[str, str]) -> Iterator[None]:
    """Within the block they are set, where the process has no values of its own."""
    ours = {name: value for name, value in variables.items() if name not in os.environ}
    os.environ.update(ours)
    try:
        yield
    finally:
        for name in ours:
            os.environ.pop(name, None)
