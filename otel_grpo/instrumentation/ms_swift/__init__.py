"""ms-swift's GRPOTrainer, observed from outside."""

from __future__ import annotations

from otel_grpo.instrumentation.entry import TrainerInstrumentor
from otel_grpo.instrumentation.ms_swift import contract

__all__ = ["SwiftInstrumentor"]


class SwiftInstrumentor(TrainerInstrumentor):
    """For ms-swift."""

    requirement = f"{contract.PACKAGE} {contract.SUPPORTED}"
