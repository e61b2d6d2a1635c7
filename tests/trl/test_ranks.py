"""TRL under torchrun: two processes, one run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import stand_in_vllm as vllm
from of_two_ranks import (  # noqa: F401 (pytest finds them here)
    SLICES,
    Job,
    test_copies_are_runs_of_their_own,
    test_killed_rank,
    test_observed_training_is_the_same,
    test_totals_are_those_of_both_ranks,
)
from support import Spy, audited, trainer

# A group of four lies across both processes, and no completion ends by itself.
FIXED = {
    "rows": 12,
    "per_device_train_batch_size": 2,
    "max_steps": 3,
    "generation_kwargs": {"min_new_tokens": 8},
}
SERVED = {"per_device_train_batch_size": 4, "max_steps": 3}
OPTIONS = {
    "same": {"max_steps": 3},
    "plain": {"rows": 16, **SLICES},
    "fixed": FIXED,
    "served": SERVED,
}


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    script = Path(__file__).with_name("ranks_script.py")
    return Job(script, tmp_path_factory.mktemp("job"), OPTIONS)


def test_total_is_what_the_trainer_gathers(job):
    """TRL logs the tokens of all processes."""
    files = audited(job.folder / "plain")
    assert files.summary["tokens"]["total"] == job.seen("plain")[0]["logged"][-1]


@pytest.mark.skipif(not vllm.NEWEST, reason="the client of an older TRL")
def test_one_rank_asks_the_server_for_both(job):
    """It generates, the other one waits; the push of both is one publication."""
    asked, idle = (json.loads((job.folder / f"vllm-{rank}.json").read_text()) for rank in (0, 1))
    assert idle == {"told": [], "prompts": [], "made": []}
    assert [each for each in asked["told"] if each in ("push", "generate")] == [
        *("push", "generate") * 3
    ]
    files = audited(job.folder / "served")
    windows = files.of("rollout")
    for window in windows:
        zero, one = (window["attributes"]["per_rank"][rank] for rank in "01")
        assert ("rollout_wait" in zero, "rollout_wait" in one) == (False, True)
    assert [[p["version"] for p in w["attributes"]["publications"]] for w in windows] == [
        *([1], [2], [3])
    ]
    assert (files.summary["publications"], files.summary["publications_pending"]) == (2, 1)
    tokens = files.summary["tokens"]
    assert tokens["prompt"] == sum(map(len, asked["prompts"]))
    assert tokens["completion"] == sum(map(len, asked["made"]))
    lengths = [n for w in windows for n in w["attributes"]["completion_lengths"]]
    assert lengths == list(map(len, asked["made"]))
    assert tokens["total"] == job.seen("served")[0]["logged"][-1]


def test_one_process_and_two_count_the_same(job, trl, tmp_path, monkeypatch):
    """The same data: every count and every column of lengths, group by group."""
    import otel_grpo

    monkeypatch.setenv("OTEL_GRPO_RUN_DIR", str(tmp_path / "run"))
    otel_grpo.instrument()
    try:
        given = trainer(tmp_path / "out", **{**FIXED, "per_device_train_batch_size": 4})
        spy = Spy(given)
        given.train()
    finally:
        otel_grpo.uninstrument()
    one, two = audited(tmp_path / "run"), audited(job.folder / "fixed")
    for block in ("groups", "samples", "tokens", "updates", "publications", "length", "windows"):
        assert one.summary[block] == two.summary[block], block
    for mine, theirs in zip(one.of("rollout"), two.of("rollout"), strict=True):
        for column in ("samples", "prompt_lengths", "completion_lengths", "group_ids"):
            assert mine["attributes"][column] == theirs["attributes"][column], column
        assert mine["attributes"]["group_ids"] == [0] * 4
    assert sum(spy.prompt_tokens) == job.own("fixed", "prompt")
