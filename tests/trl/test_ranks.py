"""TRL under torchrun: two processes, one run."""

from __future__ import annotations

from pathlib import Path

import pytest
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
OPTIONS = {"same": {"max_steps": 3}, "plain": {"rows": 16, **SLICES}, "fixed": FIXED}


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    script = Path(__file__).with_name("ranks_script.py")
    return Job(script, tmp_path_factory.mktemp("job"), OPTIONS)


def test_total_is_what_the_trainer_gathers(job):
    """TRL logs the tokens of all processes."""
    files = audited(job.folder / "plain")
    assert files.summary["tokens"]["total"] == job.seen("plain")[0]["logged"][-1]


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
