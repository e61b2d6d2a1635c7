"""Over Ray, with Twinkle's own dispatch, sampler and checkpoint manager: workers, order, failures."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from conftest import ROOT

REFERENCE = json.loads((ROOT / "tests" / "data" / "reference-run.json").read_text())["run"]
TOGETHER = ("2", "together")
LAZY = ("1", "lazy")


@pytest.fixture(scope="session")
def together(over_ray):
    """Two policy workers, each call waited for; the fourth iteration's step fails on worker 1."""
    return over_ray(*TOGETHER)


@pytest.fixture(scope="session")
def lazy(over_ray):
    """One policy worker and a reference model; only what the script waits for is waited for."""
    return over_ray(*LAZY)


def test_reference_shape(lazy):
    """Three windows, found by the sampler's calls; tokens as the script counted them."""
    files, summary = lazy.files, lazy.files.summary
    assert Counter(record["kind"] for record in files.records) == REFERENCE["records"]
    assert files.windows() == ["complete"] * 3
    assert summary["status"] == "completed"
    assert summary["groups"] == REFERENCE["groups"]
    assert summary["samples"]["generated"] == REFERENCE["samples_generated"]
    assert summary["samples"]["consumed"] == REFERENCE["samples_generated"]
    assert summary["samples"]["visits"] == REFERENCE["sample_visits"]
    assert summary["updates"]["applied"] == summary["updates"]["attempted"] == REFERENCE["updates"]
    assert (summary["publications"], summary["publications_pending"]) == (3, 0)
    assert {sink["dropped"] for sink in summary["observed"]["sinks"].values()} == {0}
    assert summary["observed"].get("errors", {}) == {}


@pytest.mark.parametrize("which", ["together", "lazy"])
def test_tokens_are_the_scripts(request, which):
    """Those of the windows that came to their end."""
    job = request.getfixturevalue(which)
    counted = [
        {f"{name}_tokens": record["metrics"][f"tokens.{name}"] for name in ("prompt", "completion")}
        for record in job.files.of("rollout")
        if record["metrics"]["updates.applied"] + record["metrics"]["updates.skipped"]
    ]
    told = [
        {name: row[name] for name in ("prompt_tokens", "completion_tokens")}
        for row in job.told["history"]
    ]
    assert counted == told


def test_two_workers(together):
    """Each window that was right: 64 samples once, an update of both, weights that arrived."""
    first, second, third, failed, skipped, last = together.files.of("rollout")
    for version, record in enumerate((first, second, third), 1):
        metrics = record["metrics"]
        assert (metrics["groups"], metrics["samples.consumed"], metrics["samples.visits"]) == (
            8,
            64,
            64,
        )
        assert (metrics["updates.applied"], metrics["publications"]) == (1, 1)
        (publication,) = record["attributes"]["publications"]
        assert (publication["kind"], publication["version"]) == ("collective", version)
        assert publication["in_window"]
        assert record["attributes"]["policy_lag"] == [0] * 64
        assert record["attributes"]["ranks"] == {"expected": 4, "received": 4, "missing": []}
    assert last["metrics"]["updates.applied"] == 1
    assert together.files.windows() == ["complete"] * 3 + ["aborted"] + ["complete"] * 2
    assert "publications" not in failed["attributes"]
    assert "publications" not in skipped["attributes"]


def test_worker_methods_are_timed_there(together):
    """Raw durations by worker, in the window they belong to; spans below the driver's phases."""
    record = together.files.of("rollout")[0]
    workers = record["attributes"]["workers"]
    calls = {method: {rank: len(ns) for rank, ns in by.items()} for method, by in workers.items()}
    assert calls["forward_backward"] == calls["clip_grad_and_step"] == {"1": 1, "2": 1}
    assert calls["forward"] == calls["backward"] == calls["step"] == {"1": 1, "2": 1}
    assert calls["sample"] == {"3": 1}
    assert calls["send_weights"] == {"1": 1, "2": 1}
    assert calls["receive_weights"] == {"3": 1}
    assert record["metrics"]["worker.forward_backward.count"] == 2
    longest = record["metrics"]["worker.forward_backward.max_ns"]
    assert longest <= record["metrics"]["phase.policy_train.busy_ns"]
    names = {
        row[0]: row[2]
        for record in together.files.of("rollout")
        for row in record["attributes"]["intervals"]
    }
    parents = {
        (span["name"], names.get(span.get("parentSpanId")))
        for span in together.files.spans()
        if span["name"].startswith("rl.worker.")
    }
    assert {
        ("rl.worker.sample", "generation"),
        ("rl.worker.forward_backward", "policy_train"),
        ("rl.worker.clip_grad_and_step", "optimizer"),
        ("rl.worker.send_weights", "weight_sync"),
        ("rl.worker.receive_weights", "weight_sync"),
    } <= parents


