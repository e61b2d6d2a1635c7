"""Both modes have the shape of the reference run: `tests/data/reference-run.json`."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from training import BESIDE, COLOCATED, ROOT, SMALL

REFERENCE = json.loads((ROOT / "tests" / "data" / "reference-run.json").read_text())["run"]
MODES = pytest.mark.parametrize("arguments", [COLOCATED, BESIDE], ids=["colocated", "async"])


@MODES
def test_records_and_totals(recorded, trained, arguments):
    """Records, groups, samples, visits, updates, publications, and the tokens the trainer had."""
    files, summary = recorded(*arguments), recorded(*arguments).summary
    assert Counter(record["kind"] for record in files.records) == REFERENCE["records"]
    assert len({record["run_id"] for record in files.records}) == 1
    assert summary["groups"] == REFERENCE["groups"]
    assert summary["samples"]["consumed"] == REFERENCE["samples_generated"]
    assert summary["samples"]["visits"] == REFERENCE["sample_visits"]
    assert summary["updates"]["applied"] == summary["updates"]["attempted"] == REFERENCE["updates"]
    assert (summary["publications"], summary["publications_pending"]) == (3, 0)
    assert summary["tokens"]["total"] == sum(row["tokens"] for row in trained(*arguments).history)
    assert {name: sink["dropped"] for name, sink in summary["observed"]["sinks"].items()} == (
        dict.fromkeys(summary["observed"]["sinks"], 0)
    )
    assert summary["observed"].get("errors", {}) == {}
    with (files.path / "metrics.jsonl").open() as lines:
        assert len(list(lines)) == REFERENCE["flat_metrics_lines"]


@MODES
def test_each_window(recorded, arguments):
    """A reading of each policy worker's memory, thirteen intervals or more, four micro-batches."""
    policy = {
        p["pid"]
        for p in recorded(*arguments).run["attempts"][-1]["processes"]
        if p["role"] == "policy"
    }
    assert len(policy) == 8
    for record in recorded(*arguments).of("rollout"):
        attributes = record["attributes"]
        assert attributes["window"]["status"] == "complete"
        assert len(attributes["memory"]["pid"]) == REFERENCE["memory_readings_per_iteration"]
        assert set(attributes["memory"]["pid"]) == policy
        assert min(attributes["memory"]["process_rss"]) > 2**26
        phases = Counter(row[2] for row in attributes["intervals"])
        assert sum(phases.values()) >= REFERENCE["timing_intervals_per_iteration"]
        assert phases["policy_train"] == 4
        assert {rank: len(ns) for rank, ns in attributes["workers"]["backward"].items()} == {
            str(rank): 4 for rank in range(1, 9)
        }
        assert {rank: len(ns) for rank, ns in attributes["workers"]["step"].items()} == {
            str(rank): 1 for rank in range(1, 9)
        }


def test_calls_lie_below_their_phases(recorded):
    """Spans of the workers are children of what the driver did at the time, by W3C context."""
    files = recorded(*COLOCATED)
    phases = {
        row[0]: row[2]
        for record in files.of("rollout")
        for row in record["attributes"]["intervals"]
    }
    parents = {
        (span["name"], phases.get(span.get("parentSpanId"))) for span in files.worker_spans()
    }
    assert parents == {
        ("rl.worker.generate", "generation"),
        ("rl.worker.solved", "reward"),
        ("rl.worker.log_probs", "adv_pipeline"),
        ("rl.worker.backward", "policy_train"),
        ("rl.worker.gradient", "optimizer"),
        ("rl.worker.step", "optimizer"),
        ("rl.worker.publish", "weight_sync"),
        ("rl.worker.receive", "weight_sync"),
    }


def test_waiting_is_not_generating(recorded):
    """A colocated driver generates and never waits; one beside its rollouts the other way round."""
    for arguments, there, missing in (
        (COLOCATED, "generation", "rollout_wait"),
        (BESIDE, "rollout_wait", "generation"),
    ):
        for record in recorded(*arguments).of("rollout"):
            phases = {row[2] for row in record["attributes"]["intervals"]}
            assert there in phases
            assert missing not in phases
            assert f"phase.{missing}.busy_ns" not in record["metrics"]


def test_policy_lag(recorded):
    """Beside the training each batch but the first is one update old when it is consumed."""
    lags = [set(r["attributes"]["policy_lag"]) for r in recorded(*COLOCATED).of("rollout")]
    assert lags == [{0}, {0}, {0}]
    lags = [set(r["attributes"]["policy_lag"]) for r in recorded(*BESIDE).of("rollout")]
    assert lags == [{0}, {1}, {1}]


def test_two_passes(recorded, trained):
    """Visits and updates double; samples and tokens do not."""
    arguments = (*SMALL, "--passes", "2")
    summary = recorded(*arguments).summary
    assert summary["samples"]["consumed"] == 192
    assert summary["samples"]["visits"] == 384
    assert summary["updates"]["applied"] == 6
    assert summary["publications"] == 3
    assert summary["tokens"]["total"] == sum(row["tokens"] for row in trained(*arguments).history)
    assert summary["tokens"]["visited"] == 2 * summary["tokens"]["trained"]
