"""TRL's GRPOTrainer, observed from outside."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from opentelemetry import trace
from opentelemetry.instrumentation.instrumentor import BaseInstrumentor  # type: ignore[attr-defined]

from otel_grpo import instrumentation
from otel_grpo.instrumentation.trl import contract

if TYPE_CHECKING:
    from collections.abc import Collection

    from opentelemetry.sdk.trace import TracerProvider

__all__ = ["TrlInstrumentor"]


class TrlInstrumentor(BaseInstrumentor):  # type: ignore[misc]  # its module switches the checker off
    """What `opentelemetry-instrument` loads.

    Its spans go to the provider that is given, else to the process's global one if that is an SDK's;
    then other instrumentations' spans have ours as parents. The files are written either way.
    """

    def instrumentation_dependencies(self) -> Collection[str]:
        """The releases of TRL that are supported."""
        return (f"{contract.PACKAGE} {contract.SUPPORTED}",)

    def _instrument(self, *, tracer_provider: TracerProvider | None = None, **_: Any) -> None:
        def provider() -> TracerProvider | None:
            return tracer_provider or _global_provider()

        instrumentation.instrument(provider=provider)

    def _uninstrument(self, **_: Any) -> None:
        instrumentation.uninstrument()


def _global_provider() -> TracerProvider | None:
    """Looked up when a training starts: the provider may be set after the instrumentor was loaded."""
    from opentelemetry.sdk.trace import TracerProvider as SdkProvider

    provider = trace.get_tracer_provider()
    return provider if isinstance(provider, SdkProvider) else None
