"""What a provider of ours is made with, so that collecting metrics draws no random number."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from opentelemetry.context import Context
from opentelemetry.sdk.metrics import (
    AlignedHistogramBucketExemplarReservoir,
    Exemplar,
    ExemplarReservoir,
)
from opentelemetry.sdk.metrics.view import View
from opentelemetry.trace import get_current_span
from opentelemetry.util.types import Attributes


class LastExemplar(ExemplarReservoir):
    """Keeps the last measurement. The SDK's reservoir of one draws which to keep from `random`."""

    def __init__(self) -> None:
        self._last: Exemplar | None = None

    def offer(
        self, value: float, time_unix_nano: int, attributes: Attributes, context: Context
    ) -> None:
        span = get_current_span(context).get_span_context()
        ids = (span.span_id, span.trace_id) if span.is_valid else (None, None)
        # Without attributes: it has none that its point has not.
        self._last = Exemplar({}, value, time_unix_nano, *ids)

    def collect(self, point_attributes: Attributes) -> list[Exemplar]:
        last, self._last = self._last, None
        return [] if last is None else [last]


def views() -> list[View]:
    """One view, of all instruments, with their own aggregations and reservoirs that draw nothing."""
    make: Any = _reservoir  # which is called with keywords, whatever the SDK's type says
    return [View(instrument_name="*", exemplar_reservoir_factory=lambda _: make)]


def _reservoir(boundaries: Sequence[float] | None = None, **_: Any) -> ExemplarReservoir:
    """One exemplar for each bucket where there are bounds of buckets, else one."""
    if boundaries is None:
        return LastExemplar()
    return AlignedHistogramBucketExemplarReservoir(boundaries)
