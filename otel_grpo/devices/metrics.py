"""Devices as OpenTelemetry metrics: what the sampler read last. No callback asks a driver."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

from opentelemetry.metrics import Observation

from otel_grpo import semconv

if TYPE_CHECKING:
    from otel_grpo.records.model import Device


class Placed(Protocol):
    """A reading, as far as all of them are alike."""

    @property
    def device(self) -> int | None: ...


Latest = Callable[[], Iterable[Placed]]
Answer = Callable[[], Iterable[Observation]]


def answers(devices: Sequence[Device], latest: Latest) -> dict[str, Answer]:
    """What each metric has to say, by its name. What is not known has no point.

    Args:
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

    first: dict[object, float] = {}

    def energy() -> Iterator[Observation]:
        # What the driver counted before would seem to have been taken since the process started.
        for told in points("energy_mj"):
            device = (told.attributes or {})[semconv.HW_ID]
            first[device] = since = min(first.get(device, told.value), told.value)
            yield Observation((told.value - since) / 1000, told.attributes)

    def allocator(prefix: str) -> Iterator[Observation]:
        for kind in ("allocated", "reserved"):
            yield from points(f"{prefix}{kind}", kind=kind)

    def resident() -> Iterator[Observation]:
        # Each reading, one for each device, has it.
        known = [getattr(reading, "process_rss", None) for reading in latest()]
        yield from (Observation(value) for value in known[:1] if value is not None)

    return {
        semconv.PROCESS_MEMORY_USAGE: resident,
        semconv.ALLOCATOR_MEMORY: lambda: allocator("allocator_"),
        semconv.ALLOCATOR_MEMORY_PEAK: lambda: allocator("allocator_peak_"),
        semconv.HW_GPU_MEMORY_USAGE: lambda: points("device_used"),
        semconv.HW_GPU_MEMORY_LIMIT: lambda: points("device_total"),
        semconv.HW_GPU_UTILIZATION: lambda: points("utilization", 100),
        semconv.HW_POWER: lambda: points("power_mw", 1000),
        semconv.HW_TEMPERATURE: lambda: points("temperature_c"),
        semconv.HW_ENERGY: energy,
    }
