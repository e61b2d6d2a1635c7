"""A private tracer provider that records every span, whatever steers the exporters."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanLimits, TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, Sampler

from otel_grpo import semconv
from otel_grpo._version import __version__
from otel_grpo.tracing.ids import UrandomIdGenerator

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import SpanProcessor
    from opentelemetry.trace import Link, Span
    from opentelemetry.util.types import Attributes


# The environment's limits are for back ends, and a low one would cut the phase's name or drop it.
# Our attributes are bounded where they are made.
_UNLIMITED = SpanLimits(
    max_attributes=SpanLimits.UNSET,
    max_events=SpanLimits.UNSET,
    max_links=SpanLimits.UNSET,
    max_span_attributes=SpanLimits.UNSET,
    max_event_attributes=SpanLimits.UNSET,
    max_link_attributes=SpanLimits.UNSET,
    max_attribute_length=SpanLimits.UNSET,
    max_span_attribute_length=SpanLimits.UNSET,
)


class RecordingProvider(TracerProvider):
    """The files hold all of every span: no sampler, no limit and no ``OTEL_SDK_DISABLED`` reaches
    them.

    Exporters are shut down by the run, within a bound: the provider does nothing at exit.
    """

    def __init__(self, resource: Resource, sampler: Sampler = ALWAYS_ON) -> None:
        super().__init__(
            resource=resource,
            sampler=sampler,
            id_generator=UrandomIdGenerator(),
            span_limits=_UNLIMITED,
            shutdown_on_exit=False,
        )
        # The SDK reads OTEL_SDK_DISABLED in its constructor and then hands out no-op tracers.
        self._disabled = False


def resource(attributes: Mapping[str, str | int | None]) -> Resource:
    """The standard resource of the environment with ours; OTEL_SERVICE_NAME wins over the default."""
    known = {key: value for key, value in attributes.items() if value is not None}
    base = Resource.create({semconv.SERVICE_INSTANCE_ID: str(uuid.uuid4())})
    if str(base.attributes.get(semconv.SERVICE_NAME, "")).startswith("unknown_service"):
        known[semconv.SERVICE_NAME] = "otel-grpo"
    return base.merge(Resource(known))


class Tracers:
    """Where our spans are made: a private provider, and a shared one where the user gave it."""

    def __init__(
        self, resource: Resource, processor: SpanProcessor, shared: TracerProvider | None
    ) -> None:
        self.provider: TracerProvider = RecordingProvider(resource)
        self.provider.add_span_processor(processor)
        self._private = self._tracer = self.provider.get_tracer(semconv.SCOPE, __version__)
        self.shared = shared is not None
        if shared is not None:
            shared.add_span_processor(processor)
            self.provider = shared
            self._tracer = shared.get_tracer(semconv.SCOPE, __version__)

    def start(
        self,
        name: str,
        context: Context,
        attributes: Attributes,
        start_ns: int,
        links: Sequence[Link] | None = None,
    ) -> Span:
        """A span that is recorded whatever the sampler of the shared provider says."""
        span = self._tracer.start_span(
            name, context, attributes=attributes, links=links, start_time=start_ns
        )
        if self.shared and not span.is_recording():
            return self.start_private(name, context, attributes, start_ns, links)
        return span

    def start_private(
        self,
        name: str,
        context: Context,
        attributes: Attributes,
        start_ns: int,
        links: Sequence[Link] | None = None,
    ) -> Span:
        """A span for the files alone."""
        return self._private.start_span(
            name, context, attributes=attributes, links=links, start_time=start_ns
        )
