"""Devices as OpenTelemetry metrics, by the SDK's own reader."""

from __future__ import annotations

from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

import otel_grpo
from otel_grpo.devices import Reading
from otel_grpo.devices.metrics import answers
from otel_grpo.records.model import Device


@pytest.fixture(autouse=True)
def _only_when_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_GRPO_SAMPLE_INTERVAL", "0")


def points(reader: InMemoryMetricReader) -> dict[str, Any]:
    """``{name: (unit, [(attributes, value)])}`` of what the reader gets of devices and memory."""
    data = reader.get_metrics_data()
    return {
        metric.name: (
            metric.unit,
            [(dict(point.attributes or {}), point.value) for point in metric.data.data_points],
        )
        for resource in (data.resource_metrics if data else ())
        for scope in resource.scope_metrics
        for metric in scope.metrics
        if metric.name.startswith(("hw.", "process.", "rl.allocator."))
    }


def test_the_last_reading_in_the_units_of_the_conventions(tmp_path: Any) -> None:
    """Joules from mJ, watts from mW, a fraction from percent; one series a device; nothing that is
    not known; nothing before the first reading and after the run; no call of a driver.
    """
    calls = []

    def readings() -> list[Reading]:
        calls.append(1)
        return [
            Reading(
                0, "h", 1, device=0, allocator_allocated=5, allocator_reserved=7,
                allocator_peak_reserved=9, device_used=30, device_total=96, utilization=87,
                power_mw=650_500, energy_mj=5_250, temperature_c=61, process_rss=3,
            ),
            Reading(0, "h", 1, device=1, device_used=40),
            Reading(0, "h", 1, device=None, device_used=50),
        ]  # fmt: skip

    reader = InMemoryMetricReader()
    provider = MeterProvider(metric_readers=[reader], shutdown_on_exit=False)
    devices = [Device("GPU-a", "cuda", "h"), Device("MIG-b", "cuda", "h")]
    with otel_grpo.start_run(
        tmp_path / "run", trainer="loop", devices=devices, readings=readings,
        meter_provider=provider,
    ) as run:  # fmt: skip
        assert points(reader) == {}
        with run.iteration() as it:
            it.memory()
            run.sampler.wait(run.window.requests)
            a = {"hw.id": "GPU-a", "hw.type": "gpu"}
            b = {"hw.id": "MIG-b", "hw.type": "gpu"}
            asked = len(calls)
            assert points(reader) == {
                "process.memory.usage": ("By", [({}, 3)]),
                "hw.gpu.memory.usage": ("By", [(a, 30), (b, 40)]),
                "hw.gpu.memory.limit": ("By", [(a, 96)]),
                "hw.gpu.utilization": ("1", [(a, 0.87)]),
                "hw.power": ("W", [(a, 650.5)]),
                "hw.energy": ("J", [(a, 0)]),
                "hw.temperature": ("Cel", [(a, 61)]),
                "rl.allocator.memory": (
                    "By",
                    [
                        (a | {"rl.allocator.kind": "allocated"}, 5),
                        (a | {"rl.allocator.kind": "reserved"}, 7),
                    ],
                ),
                "rl.allocator.memory.peak": ("By", [(a | {"rl.allocator.kind": "reserved"}, 9)]),
            }
            assert len(calls) == asked
    assert points(reader) == {}
    provider.shutdown()


def test_energy_counts_from_where_the_driver_was_when_it_was_first_read() -> None:
    """A counter with a start that is not 0 grows by it in whoever adds its 0; a driver that begins
    anew takes nothing back.
    """
    told: list[Reading] = []
    energy = answers([Device("GPU-a", "cuda", "h")], lambda: told)["hw.energy"]
    joules = []
    for millijoules in (9_000_000, 9_002_500, 9_004_000, 500, 1_500):
        told[:] = [Reading(0, "h", 1, device=0, energy_mj=millijoules)]
        joules += [point.value for point in energy()]
    assert joules == [0, 2.5, 4, 0, 1]


def test_names_and_units_are_those_of_the_conventions() -> None:
    """Against the package of the semantic conventions, so that a rename there is seen."""
    from opentelemetry.semconv._incubating.metrics import hw_metrics

    from otel_grpo import semconv

    for name in (
        "HW_ENERGY",
        "HW_GPU_MEMORY_LIMIT",
        "HW_GPU_MEMORY_USAGE",
        "HW_GPU_UTILIZATION",
        "HW_POWER",
        "HW_TEMPERATURE",
    ):
        assert getattr(semconv, name) == getattr(hw_metrics, name)


def test_a_meter_that_fails_costs_no_run(tmp_path: Any) -> None:
    """The run goes on and says that the metrics are missing."""

    class Broken(MeterProvider):
        def get_meter(self, *args: Any, **kwargs: Any) -> Any:
            raise RuntimeError("no meter")

    with otel_grpo.start_run(
        tmp_path / "run", trainer="loop", devices=[], readings=list,
        meter_provider=Broken(shutdown_on_exit=False),
    ) as run:  # fmt: skip
        assert run.live
    assert run.guard.errors["metrics.start"] == 1
