"""Calls of Ray's actors, timed and not: run by `benchmarks.ray` where Ray is installed.

Prints one JSON object: for each way to call, microseconds of a call in each turn.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_AUTH_MODE", "disabled")  # one machine, one user

import ray

import otel_grpo
import otel_grpo.ray

CALLS = 50  # of one turn
TURNS = 40


class Plain:
    """What a worker does here is nothing: the whole is Ray's and ours."""

    def call(self, value: int) -> int:
        return value

    def carried(self, value: int, *, _otel: dict[str, str] | None = None) -> int:
        return value


def main() -> None:
    """The ways take turns, so that what changes on the machine changes for all of them."""
    with tempfile.TemporaryDirectory() as folder:
        run = otel_grpo.start_run(folder, trainer="benchmark")
        ray.init(
            num_cpus=2,
            include_dashboard=False,
            log_to_driver=False,
            object_store_memory=200 * 2**20,
            runtime_env=otel_grpo.ray.runtime_env(run),
        )
        methods = ["call", "carried"]
        plain = ray.remote(num_cpus=0)(Plain).remote()
        timed = ray.remote(num_cpus=0)(otel_grpo.ray.time_methods(Plain, methods)).remote()
        with run.iteration() as it, it.phase("generation"):
            carrier = run.carrier()
            ways: dict[str, Callable[[], object]] = {
                "plain": lambda: plain.call.remote(1),
                "timed": lambda: timed.call.remote(1),
                "plain, carrier": lambda: plain.carried.remote(1, _otel=carrier),
                "timed, carrier": lambda: timed.carried.remote(1, _otel=carrier),
            }
            costs = {name: [] for name in ways}
            for turn in range(-2, TURNS):  # the first ones start what starts late
                for name, call in ways.items():
                    before = time.perf_counter_ns()
                    for _ in range(CALLS):
                        ray.get(call())
                    if turn >= 0:
                        costs[name].append((time.perf_counter_ns() - before) / CALLS / 1000)
        ray.shutdown()
        run.finish()
    json.dump(costs, sys.stdout)


if __name__ == "__main__":
    main()
