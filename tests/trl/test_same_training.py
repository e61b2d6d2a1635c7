"""A training is the same bit by bit whether it is observed or not."""

from __future__ import annotations

import pytest
from same_training import run
from support import audited


def path_of_model(words):
    """The reference model is loaded from where the policy came from: a directory."""
    import tempfile

    import tiny

    folder = tempfile.mkdtemp()
    tiny.model(words).save_pretrained(folder)
    words.save_pretrained(folder)
    return folder


@pytest.mark.parametrize(
    "options",
    [
        {"max_steps": 3},
        {
            "max_steps": 4,
            "rows": 16,
            "per_device_train_batch_size": 4,
            "gradient_accumulation_steps": 2,
            "steps_per_generation": 4,
            "num_iterations": 2,
            "beta": 0.04,
            "model": path_of_model,
        },
    ],
    ids=["defaults", "slices, reuse and a reference model"],
)
def test_observed_training_is_the_same(trl, tmp_path, monkeypatch, options):
    """Losses, gradient norms, texts, every batch, the weights and the state of every generator."""
    import otel_grpo

    alone = run(tmp_path / "alone", **options)
    assert alone == run(tmp_path / "again", **options)  # or the comparison would say nothing
    monkeypatch.setenv("OTEL_GRPO_RUN_DIR", str(tmp_path / "run"))
    monkeypatch.setenv("OTEL_GRPO_STRICT", "true")
    otel_grpo.instrument()
    try:
        observed = run(tmp_path / "observed", **options)
    finally:
        otel_grpo.uninstrument()
    for name, value in alone.items():
        assert observed[name] == value, name
    assert any(log.get("grad_norm", 0) > 0 for log in observed["logs"])
    audited(tmp_path / "run")


def test_shuffled_dict_is_the_trainers_own(observed, trl):
    """The same rows in the same order from the same draw, and no key of ours."""
    import sys

    import torch

    from otel_grpo import instrumentation
    from otel_grpo.instrumentation import trl as package  # noqa: F401

    module = sys.modules["trl.trainer.grpo_trainer"]
    hooks = instrumentation._applied["trl.trainer.grpo_trainer"]

    class Waiting:
        unshuffled = 100  # the first sample's index

        def shuffled(self, indices):
            self.order = indices - 100

    batch = {
        "none": None,
        "rows": torch.arange(24).reshape(12, 2),
        "scalar": torch.tensor(5),
        "list": [f"text {i}" for i in range(12)],
    }
    torch.manual_seed(7)
    plain, state = module.shuffle_sequence_dict(dict(batch)), torch.get_rng_state()
    hooks._session = Waiting()
    try:
        torch.manual_seed(7)
        shuffled = module.shuffle_sequence_dict(dict(batch))
        order = hooks._session.order
    finally:
        hooks._session = None
    assert torch.equal(torch.get_rng_state(), state)
    assert list(shuffled) == list(plain) == list(batch)
    assert torch.equal(shuffled["rows"], plain["rows"])
    assert shuffled["list"] == plain["list"] == [batch["list"][i] for i in order]
    assert (shuffled["none"], int(shuffled["scalar"])) == (None, 5)
