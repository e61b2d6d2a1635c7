"""A torch module that counts what is asked of it: several devices, errors, no initialisation."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

GIB = 2**30


def statistics(
    allocated: int, reserved: int, peak_allocated: int, peak_reserved: int, ever: int
) -> dict[str, int]:
    """The statistics of one device under torch's names."""
    return {
        "allocated_bytes.all.current": allocated,
        "reserved_bytes.all.current": reserved,
        "allocated_bytes.all.peak": peak_allocated,
        "reserved_bytes.all.peak": peak_reserved,
        "reserved_bytes.all.allocated": ever,
        "num_ooms": 0,
    }


UNUSED = statistics(0, 0, 0, 0, 0)


@dataclass
class FakeDeviceModule:
    """What `torch.cuda` is to the code under test; anything else that is asked for is an error."""

    devices: list[dict[str, int]] = field(default_factory=list)
    uuids: list[str] | None = None
    initialised: bool = True
    current: int = 0
    allocator_error: Exception | None = None
    driver_error: Exception | None = None
    probe_error: Exception | None = None
    asked: list[str] = field(default_factory=list)

    def is_initialized(self) -> bool:
        return self.initialised

    def device_count(self) -> int:
        self._ask("device_count")
        if self.probe_error:
            raise self.probe_error
        return len(self.devices)

    def current_device(self) -> int:
        self._ask("current_device")
        return self.current

    def memory_stats(self, index: int) -> dict[str, int]:
        self._ask(f"memory_stats {index}")
        if self.allocator_error:
            raise self.allocator_error
        return self.devices[index]

    def mem_get_info(self, index: int) -> tuple[int, int]:
        self._ask(f"mem_get_info {index}")
        if self.driver_error:
            raise self.driver_error
        return 60 * GIB, 96 * GIB

    def get_device_properties(self, index: int) -> Any:
        self._ask(f"get_device_properties {index}")
        known = {"name": "Fake H1", "total_memory": 96 * GIB}
        if self.uuids:
            known["uuid"] = self.uuids[index]
        return SimpleNamespace(**known)

    def _ask(self, what: str) -> None:
        assert self.initialised, f"{what} would initialise the device"
        self.asked.append(what)


def fake_torch(module: FakeDeviceModule, kind: str = "cuda") -> Any:
    """A torch built for `kind`."""
    return SimpleNamespace(
        accelerator=SimpleNamespace(current_accelerator=lambda: SimpleNamespace(type=kind)),
        **{kind: module},
    )
