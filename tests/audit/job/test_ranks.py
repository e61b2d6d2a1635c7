"""What the ranks of an SPMD job contributed, held against the records of rank 0."""

import json

import pytest

from otel_grpo.audit import audit

ONE, TWO = "trainer-1-8.jsonl", "trainer-2-9.jsonl"


def found(report, **wanted):
    return [
        f for f in report.findings if all(getattr(f, key) == value for key, value in wanted.items())
    ]


def notes(report):
    return [f.message for f in report.findings if f.severity == "note"]


def test_a_right_job(spmd, tmp_path):
    """All laws hold; what came late is counted and no fault."""
    report = audit(spmd.write(tmp_path))
    assert [f for f in report.findings if f.severity != "note"] == []
    assert report.exit_status == 0
    (note,) = notes(report)
    assert note == "attempt 1: 1 contribution(s) in no record; `otel-grpo finish` adds them"


# Rank, its line, the path of a field, its new value; line of the record, field that is named.
CHANGES = [
    (1, 1, "attributes.samples.0.1", 9, 2, "attributes.samples"),
    (1, 1, "attributes.prompt_lengths.0", 6, 2, "attributes.prompt_lengths[2]"),
    (1, 1, "attributes.completion_lengths.0", 31, 2, "attributes.completion_lengths[2]"),
    (2, 1, "attributes.trained_lengths.1", 39, 2, "attributes.trained_lengths[3]"),
    (2, 1, "attributes.environment_lengths.1", 1, 2, "attributes.environment_lengths[3]"),
    (1, 1, "attributes.group_ids.0", 2, 2, "attributes.group_ids[2]"),
    (1, 2, "attributes.policy_lag.0", 2, 5, "attributes.policy_lag[1]"),
    (2, 1, "attributes.visit_counts.1", 2, 2, "attributes.visit_counts[3]"),
    (1, 2, "attributes.revisited.0", ["r1", 8, 1, 1, 30], 5, "attributes.revisited"),
    (1, 2, "attributes.revisited.0", [7, 0, 1, 3, 30], 5, "attributes.visit_counts[0]"),
    (1, 1, "attributes.workers.step.0", [8], 2, "attributes.workers.step.1"),
    (1, 1, "attributes.workers", None, 2, "attributes.workers.step.1"),
    (2, 1, "attributes.visit_counts", [1], 2, "attributes.samples"),
    (2, 1, "attributes.truncated", [], 2, "attributes.truncated{3}"),
    (1, 1, "attributes.generated.0.2", 5, 2, "attributes.generated"),
    (1, 1, "attributes.discarded.0.1", 3, 2, "attributes.discarded.stale"),
    (1, 1, "attributes.padding", 7, 2, "attributes.padding"),
    (1, 1, "attributes.pending", 1, 2, "attributes.pending"),
    (1, 1, "attributes.updates.0.status", "skipped", 2, "attributes.updates[0].status"),
    (1, 1, "attributes.updates.0.status", "failed", 2, "attributes.updates[0].status"),
    (1, 2, "attributes.updates.1.status", "unconfirmed", 5, "attributes.updates[1].status"),
    (1, 1, "update_samples.0.0.0", "r2", 1, "attributes.samples"),
    (1, 1, "update_samples.0.0.2", 9, 2, "attributes.samples"),
    (1, 1, "attributes.memory.pid.0", 7, 2, "attributes.memory.pid"),
    (1, 1, "attributes.memory.process_rss.0", 21, 2, "attributes.memory.process_rss"),
    (1, 1, "attributes.memory.instant.0", 1082, 2, "attributes.memory.instant"),
    (1, 1, "attributes.memory.peak_resets", 1, 2, "attributes.memory.peak_resets"),
    (1, 1, "busy_ns.generation", 39, 2, "attributes.per_rank.1.generation"),
    (1, 1, "busy_ns.reward", 1, 2, "attributes.per_rank.1.reward"),
    (1, 3, "iteration", 4, 6, "attributes.ranks.received"),
    (1, 0, "world", 4, 2, "attributes.ranks.expected"),
]


def change(tree, path, value):
    *way, last = path.split(".")
    for step in way:
        tree = tree[int(step) if isinstance(tree, list) else step]
    last = int(last) if isinstance(tree, list) else last
    if value is None:
        del tree[last]
    else:
        tree[last] = value


@pytest.mark.parametrize(("rank", "line", "path", "value", "at", "field"), CHANGES)
def test_what_a_rank_said_is_in_the_record(spmd, tmp_path, rank, line, path, value, at, field):
    """One value of a contribution is another one: the record, the field and the rank are named."""
    change(spmd.others[{1: ONE, 2: TWO}[rank]][line], path, value)
    report = audit(spmd.write(tmp_path))
    finding = found(report, file="metrics_raw.jsonl", line=at, field=field)[0]
    assert finding.severity == "error"
    assert report.exit_status == 1


