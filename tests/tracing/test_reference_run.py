"""The golden run: a fake clock plays the reference run's figures through the public API."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from otel_grpo.records.model import Device
from otel_grpo.testing import FakeClock, RecordedRun, recorded_run

REFERENCE = json.loads((Path(__file__).parents[1] / "data/reference-run.json").read_text("utf-8"))
DEVICES = [Device(f"GPU-{index}", "cuda", "host") for index in range(8)]
GROUPS, PER_GROUP = 8, 8
SAMPLES = GROUPS * PER_GROUP
PROMPT = 100
NANOSECONDS = 10**9


def ns(seconds: float) -> int:
    """The printed seconds have three decimals: exact in milliseconds."""
    return round(seconds * 1000) * 10**6


def play(clock: FakeClock, recorded: RecordedRun, figures: dict[str, Any], version: int) -> None:
    """One iteration: 8 prompts x 8 completions, one update over all, published in place."""
    generation, train = ns(figures["generation_s"]), ns(figures["policy_train_s"])
    rest = ns(figures["logical_s"]) - generation - train
    completion = figures["tokens"] - SAMPLES * PROMPT
    lengths = [completion // SAMPLES + (i < completion % SAMPLES) for i in range(SAMPLES)]
    with recorded.run.iteration() as it:
        with it.phase("generation"):
            clock.advance(ns=generation)
        it.generated(version, SAMPLES)
        samples = it.consumed(
            version,
            prompt_lengths=[PROMPT] * SAMPLES,
            completion_lengths=lengths,
            groups=[i // PER_GROUP for i in range(SAMPLES)],
        )
        with it.phase("adv_pipeline"):
            clock.advance(ns=rest)
        with it.phase("policy_train"):
            clock.advance(ns=train)
            it.trained(samples)
        with it.update(nominal=SAMPLES):
            pass
        it.publication(version, kind="in_place").completed()
        recorded.run.log_scalars({"loss": 0.5 / version}, step=version)


@pytest.fixture(scope="module")
def reference() -> RecordedRun:
    """The reference run as its files hold it."""
    clock = FakeClock()
    with recorded_run(clock=clock, devices=DEVICES) as recorded:
        clock.advance(100)  # start-up counts for no throughput
        for number, figures in enumerate(REFERENCE["iterations"], 1):
            play(clock, recorded, figures, number)
    return recorded


def test_throughput_of_each_iteration(reference: RecordedRun) -> None:
    """Tokens per second and device, from the printed seconds."""
    rates = [record.metrics["throughput.device"] for record in reference.rollouts]
    assert [round(rate, 3) for rate in rates if rate is not None] == [116.367, 154.461, 153.885]


def test_throughput_of_the_run_is_no_mean_of_ratios(reference: RecordedRun) -> None:
    """Sums are divided once: 138.921, never 141.571."""
    rate = reference.summary.throughput["device"]
    assert rate == 224_979 * NANOSECONDS / (202_435 * 10**6 * 8)
    assert isinstance(rate, float)
    assert round(rate, 3) == 138.921
    everything = json.dumps([record.metrics for record in reference.rollouts])
    everything += repr(reference.summary.throughput) + repr(reference.run_record)
    assert "141.57" not in everything


def test_shape(reference: RecordedRun) -> None:
    """Records, groups, samples, visits, updates and publications of the reference run."""
    expected, summary = REFERENCE["run"], reference.summary
    assert summary.records == expected["records"] == {"train": 3, "rollout": 3, "run": 1}
    assert len(reference.records) == 7
    assert {record.run_id for record in reference.records} == {summary.run_id}
    assert summary.groups == expected["groups"] == 24
    assert summary.samples["generated"] == expected["samples_generated"] == 192
    assert summary.samples["consumed"] == 192
    assert summary.samples["visits"] == expected["sample_visits"] == 192
    assert summary.updates["applied"] == expected["updates"] == 3
    assert summary.updates["partial"] == 0
    assert summary.publications == expected["publications"] == 3
    assert summary.publications_pending == 0
    publications = [p for record in reference.rollouts for p in record.attributes.publications]
    assert [(p.kind, p.in_window, p.version) for p in publications] == [
        ("in_place", True, 1), ("in_place", True, 2), ("in_place", True, 3)
    ]  # fmt: skip
    assert len(reference.flat) == expected["flat_metrics_lines"] == 3
    assert [type(record).__name__ for record in reference.records] == [
        "TrainRecord", "RolloutRecord"] * 3 + ["RunRecord"]  # fmt: skip


def test_nothing_is_dropped(reference: RecordedRun) -> None:
    """Every sink wrote what was created; there are no errors."""
    assert reference.summary.status == "completed"
    assert reference.summary.observed.errors == {}
    for counts in reference.summary.observed.sinks.values():
        assert counts.dropped == counts.pending == 0
        assert counts.created == counts.written > 0


def test_times(reference: RecordedRun) -> None:
    """Run wall time is start-up, windows, what lies between, and shutdown."""
    time = reference.summary.time
    assert time.startup_ns == 100 * NANOSECONDS
    assert time.windows_ns == time.work_ns == time.logical_ns == 202_435 * 10**6
    assert time.between_ns == time.shutdown_ns == time.log_ns == time.unattributed_ns == 0
    assert time.wall_ns == 302_435 * 10**6
    phases = reference.summary.phases
    assert phases["generation"]["busy_ns"] == 139_158 * 10**6
    assert phases["policy_train"]["busy_ns"] == 34_164 * 10**6
