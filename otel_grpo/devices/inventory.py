"""Which physical devices this process uses."""

from __future__ import annotations

import functools
import os
from typing import Any, NamedTuple

from otel_grpo.devices import host, torch
from otel_grpo.devices.reading import OnError, attempt, ignore
from otel_grpo.records.model import Device

IDENTITY = "devices.identity"

# The variable that picks and numbers the devices which a process sees.
_VISIBLE = {"cuda": "CUDA_VISIBLE_DEVICES", "npu": "ASCEND_RT_VISIBLE_DEVICES"}


def inventory(*, on_error: OnError = ignore) -> list[Device]:
    """The devices that this process uses now; empty if that can't be told.

    A device's id is its UUID where the driver knows it, else ``host:index``. A process that has not
    initialised an accelerator is one device of its own, ``cpu:<host>:<pid>``: ask when the trainer
    has placed its model, and on the thread that trains.
    """
    current = attempt(torch.PROBE, torch.current_ordinal, on_error)
    return [each.device for each in used_devices(current, on_error)]


class Used(NamedTuple):
    """A device that this process uses, and where torch has it."""

    device: Device
    found: torch.Accelerator | None = None
    slot: torch.Slot | None = None


def used_devices(current: int | None, on_error: OnError) -> list[Used]:
    """The devices of this process; `current` is the one of the thread that trains, if known."""
    probe = attempt(torch.PROBE, functools.partial(_probe, current, on_error), on_error)
    if probe is None:
        return []
    found, slots = probe
    if found is None:
        return [Used(_cpu(os.getpid()))]
    return [Used(_identify(found, slot.ordinal, on_error), found, slot) for slot in slots]


def _probe(
    current: int | None, on_error: OnError
) -> tuple[torch.Accelerator | None, list[torch.Slot]]:
    found = torch.accelerator()
    return found, torch.slots(found, current, on_error) if found else []


@functools.lru_cache(maxsize=1)
def _cpu(pid: int) -> Device:
    name = host.host_name()
    return Device(id=f"cpu:{name}:{pid}", kind="cpu", host=name)


def _identify(found: torch.Accelerator, ordinal: int, on_error: OnError) -> Device:
    properties = attempt(IDENTITY, lambda: found.module.get_device_properties(ordinal), on_error)
    name = host.host_name()
    return Device(
        id=_id(found.kind, ordinal, properties, name),
        kind=found.kind,
        host=name,
        name=getattr(properties, "name", None),
        total_bytes=getattr(properties, "total_memory", None),
    )


def _id(kind: str, ordinal: int, properties: Any, host_name: str) -> str:
    seen = os.environ.get(_VISIBLE.get(kind, ""), "").split(",")
    told = seen[ordinal].strip() if ordinal < len(seen) else ""
    if told.startswith("MIG-"):  # torch may say the UUID of the device that it is a slice of
        return told
    uuid = str(getattr(properties, "uuid", None) or "")
    if uuid:
        # The driver's own tools put the prefix, and so does every other source of this name.
        bare = kind == "cuda" and not uuid.startswith(("GPU-", "MIG-"))
        return f"{_prefix(properties)}{uuid}" if bare else uuid
    # Each of eight processes that see one device of their own calls it 0.
    return f"{host_name}:{told if told.isdigit() else ordinal}"


def _prefix(properties: Any) -> str:
    return "MIG-" if " MIG " in str(getattr(properties, "name", "")) else "GPU-"
