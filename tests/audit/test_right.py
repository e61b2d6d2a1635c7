"""Right files pass; the worked example comes out field by field."""

import json

import pytest

from otel_grpo.audit import audit, render
from otel_grpo.audit.partition import account, measure


def rows_of(*rows):
    return [tuple(row) for row in rows]


def test_a_right_run_passes(files, tmp_path):
    """Nothing is found, and the report counts what was recomputed."""
    report = audit(files.write(tmp_path))
    assert report.findings == []
    assert (report.exit_status, report.state, report.lines, report.attempts) == (
        0,
        "finished",
        8,
        1,
    )
    assert report.records == {"train": 4, "rollout": 3, "run": 1}
    assert report.coverage == 205 / 290
    assert report.fields_checked > 600
    assert "PASSED" in render(report)
    assert json.loads(json.dumps(report.to_dict()))["exit_status"] == 0


def test_worked_example(files):
    """Section 3 of the semantics, every number of it."""
    first = files.records[1]
    result = account(rows_of(*first["attributes"]["intervals"]), 1000, 1100, 1)
    names = [n for n in first["metrics"] if n.startswith(("time.", "phase."))]
    assert result.metrics == {name: first["metrics"][name] for name in names}
    stored = {tuple(phases): ns for phases, ns in first["attributes"]["segments"]}
    assert result.segments == stored
    tops = sum(v for n, v in result.metrics.items() if n.endswith(".top_ns"))
    assert tops + 0 + 5 + 5 == 100


def test_union_by_atoms():
    """Touching, nested, empty and backward intervals."""
    assert measure([]) == 0
    assert measure([(5, 5), (7, 6)]) == 0
    assert measure([(0, 10), (10, 20), (5, 8), (30, 40)]) == 30


def test_a_parent_that_waits_for_another_lane_is_not_hidden():
    """Both are in the key; the innermost alone explains the time of its own family."""
    rows = rows_of(["a", None, "adv_pipeline", 0, 10, 1, 0], ["x", "a", "reward", 2, 12, 2, 0])
    result = account(rows, 0, 12, 1)
    assert result.segments == {
        ("adv_pipeline",): 2,
        ("adv_pipeline", "reward"): 8,
        ("reward",): 2,
    }
    assert result.metrics["phase.adv_pipeline.exposed_ns"] == 12
    assert result.metrics["phase.adv_pipeline.top_ns"] == 12
    assert result.metrics["phase.reward.exposed_ns"] == 10
    assert result.metrics["time.overlapped_ns"] == 0


def test_two_families_overlap():
    """Neither family is exposed where both are at work."""
    rows = rows_of(["g", None, "generation", 0, 10, 2, 0], ["t", None, "policy_train", 4, 14, 1, 0])
    result = account(rows, 0, 20, 1)
    assert result.metrics["time.overlapped_ns"] == 6
    assert result.metrics["phase.generation.exposed_ns"] == 4
    assert result.metrics["phase.policy_train.top_ns"] == 4
    assert result.metrics["time.unattributed_ns"] == 6


def test_below_an_evaluation_all_but_log_counts_as_evaluation():
    """Its generation is not generation; its log is still deducted, once."""
    rows = rows_of(
        ["e", None, "evaluation", 0, 50, 1, 0],
        ["g", "e", "generation", 10, 30, 1, 0],
        ["l", "g", "log", 20, 25, 1, 0],
        ["m", "l", "log", 22, 28, 1, 0],
        ["c", None, "checkpoint", 50, 60, 1, 0],
    )
    m = account(rows, 0, 100, 1).metrics
    assert "phase.generation.busy_ns" not in m
    assert m["phase.evaluation.busy_ns"] == 50
    assert m["phase.evaluation.calls"] == 2
    assert m["phase.evaluation.sum_ns"] == 70
    assert m["time.log_ns"] == 8
    assert m["phase.evaluation.logical_ns"] == 42
    assert m["phase.evaluation.exposed_ns"] == 42
    assert m["time.work_ns"] == 40


def test_an_empty_parent_still_gives_its_name():
    """Its child has no other uppermost ancestor, and the stack has to add up to the wall time."""
    rows = rows_of(["a", None, "data", 3, 3, 1, 0], ["r", "a", "reward", 4, 9, 2, 0])
    m = account(rows, 0, 10, 1).metrics
    assert (m["phase.data.busy_ns"], m["phase.data.calls"], m["phase.data.top_ns"]) == (0, 0, 5)
    assert m["phase.data.exposed_ns"] == 5
    assert m["phase.reward.top_ns"] == 0


def test_background_log_leaves_with_its_links():
    """A child of it has no parent, and is its own uppermost."""
    rows = rows_of(["b", None, "log", 0, 10, 2, 0], ["r", "b", "reward", 2, 8, 2, 0])
    m = account(rows, 0, 10, 1).metrics
    assert m["time.log_background_ns"] == 10
    assert m["phase.reward.top_ns"] == 6
    assert not any(name.startswith("phase.log") for name in m)


@pytest.mark.parametrize("wall", [0, 10])
def test_a_window_without_spans(wall):
    """All of it is unattributed; an empty one has no segment."""
    result = account([], 5, 5 + wall, 1)
    assert result.metrics["time.unattributed_ns"] == wall
    assert sum(result.segments.values()) == wall


def test_a_summary_that_still_runs(files, tmp_path):
    """Its lines are judged, its totals are not; the exit is good and the state says so."""
    del files.records[5:]
    files.lines()
    files.summary["status"] = "running"
    files.summary["head"] = files.records[2]["prev"]
    files.summary["open"] = {"iteration": 3, "start_ns": 1210, "phases": []}
    folder = files.write(tmp_path)
    report = audit(folder)
    # `write` made the head that of the last line: put an older one back.
    files.summary["head"] = files.records[2]["prev"]
    (folder / "summary.json").write_text(json.dumps(files.summary))
    report = audit(folder)
    assert (report.exit_status, report.state) == (0, "not finished")
    assert "otel-grpo finish" in render(report)
    assert "window 3 was open" in render(report)
    files.summary["head"] = "0" * 64
    (folder / "summary.json").write_text(json.dumps(files.summary))
    assert audit(folder).exit_status == 1


def test_without_a_summary(files, tmp_path):
    """The lines alone can be right."""
    files.summary = None
    report = audit(files.write(tmp_path))
    assert (report.exit_status, report.state) == (0, "not finished")


def test_a_young_run_has_no_line_yet(files, tmp_path):
    """An empty file is right where the summary says that nothing was written."""
    files.records, files.workers = [], []
    files.summary["status"] = "running"
    report = audit(files.write(tmp_path))
    assert (report.exit_status, report.state) == (0, "not finished")
