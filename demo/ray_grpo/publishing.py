"""New weights on their way from the policy workers to the rollout workers."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import ray

import otel_grpo


class Transfer(NamedTuple):
    version: int
    publication: otel_grpo.Publication
    receipts: list[ray.ObjectRef]
    """One for each rollout worker; it is there when the weights are."""


class Publisher:
    """Each policy worker sends its part of the weights to each rollout worker.

    Args:
        policy: the actors that send.
        rollouts: the actors that receive.
        size: of one version, in bytes.
        arrived: is told each version that every rollout worker has, and answers how many batches
            wait to be trained on by then.
    """

    def __init__(
        self, policy: list[Any], rollouts: list[Any], *, size: int, arrived: Callable[[int], int]
    ) -> None:
        self._policy, self._rollouts = policy, rollouts
        self._size = size
        self._arrived = arrived
        self._underway: list[Future[None]] = []
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="confirmations")

    def send(
        self, version: int, publication: otel_grpo.Publication, carrier: dict[str, str]
    ) -> Transfer:
        """Submit the transfer and wait for nothing."""
        parts = [worker.publish.remote(_otel=carrier) for worker in self._policy]
        receipts = [
            worker.receive.remote(version, *parts, _otel=carrier) for worker in self._rollouts
        ]
        return Transfer(version, publication, receipts)

    def confirm(self, transfer: Transfer) -> None:
        """Wait for the last receiver, then tell."""
        ray.get(transfer.receipts)
        self.tell(transfer, self._arrived(transfer.version))

    def confirm_later(self, transfer: Transfer) -> None:
        """The same in a thread, while the training goes on."""
        self._underway.append(self._thread.submit(self.confirm, transfer))

    def tell(self, transfer: Transfer, queued: int) -> None:
        transfer.publication.completed(bytes=self._size, queue=queued)

    def check(self) -> None:
        """Raise what a transfer failed with."""
        for future in [future for future in self._underway if future.done()]:
            self._underway.remove(future)
            future.result()

    def close(self) -> None:
        """Wait for the transfers that are underway."""
        self._thread.shutdown()
        self.check()