def test_devices_are_the_workers(together):
    """A driver that trains nothing is none; who trains and who generates is told."""
    processes = json.loads((together.path / "run.json").read_text())["attempts"][-1]["processes"]
    assert Counter(process["role"] for process in processes) == {
        "TransformersModel": 2,
        "vLLMSampler": 1,
    }
    assert together.files.of("rollout")[0]["metrics"]["devices"] == 3
    assert set(together.files.of("rollout")[0]["attributes"]["memory"]["rank"]) == {1, 2, 3}


def test_a_step_that_failed_on_one_worker(together, over_ray):
    """No update is applied; the exception is the one that it is without us, text and all."""
    plain = over_ray(*TOGETHER, observed=False)
    assert plain.told["observed"] is False
    assert together.told["failures"] == plain.told["failures"] != []
    failed = together.files.of("rollout")[3]["attributes"]
    (update,) = failed["updates"]
    assert (update["status"], update["ranks"], update["samples"]) == ("failed", [2], 64)
    statuses = [each for window in together.files.updates() for each in window]
    assert statuses == ["applied"] * 3 + ["failed", "skipped", "applied"]
    totals = together.files.summary["updates"]
    assert (totals["applied"], totals["failed"], totals["skipped"]) == (4, 1, 1)


def test_overflow_on_the_workers_is_skipped(together):
    """By their scale, which Twinkle's flag does not tell."""
    record = [
        each for each in together.files.of("train") if each["attributes"]["status"] == "skipped"
    ]
    assert [each["attributes"]["reason"] for each in record] == ["overflow"]


def test_the_same_training(together, over_ray):
    """Losses, gradient norms, samples, and the calls to workers in their order."""
    plain = over_ray(*TOGETHER, observed=False)
    assert together.told["history"] == plain.told["history"]
    # Of a scaler the workers are asked, and of nothing else.
    ours = [event for event in together.told["events"] if event != ["submit", "__ray_call__"]]
    assert len(together.told["events"]) - len(ours) == 4
    assert ours == plain.told["events"]


def test_auxiliary_passes_stay_side_by_side(lazy):
    """Both are submitted before one is waited for, and run at the same time."""
    events = [name for kind, name in lazy.told["events"] if name == "forward_only"]
    kinds = [kind for kind, name in lazy.told["events"] if name == "forward_only"]
    assert len(events) == 12
    assert kinds == ["submit", "submit", "wait", "wait"] * 3
    for record in lazy.files.of("rollout"):
        phases = lazy.files.phases(record)
        # To submit one is short, to wait for it is an interval of its own.
        assert phases["logprob_old", "adv_pipeline"] == phases["logprob_ref", "adv_pipeline"] == 2
        calls = record["attributes"]["workers"]["forward_only"]
        assert sorted(calls) == ["1", "2"]
    starts, ends = {}, {}
    for name, line in lazy.files.worker_lines("call"):
        if line["method"] == "forward_only":
            starts.setdefault(name, []).append(line["start_ns"])
            ends.setdefault(name, []).append(line["end_ns"])
    (a, b), pairs = sorted(starts), range(3)
    assert any(starts[a][i] < ends[b][i] and starts[b][i] < ends[a][i] for i in pairs)


def test_an_update_that_nobody_waits_for(lazy):
    """It is applied when its worker has made it, and its time is not called logging."""
    for record in lazy.files.of("rollout"):
        (update,) = record["attributes"]["updates"]
        assert (update["status"], update["samples"]) == ("applied", 64)
        (step,) = record["attributes"]["workers"]["clip_grad_and_step"].values()
        assert update["end_ns"] - update["start_ns"] >= step[0]
        optimizer = record["metrics"]["phase.optimizer.busy_ns"]
        assert optimizer < update["end_ns"] - update["start_ns"]
        # What is logged here is our own counting.
        rows = record["attributes"]["intervals"]
        assert {row[6] & 8 for row in rows if row[2] == "log"} == {8}
