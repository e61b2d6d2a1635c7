"""What this adapter expects of Twinkle: the releases, and in each module the hooked methods."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType, ModuleType
from typing import Any, NamedTuple

from otel_grpo.instrumentation.base import Expected, drifted

PACKAGE = "twinkle-kit"
SUPPORTED = ">=0.5.1,<0.6"
MODULE = "twinkle.infra"

#: Set by Twinkle in its worker processes, and looked at by its own code for the same purpose.
WORKER = "WORKER_NAME"


class Class(NamedTuple):
    """A class of one module, with those of its methods that are hooked."""

    name: str
    methods: tuple[Expected, ...]


_MODEL = (
    Expected("forward", ("self", "inputs")),
    Expected("forward_only", ("self", "inputs")),
    Expected("calculate_loss", ("self",)),
    Expected("backward", ("self",)),
    Expected("forward_backward", ("self", "inputs")),
    Expected("clip_grad_norm", ("self", "max_grad_norm", "norm_type")),
    Expected("clip_grad_and_step", ("self", "max_grad_norm", "norm_type")),
    Expected("step", ("self",)),
    Expected("zero_grad", ("self",)),
    Expected("lr_step", ("self",)),
    Expected("calculate_metric", ("self", "is_training")),
    Expected("save", ("self", "name", "output_dir", "interval")),
    Expected("resume_from_checkpoint", ("self", "checkpoint_dir", "resume_only_model")),
    Expected("set_optimizer", ("self", "optimizer_cls")),
    Expected("set_grad_scaler", ("self",)),
    Expected("add_adapter_to_model", ("self", "adapter_name", "config_or_dir")),
)
# The methods that MultiLoraTransformersModel has of its own; the others it inherits.
_MULTI_LORA = tuple(
    each
    for each in _MODEL
    if each.name not in {"forward_backward", "clip_grad_and_step", "resume_from_checkpoint"}
)
_REWARD = (Expected("__call__", ("self", "trajectories")),)
_ADVANTAGE = (Expected("__call__", ("self", "rewards", "num_generations")),)

CLASSES: Mapping[str, tuple[Class, ...]] = MappingProxyType(
    {
        "twinkle.model.transformers.transformers": (Class("TransformersModel", _MODEL),),
        "twinkle.model.transformers.multi_lora_transformers": (
            Class("MultiLoraTransformersModel", _MULTI_LORA),
        ),
        "twinkle.sampler.vllm_sampler.vllm_sampler": (
            Class(
                "vLLMSampler",
                (
                    Expected("sample", ("self", "inputs", "sampling_params")),
                    Expected("sleep", ("self", "level")),
                    Expected("wake_up", ("self", "tags")),
                ),
            ),
        ),
        "twinkle.advantage.grpo": (Class("GRPOAdvantage", _ADVANTAGE),),
        "twinkle.advantage.rloo": (Class("RLOOAdvantage", _ADVANTAGE),),
        "twinkle.reward.gsm8k": (
            Class("GSM8KAccuracyReward", _REWARD),
            Class("GSM8KFormatReward", _REWARD),
        ),
        "twinkle.reward.format_reward": (Class("FormatReward", _REWARD),),
        "twinkle.reward.math_reward": (Class("MathReward", _REWARD),),
        "twinkle.reward.mm_reward": (Class("MultiModalAccuracyReward", _REWARD),),
        "twinkle.reward.olympiad_bench": (
            Class("OlympiadBenchAccuracyReward", _REWARD),
            Class("OlympiadBenchFormatReward", _REWARD),
            Class("OlympiadBenchQualityReward", _REWARD),
        ),
        "twinkle.checkpoint_engine.manager": (
            Class(
                "CheckpointEngineManager",
                (Expected("sync_weights", ("self", "merge_and_sync")),),
            ),
        ),
        # Not Twinkle's: where a script lets the model that it trains generate by itself.
        "transformers.generation.utils": (
            Class("GenerationMixin", (Expected("generate", ("self", "inputs")),)),
        ),
    }
)
# Static methods of RayHelper, through which every call to workers goes.
RAY = "twinkle.infra._ray.ray_helper"
RAY_HELPER = (
    Expected("_get_remote_component", ("component",)),
    Expected("create_workers", ("worker_cls", "group", "execute")),
    Expected("execute_all_async", ("method_name", "workers_and_args")),
    Expected("do_get_and_collect_func", ("collect_func", "method", "futures", "device_mesh")),
)
#: Imported by Twinkle when a script asks for them, and hooked then.
LATER = (RAY, *CLASSES)

INFRA = (
    Expected("initialize", ("mode",)),
    Expected("_capture_caller", ()),
)

#: Timed on the workers, each call there; with memory read at those where a worker holds most of it.
TIMED: Mapping[str, bool] = MappingProxyType(
    {
        "forward": False,
        "forward_only": False,
        "backward": False,
        "forward_backward": True,
        "clip_grad_norm": False,
        "step": False,
        "clip_grad_and_step": False,
        "sample": True,
        "send_weights": False,
        "receive_weights": False,
        "save": False,
    }
)


def expected(module: ModuleType) -> Iterator[tuple[Any, Expected]]:
    """The owners of one module with what is hooked on them."""
    for each in CLASSES.get(module.__name__, ()):
        owner = getattr(module, each.name, None)
        yield from ((owner, method) for method in each.methods)
    if module.__name__ == RAY:
        yield from ((module.RayHelper, method) for method in RAY_HELPER)
    if module.__name__ == MODULE:
        yield from ((module, function) for function in INFRA)


def drifts(module: ModuleType) -> list[str]:
    """How the module differs from the one that the hooks were written for."""
    found = (drifted(owner, *each) for owner, each in expected(module))
    return [drift for drift in found if drift]
