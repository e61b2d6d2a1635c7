"""`doctor` finds the TRL that is installed here, and every hook of it."""

from __future__ import annotations

import sys

from otel_grpo.cli.checks.trainers import trainers
from otel_grpo.instrumentation.trl import contract


def test_every_hook_fits() -> None:
    """Each method that the adapter names is hooked; nothing of TRL is loaded here for it."""
    before = "trl.trainer.grpo_trainer" in sys.modules
    (found,) = trainers()
    assert (found.state, found.details["said"]) == ("good", [])
    assert found.text.startswith("trl 1.16.")
    names = {hook.rpartition(".")[2] for hook in found.details["hooks"]}
    assert {expected.name for expected in contract.METHODS} <= names
    vllm = {f"VLLMGeneration.{each.name}" for each in contract.VLLM_METHODS}
    assert vllm <= set(found.details["hooks"])
    assert found.text.endswith("vLLM is not installed: its engine was not looked at")
    assert ("trl.trainer.grpo_trainer" in sys.modules) == before
