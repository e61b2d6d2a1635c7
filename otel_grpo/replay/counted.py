"""What a process would have counted until an instant, by the live view's own table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import UNSET
from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from otel_grpo import semconv
from otel_grpo._version import __version__
from otel_grpo.core.clock import Clock
from otel_grpo.devices.reading import Reading
from otel_grpo.metrics import Instruments
from otel_grpo.metrics.views import views
from otel_grpo.records.model import (
    Call,
    Contribution,
    Device,
    Hardware,
    Memory,
    Observed,
    PublicationCompleted,
    Record,
    RolloutRecord,
    SinkCounts,
    WorkerMemory,
)
from otel_grpo.tracing.live import LiveSources

Item = Record | PublicationCompleted | Contribution | Call | WorkerMemory

# What was open at an instant is in no record.
_NOT_KNOWN = frozenset(
    {semconv.PHASE_ACTIVE, semconv.PHASE_ACTIVE_DURATION, semconv.LOOP_ACTIVE_DURATION}
)


class Counted:
    """The metrics of one process.

    Args:
        resource: of the process.
        started_ns: since when it counted.
        devices: that its readings point into.
        job: whether it wrote the records.
    """

    def __init__(
        self, resource: Resource, started_ns: int, devices: Sequence[Device], *, job: bool
    ) -> None:
        self._resource = resource
        self._started_ns = started_ns
        self._reader = InMemoryMetricReader()
        provider = MeterProvider([self._reader], shutdown_on_exit=False, views=views())
        self._observed = Observed(sinks={"metrics_raw": SinkCounts()} if job else {})
        self._readings: dict[int | None, Reading] = {}
        sources = LiveSources(
            clock=Clock.read(),
            open_window=lambda: None,
            self_ns=lambda: self._observed.self_ns,
            files=lambda: self._observed.sinks,
            devices=devices,
            readings=lambda: list(self._readings.values()),
        )
        meter = provider.get_meter(semconv.SCOPE, __version__)
        self._instruments = Instruments(meter, sources, traced=lambda _: True)
        self._silent = frozenset() if job else frozenset(_OBSERVED)

    def add(self, item: Item) -> None:
        """Count an item; they come in the order in which they were made."""
        if isinstance(item, WorkerMemory):
            self._read(item.memory, UNSET, None)
            return
        if isinstance(item, RolloutRecord):
            self._read(item.attributes.memory, item.attributes.hardware, 0)
        elif isinstance(item, Contribution):
            self._read(item.attributes.memory, item.attributes.hardware, None)
        if not isinstance(item, PublicationCompleted | Contribution | Call):
            self._observed = item.observed
        self._instruments.made(item)

    def _read(self, memory: Any, hardware: Any, rank: int | None) -> None:
        """The last readings of each device; those of `rank` alone: others tell of theirs."""
        rows: dict[int | None, dict[str, Any]] = {}
        for row in range(0 if memory is UNSET else len(memory.instant)):
            if rank is None or memory.rank[row] == rank:
                device = None if memory.device is UNSET else memory.device[row]
                own = {"rank": memory.rank[row], "host": memory.host[row], "pid": memory.pid[row]}
                rows[device] = {**rows.get(device, {}), **own, **_known(memory, row)}
        for row in range(0 if hardware is UNSET else len(hardware.instant)):
            if hardware.device[row] in rows:
                rows[hardware.device[row]].update(_known(hardware, row))
        self._readings.update(
            {device: Reading(device=device, **fields) for device, fields in rows.items()}
        )

    def collect(self, at_ns: int) -> ExportMetricsServiceRequest:
        """All metrics, as of an instant."""
        data = self._reader.get_metrics_data()
        request = ExportMetricsServiceRequest() if data is None else encode_metrics(data)
        for of_resource in request.resource_metrics:
            of_resource.resource.CopyFrom(self._resource)
        _keep(request, lambda metric: metric.name not in _NOT_KNOWN | self._silent)
        for metric in _metrics(request):
            for point in _points(metric):
                point.time_unix_nano = at_ns
                if not metric.HasField("gauge"):
                    point.start_time_unix_nano = self._started_ns
                for exemplar in point.exemplars:
                    exemplar.time_unix_nano = at_ns
        return request

    def zeros(self, last: ExportMetricsServiceRequest) -> ExportMetricsServiceRequest:
        """The counters and histograms of a request, before anything was counted."""
        zeros = ExportMetricsServiceRequest()
        zeros.CopyFrom(last)
        _keep(zeros, _is_added_up)
        for metric in _metrics(zeros):
            for point in _points(metric):
                point.time_unix_nano = self._started_ns
                del point.exemplars[:]
                if metric.HasField("histogram"):
                    point.count, point.sum = 0, 0.0
                    point.ClearField("min")
                    point.ClearField("max")
                    point.bucket_counts[:] = [0] * len(point.bucket_counts)
                elif point.HasField("as_int"):
                    point.as_int = 0
                else:
                    point.as_double = 0.0
        return zeros


# What a process says of itself and writes into no line that is read here.
_OBSERVED = (semconv.TELEMETRY_RECORDS, semconv.TELEMETRY_SELF_TIME)


def _known(table: Memory | Hardware, row: int) -> dict[str, Any]:
    fields = {}
    for name in Reading.__dataclass_fields__.keys() - {"rank", "host", "pid", "device"}:
        column = getattr(table, name, UNSET)
        if column is not UNSET and column[row] is not None:
            fields[name] = column[row]
    return fields


def _keep(request: ExportMetricsServiceRequest, wanted: Any) -> None:
    for of_resource in request.resource_metrics:
        for scope in of_resource.scope_metrics:
            kept = [metric for metric in scope.metrics if wanted(metric)]
            del scope.metrics[:]
            scope.metrics.extend(kept)


def _metrics(request: ExportMetricsServiceRequest) -> list[Metric]:
    return [
        metric
        for of_resource in request.resource_metrics
        for scope in of_resource.scope_metrics
        for metric in scope.metrics
    ]


def _points(metric: Metric) -> Any:
    kind = metric.WhichOneof("data")
    return () if kind is None else getattr(metric, kind).data_points


def _is_added_up(metric: Metric) -> bool:
    return metric.HasField("histogram") or (metric.HasField("sum") and metric.sum.is_monotonic)
