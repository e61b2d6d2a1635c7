"""Each process for itself: ranks, workers, what is open, what was lost; and nothing of it twice."""

from __future__ import annotations

from typing import Any

from otel_grpo.devices import Reading
from otel_grpo.metrics.catalogue import CATALOGUE
from otel_grpo.records.model import (
    Call,
    Contribution,
    Device,
    OpenPhase,
    OpenWindow,
    Ranks,
    RolloutAttributes,
    SinkCounts,
    Window,
)
from otel_grpo.testing import recorded_run

S = 10**9
JOB = {metric.name for metric in CATALOGUE if metric.scope == "job"}


def share(rank: int, **busy_ns: int) -> Contribution:
    attributes = RolloutAttributes(
        Window(0, 9 * S, "complete", 1), [], [], Ranks(2, 2),
        samples=[(1, rank * 4, 4)], prompt_lengths=[5] * 4, completion_lengths=[6] * 4,
    )  # fmt: skip
    return Contribution("run", 1, rank, 1, attributes, busy_ns=busy_ns)


def test_a_rank_makes_its_own_metrics_alone(metrics: Any, sources: Any) -> None:
    """Its samples are in rank 0's record; here are its times, of two windows."""
    instruments = metrics.instruments(sources({"workers": SinkCounts(3, 3), "spans": SinkCounts()}))
    instruments.made(share(1, generation=2 * S, policy_train=S))
    instruments.made(share(1, generation=3 * S))
    said = metrics.values()
    assert said["rl.rank.phase.time"] == {("generation",): 5.0, ("policy_train",): 1.0}
    assert not JOB & set(said)


def test_two_ranks_add_up_to_the_job(metrics: Any, view: Any, clock: Any, sources: Any) -> None:
    """Rank 0's record has the samples of both: the sum over processes is the job's."""
    other = type(metrics)()
    other.instruments(sources({"workers": SinkCounts()})).made(share(1, generation=S))
    with recorded_run(clock=clock, live=view) as recorded, recorded.run.iteration() as it:
        it.consumed(1, prompt_lengths=[5] * 8, completion_lengths=[6] * 8)
        with it.phase("generation"):
            clock.advance(2)
    both = [metrics.values(), other.values()]
    assert sum(sum(said.get("rl.tokens", {}).values()) for said in both) == 8 * 11
    assert [said["rl.rank.phase.time"][("generation",)] for said in both] == [2, 1]
    other.provider.shutdown()


def test_a_worker_counts_its_calls(metrics: Any, sources: Any) -> None:
    """Seconds by method; a driver has the calls of all as a histogram instead."""
    instruments = metrics.instruments(sources({"workers": SinkCounts()}))
    for method, ns in (("fit", 2 * S), ("fit", S), ("sample", 250_000_000)):
        instruments.made(Call("run", 1, method, 10, 10 + ns))
    said = metrics.values()
    assert said["rl.worker.time"] == {("fit",): 3.0, ("sample",): 0.25}
    assert not JOB & set(said)


def test_calls_of_a_window_by_method(metrics: Any, view: Any, clock: Any) -> None:
    """Each call once, of whatever process."""
    with recorded_run(clock=clock, live=view) as recorded, recorded.run.iteration():
        for seconds in (1, 2, 4):
            recorded.run.worker_call("fit", seconds * S)
        clock.advance(7)
    assert metrics.values()["rl.worker.duration"] == {("fit",): (3, 7.0)}


def test_what_is_open_is_seen_while_it_lasts(metrics: Any, sources: Any, clock: Any) -> None:
    """The oldest one of two counts; afterwards 0; a phase of one's own has a 0 before its time."""
    start = clock.now()
    opened: list[OpenWindow | None] = [None]
    instruments = metrics.instruments(sources(open_window=lambda: opened[0]))
    assert metrics.values()["rl.loop.active.duration"] == {(): 0}
    assert "rl.phase.active" not in metrics.values()
    opened[0] = OpenWindow(
        1,
        start,
        [OpenPhase("own", start + S, 1), OpenPhase("own", start + 3 * S, 2)],
    )
    clock.advance(61)
    said = metrics.values()
    assert said["rl.loop.active.duration"] == {(): 61}
    assert said["rl.phase.active"] == {("own",): 1}
    assert said["rl.phase.active.duration"] == {("own",): 60}
    assert said["rl.phase.time"][("own",)] == said["rl.rank.phase.time"][("own",)] == 0
    opened[0] = None
    said = metrics.values()
    assert said["rl.phase.active"] == {("own",): 0}
    assert said["rl.phase.active.duration"] == {("own",): 0}
    assert said["rl.loop.active.duration"] == {(): 0}
    del instruments


def test_a_run_tells_what_it_does_now(metrics: Any, view: Any, clock: Any) -> None:
    """From its own account, through the sources that it gives."""
    with recorded_run(clock=clock, live=view) as recorded:
        with recorded.run.iteration() as it, it.phase("rollout_wait"):
            clock.advance(1000)
            said = metrics.values()
            assert said["rl.phase.active"] == {("rollout_wait",): 1}
            assert said["rl.phase.active.duration"] == {("rollout_wait",): 1000}
        assert metrics.values()["rl.loop.active.duration"] == {(): 0}


