"""What metrics say of a run is what its files say."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from otel_grpo.records.model import Device
from otel_grpo.testing import recorded_run


def train(clock: Any, it: Any, rollout: int, completion: list[int], *, nominal: int) -> None:
    """One update from all of these samples, whose prompts have 7 tokens."""
    samples = it.consumed(
        rollout,
        prompt_lengths=[7] * len(completion),
        completion_lengths=completion,
        trained_lengths=completion,
        versions=[max(rollout - 2, 0)] * len(completion),
        trainer_version=rollout - 1,
    )
    with it.phase("policy_train"):
        clock.advance(3)
        it.trained(samples)
    with it.update(nominal=nominal):
        clock.advance(1)


@pytest.fixture
def mixed(metrics: Any, view: Any, clock: Any) -> Any:
    """Four windows: complete with lanes beside each other and logs, partial, dropped, aborted."""
    devices = [Device("GPU-0", "cuda", "h"), Device("GPU-1", "cuda", "h")]
    roles = [["train"], ["generate"]]
    with recorded_run(
        clock=clock, live=view, devices=devices, device_roles=roles, strict=False
    ) as recorded:
        run = recorded.run
        with run.iteration() as it:
            with it.phase("generation"):
                clock.advance(10)
            with it.phase("own"):
                clock.advance(2)
                beside = threading.Thread(target=_beside, args=(it, clock))
                beside.start()
                beside.join()
                with it.phase("log"):
                    clock.advance(0.5)
            clock.advance(ns=123_456_789)  # nobody explains it
            train(clock, it, 1, [10, 20, 30], nominal=3)
            run.log_scalars({"loss": float("nan"), "kl": 0.25}, step=1)
            it.publication(1, kind="in_place").completed()
        with run.iteration() as it:
            train(clock, it, 2, [5], nominal=3)
            it.publication(2, kind="ipc")  # and nobody confirms it
        with run.iteration() as it:
            it.discarded("stale", 4, tokens=40)
            it.discarded("odd reason", 2)
            clock.advance(1)
        with pytest.raises(KeyError), run.iteration() as it, it.phase("generation"):
            clock.advance(6)
            raise KeyError
    return recorded


def _beside(it: Any, clock: Any) -> None:
    with it.phase("reward"):
        clock.advance(4)


def test_the_stack_grows_by_the_wall(mixed: Any, metrics: Any) -> None:
    """phase + overlap + log + unattributed = wall of the windows, to the nanosecond."""
    said = metrics.values()
    stack = sum(said["rl.phase.time"].values())
    for name in ("overlap", "log", "unattributed"):
        stack += said[f"rl.{name}.time"][()]
    # 10 + 2 + 4 + 0.5 + 0.123456789 + 4, then 4, then 1, then 6.
    assert round(stack * 1e9) == 31_623_456_789 == mixed.summary.time.windows_ns
    assert round(said["rl.log.time"][()] * 1e9) == 500_000_000
    assert said["rl.overlap.time"][()] == 4  # "own" and "reward"
    assert round(said["rl.unattributed.time"][()] * 1e9) == mixed.summary.time.unattributed_ns
    for phase, times in mixed.summary.phases.items():
        if phase != "log":
            assert round(said["rl.phase.time"][(phase,)] * 1e9) == times["top_ns"]
        assert round(said["rl.rank.phase.time"][(phase,)] * 1e9) == times["busy_ns"]
    assert ("log",) not in said["rl.phase.time"]
    assert said["rl.loop.duration"][("wall",)][0] == 4


def test_counts_are_those_of_the_summary(mixed: Any, metrics: Any) -> None:
    """Tokens, samples, visits, updates, publications, windows; a discarded sample by its reason."""
    said, summary = metrics.values(), mixed.summary
    assert said["rl.loop.windows"] == {("complete",): 1, ("partial",): 2, ("aborted",): 1}
    assert said["rl.tokens"] == {("input",): 28, ("output",): 65}
    assert summary.tokens["prompt"] == 28
    assert summary.tokens["completion"] == 65
    assert said["rl.sample.samples"][()] == summary.samples["consumed"] == 4
    assert said["rl.sample.visits"][()] == summary.samples["visits"] == 4
    for status in ("applied", "skipped", "failed", "unconfirmed"):
        assert said["rl.train.steps"][(status,)] == summary.updates[status]
    assert said["rl.train.steps"][("applied",)] == 2
    assert said["rl.sync.publications"][()] == summary.publications == 1
    assert said["rl.weights.version"][()] == 1
    assert said["rl.sample.discarded"] == {
        ("stale",): 4, ("filtered",): 0, ("zero_advantage",): 0, ("failed",): 0, ("odd reason",): 2,
    }  # fmt: skip
    assert said["rl.train.nonfinite"][("loss",)] == summary.nonfinite == 1
    assert "rl.train.loss" not in said
    assert said["rl.train.kl"][()] == 0.25
    # Versions 0, 0, 0 at version 0, then version 0 at version 1.
    assert said["rl.policy.lag"][()] == (4, 1)


def test_throughput_is_that_of_the_summary(mixed: Any, metrics: Any) -> None:
    """Numerators and denominators of all windows, also of those without tokens."""
    said = metrics.values()
    tokens, time = said["rl.throughput.tokens"], said["rl.device.time"]
    for kind, name in (("end_to_end", "device"), ("generation", "generation"), ("train", "train")):
        ratio = tokens[(kind,)] / time[(kind,)]
        assert abs(ratio / mixed.summary.throughput[name] - 1) < 1e-12
    # Work is 31.623456789 s less half a second of log, on both devices.
    assert round(time[("end_to_end",)] * 1e9) == 2 * 31_123_456_789
    assert time[("generation",)] == 16  # one device generates: 10 s and 6 s
    assert time[("train",)] == 6  # one trains: 3 s twice
    assert tokens == {("end_to_end",): 93, ("generation",): 65, ("train",): 65}
    # The last window was aborted and had no tokens: it has no ratio.
    assert "rl.throughput.device" not in said


def test_a_kind_whose_tokens_nobody_knows_has_no_time_either(
    metrics: Any, view: Any, clock: Any
) -> None:
    """No 0 tokens a second; once tokens are known, the time before them counts, as in the summary."""
    with recorded_run(clock=clock, live=view, devices=[Device("GPU-0", "cuda", "h")]) as recorded:
        for known in (False, True):
            with recorded.run.iteration() as it, it.phase("generation"):
                clock.advance(2)
                if known:
                    it.consumed(1, prompt_lengths=[1], completion_lengths=[9])
            assert recorded.run.output.flush()
            time = metrics.values()["rl.device.time"]
            assert time[("generation",)] == (4 if known else 0)
            assert time[("train",)] == 0
    assert recorded.summary.throughput["generation"] == 9 / 4
    assert "train" not in recorded.summary.throughput


def test_an_attempt_that_is_resumed_starts_at_nothing(
    tmp_path: Any, metrics: Any, view: Any, clock: Any
) -> None:
    """Counts are of the attempt, like those of its summary; the one before is not in them."""
    with recorded_run(tmp_path / "run", clock=clock) as first, first.run.iteration() as it:
        clock.advance(5)
        it.consumed(1, prompt_lengths=[3], completion_lengths=[4])
    with recorded_run(tmp_path / "run", clock=clock, live=view) as second:
        second.run.resumed(tokens=7)
        with second.run.iteration() as it:
            clock.advance(1)
            it.consumed(2, prompt_lengths=[1], completion_lengths=[1])
    assert second.summary.attempt == 2
    said = metrics.values()
    assert sum(said["rl.tokens"].values()) == second.summary.tokens["total"] == 2
    assert said["rl.unattributed.time"] == {(): 1.0}


def test_a_publication_that_is_confirmed_late_counts(sources: Any, metrics: Any) -> None:
    """Its window's record has it pending; the line that confirms it makes it one."""
    from otel_grpo.records.model import PublicationCompleted

    instruments = metrics.instruments(sources())
    assert metrics.values()["rl.sync.publications"] == {(): 0}
    instruments.made(PublicationCompleted("run", 1, iteration=3, version=8, completed_ns=5))
    said = metrics.values()
    assert said["rl.sync.publications"] == {(): 1}
    assert said["rl.weights.version"] == {(): 8}
