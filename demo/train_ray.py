"""A GRPO training on Ray actors: three iterations, 8 prompts x 8 completions.

Generation and training take turns (`--mode colocated`), or work side by side (`--mode async`).
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # everything is made by `tiny`
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_AUTH_MODE", "disabled")  # one machine, one user

import ray
from ray_grpo.faults import Fault, FaultyTrainer
from ray_grpo.trainer import Options, Trainer

import otel_grpo
import otel_grpo.ray

TYPES = {"int": int, "int | None": int, "float": float, "Mode": str}


def main() -> None:
    """Train for a few iterations and leave no checkpoint."""
    arguments = parse_arguments()
    options = Options(**{f.name: getattr(arguments, f.name) for f in dataclasses.fields(Options)})
    # This process trains nothing: no device is its own, and its memory is no worker's.
    with otel_grpo.start_run(
        arguments.run_dir,
        trainer="ray-grpo",
        algorithm="grpo",
        config=dataclasses.asdict(options),
        devices=[],
        readings=list,
    ) as run:
        start_ray(otel_grpo.ray.runtime_env(run))
        if arguments.fault:
            trainer: Trainer = FaultyTrainer(run, options, faults=arguments.fault)
        else:
            trainer = Trainer(run, options)
        for _ in range(options.iterations):
            trainer.iteration()
            print(
                "iteration {batch}: loss {loss:+.2e}, gradient {grad_norm:.3f}, "
                "reward {reward:.3f}".format_map(trainer.history[-1])
            )
        trainer.close()
        if arguments.report:
            arguments.report.write_text(json.dumps(trainer.history))
        if not arguments.no_shutdown:
            ray.shutdown()


def start_ray(runtime_env: dict[str, Any]) -> None:
    ray.init(
        num_cpus=1,  # workers that are started for a guess, before an actor asks for one
        object_store_memory=2**28,
        include_dashboard=False,
        log_to_driver=False,
        logging_level="warning",
        runtime_env=runtime_env,
    )


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    for field in dataclasses.fields(Options):
        parser.add_argument(
            f"--{field.name.replace('_', '-')}",
            default=field.default,
            type=TYPES[field.type],
        )
    parser.add_argument("--run-dir", help="where the observations go")
    parser.add_argument("--report", type=Path, help="where to say what the trainer itself saw")
    parser.add_argument("--fault", type=Fault.parse, action="append", help="see ray_grpo/faults.py")
    parser.add_argument("--no-shutdown", action="store_true", help="leave Ray to end by itself")
    return parser.parse_args()


if __name__ == "__main__":
    main()
