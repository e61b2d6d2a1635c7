"""Clocks of actors, and their names."""

from __future__ import annotations

import pytest
import ray
from actors import Timed, TimedAsync
from plain_actors import Plain

import otel_grpo.ray
from otel_grpo.records.model import ClockOffset


@pytest.fixture
def measured(observed, monkeypatch) -> list[ClockOffset]:
    """The lines that the driver writes of clocks."""
    lines: list[ClockOffset] = []
    monkeypatch.setattr(observed.run.output, "worker", lines.append)
    return lines


def test_clocks(observed, shared, measured) -> None:
    """What is measured differs from the truth, known on one machine, by its bound at most."""
    actors = [shared(Timed), shared(TimedAsync)]
    before = observed.run.clock.now()
    otel_grpo.ray.measure_clocks(observed.run, actors, always=True)
    after = observed.run.clock.now()
    assert [line.name for line in measured] == [observed.joined(actor).name for actor in actors]
    ours = observed.run.clock
    for actor, line in zip(actors, measured, strict=True):
        theirs = observed.joined(actor).clock
        truth = (theirs.unix_ns - theirs.perf_ns) - (ours.unix_ns - ours.perf_ns)
        assert abs(line.offset_ns - truth) <= line.bound_ns
        assert 0 < line.bound_ns < after - before
        assert before < line.measured_ns < after
        assert (line.run_id, line.attempt) == (observed.run.run_id, 1)


def test_this_machine_is_known_exactly(observed, shared, measured) -> None:
    """Nothing is measured where the monotonic clock is shared."""
    otel_grpo.ray.measure_clocks(observed.run, [shared(Timed)])
    assert measured == []


def test_an_actor_that_is_gone(observed, shared, measured, monkeypatch) -> None:
    """It is counted, and the next one is measured."""
    monkeypatch.setattr(observed.run.guard, "strict", False)
    gone, here = ray.remote(num_cpus=0)(Plain).remote(), shared(Timed)
    ray.kill(gone)
    otel_grpo.ray.measure_clocks(observed.run, [gone, here], always=True)
    assert [line.name for line in measured] == [observed.joined(here).name]
    assert observed.run.guard.errors["ray.clock"] == 1
    observed.run.guard.errors.clear()


def test_names(observed, shared, monkeypatch) -> None:
    """An actor is known by the name that its first line has, before it has written any."""
    told = []
    monkeypatch.setattr(observed.run.peers, "watch", told.extend)
    actor = shared(Timed)
    ray.get(actor.step.remote(1))
    names = otel_grpo.ray.watch(observed.run, [actor])
    assert names == told == [observed.joined(actor).name]


def test_join_gives_role_and_duty(observed, start) -> None:
    """What the process is called, and what its devices do."""
    actor = start(Plain)
    ray.get(
        actor.__ray_call__.remote(
            lambda self: __import__("otel_grpo.ray").ray.join("policy one", ["train"])
        )
    )
    joined = observed.joined(actor)
    assert joined.role == "policy_one"
    assert otel_grpo.ray.watch(observed.run, [actor], role="policy one") == [joined.name]
    assert [does for _, does in joined.devices] == [["train"]]


def test_environment_gives_role_and_duty(observed, start) -> None:
    """Of an actor that can't be changed; a process that rewards on a CPU is no device."""
    variables = {"OTEL_GRPO_ROLE": "judge", "OTEL_GRPO_DOES": "reward"}
    actor = start(Timed, runtime_env={"env_vars": variables})
    ray.get(actor.measured.remote())
    joined = observed.joined(actor)
    assert (joined.role, joined.devices) == ("judge", [])
    (line,) = observed.memory(actor, 1)
    assert line.memory.process_rss[0] > 0
