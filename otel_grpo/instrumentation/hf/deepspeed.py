"""DeepSpeed below `transformers.Trainer`: its engine clips and steps before a training step is over."""

from __future__ import annotations

import sys
from typing import Any

from otel_grpo.instrumentation.base import Expected, drifted

MODULE = "deepspeed"
STEP = Expected("step", ("self",))


def engine() -> Any:
    """The class whose `step` accelerate calls after backward; None where there is none."""
    return getattr(sys.modules.get(MODULE), "DeepSpeedEngine", None)


def mismatch() -> str | None:
    """Why a training with DeepSpeed is not observed; None if the hook fits."""
    found = engine()
    return f"{MODULE}.DeepSpeedEngine is gone" if found is None else drifted(found, *STEP)
