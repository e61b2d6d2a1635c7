"""Twinkle's own code on this CPU: what takes the place of a GPU, of vLLM's engine, and of NCCL.

`setup` runs in every process, the driver's and those of the workers. It only waits for imports. The
sampler, the checkpoint manager and all that dispatches calls to workers is Twinkle's.
"""

from __future__ import annotations

import asyncio
import os
import random
import socket
from pathlib import Path

# Where the stand-ins keep what they hand over; while FAILS exists, the optimizer of worker 1 fails.
FOLDER = "TWINKLE_TEST_FOLDER"
FAILS = "fails"


def folder() -> Path:
    return Path(os.environ[FOLDER])


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def setup() -> None:
    import wrapt

    wrapt.register_post_import_hook(on_the_cpu, "twinkle.utils.platforms.gpu")
    wrapt.register_post_import_hook(without_vllm, "twinkle.sampler.vllm_sampler.vllm_sampler")
    wrapt.register_post_import_hook(without_nccl, "twinkle.checkpoint_engine.mixin")
    wrapt.register_post_import_hook(manager_without_nccl, "twinkle.checkpoint_engine.manager")
    wrapt.register_post_import_hook(failing, "torch.optim.adamw")


def on_the_cpu(module) -> None:
    module.GPU.get_local_device = staticmethod(lambda *_, **__: "cpu")
    module.GPU.device_backend = staticmethod(lambda *_, **__: "gloo")


def failing(module) -> None:
    step = module.AdamW.step

    def faulty(self, *args, **kwargs):
        if os.environ.get("RANK") == "1" and (folder() / FAILS).exists():
            raise RuntimeError("this worker's step failed")
        return step(self, *args, **kwargs)

    module.AdamW.step = faulty


# --- the sampler's engine


def without_vllm(module) -> None:
    from twinkle.sampler.vllm_sampler import vllm_engine

    module.requires = lambda _: None
    module.VLLMLoraWeights = lambda: lambda _: None
    vllm_engine.VLLMEngine = Engine


class Engine:
    """Writes random tokens, the same in each run."""

    def __init__(self, model_id, **options):
        self.engine = self
        self.weights = {}
        self.draw = random.Random(int(os.environ.get("RANK", "0")))

    async def collective_rpc(self, name):
        """Nothing to do."""

    async def sample(self, prompt, sampling_params, **options):
        from twinkle.data_format import SampledSequence, SampleResponse

        sequences = []
        for _ in range(sampling_params.num_samples):
            n = self.draw.randint(1, sampling_params.max_tokens)
            tokens = [self.draw.randrange(256) for _ in range(n)]
            full = n == sampling_params.max_tokens
            sequences.append(SampledSequence("length" if full else "stop", tokens))
        return SampleResponse(sequences=sequences, prompt_token_ids=list(prompt))

    async def update_weights(self, weights, **options):
        async for name, tensor in weights:
            self.weights[name] = tensor

    async def sleep(self, level):
        """Nothing to do."""

    async def wake_up(self, tags=None):
        """Nothing to do."""

    def invalidate_synced_lora(self):
        """There is none."""

    async def get_state_keys(self):
        return list(self.weights)

    async def reset_prefix_cache(self):
        """There is none."""

    async def shutdown(self):
        """Nothing to do."""


# --- the transfer of weights


def without_nccl(module) -> None:
    def engine(self):
        if self._checkpoint_engine is None:
            self._checkpoint_engine = Files()
        return self._checkpoint_engine

    module.CheckpointEngineMixin._get_or_create_checkpoint_engine = engine


def manager_without_nccl(module) -> None:
    module.CheckpointEngineManager.decide_backend_engine = staticmethod(lambda _: Files)


class Files:
    """Hands weights over in a file for each transfer."""

    def __init__(self):
        self.rank = -1
        self.transfers = 0

    def prepare(self):
        return {}

    @classmethod
    def build_topology(cls, trainers, samplers, metadata):
        def of(ranks):
            n = len(ranks)
            return {"rank": ranks, "world_size": [n] * n, "master_metadata": [{}] * n}

        return of([0] + [-1] * (trainers - 1)), of(list(range(1, samplers + 1)))

    def init_process_group(self, rank, world_size, master_metadata):
        self.rank = rank
        self.transfers += 1

    def finalize(self):
        """Nothing to do."""

    def path(self):
        return folder() / f"weights-{self.transfers}"

    async def send_weights(self, weights):
        import torch

        if self.rank == 0:
            partly = self.path().with_suffix(".partly")
            torch.save(dict(weights), partly)
            partly.rename(self.path())

    async def receive_weights(self):
        import torch

        while not self.path().exists():  # noqa: ASYNC110 (another process makes it)
            await asyncio.sleep(0.01)
        for name, tensor in torch.load(self.path()).items():
            yield name, tensor
