"""What is seen of a loop in one process: windows, phases, counts, and how updates end."""

from __future__ import annotations

import logging

import pytest
from local import Script


@pytest.fixture
def script(observed, model_id):
    return Script(model_id)


def test_window_starts_where_it_generates_after_training(script, observed):
    """A second generation before any training is of the same window, and so is an evaluation's."""
    import otel_grpo

    for _ in range(2):
        script.generate()
        script.generate()
        script.train(script.samples())
        with otel_grpo.phase("evaluation"):
            script.generate()
    files = observed()
    assert files.windows() == ["complete"] * 2
    for record in files.of("rollout"):
        phases = files.phases(record)
        assert phases["generation", None] == 2
        assert phases["generation", "evaluation"] == 1
        # One update of the script's two, and the model that is trained has it at once.
        assert record["metrics"]["updates.applied"] == record["metrics"]["publications"] == 1


def test_window_ends_with_the_last_call(script, observed):
    """What the script does afterwards is no part of the last window."""
    script.generate()
    script.train(script.samples())
    script.model.calculate_metric(is_training=True)
    files = observed()
    (record,) = files.of("rollout")
    last = max(row[4] for row in record["attributes"]["intervals"])
    end = record["attributes"]["window"]["end_ns"]
    assert last <= end < record["time_unix_ns"]
    assert files.summary["time"]["shutdown_ns"] > 0


def test_a_block_is_the_window(script, observed):
    """With a loop whose generation is not seen here; no publication is made up for it."""
    import otel_grpo

    for number in range(2):
        with otel_grpo.iteration() as it:
            assert it.number == number + 1
            with otel_grpo.phase("generation"):
                features = script.samples()
            script.train(features)
    files = observed()
    assert files.windows() == ["complete"] * 2
    assert files.updates() == [["applied"]] * 2
    assert files.summary["samples"]["consumed"] == 8
    assert files.summary["publications"] == 0


def test_without_a_window_nothing_is_recorded(script, observed, caplog):
    """One warning says what to add."""
    script.train(script.samples())
    script.train(script.samples())
    files = observed()
    assert files.of("rollout") == files.of("train") == []
    told = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    (message,) = [each for each in told if each.startswith("otel-grpo")]
    assert "put `with otel_grpo.iteration():` around the body of its loop" in message
    assert files.summary["observed"].get("errors", {}) == {}


def test_last_micro_batch_is_pending(observed, model_id):
    """Twinkle accumulates one too late: of five passes by two the third and the fifth step."""
    import otel_grpo

    script = Script(model_id, accumulate=2)
    with otel_grpo.iteration():
        for _ in range(4):
            script.train(script.samples())
    with otel_grpo.iteration():
        script.train(script.samples())
        script.train(script.samples())
    files = observed()
    first, second = files.of("rollout")
    updates = first["attributes"]["updates"] + second["attributes"]["updates"]
    assert [(u["samples"], u["nominal"], u["status"]) for u in updates] == [
        (12, 8, "applied"),
        (8, 8, "applied"),
    ]
    assert (first["metrics"]["samples.visits"], first["metrics"]["samples.pending"]) == (16, 4)
    assert (second["metrics"]["samples.visits"], second["metrics"]["samples.pending"]) == (8, 4)
    assert files.summary["updates"]["attempted"] == 2
    assert files.summary["samples"]["pending"] == 4


def test_again_is_a_visit_and_no_token(script, observed):
    """The same dicts a second time, also where they come from the window before."""
    import otel_grpo

    with otel_grpo.iteration():
        features = script.samples()
        tokens = sum(len(feature["input_ids"]) for feature in features)
        script.train(features)
        script.train(features[::-1])
    with otel_grpo.iteration():
        script.train(features[:1])
    files = observed()
    first, second = files.of("rollout")
    assert first["metrics"]["samples.visits"] == 8
    assert first["metrics"]["tokens.total"] == tokens
    assert first["metrics"]["tokens.visited"] == 2 * first["metrics"]["tokens.trained"]
    assert second["metrics"]["samples.consumed"] == 0
    assert second["metrics"]["samples.revisited"] == 1
    assert files.summary["tokens"]["total"] == tokens


def test_tail_is_partial(script, observed):
    """Fewer samples than the run's first batch are no whole update."""
    import otel_grpo

    with otel_grpo.iteration():
        features = script.samples(prompts=3)
        script.train(features[:4])
        script.train(features[4:])
    (record,) = observed().of("rollout")
    assert record["metrics"]["updates.applied"] == 2
    assert record["metrics"]["updates.partial"] == 1
    assert record["attributes"]["window"]["status"] == "partial"


def test_overflow_is_skipped(script, observed):
    """The scaler lets the step pass by; Twinkle says nothing of it."""
    import otel_grpo

    for scale in (3e38, 1.0):
        script.model.set_grad_scaler(init_scale=scale)
        with otel_grpo.iteration():
            before = script.weights()
            script.train(script.samples())
            assert (script.weights() == before) == (scale > 1)
    files = observed()
    assert files.updates() == [["skipped"], ["applied"]]
    assert files.of("train")[0]["attributes"]["reason"] == "overflow"
    assert files.summary["updates"]["skipped"] == 1


