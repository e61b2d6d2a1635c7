"""What travels between the driver and the workers: plain numbers and text."""

from __future__ import annotations

import random
from typing import NamedTuple

PROMPTS = 8
COMPLETIONS = 8


class Question(NamedTuple):
    text: str
    answer: str


class Sample(NamedTuple):
    """One completion."""

    group: int
    prompt: list[int]
    """Tokens of the prompt."""
    completion: list[int]
    """Tokens that the model wrote, the one that ends it included."""
    text: str
    truncated: bool
    version: int
    """Of the weights that wrote it."""


class Batch(NamedTuple):
    """One rollout: the completions of `PROMPTS` questions, group after group."""

    number: int
    questions: list[Question]
    samples: list[Sample]

    def described(self) -> dict[str, object]:
        """For the report of the trainer itself."""
        return {
            "batch": self.number,
            "texts": [sample.text for sample in self.samples],
            "tokens": sum(len(sample.prompt + sample.completion) for sample in self.samples),
        }


def questions(number: int) -> list[Question]:
    """Sums of two digits; the same ones for the same number of a batch."""
    draw = random.Random(number)
    pairs = [(draw.randint(0, 9), draw.randint(0, 9)) for _ in range(PROMPTS)]
    return [Question(f"{a}+{b}=", str(a + b)) for a, b in pairs]


def advantages(rewards: list[float]) -> list[float]:
    """Each reward against its group's mean, in units of the group's standard deviation."""
    result: list[float] = []
    for first in range(0, len(rewards), COMPLETIONS):
        group = rewards[first : first + COMPLETIONS]
        mean = sum(group) / len(group)
        deviation = (sum((reward - mean) ** 2 for reward in group) / len(group)) ** 0.5
        result += [(reward - mean) / (deviation + 1e-4) for reward in group]
    return result
