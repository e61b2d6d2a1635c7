"""What was read in one window: few rows, whatever their number, and no largest reading is lost."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from otel_grpo.records.build import MEMORY_COLUMNS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from otel_grpo.tracing.window import Reading

_OWNERS = {column: owner for column, (_, owner) in MEMORY_COLUMNS.items()}
_HARDWARE = ("utilization", "power_mw", "energy_mj", "temperature_c")
_PEAKS = ("allocator_peak_allocated", "allocator_peak_reserved")


class Row(NamedTuple):
    """One reading of one device, process and host; `number` counts the rows of a window."""

    number: int
    instant: int
    reading: Reading


class Table:
    """Rows that somebody asked for, and of the others those that hold a column's maximum.

    A column's maximum is that of each owner: the quantity belongs to a rank, a device, a process or
    a host. So the table grows with what is asked, not with the length of the window.
    """

    def __init__(self, owners: Mapping[str, tuple[str, ...]]) -> None:
        self._owners = owners
        self._asked: list[Row] = []
        self._largest: dict[tuple[object, ...], tuple[int, Row]] = {}

    def add(self, row: Row, *, asked: bool) -> None:
        if asked:
            self._asked.append(row)
        for column, owner in self._owners.items():
            value = getattr(row.reading, column, None)
            if value is None:
                continue
            key = (column, *(getattr(row.reading, name) for name in owner))
            held = self._largest.get(key)
            if held is None or value > held[0]:
                self._largest[key] = (value, row)

    def rows(self) -> list[Row]:
        # Each list is made in one step: the sampler's thread may be adding a row just now.
        holders = [row for _, row in list(self._largest.values())]
        return [row for _, row in sorted({r.number: r for r in self._asked + holders}.items())]


class Samples:
    """The readings of one window, as its record will show them."""

    def __init__(self) -> None:
        self._memory = Table(_OWNERS)
        self._hardware = Table(dict.fromkeys(_HARDWARE, ("device",)))
        self._devices: set[int] = set()  # those that have a row of hardware
        self._count = 0
        self.peak_resets = 0

    def add(
        self,
        instant: int,
        readings: Sequence[Reading],
        before: Mapping[object, tuple[int, Reading]],
        *,
        asked: bool,
    ) -> None:
        """One look at all devices; `before` has the reading of each that was made before it."""
        for reading in readings:
            last = before.get(owner(reading))
            self._memory.add(self._row(instant, reading), asked=asked)
            self.peak_resets += last is not None and _went_down(last[1], reading)
            if _tells_of_hardware(reading):
                self._add_hardware(instant, reading, last, asked=asked)

    def memory(self) -> list[Row]:
        """Readings of memory, in the order in which they were made."""
        return self._memory.rows()

    def hardware(self) -> list[Row]:
        """What the driver said, beginning with each device's last reading before the window."""
        return self._hardware.rows()

    def _add_hardware(
        self, instant: int, reading: Reading, last: tuple[int, Reading] | None, *, asked: bool
    ) -> None:
        first = reading.device not in self._devices
        if first:
            assert reading.device is not None
            self._devices.add(reading.device)
            # One reading may end a window and begin the next.
            if last is not None and last[1] is not reading and _tells_of_hardware(last[1]):
                self._hardware.add(self._row(*last), asked=True)
                first = False
        self._hardware.add(self._row(instant, reading), asked=asked or first)

    def _row(self, instant: int, reading: Reading) -> Row:
        self._count += 1
        return Row(self._count, instant, reading)


def owner(reading: Reading) -> object:
    """What readings must share to be of the same thing at different instants."""
    return (reading.rank, reading.host, reading.pid, reading.device)


def _tells_of_hardware(reading: Reading) -> bool:
    values = (getattr(reading, name, None) for name in _HARDWARE)
    return reading.device is not None and any(value is not None for value in values)


def _went_down(last: Reading, now: Reading) -> bool:
    """Whether the allocator's peaks were reset between two readings: a peak never falls by itself."""
    for column in _PEAKS:
        before, after = getattr(last, column), getattr(now, column)
        if before is not None and after is not None and after < before:
            return True
    return False
