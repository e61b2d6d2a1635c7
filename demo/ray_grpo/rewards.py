"""Two reward functions: one runs in a thread of the driver, one in an actor."""

from __future__ import annotations

import re

import otel_grpo
import otel_grpo.ray


def digits(texts: list[str]) -> list[float]:
    """The share of digits. It is dense: it keeps the advantages of a group apart."""
    return [sum(map(str.isdigit, text)) / max(1, len(text)) for text in texts]


class Judge:
    def __init__(self) -> None:
        otel_grpo.ray.join("judge", ["reward"])

    @otel_grpo.timed(carrier=True)
    def solved(self, texts: list[str], answers: list[str]) -> list[float]:
        """1 for the right sum, which a random model hardly ever writes."""
        numbers = [re.search(r"-?\d+", text) for text in texts]
        return [
            float(number is not None and number.group() == answer)
            for number, answer in zip(numbers, answers, strict=True)
        ]
