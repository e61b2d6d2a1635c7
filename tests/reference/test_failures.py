"""Steps that fail on some workers: the same exceptions as without us, and no success is counted."""

from __future__ import annotations

from collections import Counter

from training import BED

# What Ray calls what a worker raises, or that it is silent or gone.
RAISED, SILENT, GONE = "RayTaskError(RuntimeError)", "GetTimeoutError", "ActorDiedError"


def test_the_same_exceptions(trained):
    """Each reaches the driver, and is the one that reaches it without us."""
    observed = trained(*BED).failures
    assert observed == trained(*BED, how="without").failures
    assert [failure and failure[0] for failure in observed] == [
        *[RAISED] * 4,
        SILENT,
        None,
        GONE,
    ]
    assert [failure[2] for failure in observed[:4]] == [
        "before its step",
        "during its step",
        "after its step",
        "before its step",
    ]


def test_the_same_calls(trained):
    """Also after a failure."""
    assert trained(*BED).calls == trained(*BED, how="without").calls
    assert trained(*BED).results == trained(*BED, how="without").results


def test_a_step_that_failed_is_no_update(recorded):
    """Status, reason and the numbers of the workers that failed; the driver is 0."""
    files = recorded(*BED)
    (*updates,) = (
        update for record in files.of("rollout") for update in record["attributes"]["updates"]
    )
    assert [(u["status"], u["ranks"]) for u in updates] == [
        ("failed", [1]),
        ("failed", [2]),
        ("failed", [1]),
        ("failed", [1, 2]),
        ("failed", [2]),
        ("applied", []),
        ("failed", [1]),
    ]
    assert [u["step"] for u in updates] == [0, 0, 0, 0, 0, 1, 1]
    assert [r["attributes"]["status"] for r in files.of("train")] == [u["status"] for u in updates]
    totals = files.summary["updates"]
    assert (totals["attempted"], totals["applied"], totals["failed"]) == (7, 1, 6)


def test_samples_are_accounted(recorded):
    """Those of a failed step were consumed and visited; each window says how it ended."""
    files = recorded(*BED)
    for record in files.of("rollout"):
        metrics = record["metrics"]
        assert (metrics["samples.consumed"], metrics["samples.visits"]) == (64, 64)
        assert metrics["samples.pending"] == 0
    statuses = [record["attributes"]["window"]["status"] for record in files.of("rollout")]
    assert statuses == [*["aborted"] * 5, "complete", "aborted"]
    assert files.summary["samples"]["consumed"] == 7 * 64
    assert files.summary["publications"] == 1


def test_workers_that_are_gone_leave_their_lines(recorded):
    """A step that hung or ended its process has no line; each one before it has, failed or not."""
    files = recorded(*BED)
    steps = [(name, line) for name, line in files.worker_lines("call") if line["method"] == "step"]
    failed = Counter(name for name, line in steps if line.get("error"))
    # Worker 1 hung in the fifth update, worker 0 ended in the seventh, which the new 1 was in.
    assert sorted(Counter(name for name, _ in steps).values()) == [2, 4, 6]
    assert sorted(failed.values()) == [2, 3]
