"""Workers that fail, and confirmations that go astray: for tests, no part of a trainer.

A fault is written KIND[:RANK]@NUMBER:

before, during, after, exit, hang   what the policy worker RANK does in its own step of the update
                                    that is the NUMBERth to be attempted
lost, late, swapped                 what happens to the word that the weights of version NUMBER have
                                    arrived: never told, told before the next one's, told after it
"""

from __future__ import annotations

import os
import re
import time
from typing import Any, NamedTuple

import ray
import torch

from ray_grpo.publishing import Publisher, Transfer
from ray_grpo.trainer import Trainer
from ray_grpo.workers import PolicyWorker


class Fault(NamedTuple):
    kind: str
    rank: int | None
    number: int

    @classmethod
    def parse(cls, text: str) -> Fault:
        match = re.fullmatch(r"([a-z]+)(?::(\d+))?@(\d+)", text)
        if match is None:
            raise ValueError(f"a fault is KIND[:RANK]@NUMBER, not {text!r}")
        kind, rank, number = match.groups()
        return cls(kind, None if rank is None else int(rank), int(number))


class FailingWorker(PolicyWorker):
    def expect(self, faults: list[Fault]) -> None:
        self.attempts = 0
        self.faults = {f.number: f.kind for f in faults if f.rank == self.rank}

    def apply(self, gradient: torch.Tensor) -> None:
        self.attempts += 1
        match self.faults.get(self.attempts):
            case None:
                super().apply(gradient)
            case "exit":
                os._exit(1)
            case "hang":
                time.sleep(3600)
            case "before":
                raise RuntimeError("before its step")
            case "during":
                super().apply(gradient * (torch.arange(len(gradient)) < len(gradient) // 2))
                raise RuntimeError("during its step")
            case "after":
                super().apply(gradient)
                raise RuntimeError("after its step")


class AstrayPublisher(Publisher):
    def expect(self, faults: list[Fault]) -> None:
        self.faults = {fault.number: fault.kind for fault in faults if fault.rank is None}
        self.held: list[tuple[Transfer, int]] = []

    def tell(self, transfer: Transfer, queued: int) -> None:
        held, self.held = self.held, []
        now = [(transfer, queued)]
        match self.faults.get(transfer.version):
            case "lost":
                now = []
            case "late" | "swapped":
                self.held, now = now, []
        late = [told for told in held if self.faults[told[0].version] == "late"]
        swapped = [told for told in held if told not in late]
        for told in [*late, *now, *swapped]:
            super().tell(*told)

    def close(self) -> None:
        super().close()
        for told in self.held:
            super().tell(*told)


class FaultyTrainer(Trainer):
    policy_class = FailingWorker
    publisher_class = AstrayPublisher

    def __init__(self, *args: Any, faults: list[Fault]) -> None:
        super().__init__(*args)
        ray.get([worker.expect.remote(faults) for worker in self.policy])
        self.publisher.expect(faults)