def test_a_finding_names_both_places(spmd, tmp_path):
    """File, line, rank, iteration, field, the stored value and the rank's own."""
    spmd.others[ONE][1]["attributes"]["completion_lengths"] = [31]
    (finding,) = found(audit(spmd.write(tmp_path)), field="attributes.completion_lengths[2]")
    assert str(finding) == (
        "error: metrics_raw.jsonl:2: attributes.completion_lengths[2] stored 30, recomputed 31 "
        "(iteration 1, rank 1: workers/trainer-1-8.jsonl:2)"
    )


@pytest.mark.parametrize(
    ("iteration", "path", "value", "field"),
    [
        (1, "per_rank.2", None, "attributes.per_rank"),
        (1, "per_rank.0.reward", 11, "attributes.per_rank.0.reward"),
        (1, "per_rank.2.generation", 1, "attributes.per_rank.2.generation"),
        (3, "ranks.missing", [3], "attributes.ranks.missing"),
        (3, "updates.0.nominal", 2, "attributes.updates[0].nominal"),
        (3, "updates.0.ranks", [], "attributes.updates[0].ranks"),
        (1, "workers.step.2", [4], "attributes.workers.step.2"),
        (3, "updates.0.status", "applied", "attributes.updates[0].status"),
        (1, "devices", [[0, ["train", "generate"]]], "attributes.devices"),
    ],
)
def test_a_record_says_what_the_ranks_said(spmd, tmp_path, iteration, path, value, field):
    """One value of a record is another one."""
    change(spmd.record(iteration), path, value)
    line = {1: 2, 3: 6}[iteration]
    assert found(audit(spmd.write(tmp_path)), line=line, field=field, severity="error")


def test_tokens_of_an_update_are_those_of_its_samples(spmd, tmp_path):
    """10 + 20 + 30 + 38 = 98, whatever a rank holds twice."""
    spmd.records[0]["attributes"]["trained"] = 128
    spmd.records[0]["metrics"]["tokens.trained"] = 128
    (finding,) = found(audit(spmd.write(tmp_path)), line=1, field="attributes.trained")
    assert (finding.stored, finding.recomputed) == (128, 98)


def test_tokens_of_an_update_are_not_less_than_a_ranks(spmd, tmp_path):
    """Without the lengths of samples: rank 1 alone brought 12."""
    spmd.records[2]["attributes"]["trained"] = 11
    spmd.records[2]["metrics"]["tokens.trained"] = 11
    del spmd.record(2)["trained_lengths"]
    (finding,) = found(audit(spmd.write(tmp_path)), line=3, field="attributes.trained")
    assert (finding.stored, finding.recomputed) == (11, 12)


def test_ranks_that_disagree_are_a_warning_where_the_record_says_so(spmd, tmp_path):
    """Rank 0 may hold the sample too, and then its value counts."""
    spmd.others[ONE][1]["attributes"]["completion_lengths"] = [31]
    spmd.records[1]["observed"]["errors"] = {"ranks.disagree": 1}
    report = audit(spmd.write(tmp_path))
    assert report.exit_status == 0
    assert found(report, field="attributes.completion_lengths[2]", severity="warning")


def test_a_contribution_twice(spmd, tmp_path):
    """The second one, and one that comes after that of a later window, are named."""
    spmd.others[ONE].insert(3, spmd.others[ONE][2])
    report = audit(spmd.write(tmp_path))
    (finding,) = found(report, severity="error")
    assert (finding.file, finding.line, finding.stored) == ("workers/trainer-1-8.jsonl", 4, 2)


def test_two_files_of_one_rank(spmd, tmp_path):
    """A rank has one process in an attempt."""
    spmd.others["trainer-1-88.jsonl"] = spmd.others[ONE]
    report = audit(spmd.write(tmp_path))
    assert found(report, file="workers/trainer-1-88.jsonl", line=1, field="rank")


def test_joined_is_the_first_line(spmd, tmp_path):
    """And the only one."""
    lines = spmd.others[ONE]
    spmd.others[ONE] = [lines[1], lines[0], *lines[2:]]
    report = audit(spmd.write(tmp_path))
    assert found(report, file="workers/trainer-1-8.jsonl", line=1, field="kind")
    spmd.others[ONE] = [lines[0], *lines]
    report = audit(spmd.write(tmp_path))
    assert found(report, file="workers/trainer-1-8.jsonl", line=2, field="kind")


