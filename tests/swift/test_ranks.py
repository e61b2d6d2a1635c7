"""ms-swift under torchrun: two processes, one run."""

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
from support import audited

# A group of four lies across both processes.
SAMPLED = {
    "per_device_train_batch_size": 2,
    "max_steps": 3,
    "dynamic_sample": "true",
    "max_resample_times": 2,
}
OPTIONS = {"same": {"max_steps": 2}, "plain": SLICES, "sampled": SAMPLED}


@pytest.fixture(scope="module")
def job(folder):
    return Job(Path(__file__).with_name("ranks_script.py"), folder, OPTIONS)


def test_dynamic_sampling_over_ranks(job):
    """What was generated was consumed or discarded, whichever rank made it."""
    files = audited(job.folder / "sampled")
    samples, tokens = files.summary["samples"], files.summary["tokens"]
    assert samples["consumed"] == 3 * 2 * 2
    lost = samples["discarded"]
    assert samples["generated"] == samples["consumed"] + sum(lost.values())
    rows = [row for w in files.of("rollout") for row in w["attributes"].get("discarded", [])]
    discarded = sum(row[2] for row in rows)
    assert tokens["completion"] + discarded == job.own("sampled", "completion")
    assert all(w["attributes"]["group_ids"] == [0] * 4 for w in files.of("rollout"))
