"""What this adapter expects of ms-swift: the releases, the methods, and the kinds of training."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from otel_grpo.instrumentation import base
from otel_grpo.instrumentation.base import Expected
from otel_grpo.instrumentation.hf import deepspeed
from otel_grpo.instrumentation.hf.callback import missing_events

PACKAGE = "ms-swift"
SUPPORTED = ">=4.6,<4.7"
MODULE = "swift.rlhf_trainers.grpo_trainer"
MIXIN = "swift.rlhf_trainers.rollout_mixin"
UTILS = "swift.rlhf_trainers.utils"
MEGATRON = "swift.megatron.trainers.grpo_trainer"
MEGATRON_MIXIN = "swift.megatron.trainers.rollout_mixin"
RAY = "swift.ray.megatron.grpo_trainer"
# Trainers that need more packages than ms-swift asks for.
OPTIONAL = (MEGATRON, RAY)
RAY_GROUP = "swift.ray.megatron.worker_group"
RAY_WEIGHTS = "swift.ray.megatron.checkpoint_engine.manager"

# Methods of GRPOTrainer. Many are inherited; they are patched on GRPOTrainer alone, so that no other
# trainer of the process is touched.
METHODS = (
    Expected("train", ("self",)),
    Expected("get_batch_samples", ("self", "epoch_iterator", "num_batches", "device")),
    Expected("training_step", ("self", "model", "inputs", "num_items_in_batch")),
    Expected("_prepare_inputs", ("self", "inputs")),
    Expected("_generate_and_score_completions", ("self", "inputs")),
    Expected("resample_encode_failed_inputs", ("self", "inputs")),
    Expected("_generate_completions", ("self", "samples")),
    Expected("_wait_queue", ("self", "current_queue")),
    Expected("_move_model_to_vllm", ("self",)),
    Expected("offload_model", ("self", "model")),
    Expected("load_model", ("self", "model")),
    Expected("offload_optimizer", ("self",)),
    Expected("load_optimizer", ("self",)),
    Expected("async_generate_rollout", ("self", "all_inputs")),
    Expected("_infer_single_or_multi_turn", ("self", "samples", "request_config")),
    Expected("_compute_rewards_per_func", ("self", "samples")),
    Expected("_dynamic_sampling", ("self", "samples", "rewards_per_func")),
    Expected("compute_std", ("self", "samples", "rewards_per_func")),
    Expected("_prepare_batch_inputs", ("self", "samples")),
    Expected("split_by_mini_batches", ("self", "samples")),
    Expected("_get_per_token_logps_and_entropies", ("self", "model", "model_inputs", "grpo_batch")),
    Expected("_compute_teacher_logps", ("self", "model_inputs", "grpo_batch")),
    Expected("_postprocess_batch", ("self", "samples", "batch_encoded_inputs")),
    Expected("_log_rollout", ("self", "samples")),
    Expected("log", ("self", "logs", "start_time")),
    Expected("evaluate", ("self",)),
    Expected("predict", ("self", "test_dataset")),
    Expected("_evalscope_eval", ("self",)),
    Expected("_save_checkpoint", ("self",)),
)
PROFILING = Expected("profiling_context", ("trainer", "name"))
REWARDS = Expected("score_completions", ("samples", "reward_funcs", "reward_model_plugins"))
SLEEP = Expected("sleep_vllm_engine", ("engine", "sleep_level"))


def mismatch(
    module: ModuleType, mixin: ModuleType, utils: ModuleType, callback: type
) -> str | None:
    """Why this ms-swift is not observed: its version, or hooks that no longer fit; None if it fits."""
    expected = [(module.GRPOTrainer, each) for each in METHODS]
    expected += [(place, PROFILING) for place in (module, mixin, utils)]
    expected += [(module, REWARDS), (mixin, SLEEP)]
    return base.mismatch(PACKAGE, SUPPORTED, expected) or missing_events(callback)


def unsupported_training(trainer: Any) -> str | None:
    """Why this training is not observed yet; None if it is of the supported kind."""
    if trainer.is_deepspeed_enabled and (reason := deepspeed.mismatch()) is not None:
        return f"it uses DeepSpeed, and {reason}"
    if trainer.args.n_gpu > 1:
        return f"one process trains on {trainer.args.n_gpu} devices (DataParallel)"
    return None
