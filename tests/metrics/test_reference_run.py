"""The golden run: its printed figures, asked of the metrics as a dashboard asks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from otel_grpo.records.model import Device
from otel_grpo.testing import recorded_run

FIGURES = json.loads((Path(__file__).parents[1] / "data/reference-run.json").read_text("utf-8"))
DEVICES = [Device(f"GPU-{index}", "cuda", "host") for index in range(8)]
SAMPLES, PROMPT = 64, 100


def ms(seconds: float) -> int:
    """The printed seconds have three decimals."""
    return round(seconds * 1000)


def test_tokens_and_throughput_of_the_reference_run(metrics: Any, view: Any, clock: Any) -> None:
    """224,979 tokens in 202.435 s of 8 devices: 138.92 tokens a second and device, never 141.57."""
    with recorded_run(clock=clock, devices=DEVICES, live=view) as recorded:
        clock.advance(100)  # start-up counts for no throughput
        for version, figures in enumerate(FIGURES["iterations"], 1):
            completion = figures["tokens"] - SAMPLES * PROMPT
            lengths = [completion // SAMPLES + (i < completion % SAMPLES) for i in range(SAMPLES)]
            generation, train = ms(figures["generation_s"]), ms(figures["policy_train_s"])
            with recorded.run.iteration() as it:
                with it.phase("generation"):
                    clock.advance(ns=generation * 10**6)
                samples = it.consumed(
                    version,
                    prompt_lengths=[PROMPT] * SAMPLES,
                    completion_lengths=lengths,
                    trained_lengths=lengths,
                )
                with it.phase("adv_pipeline"):
                    clock.advance(ns=(ms(figures["logical_s"]) - generation - train) * 10**6)
                with it.phase("policy_train"):
                    clock.advance(ns=train * 10**6)
                    it.trained(samples)
                with it.update(nominal=SAMPLES):
                    pass
                it.publication(version, kind="in_place").completed()
                recorded.run.log_scalars({"loss": 0.5 / version, "odd": 1}, step=version)
    said = metrics.values()
    tokens, time = said["rl.throughput.tokens"], said["rl.device.time"]
    assert tokens[("end_to_end",)] == 224_979
    assert round(time[("end_to_end",)], 6) == 1619.48
    assert round(tokens[("end_to_end",)] / time[("end_to_end",)], 3) == 138.921
    assert FIGURES["run"]["window_tokens_per_second_per_device"] == 138.92
    # 192 prompts of 100 tokens; the rest was written by the model, and trained on once.
    assert said["rl.tokens"] == {("input",): 19_200, ("output",): 205_779}
    assert tokens[("generation",)] == tokens[("train",)] == 205_779
    assert round(time[("generation",)], 6) == round(8 * 139.158, 6)
    assert round(time[("train",)], 6) == round(8 * 34.164, 6)
    for kind, name in (("end_to_end", "device"), ("generation", "generation"), ("train", "train")):
        ratio = tokens[(kind,)] / time[(kind,)]
        assert abs(ratio / recorded.summary.throughput[name] - 1) < 1e-12
    # The gauge is the last window's.
    assert round(said["rl.throughput.device"][("end_to_end",)], 3) == 153.885
    assert said["rl.sample.samples"][()] == said["rl.sample.visits"][()] == 192
    assert said["rl.train.steps"][("applied",)] == FIGURES["run"]["updates"]
    assert said["rl.sync.publications"][()] == said["rl.weights.version"][()] == 3
    assert said["rl.loop.windows"] == {("complete",): 3, ("partial",): 0, ("aborted",): 0}
    assert said["rl.devices"] == {("train",): 8, ("generate",): 8, ("reward",): 0}
    assert said["rl.train.loss"] == {(): 0.5 / 3}
    assert "rl.train.kl" not in said
    assert said["rl.sample.length"] == {("input",): (192, 19_200), ("output",): (192, 205_779)}
    count, seconds = said["rl.loop.duration"][("wall",)]
    assert (count, round(seconds, 6)) == (3, 202.435)
