"""What `opentelemetry-instrument` loads: one class for each trainer, all by this pattern."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from opentelemetry import trace
from opentelemetry.instrumentation.instrumentor import BaseInstrumentor  # type: ignore[attr-defined]

from otel_grpo import instrumentation

if TYPE_CHECKING:
    from collections.abc import Collection

    from opentelemetry.sdk.trace import TracerProvider


class TrainerInstrumentor(BaseInstrumentor):  # type: ignore[misc]  # its module switches the checker off
    """Switches the adapters on where the trainer of `requirement` is installed.

    Its spans go to the provider that is given, else to the process's global one if that is an SDK's;
    then other instrumentations' spans have ours as parents. The files are written either way.
    """

    requirement: ClassVar[str]

    def instrumentation_dependencies(self) -> Collection[str]:
        """The releases of the trainer that are supported."""
        return (self.requirement,)

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
