"""One reading of memory, in bytes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")

# Told of every reading that failed: the place, by a stable short name, and the exception.
OnError = Callable[[str, Exception], None]


def ignore(place: str, error: Exception) -> None:
    """The `on_error` of a caller who does not ask why a reading is absent."""


def attempt(place: str, read: Callable[[], T], on_error: OnError) -> T | None:
    """What `read` returns; None, told to `on_error`, where it fails."""
    try:
        return read()
    except Exception as error:  # whatever a driver raises costs one reading, no more
        on_error(place, error)
        return None


@dataclass(frozen=True, slots=True)
class Reading:
    """What one process knows at one instant about one device, itself and its host.

    None says "not known" and is never a 0. `device` is the index into the inventory that was given
    to the `Reader`. Peaks are those of the allocator since the process started, or since the trainer
    itself reset them. `host_used` is what a new process could not have: total minus available.
    """

    rank: int
    host: str
    pid: int
    device: int | None = None
    allocator_allocated: int | None = None
    allocator_reserved: int | None = None
    allocator_peak_allocated: int | None = None
    allocator_peak_reserved: int | None = None
    device_used: int | None = None
    device_total: int | None = None
    process_rss: int | None = None
    host_used: int | None = None
    host_total: int | None = None
    device_source: str | None = None  # of `device_used` and `device_total`: nvml or torch
    utilization: int | None = None  # percent
    power_mw: int | None = None
    energy_mj: int | None = None  # since the driver was loaded
    temperature_c: int | None = None
