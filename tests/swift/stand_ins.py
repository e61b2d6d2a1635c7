"""Stand-ins for vLLM, so that the trainer's own code around it runs here: nothing is generated.

Each answers every request with the same tokens. What the trainer asked of them, in order, is `told`.
"""

from __future__ import annotations

from types import SimpleNamespace

ANSWER = [72, 105, 33, 258]  # three bytes and the end


def response(request_id):
    from swift.infer_engine.protocol import (
        ChatCompletionResponse,
        ChatCompletionResponseChoice,
        ChatMessage,
        UsageInfo,
    )

    choice = ChatCompletionResponseChoice(
        index=0,
        message=ChatMessage(role="assistant", content="iJB"),
        finish_reason="stop",
        token_ids=list(ANSWER),
    )
    usage = UsageInfo(prompt_tokens=0, completion_tokens=len(ANSWER), total_tokens=len(ANSWER))
    return ChatCompletionResponse(model="", choices=[choice], usage=usage, id=request_id)


class Core:
    """vLLM's own engine."""

    model_config = None

    def __init__(self, told):
        self.told = told
        self.asleep = {"weights", "kv_cache"}

    def wake_up(self, tags=None):
        self.told.append(f"wake {'+'.join(tags)}")
        self.asleep -= set(tags)

    def sleep(self, level):
        self.told.append("sleep")
        self.asleep = {"weights", "kv_cache"}

    def reset_prefix_cache(self):
        pass

    reset_encoder_cache = reset_prefix_cache


class Engine:
    """ms-swift's engine of the colocated kind."""

    max_model_len = None

    def __init__(self, told):
        self.told = told
        self.engine = Core(told)
        self.inner_model = SimpleNamespace(load_weights=self._load)

    @property
    def inner_model_executor(self):
        return SimpleNamespace(is_sleeping=bool(self.engine.asleep))

    def _load(self, weights):
        self.told.append("load")
        assert "weights" not in self.engine.asleep
        list(weights)

    def infer(self, requests, config, use_tqdm=False):
        self.told.append("infer")
        assert not self.engine.asleep
        return [response(request.uuid) for request in requests]


def colocated(trainer, told, monkeypatch):
    """Make the trainer generate with a colocated engine that sleeps while it trains."""
    import sys

    mixin = sys.modules["swift.rlhf_trainers.rollout_mixin"]
    monkeypatch.setattr(mixin, "patch_vllm_moe_model_weight_loader", lambda model: None)
    monkeypatch.setattr(mixin, "finish_vllm_weight_reload", lambda *_, **__: None)
    for module in (mixin, sys.modules["swift.rlhf_trainers.utils"]):
        monkeypatch.setattr(module, "aggressive_empty_cache", lambda: None)  # there is no device
    trainer.use_fast_infer, trainer.vllm_mode = True, "colocate"
    trainer.args.use_vllm, trainer.args.vllm_mode, trainer.args.sleep_level = True, "colocate", 1
    trainer.enable_offload = trainer.args.offload_optimizer = True
    trainer.engine = Engine(told)


class Client:
    """The trainer's client of `swift rollout`."""

    def __init__(self, told):
        self.told = told

    def infer(self, requests, config, use_tqdm=False):
        self.told.append("infer")
        return [response(request["uuid"]) for request in requests]

    def update_flattened_params(self, *_):
        self.told.append("load")

    def update_named_param(self, *_):
        self.told.append("load")

    def reset_prefix_cache(self):
        pass

    reset_encoder_cache = process_weights_after_loading = reset_prefix_cache


def served(trainer, told, *, asynchronous):
    """Make the trainer generate by a server, beside the training or not."""
    import sys

    mixin = sys.modules["swift.rlhf_trainers.rollout_mixin"]
    trainer.use_fast_infer, trainer.vllm_mode = True, "server"
    trainer.args.use_vllm, trainer.args.vllm_mode = True, "server"
    trainer.args.enable_flattened_weight_sync = False
    trainer.vllm_client = Client(told)
    if asynchronous:
        trainer.async_generate = trainer.args.async_generate = True
        trainer.add_callback(mixin.AsyncGenerateCallback(trainer))
