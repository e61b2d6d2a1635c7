"""Runs the reference trainer and says what it did: its calls to actors, its results, its failures.

driver.py OUT.json [--bed] ARGUMENTS OF demo/train_ray.py

Nothing of the plugin is asked. `--bed` trains on after each failure, in workers that take the place
of those that are gone, and looks whether weights arrive while a generation goes on.
"""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path

import ray
import ray_grpo.trainer
import train_ray
from ray.actor import ActorMethod
from ray_grpo.batch import questions
from ray_grpo.faults import FailingWorker

calls: dict[str, list[str]] = {}
failures: list[list[str] | None] = []
told: dict[str, object] = {"calls": calls, "failures": failures}


def write_down(submit):
    """Each call to an actor, in order, by the thread that makes it."""

    def remote(self, *args, **kwargs):
        calls.setdefault(threading.current_thread().name, []).append(self._method_name)
        return submit(self, *args, **kwargs)

    return remote


def going_on(iteration):
    """An iteration that tells its failure instead of raising it."""

    def iterate(self):
        try:
            iteration(self)
        except Exception as error:
            cause = getattr(error, "cause", None)
            failures.append([type(error).__name__, type(cause).__name__, str(cause or "")])
            self.history.append(dict.fromkeys(("batch", "loss", "grad_norm", "reward"), 0))
            replace_the_dead(self)
        else:
            failures.append(None)

    return iterate


def replace_the_dead(trainer):
    for rank, worker in enumerate(trainer.policy):
        try:
            ray.get(worker.__ray_ready__.remote())
        except ray.exceptions.RayActorError:
            new = ray_grpo.trainer.actor(FailingWorker).remote(rank, len(trainer.policy))
            weights, shapes = ray.get(trainer.batches.rollouts[0].initial.remote())
            ray.get([new.load.remote(weights, shapes), new.expect.remote([])])
            trainer.policy[rank] = new


def arrives_meanwhile(close):
    """At the end: new weights for a worker that was asked to generate before."""

    def closing(self):
        worker = self.batches.rollouts[0]
        weights, _ = ray.get(worker.initial.remote())
        generation = worker.generate.remote(questions(1), 0, 1, self.version, _otel=None)
        receipt = worker.receive.remote(99, weights, _otel=None)
        first, _ = ray.wait([generation, receipt], num_returns=1)
        told["arrived_meanwhile"] = first == [receipt]
        close(self)

    return closing


def main():
    out = Path(sys.argv.pop(1))
    if sys.argv[1] == "--bed":
        del sys.argv[1]
        trainer = ray_grpo.trainer.Trainer
        trainer.iteration = going_on(trainer.iteration)
        trainer.close = arrives_meanwhile(trainer.close)
    ActorMethod.remote = write_down(ActorMethod.remote)
    history = out.with_suffix(".history")
    sys.argv += ["--report", str(history)]
    try:
        train_ray.main()
    finally:
        told["history"] = json.loads(history.read_text()) if history.exists() else None
        told["observed"] = "otel_grpo.tracing" in sys.modules
        out.write_text(json.dumps(told))


if __name__ == "__main__":
    main()
