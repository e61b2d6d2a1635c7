"""Devices as OpenTelemetry metrics: what the sampler read last. No callback asks a driver."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

from opentelemetry.metrics import CallbackOptions, Observation

from otel_grpo import semconv

if TYPE_CHECKING:
    from opentelemetry.metrics import Meter

    from otel_grpo.records.model import Device


class Placed(Protocol):
    """A reading, as far as all of them are alike."""

    @property
    def device(self) -> int | None: ...


Latest = Callable[[], Iterable[Placed]]


def register(meter: Meter, devices: Sequence[Device], latest: Latest) -> None:
    """Instruments for each device that has a reading; one that is not known has no point.

    Args:
        meter: of any provider.
        devices: the inventory that the readings' `device` points into.
        latest: the last readings; called on the exporter's thread.
    """

    def points(field: str, per: float = 1, kind: str | None = None) -> Iterator[Observation]:
        for reading in latest():
            value = getattr(reading, field, None)
            if value is not None and reading.device is not None:
                attributes = {
                    semconv.HW_ID: devices[reading.device].id,
                    semconv.HW_TYPE: semconv.HW_TYPE_GPU,
                }
                if kind is not None:
                    attributes[semconv.ALLOCATOR_KIND] = kind
                yield Observation(value if per == 1 else value / per, attributes)

    def resident(_: CallbackOptions) -> Iterator[Observation]:
        # Each reading, one for each device, has it.
        known = [getattr(reading, "process_rss", None) for reading in latest()]
        yield from (Observation(value) for value in known[:1] if value is not None)

    def of(field: str, per: float = 1) -> Callable[[CallbackOptions], Iterable[Observation]]:
        return lambda _: points(field, per)

    def of_allocator(prefix: str) -> Callable[[CallbackOptions], Iterable[Observation]]:
        def both(_: CallbackOptions) -> Iterator[Observation]:
            for kind in ("allocated", "reserved"):
                yield from points(f"{prefix}{kind}", kind=kind)

        return both

    level = meter.create_observable_up_down_counter
    gauge = meter.create_observable_gauge
    level(semconv.HW_GPU_MEMORY_USAGE, [of("device_used")], "By", "GPU memory used.")
    level(semconv.HW_GPU_MEMORY_LIMIT, [of("device_total")], "By", "Size of the GPU memory.")
    gauge(
        semconv.HW_GPU_UTILIZATION,
        [of("utilization", 100)],
        "1",
        "Fraction of time in which the GPU was at work.",
    )
    gauge(semconv.HW_POWER, [of("power_mw", 1000)], "W", "Power that the device takes.")
    gauge(semconv.HW_TEMPERATURE, [of("temperature_c")], "Cel", "Temperature of the device.")
    level(semconv.PROCESS_MEMORY_USAGE, [resident], "By", "Resident memory of the process.")
    meter.create_observable_counter(
        semconv.HW_ENERGY, [of("energy_mj", 1000)], "J", "Energy since the driver was loaded."
    )
    level(
        semconv.ALLOCATOR_MEMORY,
        [of_allocator("allocator_")],
        "By",
        "Memory of the trainer's allocator.",
    )
    gauge(
        semconv.ALLOCATOR_MEMORY_PEAK,
        [of_allocator("allocator_peak_")],
        "By",
        "The most since the process started or the trainer reset it.",
    )
