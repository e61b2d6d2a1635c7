"""The devices of a job, numbered in the order in which its processes name them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
from msgspec import UNSET, UnsetType

from otel_grpo.records.model import Contribution, Device, Hardware, Memory

DeviceRoles = list[tuple[int, list[str]]]


class Inventory:
    """Grows and never changes an index: what `World.devices` of an attempt holds.

    Attributes:
        devices: each physical device once.
    """

    def __init__(self, devices: Iterable[Device], roles: DeviceRoles | None) -> None:
        self.devices = list(devices)
        self._places = {device.id: index for index, device in enumerate(self.devices)}
        self._roles: dict[int, list[str]] = {index: list(names) for index, names in roles or ()}

    def add(self, used: Iterable[tuple[Device, list[str]]]) -> list[int]:
        """The index of each device that a process uses, in order; its roles are added."""
        indices = []
        for device, names in used:
            index = self._places.setdefault(device.id, len(self.devices))
            if index == len(self.devices):
                self.devices.append(device)
            roles = self._roles.setdefault(index, [])
            roles += [name for name in names if name not in roles]
            indices.append(index)
        return indices

    @property
    def roles(self) -> DeviceRoles | None:
        """Each device with the roles that it has in the job; None where no process named one."""
        return sorted((index, list(names)) for index, names in self._roles.items()) or None


def ragged(table: Memory | Hardware) -> bool:
    """Whether its columns are of different lengths."""
    columns = (getattr(table, name) for name in table.__struct_fields__)
    return len({len(column) for column in columns if isinstance(column, list)}) > 1


def placed(memory: Memory, indices: Sequence[int]) -> Memory:
    """The same readings; `device`, an index into one process's devices, by the job's."""
    if memory.device is UNSET:
        return memory
    device = [
        indices[own] if own is not None and 0 <= own < len(indices) else None
        for own in memory.device
    ]
    return msgspec.structs.replace(memory, device=device)


def placed_hardware(hardware: Hardware, indices: Sequence[int]) -> Hardware | UnsetType:
    """The same for what the driver said; absent where a device is none of the process's."""
    if not all(0 <= own < len(indices) for own in hardware.device):
        return UNSET
    return msgspec.structs.replace(hardware, device=[indices[own] for own in hardware.device])


def place_contribution(share: Contribution, indices: Sequence[int]) -> Contribution:
    """The same share with its readings on the job's devices."""
    memory, hardware = share.attributes.memory, share.attributes.hardware
    attributes = msgspec.structs.replace(
        share.attributes,
        memory=UNSET if memory is UNSET else placed(memory, indices),
        hardware=UNSET if hardware is UNSET else placed_hardware(hardware, indices),
    )
    return msgspec.structs.replace(share, attributes=attributes)
