"""What this adapter expects of TRL: the releases, the methods, and the kinds of training."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from otel_grpo.instrumentation import base
from otel_grpo.instrumentation.base import Expected
from otel_grpo.instrumentation.hf import deepspeed
from otel_grpo.instrumentation.hf.callback import missing_events

PACKAGE = "trl"
SUPPORTED = ">=1.0,<1.17"
MODULE = "trl.trainer.grpo_trainer"
PROFILING = "trl.extras.profiling"
VLLM = "trl.generation.vllm_generation"


# Methods of GRPOTrainer. Some are inherited from transformers.Trainer; they are patched on GRPOTrainer
# alone, so that no other trainer of the process is touched.
METHODS = (
    Expected("train", ("self", "resume_from_checkpoint")),
    Expected("get_batch_samples", ("self", "epoch_iterator", "num_batches", "device")),
    Expected("training_step", ("self", "model", "inputs", "num_items_in_batch")),
    Expected("_prepare_inputs", ("self", "generation_batch")),
    Expected("_generate_and_score_completions", ("self", "inputs")),
    Expected("_generate", ("self", "prompts")),
    Expected("_generate_single_turn", ("self",)),
    Expected("_tool_call_loop", ("self",)),
    Expected(
        "_calculate_rewards", ("self", "inputs", "prompts", "completions", "completion_ids_list")
    ),
    Expected("_get_per_token_logps_and_entropies", ("self", "model")),
    Expected("log", ("self", "logs", "start_time")),
    Expected("evaluate", ("self",)),
    Expected("predict", ("self", "test_dataset")),
    Expected("_save_checkpoint", ("self", "model", "trial")),
)
PROFILING_METHODS = (
    Expected("__enter__", ("self",)),
    Expected("__exit__", ("self", "exc_type", "exc_val", "exc_tb")),
    Expected("_log_metrics", ("self", "duration")),
)
SHUFFLE = Expected("shuffle_sequence_dict", ("seq_dict",))
# Of VLLMGeneration, and of vLLM's own engine. A TRL that has moved these is observed without vLLM.
VLLM_METHODS = (Expected("sync_weights", ("self",)), Expected("generate", ("self",)))
ENGINE_METHODS = (Expected("wake_up", ("self",)), Expected("sleep", ("self",)))


def mismatch(module: ModuleType, profiling: ModuleType, callback: type) -> str | None:
    """Why this TRL is not observed: its version, or the hooks that no longer fit; None if it fits."""
    expected = [(module.GRPOTrainer, each) for each in METHODS]
    expected += [(profiling.ProfilingContext, each) for each in PROFILING_METHODS]
    expected += [(module, SHUFFLE)]
    return base.mismatch(PACKAGE, SUPPORTED, expected) or missing_events(callback)


def vllm_mismatch(vllm: ModuleType | None) -> str | None:
    """Why trainings that generate with vLLM are not observed; None if the hooks fit.

    Args:
        vllm: TRL's module; its trainer's module imports it, whether vLLM is installed or not.
    """
    if vllm is None:
        return f"{VLLM} is gone"
    expected = [(vllm.VLLMGeneration, each) for each in VLLM_METHODS]
    if hasattr(vllm, "LLM"):  # vLLM is installed
        expected += [(vllm.LLM, each) for each in ENGINE_METHODS]
    return base.misfits(expected)


def unsupported_training(trainer: Any) -> str | None:
    """Why this training is not observed yet; None if it is of the supported kind."""
    if trainer.is_deepspeed_enabled and (reason := deepspeed.mismatch()) is not None:
        return f"it uses DeepSpeed, and {reason}"
    if trainer.use_vllm and (reason := vllm_mismatch(sys.modules.get(VLLM))) is not None:
        return f"it generates with vLLM, and {reason}"
    if trainer.args.n_gpu > 1:
        return f"one process trains on {trainer.args.n_gpu} devices (DataParallel)"
    return None
