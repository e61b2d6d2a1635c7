"""A training is the same bit by bit whether it is observed or not."""

from __future__ import annotations

import pytest
from same_swift import run
from support import audited


@pytest.mark.parametrize(
    "options",
    [
        {"max_steps": 3},
        {
            "max_steps": 4,
            "per_device_train_batch_size": 4,
            "gradient_accumulation_steps": 2,
            "steps_per_generation": 4,
            "num_iterations": 2,
            "beta": 0.04,
            "dynamic_sample": "true",
        },
    ],
    ids=["defaults", "slices, reuse, a reference model, dynamic sampling"],
)
def test_observed_training_is_the_same(swift, folder, tmp_path, monkeypatch, options):
    """Losses, gradient norms, texts, every batch, the weights and the state of every generator."""
    import otel_grpo

    alone = run(folder, tmp_path / "alone", **options)
    monkeypatch.setenv("OTEL_GRPO_RUN_DIR", str(tmp_path / "run"))
    monkeypatch.setenv("OTEL_GRPO_STRICT", "true")
    otel_grpo.instrument()
    try:
        observed = run(folder, tmp_path / "observed", **options)
    finally:
        otel_grpo.uninstrument()
    assert alone == run(
        folder, tmp_path / "again", **options
    )  # or the comparison would say nothing
    for name, value in alone.items():
        assert observed[name] == value, name
    assert any(log.get("grad_norm", 0) > 0 for log in observed["logs"])
    audited(tmp_path / "run")