def test_failed_step(script, observed, monkeypatch):
    """The exception is the same object, the update failed, its window is aborted."""
    import torch

    import otel_grpo

    fault = RuntimeError("no step")

    def step(*_, **__):
        raise fault

    with otel_grpo.iteration():
        script.train(script.samples())
    monkeypatch.setattr(torch.optim.AdamW, "step", step)
    with pytest.raises(RuntimeError) as caught, otel_grpo.iteration():
        script.train(script.samples())
    assert caught.value is fault
    files = observed()
    assert files.updates() == [["applied"], ["failed"]]
    assert files.windows() == ["complete", "aborted"]
    assert files.summary["updates"]["applied"] == 1


@pytest.mark.parametrize("where", ["reward", "generation"])
def test_exception_elsewhere(script, observed, monkeypatch, where):
    """The same object, the interval it left is marked, and the next iteration is whole."""
    import transformers

    import otel_grpo

    fault = ValueError("not today")

    def raises(*_, **__):
        raise fault

    with pytest.raises(ValueError, match="not today") as caught, otel_grpo.iteration():
        if where == "generation":
            with monkeypatch.context() as patched:
                patched.setattr(transformers.GenerationMixin, "_prepare_generation_config", raises)
                script.generate()
        else:
            with otel_grpo.phase("reward"):
                raises()
    assert caught.value is fault
    with otel_grpo.iteration():
        script.generate()
        script.train(script.samples())
    files = observed()
    assert files.windows() == ["aborted", "complete"]
    (row,) = files.of("rollout")[0]["attributes"]["intervals"]
    assert (row[2], row[6] & 1) == (where, 1)
    assert files.updates() == [[], ["applied"]]


def test_pass_in_pieces(script, observed):
    """Forward, loss and backward one by one are one visit; clip and step one update."""
    import otel_grpo

    model = script.model
    with otel_grpo.iteration():
        features = script.samples()
        model.forward(inputs=features)
        model.calculate_loss(advantages=[1.0, -1.0, 1.0, -1.0])
        model.backward()
        model.clip_grad_norm()
        model.step()
        model.zero_grad()
        model.lr_step()
    (record,) = observed().of("rollout")
    assert record["metrics"]["samples.visits"] == 4
    assert record["metrics"]["updates.applied"] == 1
    assert record["metrics"]["phase.policy_train.calls"] == 3
    assert record["metrics"]["phase.optimizer.calls"] == 4


def test_advantage_covers_auxiliary_passes(script, observed):
    """From the first of them to the training; rewards of Twinkle's own are below it."""
    from twinkle.advantage import GRPOAdvantage
    from twinkle.reward import GSM8KFormatReward

    import otel_grpo

    with otel_grpo.iteration():
        features = script.samples()
        script.model.forward_only(inputs=[dict(feature) for feature in features])
        script.model.forward_only(inputs=[dict(f) for f in features], disable_lora=True)
        GSM8KFormatReward()([{"messages": []}])
        GRPOAdvantage()([0.0, 1.0, 0.0, 1.0], num_generations=2)
        script.train(features)
    files = observed()
    (record,) = files.of("rollout")
    assert files.phases(record) == {
        ("adv_pipeline", None): 1,
        ("logprob_old", "adv_pipeline"): 1,
        ("logprob_ref", "adv_pipeline"): 1,
        ("reward", "adv_pipeline"): 1,
        ("policy_train", None): 1,
        ("optimizer", None): 1,
        ("log", None): 1,
    }
    assert record["attributes"]["group_ids"] == [0, 0, 1, 1]
    assert record["metrics"]["groups"] == 2


def test_groups_of_different_prompts_are_not_told(script, observed):
    """Where a group by position would hold two prompts the order is not the advantage's."""
    from twinkle.advantage import GRPOAdvantage

    import otel_grpo

    with otel_grpo.iteration():
        features = script.samples()
        GRPOAdvantage()([0.0, 1.0, 0.0, 1.0], num_generations=2)
        script.train([features[i] for i in (0, 2, 1, 3)])
    (record,) = observed().of("rollout")
    assert record["metrics"]["samples.consumed"] == 4
    assert "groups" not in record["metrics"]
    assert record["metrics"]["length.completion.max"] == 5


def test_a_run_of_the_users_is_shared(twinkle, model_id, tmp_path, monkeypatch):
    """The script's own run has the phases; it ends when the script says so."""
    from local import Files

    import otel_grpo

    monkeypatch.setenv("OTEL_GRPO_STRICT", "true")
    otel_grpo.instrument()
    try:
        with otel_grpo.start_run(tmp_path / "mine", trainer="mine") as run:
            script = Script(model_id)
            with run.iteration():
                script.train(script.samples())
    finally:
        otel_grpo.uninstrument()
    files = Files(tmp_path / "mine")
    assert files.summary["trainer"]["name"] == "mine"
    assert files.updates() == [["applied"]]


def test_resumed_steps_go_on(script, observed, tmp_path):
    """What a checkpoint has behind it is no count of this session."""
    import otel_grpo

    with otel_grpo.iteration():
        script.train(script.samples())
        saved = script.model.save("c", output_dir=str(tmp_path), save_optimizer=True)
        script.model.resume_from_checkpoint(saved)
        script.train(script.samples())
    files = observed()
    assert files.summary["base"]["optimizer_step"] == 1
    assert files.updates() == [["applied", "applied"]]
    assert files.of("rollout")[0]["metrics"]["phase.checkpoint.calls"] == 1
