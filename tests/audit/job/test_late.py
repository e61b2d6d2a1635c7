"""Totals with contributions that came after their records, worked out by hand."""

import pytest

from otel_grpo.audit import audit
from otel_grpo.audit.ranks import agreed, confirmed
from otel_grpo.records.model import Update

GIGA = 10**9

# What rank 2 adds to the third window: one sample of 2 + 3 tokens, not visited; two visits that no
# update took, one discarded sample, a reading of memory.
WITH_LATE = {
    "groups": 4,
    "samples": {
        "generated": 6,
        "consumed": 7,
        "visits": 11,
        "revisited": 4,
        "truncated": 1,
        "pending": 3,
        "discarded": {"stale": 3},
    },
    "tokens": {
        "prompt": 26,
        "prompt_unique": 14,
        "completion": 123,
        "environment": 2,
        "trained": 121,
        "visited": 224,
        "padding": 6,
        "total": 149,
    },
    "length": {
        "prompt": {"min": 2, "max": 5, "p50": 4, "p90": 5, "p99": 5, "mean": 26 / 7},
        "completion": {"min": 3, "max": 40, "p50": 12, "p90": 40, "p99": 40, "mean": 123 / 7},
    },
    "policy_lag": {"min": 0, "max": 1, "mean": 2 / 7},
    "memory": {
        "allocator.allocated": {
            "min_bytes": 50,
            "max_bytes": 100,
            "sum_bytes": 220,
            "mean_bytes": 220 / 3,
        },
        "process.rss": {"min_bytes": 20, "max_bytes": 40, "sum_bytes": 90, "mean_bytes": 30.0},
        "device.used": {"min_bytes": 600, "max_bytes": 900, "sum_bytes": 1500, "mean_bytes": 750.0},
        "host.used": {
            "min_bytes": 1100,
            "max_bytes": 1100,
            "sum_bytes": 1100,
            "mean_bytes": 1100.0,
        },
    },
    "throughput": {
        "device": 149 * GIGA / 560,
        "device_wall": 149 * GIGA / 580,
        "generation": 123 * GIGA / 160,
        "train": 224 * GIGA / 100,
        "formula": "sum(tokens) * 1e9 / sum(work_ns * devices)",
    },
    "ranks": {"expected": 3, "complete_windows": 3, "incomplete_windows": 0, "late": 1},
}


def wrong(report):
    return [f for f in report.findings if f.severity != "note"]


def test_a_summary_with_late_contributions(spmd, tmp_path):
    """`finish` put rank 2's third window in: the `run` record stays as it was."""
    spmd.files.summary |= WITH_LATE
    report = audit(spmd.write(tmp_path))
    assert wrong(report) == []
    (note,) = [f.message for f in report.findings]
    assert note == "attempt 1: 1 contribution(s) in no record; they are in the totals"


@pytest.mark.parametrize("block", sorted(WITH_LATE.keys() - {"ranks"}))
def test_each_number_of_it_is_recomputed(spmd, tmp_path, block):
    """A block that lacks what was late is found."""
    spmd.files.summary |= {name: value for name, value in WITH_LATE.items() if name != block}
    findings = wrong(audit(spmd.write(tmp_path)))
    assert findings
    assert all(f.file == "summary.json" and f.field.startswith(block) for f in findings)


def test_how_many_were_late(spmd, tmp_path):
    """The summary says 2, one contribution is in no record."""
    spmd.files.summary |= WITH_LATE | {"ranks": WITH_LATE["ranks"] | {"late": 2}}
    (finding,) = {f.field: f for f in wrong(audit(spmd.write(tmp_path)))}.values()
    assert (finding.field, finding.stored, finding.recomputed) == ("ranks.late", 2, 1)


def test_a_summary_can_not_hold_what_is_not_there(spmd, tmp_path):
    """It says that one was late, and no file has it."""
    spmd.files.summary |= WITH_LATE
    del spmd.others["trainer-2-9.jsonl"][3]
    assert [f for f in wrong(audit(spmd.write(tmp_path))) if f.field == "ranks.late"]


@pytest.mark.parametrize(
    ("said", "status"),
    [
        (["applied", "applied"], "applied"),
        (["skipped", "skipped"], "skipped"),
        (["applied", "skipped"], "unconfirmed"),
        (["applied", None], "unconfirmed"),
        ([None, None], "unconfirmed"),
        (["unconfirmed", "unconfirmed"], "unconfirmed"),
        (["applied", None, "failed"], "failed"),
    ],
)
def test_a_status_of_many_ranks(said, status):
    """Applied and skipped by all, failed by one, else unconfirmed."""
    assert agreed(said) == status


@pytest.mark.parametrize(
    ("stored", "reason", "ranks", "said", "status"),
    [
        ("unconfirmed", None, [2], {2: "applied"}, "applied"),
        ("unconfirmed", "overflow", [2], {2: "skipped"}, "skipped"),
        ("unconfirmed", None, [2], {2: "skipped"}, "unconfirmed"),
        ("unconfirmed", None, [2, 3], {2: "applied"}, "unconfirmed"),
        ("unconfirmed", None, [1, 2, 3], {2: "applied", 3: "applied"}, "unconfirmed"),
        ("unconfirmed", None, [2], {2: None}, "unconfirmed"),
        ("unconfirmed", None, [2], {2: "failed"}, "failed"),
        ("failed", None, [1], {2: "applied"}, "failed"),
        ("skipped", "overflow", [], {2: "skipped"}, "skipped"),
    ],
)
def test_a_status_once_late_ranks_have_spoken(stored, reason, ranks, said, status):
    """What was unconfirmed only for want of their word."""
    assert confirmed(Update(1, 0, 1, 4, 4, stored, reason, ranks), said) == status
