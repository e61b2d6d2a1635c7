"""A training loop without a model: all that is reported of an iteration, and nothing else."""

from __future__ import annotations

import random
from typing import NamedTuple

import otel_grpo

SAMPLES = 8192
MICRO_BATCH = 128
GROUP = 8


class Lengths(NamedTuple):
    """One column per argument of `consumed`."""

    prompts: list[int]
    completions: list[int]
    environment: list[int]
    groups: list[int]
    versions: list[int]
    truncated: list[bool]


def lengths(samples: int = SAMPLES) -> Lengths:
    draw = random.Random(0)
    completions = [draw.randint(1, 4096) for _ in range(samples)]
    return Lengths(
        prompts=[draw.randint(20, 400) for _ in range(samples // GROUP) for _ in range(GROUP)],
        completions=completions,
        environment=[draw.randint(0, 50) for _ in range(samples)],
        groups=[index // GROUP for index in range(samples)],
        versions=[draw.randint(0, 2) for _ in range(samples)],
        truncated=[length > 4000 for length in completions],
    )


def report(it: otel_grpo.Iteration, rollout: int, columns: Lengths) -> None:
    """The counts of one iteration: every column, a visit of each sample, one update."""
    n = len(columns.prompts)
    it.generated(rollout, n)
    samples = it.consumed(
        rollout,
        prompt_lengths=columns.prompts,
        completion_lengths=columns.completions,
        environment_lengths=columns.environment,
        trained_lengths=columns.completions,
        groups=columns.groups,
        versions=columns.versions,
        truncated=columns.truncated,
    )
    for first in range(0, n, MICRO_BATCH):
        it.trained(samples[first : first + MICRO_BATCH])
    with it.update(nominal=n):
        pass


def spans(it: otel_grpo.Iteration, n: int) -> None:
    """`n` intervals as a trainer has them: some inside others, in several phases."""
    for _ in range(n // 4):
        with it.phase("generation"), it.phase("reward", attributes={"rl.reward.name": "right"}):
            pass
        with it.phase("adv_pipeline"):
            pass
        with it.phase("policy_train"):
            pass
