"""Windows, samples, visits and updates of real trainings against a plain model of the loop."""

from __future__ import annotations

from itertools import islice

import pytest
from loop_model import Loop, windows
from support import audited
from swift_support import Spy, train


def run(loop, folder, output, **options):
    """A training of this configuration, with the counts of a spy."""
    spy = Spy()
    given = {
        "dataset": f"{folder / 'sums.jsonl'}#{loop.rows}",
        "per_device_train_batch_size": loop.batch,
        "gradient_accumulation_steps": loop.accumulation,
        "steps_per_generation": loop.parts,
        "num_iterations": loop.reuse,
        "num_generations": loop.group,
        "max_steps": loop.max_steps,
        "num_train_epochs": loop.epochs,
    }
    train(folder, output, watch=spy, **{**given, **options})
    return spy


def check(loop, spy, files):
    """Every count of every window, and the sums of the summary."""
    expected = windows(loop)
    rollouts, trains = files.of("rollout"), files.of("train")
    assert len(rollouts) == len(expected)
    steps, applied = iter(spy.micro_steps), 0
    for number, (record, window) in enumerate(zip(rollouts, expected, strict=True), start=1):
        metrics, attributes = record["metrics"], record["attributes"]
        applied += len(window.updates)
        assert record["optimizer_step"] == applied
        assert attributes["window"]["status"] == window.status
        assert attributes["samples"] == [[number, 0, loop.generated]]
        assert metrics["samples.generated"] == metrics["samples.consumed"] == loop.generated
        assert metrics["groups"] == loop.generated // loop.group
        assert metrics["samples.visits"] == sum(window.visits) * loop.batch
        assert metrics["samples.pending"] == window.pending
        # ms-swift does not shuffle a generation: its slices are in order.
        seen = [visits for visits in window.visits for _ in range(loop.batch)]
        assert attributes["visit_counts"] == seen
        assert [
            (u["samples"], u["nominal"], u["status"]) for u in attributes.get("updates", [])
        ] == [(u.samples, u.nominal, "applied") for u in window.updates]
        assert metrics["publications"] == (1 if window.updates else 0)
        assert metrics["tokens.prompt"] == spy.prompt_tokens[number - 1]
        assert metrics["tokens.completion"] == spy.completion_tokens[number - 1]
        assert metrics["tokens.environment"] == 0
        assert metrics["tokens.visited"] == sum(islice(steps, sum(window.visits)))
    assert not list(steps)
    updates, steps = [u for window in expected for u in window.updates], iter(spy.micro_steps)
    assert [(t["attributes"]["n"], t["attributes"]["trained"]) for t in trains] == [
        (update.samples, sum(islice(steps, update.samples // loop.batch))) for update in updates
    ]
    assert files.summary["updates"]["applied"] == applied
    assert files.summary["samples"]["visits"] == sum(sum(w.visits) for w in expected) * loop.batch
    assert files.summary["time"]["between_ns"] == 0  # windows tile the training
    assert files.summary["observed"].get("errors", {}) == {}


CONFIGURATIONS = {
    "defaults": Loop(rows=8, batch=8, max_steps=3),
    "two updates from one generation, each sample twice": Loop(
        rows=16, batch=4, accumulation=2, slices=4, reuse=2, max_steps=6
    ),
    "an update from two generations": Loop(rows=32, batch=4, accumulation=4, slices=2, max_steps=3),
    "generations that no update is aligned with": Loop(
        rows=24, batch=4, accumulation=4, slices=3, max_steps=4
    ),
    "an uneven tail of the epoch": Loop(rows=6, batch=4, accumulation=4, slices=2, epochs=2),
}


@pytest.mark.parametrize("loop", CONFIGURATIONS.values(), ids=CONFIGURATIONS.keys())
def test_counts_are_those_of_the_loop(observed, folder, tmp_path, loop):
    """The matrix of accumulation, slices and reuse."""
    spy = run(loop, folder, tmp_path / "out")
    check(loop, spy, audited(observed))
