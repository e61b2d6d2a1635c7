"""Twinkle's models, samplers and advantages, observed from outside in the user's own loop."""

from __future__ import annotations

from otel_grpo.instrumentation.entry import TrainerInstrumentor
from otel_grpo.instrumentation.twinkle import contract

__all__ = ["TwinkleInstrumentor"]


class TwinkleInstrumentor(TrainerInstrumentor):
    """For Twinkle."""

    requirement = f"{contract.PACKAGE} {contract.SUPPORTED}"
