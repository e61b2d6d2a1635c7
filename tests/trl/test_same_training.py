"""A training is the same bit by bit whether it is observed or not."""

from __future__ import annotations

import hashlib
import random

import numpy as np
import pytest
from support import audited, trainer

# The trainer's own readings of clocks.
TIMES = {"step_time", "train_runtime", "train_samples_per_second", "train_steps_per_second"}


def digest(*parts) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def random_states() -> tuple[str, ...]:
    """Of Python, numpy and torch, each apart."""
    import torch

    return (
        digest(random.getstate()),
        digest(np.random.get_state()[1].tolist(), np.random.get_state()[2:]),  # noqa: NPY002
        digest(torch.get_rng_state().tolist()),
    )


def run(output, **options):
    """All that a training leaves behind, and the random states on its way."""
    import tiny
    import torch
    from transformers import TrainerCallback

    texts, states, batches = [], [], []

    def reward(completions, answer, **kwargs):
        texts.extend(completion[0]["content"] for completion in completions)
        states.append(random_states())
        return tiny.right_or_digits(completions, answer)

    class Watch(TrainerCallback):
        def on_substep_end(self, *args, **kwargs):
            states.append(random_states())

        on_step_begin = on_optimizer_step = on_step_end = on_log = on_train_end = on_substep_end

    given = trainer(output, reward=[reward], callbacks=[Watch()], **options)
    loss = given.compute_loss

    def compute_loss(model, inputs, *args, **kwargs):
        batches.append({name: digest(value.tolist()) for name, value in inputs.items()})
        return loss(model, inputs, *args, **kwargs)

    given.compute_loss = compute_loss
    given.train()
    weights = torch.cat([parameter.detach().flatten() for parameter in given.model.parameters()])
    logs = [{k: v for k, v in log.items() if k not in TIMES} for log in given.state.log_history]
    return {
        "texts": texts,
        "states": states,
        "batches": batches,
        "logs": logs,
        "weights": digest(weights.tolist()),
        "end": random_states(),
        "keys": [list(log) for log in given.state.log_history],
    }


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
        awaits_shuffle = True

        def shuffled(self, order):
            self.order = order

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
