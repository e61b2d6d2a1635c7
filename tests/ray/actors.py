"""Actors of somebody who times his methods himself."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Generator
from typing import Any

import ray
from plain_actors import Failure, Plain

import otel_grpo


class Timed(Plain):
    """On one thread."""

    @otel_grpo.timed
    def step(self, value: int) -> int:
        return value + 1

    @otel_grpo.timed("renamed", memory=True)
    def measured(self) -> None: ...

    @otel_grpo.timed(carrier=True)
    def carried(self, value: int) -> int:
        return value

    @otel_grpo.timed
    def any_keywords(self, **kwargs: Any) -> list[str]:
        return sorted(kwargs)

    @otel_grpo.timed
    def declares(self, *, _otel: Any = None) -> Any:
        return _otel

    @ray.method(num_returns=2)
    @otel_grpo.timed
    def two(self) -> tuple[int, int]:
        return 1, 2

    @otel_grpo.timed
    @ray.method(num_returns=2)
    def two_below(self) -> tuple[int, int]:
        return 1, 2

    @otel_grpo.timed
    def generator(self, n: int) -> Generator[int, None, None]:
        for number in range(n):  # noqa: UP028 - Ray sends into it, what a range doesn't take
            yield number

    @otel_grpo.timed
    def fails(self, text: str) -> None:
        raise Failure(text, 7)

    @otel_grpo.timed
    def vanishes(self) -> None:
        self.vanish()


class TimedAsync(Plain):
    """On an event loop."""

    def __init__(self) -> None:
        super().__init__()
        self.entered, self.freed = asyncio.Event(), asyncio.Event()

    @otel_grpo.timed
    async def waits(self) -> str:
        self.entered.set()
        await self.freed.wait()
        return "waited"

    @otel_grpo.timed
    async def frees(self) -> None:
        await self.entered.wait()
        self.freed.set()

    @otel_grpo.timed
    async def generator(self, n: int) -> AsyncGenerator[int, None]:
        for number in range(n):
            yield number


class TimedThreads(Plain):
    """On several threads, some of them of a group of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.barrier = threading.Barrier(2)

    @otel_grpo.timed
    def waits(self) -> int:
        return self.barrier.wait(30)

    # Ray finds the group whichever of the two stands above.
    @ray.method(concurrency_group="side")
    @otel_grpo.timed
    def waits_aside(self) -> int:
        return self.barrier.wait(30)


@otel_grpo.timed
def reward(text: str) -> int:
    return len(text)
