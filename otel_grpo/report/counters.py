"""The numbers of windows and the readings of memory and devices, as rows that show a number."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import UNSET

from otel_grpo.records.model import Hardware, Memory, World
from otel_grpo.report.track_events import Trace

# First word of the names of a window's numbers that are drawn -> unit.
_OF_WINDOWS = {"tokens": "token", "samples": "sample", "throughput": "token/s/device"}

# Columns of readings -> whose they are. All are bytes.
_MEMORY = {
    "allocator_allocated": "rank",
    "allocator_reserved": "rank",
    "allocator_peak_allocated": "rank",
    "allocator_peak_reserved": "rank",
    "process_rss": "rank",
    "device_used": "device",
    "device_total": "device",
    "host_used": "host",
    "host_total": "host",
}
_HARDWARE = {"utilization": "%", "power_mw": "mW", "energy_mj": "mJ", "temperature_c": "Cel"}


class Counters:
    """Of one attempt; a row is made when it has its first number."""

    def __init__(self, trace: Trace, parent: int, rank: int, world: World) -> None:
        """Args:
        parent: the group that they are shown in, from place `rank` on.
        world: whose devices the readings point into.
        """
        self._trace = trace
        self._parent = parent
        self._rank = rank
        self._devices = world.devices
        self._groups: dict[str, int] = {}
        self._tracks: dict[tuple[str, str], int] = {}

    def window(self, start_ns: int, numbers: Mapping[str, float]) -> None:
        """A window's numbers, from its start on."""
        for name, value in numbers.items():
            unit = _OF_WINDOWS.get(name.split(".", 1)[0])
            if unit is not None:
                self._sample("in each window", name, start_ns, value, unit)

    def memory(self, memory: Memory) -> None:
        """Each reading, at its instant."""
        for name, kind in _MEMORY.items():
            column = getattr(memory, name)
            owners = getattr(memory, kind)
            if column is UNSET or owners is UNSET:
                continue
            for instant, owner, value in zip(memory.instant, owners, column, strict=False):
                if value is not None:
                    said = self._device(owner) if kind == "device" else f"memory of {kind} {owner}"
                    self._sample(said, name, instant, value, "bytes")

    def hardware(self, hardware: Hardware) -> None:
        """What the driver said of the devices, at its instants."""
        for name, unit in _HARDWARE.items():
            column = getattr(hardware, name)
            if column is UNSET:
                continue
            rows = zip(hardware.instant, hardware.device, column, strict=False)
            for instant, device, value in rows:
                if value is not None:
                    self._sample(self._device(device), name, instant, value, unit)

    def _device(self, number: int | None) -> str:
        if number is None or number >= len(self._devices):
            return f"device {number}"
        return f"device {self._devices[number].id}"

    def _sample(self, group: str, name: str, at_ns: int, value: float, unit: str) -> None:
        track = self._tracks.get((group, name))
        if track is None:
            parent = self._groups.get(group)
            if parent is None:
                place = self._rank + len(self._groups)
                parent = self._groups[group] = self._trace.track(group, self._parent, place)
            track = self._trace.counter(name, parent, len(self._tracks), unit)
            self._tracks[group, name] = track
        self._trace.sample(track, at_ns, value)
