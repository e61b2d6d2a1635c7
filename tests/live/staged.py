"""A made-up trainer whose run has what a healthy one lacks. The package is the real one.

    staged.py RUN_DIR RANK WORLD      three of these are a run with all that follows
    staged.py RUN_DIR                 a run that is killed in its second iteration

All ranks do the same; rank 2 is slow at generating. In this order: iterations of one pace; others
that make a tenth of the tokens and leave time in no phase; updates that are skipped, and one that
fails with its iteration; a loss that is not a number; a wait that seems to hang; more spans at once
than the queue of spans holds.
"""

from __future__ import annotations

import math
import os
import signal
import sys
import time
from contextlib import suppress
from threading import Thread

import otel_grpo
from otel_grpo.devices import Reading
from otel_grpo.records.model import Device

SLOW_RANK = 2
STEADY, POOR = 24, 18
SAMPLES, PROMPT, COMPLETION = 8, 16, 100
STALL_S = 9.0
BURST = 4000


class StepFailed(Exception):
    """What a trainer would raise."""


class Trainer:
    def __init__(self, run: otel_grpo.Run, rank: int) -> None:
        self.run, self.rank = run, rank
        self.batch = 0
        self.version = 0

    def iteration(
        self, *, poor: bool = False, wait_s: float = 0.005, burst: int = 0, fault: str | None = None
    ) -> None:
        with self.run.iteration() as it:
            self.batch += 1
            with it.phase("data"):
                time.sleep(0.005)
            saving = Thread(target=self.save, args=(it,))
            saving.start()  # beside what follows: time of two phases at once
            with it.phase("rollout_wait"):
                time.sleep(wait_s)
            with it.phase("generation"):
                time.sleep(0.3 if self.rank == SLOW_RANK else 0.1)
                with it.phase("reward"):
                    time.sleep(0.02)
            with it.phase("adv_pipeline"):  # where the others would wait for the slow one
                time.sleep(0.01 if self.rank == SLOW_RANK else 0.21)
            saving.join()
            samples = it.consumed(
                self.batch,
                prompt_lengths=[PROMPT] * SAMPLES,
                completion_lengths=[
                    COMPLETION // 10 if poor else COMPLETION + i for i in range(SAMPLES)
                ],
                trained_lengths=[COMPLETION // 10] * SAMPLES,
                groups=[i // 4 for i in range(SAMPLES)],
                versions=max(self.version - self.batch % 2, 0),
                first=self.rank * SAMPLES,
                trainer_version=self.version,
            )
            it.discarded("stale", 2, tokens=50)
            for _ in range(burst):
                with it.phase("reward"):
                    pass
            if poor:
                time.sleep(0.6)  # in no phase
            for _ in range(2):
                self.update(it, samples, fault)
            with it.phase("weight_sync"):
                it.publication(self.version, kind="in_place").completed()
            with it.phase("log"):
                self.run.log_scalars(
                    {
                        "loss": math.nan if fault == "nan" else 1 / self.batch,
                        "grad_norm": 0.5,
                        "kl": 0.01,
                        "entropy": 1.5,
                        "learning_rate": 1e-6,
                        "reward": 0.25,
                        "reward_std": 0.125,
                    }
                )

    def save(self, it: otel_grpo.Iteration) -> None:
        with it.phase("checkpoint"):
            time.sleep(0.02)

    def update(
        self, it: otel_grpo.Iteration, samples: otel_grpo.Samples, fault: str | None
    ) -> None:
        with it.phase("policy_train"):
            time.sleep(0.03)
            it.trained(samples)
        with it.update() as update:
            if fault == "skip":
                update.skip("overflow")
            elif fault == "fail":
                update.fail("NCCLError", ranks=[self.rank])
                raise StepFailed
            else:
                self.version += 1


def readings(rank: int) -> list[Reading]:
    """Of a GPU that works harder the higher its rank; its energy grows by 100 J a second."""
    return [
        Reading(
            rank,
            "staged",
            os.getpid(),
            device=0,
            allocator_allocated=2**30,
            allocator_reserved=2**31,
            allocator_peak_allocated=3 * 2**30,
            allocator_peak_reserved=2**32,
            device_used=5 * 2**30,
            device_total=80 * 2**30,
            process_rss=2**28 + rank,
            device_source="nvml",
            utilization=50 + rank,
            power_mw=400_000 + rank,
            energy_mj=int(time.monotonic() * 100_000),
            temperature_c=60 + rank,
        )
    ]


def start(run_dir: str, rank: int, world: int) -> otel_grpo.Run:
    return otel_grpo.start_run(
        run_dir,
        trainer="staged",
        algorithm="grpo",
        devices=[Device(f"GPU-staged-{rank}", "cuda", "staged", "H100", 80 * 2**30)],
        readings=lambda: readings(rank),
        rank=rank,
        world_size=world,
    )


def faulty(run_dir: str, rank: int, world: int) -> None:
    with start(run_dir, rank, world) as run:
        trainer = Trainer(run, rank)
        for _ in range(STEADY):
            trainer.iteration()
        for _ in range(POOR):
            trainer.iteration(poor=True)
        for fault in (*["skip"] * 8, "fail", "nan"):
            with suppress(StepFailed):
                trainer.iteration(fault=fault)
        trainer.iteration(wait_s=STALL_S)
        trainer.iteration(burst=BURST)
        for _ in range(3):
            trainer.iteration()


def killed(run_dir: str) -> None:
    with start(run_dir, 0, 1) as run:
        Trainer(run, 0).iteration()
        with run.iteration() as it, it.phase("rollout_wait"):
            time.sleep(3)  # it is exported that this is open
            os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    if sys.argv[2:]:
        faulty(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
    else:
        killed(sys.argv[1])
