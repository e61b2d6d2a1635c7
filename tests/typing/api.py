"""The public API as a user writes it. Never run: `mypy --strict` reads it, so a type that gets worse
for users is an error here.
"""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
from opentelemetry.sdk.trace import TracerProvider
from typing_extensions import assert_type

import otel_grpo
import otel_grpo.ray
from otel_grpo import Iteration, Phase, Publication, Run, Samples, Update
from otel_grpo.testing import FakeClock, RecordedRun, recorded_run

# --- a run


def run_of_a_loop_of_ones_own() -> None:
    with otel_grpo.start_run("runs/exp1", trainer="my-loop", algorithm="grpo") as run:
        assert_type(run, Run)
        with run.iteration() as it:
            assert_type(it, Iteration)
            with it.phase("generation") as phase:
                assert_type(phase, Phase)
            it.generated("rollout-1", 64)
            samples = it.consumed(
                "rollout-1",
                prompt_lengths=[12] * 64,
                completion_lengths=[30] * 64,
                groups=[i // 8 for i in range(64)],
                versions=0,
                truncated=[False] * 64,
            )
            assert_type(samples, Samples)
            for start in range(0, len(samples), 16):
                minibatch = samples[start : start + 16]
                assert_type(minibatch, Samples)
                with it.phase("policy_train", attributes={"epoch": 1}):
                    it.trained(minibatch)
                with it.update(samples=minibatch, nominal=16) as update:
                    assert_type(update, Update)
                    update.skip("overflow")
            it.discarded("stale", 3, tokens=120)
            with it.phase("weight_sync"):
                publication = it.publication(1, kind="collective")
                assert_type(publication, Publication)
                publication.completed(bytes=1 << 30)
            it.memory()
        run.log_scalars({"loss": 0.5, "kl": float("nan")}, step=1, epoch=0.25, covers=[1])
        run.memory()


def run_without_a_block() -> None:
    run = otel_grpo.start_run(
        Path("runs/exp2"),
        trainer="my-loop",
        trainer_version="1.0",
        config={"lr": 1e-6},
        run_id="exp-2",
        base={"optimizer_step": 100},
        tracer_provider=TracerProvider(),
    )
    it = run.open_iteration(start_ns=1)
    assert_type(it, Iteration)
    it.close(end_ns=2, status="aborted")
    run.finish("interrupted")


def run_as_a_context_manager(run: Run) -> AbstractContextManager[Run]:
    return run


def columns_of_numpy(it: Iteration) -> None:
    """Lengths come as arrays from most trainers."""
    lengths = np.array([3, 4], dtype=np.int64)
    it.consumed(7, prompt_lengths=lengths, completion_lengths=lengths, versions=lengths)


def samples_are_ids(samples: Samples) -> None:
    for each in samples:
        assert_type(each, tuple[str | int, int])


def completion_is_told_by_a_callback(publication: Publication) -> Callable[[], None]:
    return publication.completed


# --- far from the loop


def current() -> None:
    assert_type(otel_grpo.current_run(), Run | None)
    with otel_grpo.iteration() as it:
        assert_type(it, Iteration)
    with otel_grpo.phase("reward", attributes={"function": "exact"}) as phase:
        assert_type(phase, Phase)


# --- timed: the decorated function keeps its type


@otel_grpo.timed
def plain(a: int, *, b: str = "") -> float:
    return float(a)


@otel_grpo.timed("reward_model")
def named(a: int) -> str:
    return str(a)


@otel_grpo.timed()
async def coroutine(a: int) -> bytes:
    return bytes(a)


@otel_grpo.timed
def generator(a: int) -> Iterator[int]:
    yield a


@otel_grpo.timed
async def async_generator(a: int) -> AsyncIterator[int]:
    yield a


class Worker:
    @otel_grpo.timed
    def step(self, batch: list[int]) -> int:
        return len(batch)

    @otel_grpo.timed("forward", memory=True, carrier=True)
    def log_probs(self, batch: list[int]) -> list[float]:
        return [float(sample) for sample in batch]


async def timed_functions() -> None:
    assert_type(plain(1, b="x"), float)
    assert_type(named(1), str)
    assert_type(await coroutine(1), bytes)
    assert_type(generator(1), Iterator[int])
    assert_type(async_generator(1), AsyncIterator[int])
    assert_type(Worker().step([1]), int)
    assert_type(Worker().log_probs([1]), list[float])


# --- workers on Ray


def workers_on_ray(run: otel_grpo.Run) -> None:
    assert_type(run.carrier(), dict[str, str])
    assert_type(otel_grpo.ray.runtime_env(run, {"pip": ["x"]}), dict[str, Any])
    assert_type(otel_grpo.ray.time_methods(Worker, ["step"], carrier=True), type[Worker])
    assert_type(otel_grpo.ray.watch(run, [object()], role="policy"), list[str])
    otel_grpo.ray.measure_clocks(run, [object()])
    otel_grpo.ray.join("policy", ["train", "generate"])
    otel_grpo.ray.instrument()
    otel_grpo.ray.uninstrument()


# --- trainers


def trainers() -> None:
    otel_grpo.instrument()
    otel_grpo.uninstrument()


# --- the testing module


def a_test_of_the_users_own() -> None:
    clock = FakeClock()
    with recorded_run(clock=clock) as recorded:
        assert_type(recorded, RecordedRun)
        with recorded.run.iteration() as it, it.phase("generation"):
            clock.advance(2.5)
    (window,) = recorded.rollouts
    assert_type(window.metrics, dict[str, int | float | None])


# --- what must stay an error; an ignore that is not needed is one too


def errors(run: Run, it: Iteration, anything: Any) -> None:
    otel_grpo.start_run("runs/x")  # type: ignore[call-arg]  # whose numbers are these?
    it.consumed("r", [1, 2])  # type: ignore[call-arg]  # which column is it?
    it.publication(1, kind="carrier pigeon")  # type: ignore[arg-type]
    run.finish("done")  # type: ignore[arg-type]
    it.phase()  # type: ignore[call-arg]
    plain("1")  # type: ignore[arg-type]
    it.discarded(3, "stale")  # type: ignore[arg-type]
