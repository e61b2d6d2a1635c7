"""What this adapter expects of TRL: the releases, the methods, and the kinds of training."""

from __future__ import annotations

import os
from types import ModuleType
from typing import Any, NamedTuple

from otel_grpo.instrumentation.base import drifted, unsupported_version

PACKAGE = "trl"
SUPPORTED = ">=1.16,<1.17"
MODULE = "trl.trainer.grpo_trainer"
PROFILING = "trl.extras.profiling"


class Expected(NamedTuple):
    """A method that is hooked, with the parameters that the hook relies on, in order."""

    name: str
    parameters: tuple[str, ...]


# Methods of GRPOTrainer. Some are inherited from transformers.Trainer; they are patched on GRPOTrainer
# alone, so that no other trainer of the process is touched.
METHODS = (
    Expected("train", ("self", "resume_from_checkpoint")),
    Expected("get_batch_samples", ("self", "epoch_iterator", "num_batches", "device")),
    Expected("training_step", ("self", "model", "inputs", "num_items_in_batch")),
    Expected("_prepare_inputs", ("self", "generation_batch")),
    Expected("_generate_and_score_completions", ("self", "inputs")),
    Expected("_generate", ("self", "prompts")),
    Expected(
        "_calculate_rewards", ("self", "inputs", "prompts", "completions", "completion_ids_list")
    ),
    Expected(
        "_get_per_token_logps_and_entropies",
        ("self", "model", "input_ids", "attention_mask", "logits_to_keep"),
    ),
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
CALLBACK_EVENTS = ("on_train_begin", "on_optimizer_step", "on_log", "on_train_end")


def mismatch(module: ModuleType, profiling: ModuleType, callback: type) -> str | None:
    """Why this TRL is not observed: its version, or the hooks that no longer fit; None if it fits."""
    reason = unsupported_version(PACKAGE, SUPPORTED)
    if reason is not None:
        return reason
    expected = [(module.GRPOTrainer, each) for each in METHODS]
    expected += [(profiling.ProfilingContext, each) for each in PROFILING_METHODS]
    expected += [(module, SHUFFLE)]
    drifts = [drift for owner, each in expected if (drift := drifted(owner, *each))]
    drifts += [
        f"{callback.__name__}.{event} is gone"
        for event in CALLBACK_EVENTS
        if not hasattr(callback, event)
    ]
    return "; ".join(drifts) or None


def unsupported_training(trainer: Any) -> str | None:
    """Why this training is not observed yet; None if it is of the supported kind."""
    if trainer.is_deepspeed_enabled:
        return "it uses DeepSpeed"
    if trainer.use_vllm:
        return "it generates with vLLM"
    if trainer.args.n_gpu > 1:
        return f"one process trains on {trainer.args.n_gpu} devices (DataParallel)"
    return None


def copies(trainer: Any) -> str | None:
    """What the launcher says where each of its processes trains a copy that knows of no other."""
    world = os.environ.get("WORLD_SIZE", "1")
    alone = int(trainer.accelerator.num_processes) == 1
    return f"WORLD_SIZE is {world}" if alone and world.isdigit() and int(world) > 1 else None
