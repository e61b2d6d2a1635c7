"""Observed or not, the training is the same one: bit by bit, call by call."""

from __future__ import annotations

import math

import pytest
from training import BED, BESIDE, COLOCATED, SMALL


@pytest.mark.parametrize(
    ("arguments", "how"),
    [(COLOCATED, "without"), (BESIDE, "without"), ((*SMALL, "--passes", "2"), "disabled")],
    ids=["colocated", "async", "two passes, switched off"],
)
def test_losses_texts_and_calls(trained, arguments, how):
    """Losses, gradients, completions; the calls to actors, in order, of each thread."""
    observed, bare = trained(*arguments), trained(*arguments, how=how)
    assert observed.results == bare.results
    assert observed.calls == bare.calls
    assert not (bare.path / "metrics_raw.jsonl").exists()


@pytest.mark.parametrize("arguments", [COLOCATED, BESIDE], ids=["colocated", "async"])
def test_it_is_a_training(trained, arguments):
    """Gradients are finite and not zero, and the completions of two iterations differ."""
    history = trained(*arguments).history
    assert len(history) == 3
    assert all(math.isfinite(row["grad_norm"]) and row["grad_norm"] > 0 for row in history)
    assert all(math.isfinite(row["loss"]) for row in history)
    assert len({tuple(row["texts"]) for row in history}) == 3


@pytest.mark.parametrize("how", ["observed", "without"])
@pytest.mark.parametrize("arguments", [COLOCATED, BESIDE], ids=["colocated", "async"])
def test_forwards_work_side_by_side(trained, arguments, how):
    """By the workers' own clocks the reference policy is at work while the old one is."""
    for row in trained(*arguments, how=how).history:
        old, reference = row["forwards"]
        old_start, old_end = min(s for s, _ in old), max(e for _, e in old)
        reference_start, reference_end = reference[0]
        assert max(old_start, reference_start) < min(old_end, reference_end)


def test_weights_arrive_while_a_generation_goes_on(trained):
    """A rollout worker that is asked to generate takes new weights before it is done."""
    assert trained(*BED).told["arrived_meanwhile"]
    assert trained(*BED, how="without").told["arrived_meanwhile"]
