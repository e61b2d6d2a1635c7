"""What this process, its devices and its host hold at an instant."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from otel_grpo.devices import host, torch
from otel_grpo.devices.inventory import Used, used_devices
from otel_grpo.devices.nvml import Nvml
from otel_grpo.devices.reading import OnError, Reading, attempt, ignore
from otel_grpo.records.model import Device

HOST = "devices.host"
PROCESS = "devices.process"


class Reader:
    """Reads a row for each device that this process uses; the caller adds the instant.

    Make it on the thread that trains: which device is the current one is a fact of a thread. Call it
    on any: the statistics of torch's allocators and the driver's figures belong to a device, are
    read under locks of their own, and no thread's current device is changed.

    Args:
        rank: of this process.
        devices: the inventory that the readings' `device` points into, by default this process's own
            at each call. A device that is not in it has None.
        on_error: told of what can't be read, which is None. Where even the devices can't be told,
            there is one reading, of the process and its host.
    """

    def __init__(
        self, rank: int, *, devices: Sequence[Device] | None = None, on_error: OnError = ignore
    ) -> None:
        self._rank = rank
        self._devices = devices
        self._on_error = on_error
        self._current = attempt(torch.PROBE, torch.current_ordinal, on_error)
        self._nvml = Nvml()

    def __call__(self) -> list[Reading]:
        used = used_devices(self._current, self._on_error)
        job = [each.device for each in used] if self._devices is None else self._devices
        positions = {device.id: index for index, device in enumerate(job)}
        common = self._common()
        return [
            Reading(**common, device=positions.get(each.device.id), **self._of_device(each))
            for each in used
        ] or [Reading(**common)]

    def _of_device(self, used: Used) -> dict[str, Any]:
        if used.found is None or used.slot is None:
            return {}
        values: dict[str, Any] = dict(torch.allocator_memory(used.slot))
        if used.device.id.startswith(("GPU-", "MIG-")):
            values |= self._nvml.read(used.device.id, self._on_error)
        if "device_used" in values:
            values["device_source"] = "nvml"
        elif driver := torch.driver_memory(used.found, used.slot, self._on_error):
            values |= driver | {"device_source": "torch"}
        return values

    def _common(self) -> dict[str, Any]:
        memory = attempt(HOST, host.host_memory, self._on_error)
        return {
            "rank": self._rank,
            "host": host.host_name(),
            "pid": os.getpid(),
            "process_rss": attempt(PROCESS, host.process_rss, self._on_error),
            "host_used": memory and memory.used,
            "host_total": memory and memory.total,
        }