def test_what_was_lost_and_what_it_cost(metrics: Any, sources: Any) -> None:
    """By sink and outcome; a file has nothing unconfirmed."""
    files = {"metrics_raw": SinkCounts(9, 7, 1, 1), "spans": SinkCounts(2, 2)}
    sent = {"otlp_spans": SinkCounts(10, 4, 3, 1, unconfirmed=2)}
    instruments = metrics.instruments(sources(files, self_ns=lambda: 1_500_000), sent=lambda: sent)
    said = metrics.values()
    assert said["rl.telemetry.records"] == {
        ("written", "metrics_raw"): 7, ("dropped", "metrics_raw"): 1,
        ("written", "spans"): 2, ("dropped", "spans"): 0,
        ("written", "otlp_spans"): 4, ("dropped", "otlp_spans"): 3,
        ("unconfirmed", "otlp_spans"): 2,
    }  # fmt: skip
    assert said["rl.telemetry.self.time"] == {(): 0.0015}
    del instruments


def test_counters_are_0_before_they_are_anything_else(metrics: Any, sources: Any) -> None:
    """Each counter of the job, for each combination of labels that is known beforehand."""
    instruments = metrics.instruments(sources())
    said = metrics.values()
    for metric in CATALOGUE:
        if metric.scope == "job" and metric.kind == "counter":
            expected = 1
            for label in metric.labels:
                expected *= len(label.values)
            assert len(said[metric.name]) == expected
            assert not any(said[metric.name].values())
    assert ("generation",) in said["rl.phase.time"]
    del instruments


def test_memory_of_the_process_and_its_devices(metrics: Any, sources: Any) -> None:
    """The process once, however many devices it has; a device by its id."""
    readings = [
        Reading(0, "h", 1, device=0, device_used=30, process_rss=7),
        Reading(0, "h", 1, device=1, device_used=40, process_rss=7),
    ]
    devices = [Device("GPU-a", "cuda", "h"), Device("GPU-b", "cuda", "h")]
    instruments = metrics.instruments(sources(devices=devices, readings=lambda: readings))
    said = metrics.values()
    assert said["process.memory.usage"] == {(): 7}
    assert said["hw.gpu.memory.usage"] == {("GPU-a", "gpu"): 30, ("GPU-b", "gpu"): 40}
    del instruments


def test_the_next_run_of_a_process_takes_over(metrics: Any, sources: Any, caplog: Any) -> None:
    """In one provider counters go on, levels are the new run's, and nothing is made twice."""
    old = [Device("GPU-old", "cuda", "h")]
    new = [Device("GPU-new", "cuda", "h")]
    reading = [Reading(0, "h", 1, device=0, device_used=30)]
    for devices, cost in ((old, 1), (new, 2)):
        instruments = metrics.instruments(
            sources(devices=devices, readings=lambda: reading, self_ns=lambda ns=cost: ns * S)
        )
        with_calls = Call("run", 1, "fit", 0, S)
        instruments.made(with_calls)
    said = metrics.values()
    assert said["rl.worker.time"] == {("fit",): 2}
    assert said["rl.telemetry.self.time"] == {(): 2}
    assert said["hw.gpu.memory.usage"] == {("GPU-new", "gpu"): 30}
    assert not caplog.records


def test_what_can_not_be_answered_costs_its_own_metrics_alone(
    metrics: Any, sources: Any, caplog: Any
) -> None:
    """It is told by its place, not printed; the others have their points."""
    faults: list[str] = []

    def broken() -> Any:
        raise OSError

    instruments = metrics.instruments(
        sources(open_window=broken, self_ns=lambda: S),
        on_error=lambda place, error: faults.append(place),
    )
    said = metrics.values()
    assert faults == ["metrics.asked"] * 3
    assert said["rl.telemetry.self.time"] == {(): 1}
    assert "rl.loop.active.duration" not in said
    assert not caplog.records
    del instruments


def test_one_run_after_the_other_in_a_provider_of_one_s_own(tmp_path: Any, metrics: Any) -> None:
    """Both are in it: whoever starts a second run in a process has its metrics, too."""
    import otel_grpo

    for number in range(2):
        with otel_grpo.start_run(
            tmp_path / str(number), trainer="loop", meter_provider=metrics.provider
        ) as run:
            with run.iteration() as it:
                it.consumed(1, prompt_lengths=[3], completion_lengths=[4])
            assert run.output.flush()
        assert not run.guard.errors
        assert metrics.values()["rl.tokens"] == {
            ("input",): 3 + 3 * number,
            ("output",): 4 + 4 * number,
        }


def test_a_run_of_a_test_has_metrics_to_look_at(metrics: Any, clock: Any) -> None:
    """`recorded_run` takes a provider, as a run does."""
    with recorded_run(clock=clock, meter_provider=metrics.provider) as recorded:
        with recorded.run.iteration() as it, it.phase("generation"):
            clock.advance(2)
    assert metrics.values()["rl.phase.time"][("generation",)] == 2
