"""The metrics of one ``train`` record, and the sign of a cumulative throughput."""

from __future__ import annotations

import re

from msgspec import UnsetType

from otel_grpo.audit.partition import measure
from otel_grpo.records.model import TrainAttributes

_RATE = re.compile(
    r"tok(en)?s?_?(/|per_?)_?(s|secs?|seconds?|gpu|device)(?![a-z])|throughput|\btgs\b",
    re.IGNORECASE,
)
# That many values in the proportion 1 : 2 : 3 : 4 are a sum over a single step's time.
_STEPS, _TOLERANCE = 4, 0.10


def derive(a: TrainAttributes) -> dict[str, int | float]:
    """Every metric of an update."""
    edge = a.interval[1]
    metrics: dict[str, int | float] = {
        "samples": a.n,
        "update.busy_ns": measure(
            (row[3], edge if row[4] is None else min(row[4], edge)) for row in a.intervals
        ),
        "nonfinite": sum(value is None for value in a.scalars.values()),
    }
    if not isinstance(a.trained, UnsetType):
        metrics["tokens.trained"] = a.trained
    return metrics


def is_rate(name: str) -> bool:
    """Whether a trainer's scalar looks like tokens per second by its name."""
    return bool(_RATE.search(name.replace("-", "_").replace(" ", "_").replace(".", "/")))


class Ramp:
    """Watches one rate: does it grow like tokens since the start over the time of one step?"""

    def __init__(self) -> None:
        self.first = 0.0
        self.count = 0

    def grows(self, value: float) -> bool:
        """Takes the next value; true once, at the last of enough values in proportion."""
        expected = self.first * (self.count + 1)
        if self.count and value > 0 and abs(value - expected) <= _TOLERANCE * expected:
            self.count += 1
            return self.count == _STEPS
        self.first, self.count = value, 1
        return False
