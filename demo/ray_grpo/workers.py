"""What runs in the actors that have a model."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import ray
import torch

import otel_grpo
import otel_grpo.ray
from ray_grpo.batch import COMPLETIONS, Question, Sample
from ray_grpo.model import Shapes, log_probs, views

Vector = npt.NDArray[np.float32]

CLIP = 0.2
KL_WEIGHT = 0.02
LEARNING_RATE = 1e-3
LARGEST_NORM = 1.0


class Forward(NamedTuple):
    """Log-probabilities of each sample's completion, and when this worker made them."""

    log_probs: list[Vector]
    started_ns: int
    ended_ns: int


class ReferenceWorker:
    """A policy that stays as it was."""

    role, does = "reference", ["reward"]

    def load(self, weights: Vector, shapes: Shapes) -> None:
        torch.set_num_threads(1)
        otel_grpo.ray.join(self.role, self.does)
        self.flat = torch.from_numpy(weights.copy()).requires_grad_()
        self.shapes = shapes

    @otel_grpo.timed(carrier=True)
    def log_probs(self, samples: list[Sample]) -> Forward:
        started = time.perf_counter_ns()
        with torch.no_grad():
            values = log_probs(self.flat, self.shapes, samples)
        return Forward([value.numpy() for value in values], started, time.perf_counter_ns())


class PolicyWorker(ReferenceWorker):
    """One replica of the policy: it sees a shard of each batch and makes each step itself."""

    role, does = "policy", ["train"]

    def __init__(self, rank: int, world: int) -> None:
        self.rank = rank
        self.world = world
        self.steps = 0

    def load(self, weights: Vector, shapes: Shapes) -> None:
        super().load(weights, shapes)
        self.mean, self.square = torch.zeros_like(self.flat), torch.zeros_like(self.flat)

    @otel_grpo.timed(carrier=True)
    def backward(
        self,
        samples: list[Sample],
        old: list[Vector],
        reference: list[Vector],
        advantages: list[float],
        share: float,
    ) -> float:
        """Gradient of one micro-batch, added to those before; `share` is its part of the shard."""
        new = log_probs(self.flat, self.shapes, samples)
        parts = zip(
            new, map(torch.tensor, old), map(torch.tensor, reference), advantages, strict=True
        )
        loss = torch.stack([_loss(*part) for part in parts]).mean() * share
        loss.backward()
        return loss.item()

    @otel_grpo.timed(carrier=True, memory=True)
    def gradient(self) -> Vector:
        """What the micro-batches have added up to; a worker holds most memory now."""
        gradient, self.flat.grad = self.flat.grad, None
        return gradient.numpy()

    @otel_grpo.timed(carrier=True)
    def step(self, *gradients: Vector) -> float:
        """The mean of all workers' gradients, clipped and applied; returns its norm."""
        gradient = torch.from_numpy(np.mean(gradients, axis=0))
        norm = gradient.norm().item()
        self.apply(gradient * min(1.0, LARGEST_NORM / norm))
        return norm

    @torch.no_grad()
    def apply(self, gradient: torch.Tensor) -> None:
        """Adam over the flat vector."""
        self.steps += 1
        self.mean.lerp_(gradient, 0.1)
        self.square.lerp_(gradient.square(), 0.001)
        mean = self.mean / (1 - 0.9**self.steps)
        square = self.square / (1 - 0.999**self.steps)
        self.flat -= LEARNING_RATE * mean / (square.sqrt() + 1e-8)

    @otel_grpo.timed(carrier=True)
    def publish(self) -> Vector:
        """This worker's part of the weights; all parts together are one version."""
        return np.array_split(self.flat.detach().numpy(), self.world)[self.rank].copy()


class RolloutWorker:
    """Generates with transformers, with the weights of a version that has arrived."""

    def __init__(self, rank: int, max_tokens: int) -> None:
        import tiny  # brings transformers, which the other workers need not wait for

        torch.set_num_threads(1)
        self.rank = rank
        self.max_tokens = max_tokens
        self.words = tiny.tokenizer()
        self.model = tiny.model(self.words).eval()
        self.weights = dict(sorted(self.model.named_parameters()))
        self.arrived: dict[int, Vector] = {}
        self.version = 0
        otel_grpo.ray.join("rollout", ["generate"])

    def initial(self) -> tuple[Vector, Shapes]:
        """The random weights that the training starts from."""
        flat = torch.cat([weight.detach().flatten() for weight in self.weights.values()])
        return flat.numpy(), {name: tuple(weight.shape) for name, weight in self.weights.items()}

    @ray.method(concurrency_group="transfer")
    @otel_grpo.timed(carrier=True)
    def receive(self, version: int, *parts: Vector) -> None:
        """New weights, also while a generation goes on: the next one uses them."""
        self.arrived[version] = np.concatenate(parts)

    @otel_grpo.timed(carrier=True)
    @torch.no_grad()
    def generate(
        self, questions: list[Question], first: int, seed: int, version: int | None
    ) -> list[Sample]:
        """`COMPLETIONS` samples of each question; groups are numbered from `first`.

        They are written with the weights of `version`, which has arrived, or with the newest.
        """
        self._use(max([self.version, *self.arrived]) if version is None else version)
        torch.manual_seed(1000 * seed + self.rank)
        chats = [[{"role": "user", "content": question.text}] for question in questions]
        prompts: Any = self.words.apply_chat_template(
            chats, add_generation_prompt=True, return_dict=True, return_tensors="pt", padding=True
        )
        rows = self.model.generate(
            **prompts,
            do_sample=True,
            top_k=0,
            suppress_tokens=[self.words.pad_token_id],  # its embedding is zero
            max_new_tokens=self.max_tokens,
            num_return_sequences=COMPLETIONS,
        )
        width = prompts["input_ids"].shape[1]
        samples = []
        for index, row in enumerate(rows):
            question = index // COMPLETIONS
            prompt = prompts["input_ids"][question][prompts["attention_mask"][question].bool()]
            ends = (row[width:] == self.words.eos_token_id).nonzero()
            completion = row[width:][: int(ends[0]) + 1 if len(ends) else None]
            samples.append(
                Sample(
                    group=first + question,
                    prompt=prompt.tolist(),
                    completion=completion.tolist(),
                    text=self.words.decode(completion, skip_special_tokens=True),
                    truncated=not len(ends),
                    version=self.version,
                )
            )
        return samples

    def _use(self, version: int) -> None:
        if version != self.version:
            shapes = {name: tuple(weight.shape) for name, weight in self.weights.items()}
            flat = torch.from_numpy(self.arrived[version])
            for name, values in views(flat, shapes).items():
                self.weights[name].copy_(values)
            self.version = version
            for older in [number for number in list(self.arrived) if number <= version]:
                del self.arrived[older]


def _loss(
    new: torch.Tensor, old: torch.Tensor, reference: torch.Tensor, advantage: float
) -> torch.Tensor:
    """GRPO's clipped loss of one sample, and its distance to the reference policy."""
    ratio = (new - old).exp()
    gain = torch.minimum(ratio * advantage, ratio.clamp(1 - CLIP, 1 + CLIP) * advantage)
    distance = (reference - new).exp() - (reference - new) - 1
    return (KL_WEIGHT * distance - gain).mean()
