"""Windows, samples, visits and updates of real trainings against a plain model of TRL's loop."""

from __future__ import annotations

from itertools import islice

import pytest
from loop_model import Loop, windows
from support import Spy, audited, trainer


def train(loop: Loop, output, *, resume=None, **options):
    """A training of this configuration, with the counts of a spy."""
    given = trainer(
        output,
        rows=loop.rows,
        per_device_train_batch_size=loop.batch,
        gradient_accumulation_steps=loop.accumulation,
        steps_per_generation=loop.slices,
        num_iterations=loop.reuse,
        num_generations=loop.group,
        max_steps=loop.max_steps,
        num_train_epochs=loop.epochs,
        **options,
    )
    spy = Spy(given)
    given.train(resume_from_checkpoint=resume)
    return spy


def check(loop: Loop, spy: Spy, files) -> None:
    """Every count of every window, and the sums of the summary."""
    expected = windows(loop)
    rollouts, trains = files.of("rollout"), files.of("train")
    assert len(rollouts) == len(expected)
    steps, applied = iter(spy.micro_steps), 0
    for number, (record, window) in enumerate(zip(rollouts, expected, strict=True), start=1):
        metrics, attributes = record["metrics"], record["attributes"]
        applied += len(window.updates)
        assert record["iteration"] == number
        assert record["optimizer_step"] == applied
        assert attributes["window"]["status"] == window.status
        assert attributes["samples"] == [[number, 0, loop.generated]]
        assert metrics["samples.generated"] == metrics["samples.consumed"] == loop.generated
        assert metrics["groups"] == loop.generated // loop.group
        assert metrics["samples.visits"] == sum(window.visits) * loop.batch
        assert metrics["samples.revisited"] == 0
        assert metrics["samples.pending"] == window.pending
        # Which sample is in which slice is the trainer's draw; how often each was seen is not.
        seen = [visits for visits in window.visits for _ in range(loop.batch)]
        assert sorted(attributes["visit_counts"]) == sorted(seen)
        assert [
            (u["samples"], u["nominal"], u["status"]) for u in attributes.get("updates", [])
        ] == [(u.samples, u.nominal, "applied") for u in window.updates]
        assert metrics["publications"] == (1 if window.updates else 0)
        assert metrics["tokens.prompt"] == spy.prompt_tokens[number - 1]
        assert metrics["tokens.completion"] == spy.completion_tokens[number - 1]
        assert metrics["tokens.visited"] == sum(islice(steps, sum(window.visits)))
    assert not list(steps)
    updates, steps = [u for window in expected for u in window.updates], iter(spy.micro_steps)
    assert [(t["attributes"]["n"], t["attributes"]["trained"]) for t in trains] == [
        (update.samples, sum(islice(steps, update.samples // loop.batch))) for update in updates
    ]
    summary = files.summary
    assert summary["updates"]["applied"] == applied
    assert summary["samples"]["visits"] == sum(sum(w.visits) for w in expected) * loop.batch
    assert summary["time"]["between_ns"] == 0  # windows tile the training


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
    "an end in the middle of a generation": Loop(rows=16, batch=4, slices=4, max_steps=6),
}


@pytest.mark.parametrize("loop", CONFIGURATIONS.values(), ids=CONFIGURATIONS.keys())
def test_counts_are_those_of_the_loop(observed, tmp_path, loop):
    """The matrix of accumulation, slices and reuse."""
    spy = train(loop, tmp_path)
    check(loop, spy, audited(observed))


def test_evaluation_is_not_training(observed, tmp_path):
    """Its generations, rewards and tokens are counted nowhere; its time is `evaluation`."""
    import tiny

    loop = Loop(rows=8, batch=8, max_steps=4)
    evaluation = {
        "eval_dataset": {"one": tiny.sums(4), "two": tiny.sums(4)},
        "eval_strategy": "steps",
        "eval_steps": 2,
        "per_device_eval_batch_size": 8,
        "num_generations_eval": 4,
    }
    spy = train(loop, tmp_path, **evaluation)
    files = audited(observed)
    check(loop, spy, files)
    evaluated = files.of("rollout")[1]
    metrics = evaluated["metrics"]
    deducted = metrics["time.logical_ns"] - metrics["time.work_ns"]
    assert metrics["phase.evaluation.logical_ns"] == deducted > 0
    assert files.phases(evaluated)["generation", "evaluation"] == 4  # two data sets, two batches
    assert metrics["phase.generation.calls"] == 1
    assert files.phases(evaluated)["evaluation", None] == 1
    assert len(files.flat) == len(spy.logs) == 4 + 2 * 2 + 1


def test_evaluation_before_the_first_step_is_start_up(observed, tmp_path):
    """No window is open yet, and none is opened for it; its log call is recorded."""
    import tiny

    loop = Loop(rows=8, batch=8, max_steps=1)
    evaluation = {"eval_dataset": tiny.sums(4), "per_device_eval_batch_size": 8}
    more = {"eval_on_start": True, "eval_strategy": "steps", "eval_steps": 5}
    spy = train(loop, tmp_path, num_generations_eval=4, **evaluation, **more)
    files = audited(observed)
    check(loop, spy, files)
    # Newer releases of transformers evaluate once more at the last step.
    assert [line["step"] for line in files.flat] == [0] + [1] * (len(spy.logs) - 1)
    assert files.of("train")[0]["attributes"]["covers"] == [1]


def test_evaluation_outside_a_training_is_left_alone(observed, tmp_path):
    """No run is started for it."""
    import tiny

    given = trainer(
        tmp_path, eval_dataset=tiny.sums(4), per_device_eval_batch_size=4, num_generations_eval=4
    )
    assert "eval_loss" in given.evaluate()
    assert not observed.exists()


def test_resumed_training_counts_its_own_session(observed, tmp_path):
    """A second attempt in the same directory; what the checkpoint had is its base."""
    whole = Loop(rows=8, batch=8, accumulation=2, max_steps=2)
    saving = {"save_strategy": "steps", "save_steps": 2}
    spy = train(whole, tmp_path, **saving)
    first = audited(observed)
    assert [w["metrics"].get("phase.checkpoint.calls", 0) for w in first.of("rollout")] == [0, 1]
    seen = sum(spy.prompt_tokens) + sum(spy.completion_tokens)

    rest = Loop(rows=8, batch=8, accumulation=2, max_steps=5, resumed_at=2)
    spy = train(rest, tmp_path, resume=True, **saving)
    files = audited(observed)
    check(rest, spy, files)
    assert files.summary["attempt"] == 2
    assert files.summary["base"] == {"optimizer_step": 2, "tokens": seen}
    assert [line["step"] for line in files.flat] == [1, 2, 2, 3, 4, 5, 5]


def test_a_training_of_the_same_trainer_again_is_the_next_attempt(observed, tmp_path):
    """Steps that use what an earlier training generated are not taken for known samples."""
    given = trainer(
        tmp_path, rows=16, per_device_train_batch_size=4, steps_per_generation=4, max_steps=2
    )
    given.train()
    given.train()
    files = audited(observed)
    first, second = (files.of("rollout", attempt) for attempt in (1, 2))
    assert len(first) == len(second) == 1
    assert first[0]["metrics"]["samples.visits"] == 8
    assert (
        second[0]["metrics"]["samples.visits"] == 0
    )  # of samples that this attempt knows nothing of
