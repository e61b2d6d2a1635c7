"""The open window of a run and what is left of it when it is closed."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from opentelemetry.context import Context
from opentelemetry.trace import Span, set_span_in_context

from otel_grpo.tracing.samples import Samples

if TYPE_CHECKING:
    from otel_grpo.core.ledger import WindowEvents
    from otel_grpo.core.timeline import Timeline
    from otel_grpo.records.merge import Merged
    from otel_grpo.records.model import Publication as PublicationRow
    from otel_grpo.tracing.account import Snapshot
    from otel_grpo.tracing.evidence import UpdateDraft
    from otel_grpo.tracing.publication import Publication
    from otel_grpo.tracing.sampler import Request
    from otel_grpo.tracing.scalars import Scalars


class Reading(Protocol):
    """One reading of memory and of a device; None where it is not known (`otel_grpo.devices`)."""

    @property
    def rank(self) -> int: ...
    @property
    def host(self) -> str: ...
    @property
    def pid(self) -> int: ...
    @property
    def device(self) -> int | None: ...
    @property
    def allocator_allocated(self) -> int | None: ...
    @property
    def allocator_reserved(self) -> int | None: ...
    @property
    def allocator_peak_allocated(self) -> int | None: ...
    @property
    def allocator_peak_reserved(self) -> int | None: ...
    @property
    def device_used(self) -> int | None: ...
    @property
    def device_total(self) -> int | None: ...
    @property
    def process_rss(self) -> int | None: ...
    @property
    def host_used(self) -> int | None: ...
    @property
    def host_total(self) -> int | None: ...
    @property
    def device_source(self) -> str | None: ...
    @property
    def utilization(self) -> int | None: ...
    @property
    def power_mw(self) -> int | None: ...
    @property
    def energy_mj(self) -> int | None: ...
    @property
    def temperature_c(self) -> int | None: ...


@dataclass(slots=True)
class Window:
    """One iteration while it is open."""

    iteration: int
    start_ns: int
    lane: int
    span: Span
    ids: tuple[int, int]  # of its trace and its span
    attributes: dict[str, Any]  # of every span in it
    publications: list[Publication] = field(default_factory=list)
    samples: Samples = field(default_factory=Samples)
    requests: list[Request] = field(default_factory=list)  # readings that its record waits for
    workers: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    scalars: list[Scalars] = field(default_factory=list)

    @property
    def context(self) -> Context:
        """Context for spans right below its own."""
        return set_span_in_context(self.span, Context())


@dataclass(slots=True)
class ClosedWindow:
    """A window whose record is not written yet: all that the record is built from."""

    window: Window
    end_ns: int
    aborted: bool
    error_type: str | None
    snapshot: Snapshot
    events: WindowEvents
    applied: int
    deadline_ns: int | None = None  # set when the next window has closed
    publications: list[PublicationRow] = field(default_factory=list)  # as its record will say
    drafts: list[UpdateDraft] = field(default_factory=list)  # that wait for the job's other ranks
    # Set on the writer's thread:
    built: bool = False  # its record is made
    trains: set[int] = field(default_factory=set)  # and those of these updates
    job: Merged | None = None
    times: Timeline = field(init=False)

    @property
    def waits(self) -> bool:
        """Whether a publication of this window is not confirmed yet."""
        return any(publication.completed_ns is None for publication in self.window.publications)
