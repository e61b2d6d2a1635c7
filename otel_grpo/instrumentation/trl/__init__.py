"""TRL's GRPOTrainer, observed from outside."""

from __future__ import annotations

from otel_grpo.instrumentation.entry import TrainerInstrumentor
from otel_grpo.instrumentation.trl import contract

__all__ = ["TrlInstrumentor"]


class TrlInstrumentor(TrainerInstrumentor):
    """For TRL."""

    requirement = f"{contract.PACKAGE} {contract.SUPPORTED}"
