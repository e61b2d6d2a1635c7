"""Where the batches come from: generated when the loop asks, or beside it."""

from __future__ import annotations

import threading
from collections import deque
from itertools import count
from typing import Any

import ray

import otel_grpo
from ray_grpo.batch import PROMPTS, Batch, questions


def generate(
    workers: list[Any], number: int, version: int | None, carrier: dict[str, str] | None = None
) -> Batch:
    """Batch `number`, with the weights of `version` or with each worker's newest."""
    asked = questions(number)
    share = PROMPTS // len(workers)
    parts = [
        worker.generate.remote(asked[first : first + share], first, number, version, _otel=carrier)
        for worker, first in zip(workers, range(0, PROMPTS, share), strict=True)
    ]
    return Batch(number, asked, [sample for part in ray.get(parts) for sample in part])


class WhenAsked:
    """Colocated: generation and training take turns."""

    def __init__(self, run: otel_grpo.Run, rollouts: list[Any]) -> None:
        self.run = run
        self.rollouts = rollouts
        self.queued = 0
        self._newest = 0
        self._numbers = count(1)

    def next(self, it: otel_grpo.Iteration, trained: int) -> Batch:
        """The next batch; `trained` is the policy's version now."""
        with it.phase("generation"):
            batch = generate(self.rollouts, next(self._numbers), self._newest, self.run.carrier())
        it.generated(batch.number, len(batch.samples))
        return batch

    def arrived(self, version: int) -> None:
        """Every rollout worker has this version."""
        self._newest = version

    def close(self) -> None:
        """No more batches are wanted."""


class Beside:
    """Asynchronous: a thread keeps the rollout workers busy, and finished batches wait in a queue.

    With `lead`, batch k is written with the version of the iteration that is `lead` before its own,
    whoever is faster: the same batches at each run. Without it each worker uses its newest weights.
    """

    def __init__(
        self, rollouts: list[Any], *, room: int, staleness: int, lead: int | None, every: int
    ) -> None:
        self.rollouts = rollouts
        self._room, self._staleness, self._lead, self._every = room, staleness, lead, every
        self._queue: deque[Batch | BaseException] = deque()
        self._newest = 0
        self._closed = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._produce, name="generation", daemon=True)
        self._thread.start()

    @property
    def queued(self) -> int:
        return len(self._queue)

    def next(self, it: otel_grpo.Iteration, trained: int) -> Batch:
        """The next batch that is fresh enough; `trained` is the policy's version now."""
        while True:
            with it.phase("rollout_wait"):  # whatever the rollout workers do meanwhile
                batch = self._take()
            it.generated(batch.number, len(batch.samples))
            if trained - min(sample.version for sample in batch.samples) <= self._staleness:
                return batch
            tokens = sum(len(sample.completion) for sample in batch.samples)
            it.discarded("stale", len(batch.samples), tokens=tokens)

    def arrived(self, version: int) -> None:
        with self._changed:
            self._newest = max(self._newest, version)
            self._changed.notify_all()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join()

    def _take(self) -> Batch:
        with self._changed:
            self._changed.wait_for(lambda: self._queue)
            batch = self._queue.popleft()
            self._changed.notify_all()
        if isinstance(batch, BaseException):
            raise batch
        return batch

    def _produce(self) -> None:
        batch: Batch | BaseException
        for number in count(1):
            version = self._version_of(number)
            if not self._my_turn(version or 0):
                return
            try:
                batch = generate(self.rollouts, number, version)
            except Exception as error:  # the loop raises it
                batch = error
            with self._changed:
                self._queue.append(batch)
                self._changed.notify_all()
            if isinstance(batch, BaseException):
                return

    def _version_of(self, number: int) -> int | None:
        if self._lead is None:
            return None
        trained = max(0, number - 1 - self._lead)
        return trained - trained % self._every

    def _my_turn(self, version: int) -> bool:
        """Wait for room in the queue and for the weights; False where no more is wanted."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._closed or (len(self._queue) < self._room and self._newest >= version)
            )
            return not self._closed
