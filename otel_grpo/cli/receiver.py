"""The way to a collector, as a run would take it: by the standard variables, or to a URL."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from otel_grpo.cli import endpoint
from otel_grpo.cli.problem import Problem

if TYPE_CHECKING:
    from otel_grpo.otlp.answer import Signal
    from otel_grpo.otlp.over_grpc import GrpcTransport
    from otel_grpo.otlp.over_http import HttpTransport
    from otel_grpo.otlp.settings import Protocol

# They switch sending off in a run. Who calls a command that sends wants it on.
_SWITCHES = ("OTEL_SDK_DISABLED", "OTEL_TRACES_EXPORTER", "OTEL_METRICS_EXPORTER")
_SAMPLING = ("OTEL_TRACES_SAMPLER", "OTEL_TRACES_SAMPLER_ARG")
EXTRAS = {"http/protobuf": "otlp", "grpc": "otlp-grpc"}


def point_to(url: str) -> None:
    """Makes this process send to the URL, whatever the environment said."""
    os.environ[endpoint.ENDPOINT] = endpoint.checked(url)
    for name in endpoint.OF_SIGNALS:
        os.environ.pop(name, None)


def protocols() -> dict[Signal, Protocol | None]:
    """How each signal is sent: as a run would, were sending not switched off."""
    from otel_grpo.otlp.settings import read
    from otel_grpo.tracing.guard import Guard

    kept = {key: value for key, value in os.environ.items() if key not in (*_SWITCHES, *_SAMPLING)}
    settings = read(kept, Guard(strict=False))
    return {"traces": settings.spans, "metrics": settings.metrics}


def transport(signal: Signal, protocol: Protocol) -> HttpTransport | GrpcTransport:
    """Raises Problem where a library is missing or a variable can't be read."""
    try:
        if protocol == "grpc":
            from otel_grpo.otlp.over_grpc import GrpcTransport

            return GrpcTransport(signal)
        from otel_grpo.otlp.over_http import HttpTransport

        return HttpTransport(signal)
    except ModuleNotFoundError as error:
        mend = f"pip install 'otel-grpo[{EXTRAS[protocol]}]'"
        raise Problem(
            f"{error.name} is not installed", where=f"OTLP by {protocol}", mend=mend
        ) from error
    except Exception as error:  # a variable that the exporter can't read, or its own change
        what = f"{type(error).__name__}: {error}"
        raise Problem(
            what, where=f"the exporter of {signal}", mend="see OTEL_EXPORTER_OTLP_*"
        ) from error
