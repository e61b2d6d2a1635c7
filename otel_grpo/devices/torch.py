"""What torch knows about the devices of this process: looked at, never touched.

Nothing here imports torch, initialises a device, creates a context on one, waits for one or resets
a peak. A process that has not used its accelerator yet is a process without one.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

from otel_grpo.devices.reading import OnError, attempt, ignore

ALLOCATOR = "devices.torch.allocator"
DRIVER = "devices.torch.driver"
PROBE = "devices.torch.probe"

# Statistics of the caching allocator -> the fields of a reading.
_STATISTICS = {
    "allocated_bytes.all.current": "allocator_allocated",
    "reserved_bytes.all.current": "allocator_reserved",
    "allocated_bytes.all.peak": "allocator_peak_allocated",
    "reserved_bytes.all.peak": "allocator_peak_reserved",
}
# Any of them above 0: the process has had memory on the device. The last is a sum over time, which
# stays when a trainer that sleeps gives all of its memory back and resets the peaks.
_EVER_USED = (
    "reserved_bytes.all.current",
    "reserved_bytes.all.peak",
    "reserved_bytes.all.allocated",
)


class Accelerator(NamedTuple):
    """The accelerator that this process has initialised."""

    kind: str
    module: Any


class Slot(NamedTuple):
    """A device that this process uses, by torch's index, with the allocator's statistics."""

    ordinal: int
    statistics: Mapping[str, Any]
    has_context: bool


def accelerator() -> Accelerator | None:
    """The initialised accelerator, if torch is already imported and has one."""
    torch = sys.modules.get("torch")
    if torch is None:
        return None
    kind = _kind(torch)
    module = getattr(torch, kind, None) if kind else None
    initialised = getattr(module, "is_initialized", None)
    if kind is None or initialised is None or not initialised():
        return None
    return Accelerator(kind, module)


def _kind(torch: Any) -> str | None:
    current = getattr(getattr(torch, "accelerator", None), "current_accelerator", None)
    if current is None:  # older than 2.6, or still in the middle of its import
        return "cuda"
    # What torch was built for; without an argument this looks at no driver.
    device = current()
    return None if device is None else str(device.type)


def current_ordinal() -> int | None:
    """The device that this thread would use; None without an initialised accelerator."""
    found = accelerator()
    return None if found is None else int(found.module.current_device())


def slots(found: Accelerator, current: int | None = None, on_error: OnError = ignore) -> list[Slot]:
    """The devices that this process uses: those it has had memory on, else the current one.

    Visible devices are not counted: on a node with eight of them each of eight ranks sees all.

    Args:
        found: the accelerator.
        current: the current device of the thread that trains. On another thread torch names another.
        on_error: told of an allocator that can't be read.
    """
    statistics_of = _either(found, "memory_stats", "memory_stats")
    used = []
    for ordinal in range(found.module.device_count()) if statistics_of else ():
        statistics = attempt(ALLOCATOR, functools.partial(statistics_of, ordinal), on_error)
        if statistics and any(statistics.get(name) for name in _EVER_USED):
            used.append(Slot(ordinal, statistics, has_context=True))
    if used:
        return used
    return [] if current is None else [Slot(current, {}, has_context=False)]


def _either(found: Accelerator, own: str, general: str) -> Any:
    """What a vendor's module has, else what `torch.accelerator` has for all of them, else None."""
    everyone = getattr(sys.modules.get("torch"), "accelerator", None)
    return getattr(found.module, own, None) or getattr(everyone, general, None)


def allocator_memory(slot: Slot) -> dict[str, int]:
    """The allocator's fields of a reading, those that the allocator told."""
    return {
        field: int(slot.statistics[name])
        for name, field in _STATISTICS.items()
        if slot.statistics.get(name) is not None
    }


def driver_memory(found: Accelerator, slot: Slot, on_error: OnError = ignore) -> dict[str, int]:
    """Memory of the whole device by its driver: other processes and other allocators included."""
    # To ask about a device that the process has not touched would create a context there, which
    # takes hundreds of MB that the training may need.
    if not slot.has_context:
        return {}
    read = _either(found, "mem_get_info", "get_memory_info")
    memory = read and attempt(DRIVER, functools.partial(read, slot.ordinal), on_error)
    if memory is None:
        return {}
    free, total = memory
    return {"device_used": int(total) - int(free), "device_total": int(total)}
