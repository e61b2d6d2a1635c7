"""The loop. What is observed are its blocks: each says what it is, none does anything else."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal

import ray

import otel_grpo
import otel_grpo.ray
from ray_grpo.batch import COMPLETIONS, PROMPTS, Batch, advantages
from ray_grpo.generation import Beside, WhenAsked
from ray_grpo.publishing import Publisher
from ray_grpo.rewards import Judge, digits
from ray_grpo.workers import Forward, PolicyWorker, ReferenceWorker, RolloutWorker, Vector

Mode = Literal["colocated", "async"]
END_S = 10.0  # for workers that do not answer any more


@dataclass(frozen=True)
class Options:
    mode: Mode = "colocated"
    iterations: int = 3
    workers: int = 8
    """Replicas of the policy; they divide the 64 samples of a batch."""
    rollouts: int = 1
    passes: int = 1
    """Updates from each batch."""
    micro_batch: int = 2
    """Samples of one backward pass of one worker."""
    max_tokens: int = 32
    publish_every: int = 1
    """Updates from one publication to the next."""
    room: int = 2
    """Asynchronous: batches that may wait in the queue."""
    staleness: int = 2
    """Asynchronous: updates since a batch was written, beyond which it is dropped."""
    lead: int | None = None
    """Asynchronous: a fixed schedule, iterations between the weights and the training."""
    step_timeout: float = 120.0
    """Seconds until a worker that does not answer counts as hung."""


class Trainer:
    """Starts the workers, and trains one iteration a call."""

    policy_class: type[PolicyWorker] = PolicyWorker
    publisher_class: type[Publisher] = Publisher

    def __init__(self, run: otel_grpo.Run, options: Options) -> None:
        self.run = run
        self.options = options
        self.version = 0  # updates applied
        self.history: list[dict[str, Any]] = []
        rollouts = [
            # Weights arrive in a thread of their own, so that a generation goes on meanwhile.
            actor(RolloutWorker, concurrency_groups={"transfer": 1}).remote(
                rank, options.max_tokens
            )
            for rank in range(options.rollouts)
        ]
        self.policy = [
            actor(self.policy_class).remote(rank, options.workers)
            for rank in range(options.workers)
        ]
        # Numbers for the policy workers, from 1: the driver is 0.
        otel_grpo.ray.watch(run, self.policy, role=self.policy_class.role)
        self.reference = actor(ReferenceWorker).remote()
        self.judge = actor(Judge).remote()
        weights, shapes = ray.get(rollouts[0].initial.remote())
        shared = ray.put(weights)
        self.workers = [*rollouts, *self.policy, self.reference, self.judge]
        ray.get([worker.load.remote(shared, shapes) for worker in [*self.policy, self.reference]])
        self.threads = ThreadPoolExecutor(2, thread_name_prefix="side-by-side")
        self.publisher = self.publisher_class(
            self.policy, rollouts, size=weights.nbytes, arrived=self.arrived
        )
        self.batches: WhenAsked | Beside = WhenAsked(run, rollouts)
        if options.mode == "async":
            self.batches = Beside(
                rollouts,
                room=options.room,
                staleness=options.staleness,
                lead=options.lead,
                every=options.publish_every,
            )

    def iteration(self) -> None:
        with self.run.iteration() as it:
            self.publisher.check()
            batch = self.batches.next(it, self.version)
            samples = it.consumed(
                batch.number,
                prompt_lengths=[len(sample.prompt) for sample in batch.samples],
                completion_lengths=[len(sample.completion) for sample in batch.samples],
                trained_lengths=[len(sample.completion) for sample in batch.samples],
                truncated=[sample.truncated for sample in batch.samples],
                groups=[sample.group for sample in batch.samples],
                versions=[sample.version for sample in batch.samples],
                trainer_version=self.version,
            )
            rewards = self.score(it, batch)
            with it.phase("adv_pipeline") as pipeline:
                old, reference = self.forwards(it, pipeline, batch)
                gains = advantages(rewards)
            for _ in range(self.options.passes):
                loss = self.train_pass(it, batch, samples, old, reference, gains)
                norm = self.update(it)
            self.publish(it)
            with it.phase("log"):
                scalars = {"loss": loss, "grad_norm": norm, "reward": sum(rewards) / len(rewards)}
                self.run.log_scalars(scalars, step=self.version)
        self.history[-1] |= {**scalars, **batch.described()}

    def score(self, it: otel_grpo.Iteration, batch: Batch) -> list[float]:
        """One reward function works in a thread, the other one in an actor, both at once."""
        texts = [sample.text for sample in batch.samples]
        answers = [batch.questions[sample.group].answer for sample in batch.samples]
        with it.phase("reward") as parent:

            def part(name: str) -> otel_grpo.Phase:
                return it.phase("reward", parent=parent, attributes={"rl.reward.name": name})

            answer = self.judge.solved.remote(texts, answers, _otel=self.run.carrier())
            solved = self.aside(part("solved"), ray.get, answer)
            dense = self.aside(part("digits"), digits, texts)
            return [a + b for a, b in zip(solved.result(), dense.result(), strict=True)]

    def forwards(
        self, it: otel_grpo.Iteration, parent: otel_grpo.Phase, batch: Batch
    ) -> list[list[Vector]]:
        """Log-probabilities of the old and the reference policy: both are submitted, then awaited."""
        carrier = self.run.carrier()
        reference = [self.reference.log_probs.remote(batch.samples, _otel=carrier)]
        old = [
            worker.log_probs.remote(shard, _otel=carrier)
            for worker, shard in zip(self.policy, self.shards(batch.samples), strict=True)
        ]
        waits = [
            self.aside(it.phase("logprob_old", parent=parent), ray.get, old),
            self.aside(it.phase("logprob_ref", parent=parent), ray.get, reference),
        ]
        both: list[list[Forward]] = [wait.result() for wait in waits]
        self.history.append({"forwards": [[part[1:] for part in parts] for parts in both]})
        return [[row for part in parts for row in part.log_probs] for parts in both]

    def aside(self, phase: otel_grpo.Phase, work: Callable[..., Any], argument: Any) -> Future[Any]:
        """Work in a thread of its own, as a phase there."""

        def run() -> Any:
            with phase:
                return work(argument)

        return self.threads.submit(run)

    def train_pass(
        self,
        it: otel_grpo.Iteration,
        batch: Batch,
        samples: otel_grpo.Samples,
        old: list[Vector],
        reference: list[Vector],
        gains: list[float],
    ) -> float:
        """Gradients of the whole batch, added up by micro-batches; returns the mean loss."""
        size = len(batch.samples) // len(self.policy)
        step = self.options.micro_batch
        total = 0.0
        for first in range(0, size, step):
            parts = [
                slice(shard + first, shard + first + step)
                for shard in range(0, len(batch.samples), size)
            ]
            with it.phase("policy_train"):
                carrier = self.run.carrier()
                losses = ray.get(
                    [
                        worker.backward.remote(
                            batch.samples[part],
                            old[part],
                            reference[part],
                            gains[part],
                            step / size,
                            _otel=carrier,
                        )
                        for worker, part in zip(self.policy, parts, strict=True)
                    ]
                )
            it.trained([sample for part in parts for sample in samples[part]])
            total += sum(losses) / len(losses)
        return total

    def update(self, it: otel_grpo.Iteration) -> float:
        """One step of each worker. It is over when all have answered, and applied if none failed."""
        with it.update(nominal=PROMPTS * COMPLETIONS) as update:
            carrier = self.run.carrier()
            gradients = [worker.gradient.remote(_otel=carrier) for worker in self.policy]
            steps = [worker.step.remote(*gradients, _otel=carrier) for worker in self.policy]
            ray.wait(steps, num_returns=len(steps), timeout=self.options.step_timeout)
            norms, failures = [], {}
            for rank, answer in enumerate(steps):
                try:
                    norms.append(ray.get(answer, timeout=0))
                except ray.exceptions.RayError as error:
                    failures[rank] = error
            for rank, error in failures.items():
                if isinstance(error, ray.exceptions.GetTimeoutError):
                    ray.kill(self.policy[rank])
            if failures:
                error = next(iter(failures.values()))
                update.fail(type(error).__name__, ranks=[rank + 1 for rank in failures])
                raise error
        self.version += 1
        return norms[0]

    def publish(self, it: otel_grpo.Iteration) -> None:
        if self.version % self.options.publish_every:
            return
        beside = self.options.mode == "async"
        with it.phase("weight_sync"):
            publication = it.publication(self.version, kind="ipc")
            transfer = self.publisher.send(self.version, publication, self.run.carrier())
            if not beside:
                self.publisher.confirm(transfer)
        if beside:
            self.publisher.confirm_later(transfer)

    def arrived(self, version: int) -> int:
        """Every rollout worker has this version; returns how many batches wait."""
        self.batches.arrived(version)
        return self.batches.queued

    def shards(self, rows: list[Any]) -> list[list[Any]]:
        """Equal parts, one for each policy worker."""
        size = len(rows) // len(self.policy)
        return [rows[first : first + size] for first in range(0, len(rows), size)]

    def close(self) -> None:
        """Let what is on its way arrive, and the workers end in order: a shutdown kills them."""
        self.batches.close()
        self.publisher.close()
        self.threads.shutdown()
        ends = [worker.__ray_terminate__.remote() for worker in self.workers]
        ray.wait(ends, num_returns=len(ends), timeout=END_S)


def actor(kind: type, **options: Any) -> Any:
    """Workers share the machine as they find it: none reserves a core."""
    return ray.remote(num_cpus=0, **options)(kind)
