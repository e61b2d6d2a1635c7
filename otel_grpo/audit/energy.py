"""Energy of a window's devices from the readings of their counters."""

from __future__ import annotations

import numpy as np
from msgspec import UnsetType

from otel_grpo.records.model import Hardware


def energy(hardware: Hardware) -> int | None:
    """Sum over devices of the steps of each counter; None where one device leaves it open."""
    if isinstance(hardware.energy_mj, UnsetType):
        return None
    total = 0
    for device in set(hardware.device):
        rows = [
            (at, value)
            for at, of, value in zip(
                hardware.instant, hardware.device, hardware.energy_mj, strict=True
            )
            if of == device and value is not None
        ]
        steps = np.diff(np.array(sorted(rows), np.int64).reshape(-1, 2)[:, 1])
        if not len(steps) or steps.min() < 0:
            return None
        total += int(steps.sum())
    return total if hardware.device else None
