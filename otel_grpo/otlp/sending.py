"""Sends the spans of a process, and metrics of it, by OTLP."""

from __future__ import annotations

import contextlib
import os
from functools import partial
from typing import TYPE_CHECKING, Any

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.sampling import TraceIdRatioBased

from otel_grpo import semconv
from otel_grpo._version import __version__
from otel_grpo.tracing.guard import ApiError, warn_of_loss

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from opentelemetry.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader
    from opentelemetry.sdk.resources import Resource

    from otel_grpo.metrics import Instruments
    from otel_grpo.otlp.answer import Transport
    from otel_grpo.otlp.pump import Pump
    from otel_grpo.otlp.settings import Settings
    from otel_grpo.records.model import Call, Contribution, PublicationCompleted, Record, SinkCounts
    from otel_grpo.tracing.guard import Guard
    from otel_grpo.tracing.live import LiveSources
    from otel_grpo.tracing.spans import Ended

SPANS = "otlp_spans"
METRICS = "otlp_metrics"


class OtlpLive:
    """See `tracing.live.Live`.

    Args:
        spans: where they go; None: nowhere.
        metrics: likewise.
        meter_provider: takes the metrics instead, and sends them as it likes.
    """

    def __init__(
        self,
        guard: Guard,
        settings: Settings,
        spans: Transport | None,
        metrics: Transport | None,
        meter_provider: MeterProvider | None = None,
    ) -> None:
        self._guard = guard
        self._share = TraceIdRatioBased(settings.share)
        self._meter_provider = meter_provider
        self._instruments: Instruments | None = None
        self._reader: InMemoryMetricReader | None = None
        self._pumps: list[Pump] = []
        self._told = False
        self._pid = os.getpid()
        #: A span is over. What is bound here is called for each: no step too many.
        self.span: Callable[[ReadableSpan | Ended], object] = _ignore
        if spans is not None:
            self._send_spans(spans, settings)
        if metrics is not None:
            self._send_metrics(metrics, settings)

    def _send_spans(self, transport: Transport, settings: Settings) -> None:
        from otel_grpo.otlp.limits import cut_span, encoded_spans
        from otel_grpo.otlp.pump import Pump

        pump = Pump(
            SPANS,
            transport,
            encoded_spans,
            cut=partial(cut_span, told=self._tell_of_cut),
            bound=settings.queue,
            batch=settings.batch,
            delay_s=settings.delay_s,
            on_error=self._guard.fault,
            on_warning=warn_of_loss,
        )
        self._pumps.append(pump)
        self.span = pump.put if settings.share == 1 else partial(self._put_sampled, pump.put)

    def _send_metrics(self, transport: Transport, settings: Settings) -> None:
        from opentelemetry.sdk.metrics import Histogram
        from opentelemetry.sdk.metrics.export import InMemoryMetricReader

        from otel_grpo.metrics.columns import Columns
        from otel_grpo.otlp.pump import Pump

        # A reader that waits to be asked: the SDK's periodic one starts a thread in forked children,
        # and its end has no bound.
        self._reader = InMemoryMetricReader(
            preferred_temporality=transport.exporter._preferred_temporality,
            preferred_aggregation=transport.exporter._preferred_aggregation,
        )
        self._columns = Columns(transport.exporter._preferred_temporality[Histogram])
        pump = Pump(
            METRICS,
            transport,
            lambda bodies: bodies[0],
            collect=self._collect,
            bound=0,
            batch=1,
            delay_s=settings.interval_s,
            on_error=self._guard.fault,
            on_warning=warn_of_loss,
        )
        self._pumps.append(pump)

    def start(self, resource: Resource, sources: LiveSources) -> None:
        try:
            self._instrument(resource, sources)
        except Exception as error:
            self._guard.fault("metrics.start", error)
        for pump in self._pumps:
            try:
                pump.start()
            except RuntimeError as error:  # no thread to be had
                self._guard.fault(f"{pump.name}.start", error)

    def made(self, item: Record | Contribution | Call | PublicationCompleted) -> None:
        # A forked child may have got the SDK's locks as another thread held them.
        if self._instruments is not None and os.getpid() == self._pid:
            try:
                self._instruments.made(item)
            except Exception as error:
                self._guard.fault("metrics.made", error)

    def counts(self) -> dict[str, SinkCounts]:
        return {pump.name: pump.counts() for pump in self._pumps}

    def hurry(self) -> None:
        for pump in self._pumps:
            if pump.name == SPANS:  # metrics have their last values after the last record
                pump.hurry()

    def close(self, timeout_s: float) -> None:
        for pump in self._pumps:
            pump.close(timeout_s)
        for pump in self._pumps:
            pump.join()
        self._tell_of_loss()

    def _tell_of_loss(self) -> None:
        counts = self.counts().items()
        lost = {name: n.dropped + (n.unconfirmed or 0) for name, n in counts}
        told = ", ".join(f"{name} {n}" for name, n in lost.items() if n)
        if told and not self._told:
            self._told = True
            warn_of_loss("otlp", "lost", f"not taken, or nobody said that it arrived: {told}")

    def _instrument(self, resource: Resource, sources: LiveSources) -> None:
        from otel_grpo.metrics import Instruments

        if self._reader is not None:
            from opentelemetry.sdk.metrics import MeterProvider

            from otel_grpo.metrics.views import views

            own = MeterProvider([self._reader], resource, shutdown_on_exit=False, views=views())
            meter = own.get_meter(semconv.SCOPE, __version__)
            self._instruments = Instruments(
                meter,
                sources,
                sent=self.counts,
                traced=self._is_sent,
                columns=self._columns,
                on_error=self._guard.fault,
            )
        elif self._meter_provider is not None:
            meter = self._meter_provider.get_meter(semconv.SCOPE, __version__)
            self._instruments = Instruments(
                meter, sources, sent=self.counts, on_error=self._guard.fault
            )

    def _collect(self) -> Sequence[bytes]:
        from otel_grpo.otlp.limits import encoded_metrics

        assert self._reader is not None
        data = self._columns.added_to(self._reader.get_metrics_data())
        return [] if data is None else encoded_metrics(data)

    def _is_sent(self, trace_id: int) -> bool:
        """Whether a trace goes out: all of it or nothing."""
        limit = TraceIdRatioBased.TRACE_ID_LIMIT
        return self.span is not _ignore and trace_id & limit < self._share.bound

    def _put_sampled(self, put: Callable[[Any], object], span: ReadableSpan | Ended) -> None:
        try:
            ended = span if isinstance(span, ReadableSpan) else span.readable()
            if self._is_sent(ended.context.trace_id):
                put(ended)
        except Exception as error:
            self._guard.fault("otlp.sampler", error)

    def _tell_of_cut(self, message: str) -> None:
        with contextlib.suppress(ApiError):
            self._guard.misuse("span_size", message)


def _ignore(span: ReadableSpan | Ended) -> None:
    """No spans are sent."""
