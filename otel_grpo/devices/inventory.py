"""Which physical devices this process uses, and what they and it hold at this instant."""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from typing import Any, NamedTuple

from otel_grpo.devices import host, torch
from otel_grpo.devices.reading import OnError, Reading, attempt, ignore
from otel_grpo.records.model import Device

HOST = "devices.host"
PROCESS = "devices.process"
IDENTITY = "devices.identity"


def inventory(*, on_error: OnError = ignore) -> list[Device]:
    """The devices that this process uses now; empty if that can't be told.

    A device's id is its UUID where the driver knows it, else ``host:index``. A process that has not
    initialised an accelerator is one device of its own, ``cpu:<host>:<pid>``: ask when the trainer
    has placed its model.
    """
    return [each.device for each in _used(on_error)]


def readings(
    rank: int, *, devices: Sequence[Device] | None = None, on_error: OnError = ignore
) -> list[Reading]:
    """A reading for each device that this process uses; the caller adds the instant.

    `devices` is the inventory that the readings' `device` points into, by default this process's
    own as it is now. A device that is not in it has None. What can't be read is None and told to
    `on_error`; where even the devices can't be told, one reading has the process and its host.
    """
    used = _used(on_error)
    positions = {
        device.id: index
        for index, device in enumerate([u.device for u in used] if devices is None else devices)
    }
    common = _common(rank, on_error)
    return [
        Reading(**common, device=positions.get(each.device.id), **_memory(each, on_error))
        for each in used
    ] or [Reading(**common)]


class _Used(NamedTuple):
    """A device that this process uses, and where torch has it."""

    device: Device
    found: torch.Accelerator | None = None
    slot: torch.Slot | None = None


def _used(on_error: OnError) -> list[_Used]:
    probe = attempt(torch.PROBE, functools.partial(_probe, on_error), on_error)
    if probe is None:
        return []
    found, slots = probe
    if found is None:
        return [_Used(_cpu(os.getpid()))]
    return [_Used(_identify(found, slot.ordinal, on_error), found, slot) for slot in slots]


def _probe(on_error: OnError) -> tuple[torch.Accelerator | None, list[torch.Slot]]:
    found = torch.accelerator()
    return found, torch.slots(found, on_error) if found else []


def _memory(used: _Used, on_error: OnError) -> dict[str, Any]:
    if used.found is None or used.slot is None:
        return {}
    return torch.allocator_memory(used.slot) | torch.driver_memory(used.found, used.slot, on_error)


@functools.lru_cache(maxsize=1)
def _cpu(pid: int) -> Device:
    name = host.host_name()
    return Device(id=f"cpu:{name}:{pid}", kind="cpu", host=name)


def _identify(found: torch.Accelerator, ordinal: int, on_error: OnError) -> Device:
    properties = attempt(IDENTITY, lambda: found.module.get_device_properties(ordinal), on_error)
    name = host.host_name()
    return Device(
        id=_uuid(found.kind, properties) or f"{name}:{ordinal}",
        kind=found.kind,
        host=name,
        name=getattr(properties, "name", None),
        total_bytes=getattr(properties, "total_memory", None),
    )


def _uuid(kind: str, properties: Any) -> str | None:
    uuid = getattr(properties, "uuid", None)
    if uuid is None:
        return None
    text = str(uuid)
    # The driver's own tools put the prefix, and so will every other source of this device's name.
    return f"GPU-{text}" if kind == "cuda" and not text.startswith(("GPU-", "MIG-")) else text


def _common(rank: int, on_error: OnError) -> dict[str, Any]:
    memory = attempt(HOST, host.host_memory, on_error)
    return {
        "rank": rank,
        "host": host.host_name(),
        "pid": os.getpid(),
        "process_rss": attempt(PROCESS, host.process_rss, on_error),
        "host_used": memory and memory.used,
        "host_total": memory and memory.total,
    }
