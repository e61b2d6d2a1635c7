"""Where spans are made: in a provider that records every span, whatever steers the exporters."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanLimits, TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, Sampler

from otel_grpo import semconv
from otel_grpo._version import __version__
from otel_grpo.tracing.ids import GENERATOR

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from opentelemetry.trace import Link, Span

    from otel_grpo.tracing.light import LightSpans
    from otel_grpo.tracing.processor import AccountProcessor
    from otel_grpo.tracing.spans import Parent, StartSpan


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
            id_generator=GENERATOR,
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
    """Where our spans are made: for the files alone, or in a shared provider where a user gave one."""

    def __init__(
        self, light: LightSpans, processor: AccountProcessor, shared: TracerProvider | None
    ) -> None:
        self.light = light
        self.shared = shared is not None
        self.start: StartSpan = light.start if shared is None else self._start_shared
        # What the user himself makes in either is accounted for.
        self.provider = RecordingProvider(light.resource) if shared is None else shared
        self.provider.add_span_processor(processor)
        self._processor = processor
        self._tracer = self.provider.get_tracer(semconv.SCOPE, __version__)

    def close(self) -> None:
        """What starts or ends from now on is nobody's."""
        self.light.live = self._processor.live = False

    def _start_shared(
        self,
        name: str,
        parent: Parent | None,
        common: Mapping[str, Any],
        start_ns: int,
        phase: str | None = None,
        given: Mapping[str, Any] | None = None,
        links: Sequence[Link] = (),
    ) -> Span:
        """A span that is recorded whatever the sampler of the shared provider says."""
        # Ours last: they win, and a limit of the provider drops the first ones.
        own = self.light.clean(given) if given else {}
        attributes = {**own, **common, **({} if phase is None else {semconv.PHASE: phase})}
        span = self._tracer.start_span(
            name,
            Context() if parent is None else parent.context,
            attributes=attributes,
            links=links,
            start_time=start_ns,
        )
        if span.is_recording():
            return span
        return self.light.start(name, parent, common, start_ns, phase, given, links)
