"""The reference run with the TRL that is installed: the newest release that is claimed, and the oldest."""

from __future__ import annotations

from same_training import TIMES, digest
from support import Spy, audited, trainer

SHAPE = {"rows": 24, "per_device_train_batch_size": 64, "num_generations": 8, "max_steps": 3}


def train(output, **options):
    """Spy, log lines without times, and the weights at the end."""
    import torch

    given = trainer(output, **SHAPE, **options)
    spy = Spy(given)
    given.train()
    logs = [{k: v for k, v in log.items() if k not in TIMES} for log in given.state.log_history]
    weights = torch.cat([each.detach().flatten() for each in given.model.parameters()])
    return spy, logs, digest(weights.tolist())


def compare(tmp_path, monkeypatch, **options):
    """Train without us and with us."""
    import otel_grpo

    _, *alone = train(tmp_path / "alone", **options)
    monkeypatch.setenv("OTEL_GRPO_RUN_DIR", str(tmp_path / "run"))
    monkeypatch.setenv("OTEL_GRPO_STRICT", "true")
    otel_grpo.instrument()
    try:
        spy, *observed = train(tmp_path / "observed", **options)
    finally:
        otel_grpo.uninstrument()
    assert observed == alone
    assert any(log.get("grad_norm", 0) > 0 for log in alone[0])

    summary = audited(tmp_path / "run").summary
    assert summary["records"] == {"train": 3, "rollout": 3, "run": 1}
    assert summary["groups"] == 24
    samples, tokens, updates = (summary[block] for block in ("samples", "tokens", "updates"))
    assert samples["generated"] == samples["consumed"] == samples["visits"] == 192
    assert (updates["attempted"], updates["applied"], summary["publications"]) == (3, 3, 3)
    assert tokens["prompt"] == sum(spy.prompt_tokens)
    assert tokens["completion"] == sum(spy.completion_tokens)
    assert tokens["visited"] == sum(spy.micro_steps)
    assert tokens["total"] == [log["num_tokens"] for log in alone[0] if "num_tokens" in log][-1]
    sinks = summary["observed"]["sinks"].values()
    assert all(sink["dropped"] == sink["pending"] == 0 for sink in sinks)
    assert summary["observed"].get("errors", {}) == {}
    assert summary["status"] == "completed"


def test_the_reference_shape(trl, tmp_path, monkeypatch):
    """Every count, the tokens as spied, nothing lost; losses, norms and weights are those without us."""
    compare(tmp_path, monkeypatch)
