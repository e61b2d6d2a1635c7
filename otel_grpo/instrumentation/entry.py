"""What `opentelemetry-instrument` loads: one class for each trainer, all by this pattern."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from opentelemetry import metrics, trace
from opentelemetry.instrumentation.instrumentor import BaseInstrumentor  # type: ignore[attr-defined]

from otel_grpo import instrumentation
from otel_grpo.instrumentation.base import Providers

if TYPE_CHECKING:
    from collections.abc import Collection

    from opentelemetry.metrics import MeterProvider
    from opentelemetry.sdk.trace import TracerProvider


class TrainerInstrumentor(BaseInstrumentor):  # type: ignore[misc]  # its module switches the checker off
    """Switches the adapters on where the trainer of `requirement` is installed.

    Spans and metrics go to the providers that are given, else to the process's global ones if they
    are an SDK's; other instrumentations' spans then have ours as parents. The files are written
    either way.
    """

    requirement: ClassVar[str]

    def instrumentation_dependencies(self) -> Collection[str]:
        """The releases of the trainer that are supported."""
        return (self.requirement,)

    def _instrument(
        self,
        *,
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
        **_: Any,
    ) -> None:
        def providers() -> Providers:
            known = _global_providers()
            return Providers(tracer_provider or known.tracer, meter_provider or known.meter)

        instrumentation.instrument(providers=providers)

    def _uninstrument(self, **_: Any) -> None:
        instrumentation.uninstrument()


def _global_providers() -> Providers:
    """Looked up when a training starts: they may be set after the instrumentor was loaded."""
    from opentelemetry.sdk.metrics import MeterProvider as SdkMeters
    from opentelemetry.sdk.trace import TracerProvider as SdkTracers

    tracers, meters = trace.get_tracer_provider(), metrics.get_meter_provider()
    return Providers(
        tracers if isinstance(tracers, SdkTracers) else None,
        meters if isinstance(meters, SdkMeters) else None,
    )
