"""What a window keeps of many readings, against all of them."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

from otel_grpo.records.build import MEMORY_COLUMNS
from otel_grpo.tracing.samples import Row, Samples, owner


@dataclass(frozen=True)
class Reading:
    """One reading of memory."""

    rank: int = 0
    host: str = "h"
    pid: int = 1
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


def largest(readings: list[Reading]) -> dict[Any, int]:
    """The maximum of every column and owner, by looking at all readings."""
    found: dict[Any, int] = {}
    for column, (_, names) in MEMORY_COLUMNS.items():
        for reading in readings:
            value = getattr(reading, column)
            if value is not None:
                key = (column, *(getattr(reading, name) for name in names))
                found[key] = max(value, found.get(key, value))
    return found


def test_no_maximum_is_lost_and_the_table_stays_small() -> None:
    """1,000 looks at 3 devices: the kept rows have every maximum of all of them, and are few."""
    draw = random.Random(7)

    def value() -> int | None:
        return draw.choice([None, draw.randrange(1000)])

    samples, all_of_them = Samples(), []
    for instant in range(1000):
        looked = [
            Reading(
                rank=device, pid=device // 2, device=device, allocator_allocated=value(),
                allocator_peak_reserved=value(), device_used=value(), process_rss=value(),
                host_used=value(),
            )
            for device in range(3)
        ]  # fmt: skip
        all_of_them += looked
        samples.add(instant, looked, {}, asked=False)
    rows = samples.memory()
    assert largest([row.reading for row in rows]) == largest(all_of_them)
    # A row for each maximum: 3 ranks x 2 columns, 3 devices, 2 processes, 1 host.
    assert len(rows) <= 3 * 2 + 3 + 2 + 1
    assert [row.instant for row in rows] == sorted(row.instant for row in rows)


def test_what_was_asked_for_is_shown_whatever_it_says() -> None:
    """A row that holds no maximum stays if it was asked for, and goes if it was not."""
    samples = Samples()
    for instant, (used, asked) in enumerate([(5, False), (9, False), (7, True), (8, False)]):
        samples.add(instant, [Reading(host_used=used)], {}, asked=asked)
    assert samples.memory() == [
        Row(2, 1, Reading(host_used=9)),
        Row(3, 2, Reading(host_used=7)),
    ]


def test_a_peak_that_went_down_is_flagged() -> None:
    """A peak never falls by itself; one device's does not count for another's, None for nothing."""
    samples = Samples()
    before: dict[Any, Any] = {}
    peaks = [[10, 50], [10, 50], [12, 49], [3, None], [5, 48]]
    for instant, pair in enumerate(peaks):
        looked = [
            Reading(device=device, allocator_peak_allocated=peak)
            for device, peak in enumerate(pair)
        ]
        samples.add(instant, looked, before, asked=True)
        before.update((owner(reading), (instant, reading)) for reading in looked)
    assert samples.peak_resets == 2  # 50 to 49, 12 to 3; 48 comes after a reading that failed