@pytest.mark.parametrize(
    ("name", "value"), [("run_id", "other"), ("attempt", 2), ("attempt", 0), ("rank", 2)]
)
def test_lines_of_another_run_attempt_or_rank(spmd, tmp_path, name, value):
    """They are named, and are no contribution of this one; attempt 0 is not known, so it may be."""
    spmd.others[ONE][3][name] = value
    report = audit(spmd.write(tmp_path))
    here = found(report, file="workers/trainer-1-8.jsonl", line=4)
    assert [f.field for f in here] == ([] if value == 0 else [name])
    lost = found(report, line=6, field="attributes.ranks.received")
    assert len(lost) == (name != "rank" and value != 0)


def test_a_rank_that_never_found_the_directory(spmd, tmp_path):
    """Its lines have attempt 0 and the launch in place of the run id; its files were copied here."""
    spmd.files.run["attempts"][0]["launch"] = "0123456789abcdef"
    for line in spmd.others[TWO]:
        line |= {"run_id": "launch:0123456789abcdef", "attempt": 0}
    report = audit(spmd.write(tmp_path))
    assert [f for f in report.findings if f.severity != "note"] == []
    spmd.files.run["attempts"][0]["launch"] = "other"
    assert found(audit(spmd.write(tmp_path)), file="workers/trainer-2-9.jsonl", field="run_id")


@pytest.mark.parametrize("name", ["rank", "host", "pid", "role", "name", "clock"])
def test_run_json_lists_the_processes_that_joined(spmd, tmp_path, name):
    """Each fact of a process stands there as in its first line."""
    listed = spmd.files.run["attempts"][0]["processes"][0]
    other = {"rank": 5, "pid": 80, "clock": {"boot_id": "b", "unix_ns": 1, "perf_ns": 0}}
    listed[name] = other.get(name, "other")
    report = audit(spmd.write(tmp_path))
    wrong = [f for f in found(report, file="run.json") if "attempts[1].processes[" in f.field]
    assert wrong
    assert all(name in f.field for f in wrong)


def test_a_file_that_is_not_here(spmd, tmp_path):
    """No number rests on it alone: a warning, said once."""
    del spmd.others[ONE]
    report = audit(spmd.write(tmp_path))
    assert report.exit_status == 0
    (warning,) = found(report, severity="warning")
    assert "the file of rank 1 (trainer-1) is not here" in warning.message


def test_a_window_without_a_record(spmd, tmp_path):
    """Rank 0 was killed in it: the contribution is counted, no fault."""
    spmd.others[TWO].insert(4, spmd.others[TWO][3] | {"iteration": 4})
    report = audit(spmd.write(tmp_path))
    assert report.exit_status == 0
    assert any("1 contribution(s) to windows without a record" in note for note in notes(report))


def test_a_torn_line_before_the_next_attempt(spmd, tmp_path):
    """A process number that comes again goes on in the same file."""
    path = spmd.write(tmp_path) / "workers" / "driver-0-7.jsonl"
    path.write_bytes(path.read_bytes() + b'{"kind": "window_op\n')
    assert audit(tmp_path).exit_status == 2
    spmd.files.run["attempts"].append(spmd.files.attempt(2, 2000))
    line = {"kind": "window_opened", "run_id": "run-1", "attempt": 2, "iteration": 4, "start_ns": 1}
    spmd.files.summary = None
    spmd.write(tmp_path)
    path.write_bytes(
        path.read_bytes() + b'{"kind": "window_op\n' + json.dumps(line).encode() + b"\n"
    )
    report = audit(tmp_path)
    assert report.exit_status == 0
    assert found(report, severity="note", file="workers/driver-0-7.jsonl", line=5)


def test_span_ids_are_unique_over_all_processes(spmd, tmp_path):
    """A rank's file has an id that the driver's has."""
    spmd.files.spans["trainer-1-8.jsonl"] = [["2222222222222222"]]
    (finding,) = found(audit(spmd.write(tmp_path)), field="spanId")
    assert (finding.file, finding.stored) == ("spans/trainer-1-8.jsonl", "2222222222222222")


@pytest.mark.parametrize(
    ("written", "severity", "name"),
    [(2, "warning", "observed.sinks.spans.dropped"), (3, "error", "observed.sinks.spans.created")],
)
def test_what_a_rank_lost(spmd, tmp_path, written, severity, name):
    """Its last line says what it dropped; counts that do not add up are wrong there, too."""
    sink = {"created": 7, "written": written, "dropped": 5, "pending": 0}
    last = spmd.others[ONE][-1]
    assert last["kind"] == "left"
    last["observed"] = {"sinks": {"spans": sink}}
    report = audit(spmd.write(tmp_path))
    (finding,) = found(report, severity=severity, field=name)
    assert (finding.file, finding.line) == (f"workers/{ONE}", len(spmd.others[ONE]))
