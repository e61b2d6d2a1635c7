"""The demo's training has the shape of the reference run, and is the same without us."""

from __future__ import annotations

import functools
import json
from collections import Counter

from conftest import ROOT
from local import random_states

REFERENCE = json.loads((ROOT / "tests" / "data" / "reference-run.json").read_text())["run"]
TIMES = {"total time elapse", "speed"}


def test_reference_shape(observed, model_id):
    """Records, groups, samples, visits, updates, publications; tokens as the script counted them."""
    import train_twinkle

    history = train_twinkle.train(model_id, 3, 6)
    files = observed()
    summary = files.summary
    assert Counter(record["kind"] for record in files.records) == REFERENCE["records"]
    assert len({record["run_id"] for record in files.records}) == 1
    assert files.windows() == ["complete"] * 3
    assert summary["status"] == "completed"
    assert summary["groups"] == REFERENCE["groups"]
    assert summary["samples"]["consumed"] == REFERENCE["samples_generated"]
    assert summary["samples"]["visits"] == REFERENCE["sample_visits"]
    assert summary["updates"]["applied"] == summary["updates"]["attempted"] == REFERENCE["updates"]
    assert (summary["publications"], summary["publications_pending"]) == (3, 0)
    assert summary["tokens"]["prompt"] == sum(row["prompt_tokens"] for row in history)
    assert summary["tokens"]["completion"] == sum(row["completion_tokens"] for row in history)
    assert summary["tokens"]["trained"] == summary["tokens"]["completion"]
    assert {sink["dropped"] for sink in summary["observed"]["sinks"].values()} == {0}
    assert summary["observed"].get("errors", {}) == {}
    assert len(files.flat) == REFERENCE["flat_metrics_lines"]
    assert [line["grad_norm"] for line in files.flat] == [float(r["grad_norm"]) for r in history]
    assert [r["attributes"]["covers"] for r in files.of("train")] == [[1], [2], [3]]
    for record in files.of("rollout"):
        assert {p for p, _ in files.phases(record)} == {
            "generation",
            "adv_pipeline",
            "policy_train",
            "optimizer",
            "log",
        }
        assert record["attributes"]["policy_lag"] == [0] * 64
        (publication,) = record["attributes"]["publications"]
        assert publication["kind"] == "in_place"


def test_observed_training_is_the_same(twinkle, model_id, tmp_path, monkeypatch):
    """Losses, gradient norms, rewards, weights and the state of every generator."""
    import train_twinkle
    from twinkle.model import TransformersModel

    import otel_grpo

    models = []
    optimizer = TransformersModel.set_optimizer

    @functools.wraps(optimizer)
    def watched(self, *args, **kwargs):
        models.append(self)
        return optimizer(self, *args, **kwargs)

    monkeypatch.setattr(TransformersModel, "set_optimizer", watched)

    def run():
        history = train_twinkle.train(model_id, 2, 4)
        module = models[-1].strategy.unwrap_model(models[-1].model)
        weights = [parameter.detach().tolist() for parameter in module.parameters()]
        return history, weights, random_states()

    alone = run()
    assert alone == run()  # or the comparison would say nothing
    monkeypatch.setenv("OTEL_GRPO_RUN_DIR", str(tmp_path / "run"))
    monkeypatch.setenv("OTEL_GRPO_STRICT", "true")
    otel_grpo.instrument()
    try:
        observed = run()
    finally:
        otel_grpo.uninstrument()
    assert observed == alone
    assert float(alone[0][0]["grad_norm"]) > 0
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["updates"]["applied"] == 2
