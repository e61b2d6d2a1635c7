"""Laws across lines and files, among them the public faults of other tools."""

import pytest

from otel_grpo.audit import audit, render
from otel_grpo.audit.train import Ramp, is_rate
from otel_grpo.records.model import Device
from otel_grpo.testing import FakeClock, recorded_run


def found(report, **wanted):
    return [
        f for f in report.findings if all(getattr(f, key) == value for key, value in wanted.items())
    ]


def test_one_run_id(files, tmp_path):
    """A line of another run is named."""
    files.records[4]["run_id"] = "other"
    assert found(audit(files.write(tmp_path)), line=5, field="run_id", stored="other")


def test_lost_records(files, tmp_path):
    """A gap that the summary declares is a warning with the number; another one fails."""
    for entry, seq in zip(files.records, (0, 1, 2, 3, 4, 7, 8, 9), strict=True):
        entry["seq"] = seq
    report = audit(files.write(tmp_path))
    (finding,) = found(report, field="seq")
    assert finding.severity == "error"
    assert "lost 2 record(s)" in finding.message
    assert "it says 0" in finding.message
    sink = files.summary["observed"]["sinks"]["metrics_raw"]
    sink |= {"created": 10, "dropped": 2}
    report = audit(files.write(tmp_path))
    assert [f.severity for f in found(report, field="seq")] == ["warning"]
    files.summary = None
    files.records[-1]["observed"] = {}
    (finding,) = found(audit(files.write(tmp_path / "other")), field="seq")
    assert (finding.severity, "count of drops is lost" in finding.message) == ("warning", True)


def test_sinks_add_up(files, tmp_path):
    """created = written + dropped + pending, and written is what stands in the file."""
    sink = files.summary["observed"]["sinks"]["metrics_raw"]
    sink["created"] = 9
    report = audit(files.write(tmp_path))
    assert found(report, field="observed.sinks.metrics_raw.created", stored=9, recomputed=8)
    sink |= {"written": 9}
    report = audit(files.write(tmp_path))
    assert found(report, field="observed.sinks.metrics_raw.written", stored=9, recomputed=8)


def test_counts_of_a_sink_from_an_earlier_instant(files, tmp_path):
    """What was pending then may be in the file now; more than that only if it was made later."""
    sink = files.summary["observed"]["sinks"]["metrics_raw"]
    sink |= {"written": 7, "pending": 1}
    assert audit(files.write(tmp_path)).findings == []
    sink |= {"created": 7, "pending": 0}
    assert found(audit(files.write(tmp_path)), field="observed.sinks.metrics_raw.written")
    files.summary["observed"]["time_unix_ns"] = 1319
    assert audit(files.write(tmp_path)).findings == []


def test_iterations_grow(files, tmp_path):
    """None twice, none left out."""
    files.records[5]["iteration"] = 2
    assert found(audit(files.write(tmp_path)), line=6, field="iteration")
    files.records[5]["iteration"] = 4
    assert found(audit(files.write(tmp_path)), line=6, field="iteration", recomputed=3)


def test_windows_are_disjoint(files, tmp_path):
    """A window that starts inside the one before."""
    files.records[5]["attributes"]["window"]["start_ns"] = 1199
    report = audit(files.write(tmp_path))
    assert found(report, line=6, field="attributes.window.start_ns")


def test_attempts_grow(files, tmp_path):
    """An attempt that run.json does not know, and one that goes back."""
    files.records[4]["attempt"] = 2
    assert found(audit(files.write(tmp_path)), line=5, field="attempt")
    files.run["attempts"].append(files.attempt(2, 2000))
    assert found(audit(files.write(tmp_path)), line=6, field="attempt")


def test_nothing_after_the_run_record(files, tmp_path):
    """The run record is the end of its attempt."""
    files.records.append(dict(files.records[-1], seq=8))
    assert found(audit(files.write(tmp_path)), line=9, field="kind")


@pytest.mark.parametrize(
    ("place", "name", "value"),
    [(0, "n", 5), (2, "status", "applied"), (6, "n", 1)],
)
def test_updates_and_their_records_agree(files, tmp_path, place, name, value):
    """The window's row and the train record tell of one update."""
    files.records[place]["attributes"][name] = value
    if name == "n":
        files.records[place]["metrics"]["samples"] = value
    report = audit(files.write(tmp_path))
    assert found(report, line=place + 1, field=f"attributes.{name}")


def test_every_update_has_its_record(files, tmp_path):
    """One train record less, without a gap."""
    del files.records[2]
    report = audit(files.write(tmp_path))
    (finding,) = found(report, field="attributes.updates")
    assert "2 updates and 1 train records" in finding.message


def test_every_record_has_its_update(files, tmp_path):
    """One train record more."""
    files.records.insert(6, dict(files.records[6]))
    report = audit(files.write(tmp_path))
    assert found(report, field="iteration", line=8)


def test_optimizer_steps_count_applied_updates(files, tmp_path):
    """A skipped update does not move it."""
    files.records[4]["attributes"]["updates"][0]["step"] = 2
    files.records[4]["optimizer_step"] = 3
    report = audit(files.write(tmp_path))
    assert found(report, line=5, field="attributes.updates[0].step", stored=2, recomputed=1)
    assert found(report, line=5, field="optimizer_step", stored=3, recomputed=2)


@pytest.mark.parametrize(("place", "status"), [(1, "partial"), (4, "complete"), (5, "complete")])
def test_window_status_follows_from_its_evidence(files, tmp_path, place, status):
    """A tail is never passed off as a whole batch."""
    files.records[place]["attributes"]["window"]["status"] = status
    report = audit(files.write(tmp_path))
    found_here = found(report, line=place + 1, field="attributes.window.status")
    # The third window has no evidence against `complete`: there the totals tell.
    assert found_here or (place == 5 and found(report, field="windows.aborted"))


def test_pending_is_carried_on(files, tmp_path):
    """A level that starts anew with each window is found on the second line."""
    files.records[5]["attributes"]["pending"] = 0
    files.records[5]["metrics"]["samples.pending"] = 0
    report = audit(files.write(tmp_path))
    assert found(report, line=6, field="metrics.samples.pending", stored=0, recomputed=1)
    assert found(report, line=6, field="attributes.pending", stored=0, recomputed=1)


def test_samples_are_counted_once(files, tmp_path):
    """Two runs of one rollout that overlap are the same samples twice."""
    files.records[1]["attributes"]["samples"] = [["r1", 0, 2], ["r1", 1, 2]]
    report = audit(files.write(tmp_path))
    assert found(report, line=2, field="attributes.samples")
    files.records[1]["attributes"]["samples"] = [["r1", 0, 2], [1, 0, 1], ["1", 0, 1]]
    assert not found(audit(files.write(tmp_path)), line=2, field="attributes.samples")


def test_parents_in_a_circle(files, tmp_path):
    """Named, and the account ends all the same."""
    rows = files.records[4]["attributes"]["intervals"]
    rows[0][1], rows[1][1] = "t2", "g2"
    report = audit(files.write(tmp_path))
    assert any("circle" in f.message for f in found(report, line=5))


def test_repeated_span_in_a_record(files, tmp_path):
    """Ids are what parents are found by."""
    files.records[4]["attributes"]["intervals"][1][0] = "g2"
    report = audit(files.write(tmp_path))
    assert found(report, line=5, field="attributes.intervals", stored="g2")


# --- public faults of other tools -------------------------------------------------------------


def test_child_outside_its_parent(files, tmp_path):
    """Fault 28: a timer around the wrong scope."""
    files.records[1]["attributes"]["intervals"][1][4] = 1041
    report = audit(files.write(tmp_path))
    (finding,) = found(report, line=2, field="attributes.intervals[r]")
    assert "not inside its parent generation g" in finding.message


def test_child_on_another_lane_may_outlive_its_parent(files, tmp_path):
    """A submitted forward is no nested call."""
    files.records[1]["attributes"]["intervals"][3][4] = 1061
    report = audit(files.write(tmp_path))
    assert not found(report, line=2, field="attributes.intervals[lo]")


@pytest.mark.parametrize("where", ["line", "file"])
def test_span_ids_are_unique_in_the_run(files, tmp_path, where):
    """Fault 13: seeded processes that draw the same ids."""
    one, two = "1111111111111111", "3333333333333333"
    if where == "line":
        files.spans = {"driver-0-7.jsonl": [[one], [two, one]]}
    else:
        files.spans = {"driver-0-7.jsonl": [[one], [two]], "rank-1-8.jsonl": [[one]]}
    report = audit(files.write(tmp_path))
    (finding,) = report.findings
    assert finding.stored == one
    place = ("spans/driver-0-7.jsonl", 2) if where == "line" else ("spans/rank-1-8.jsonl", 1)
    assert (finding.file, finding.line, report.exit_status) == (*place, 1)


@pytest.mark.parametrize("span", ["0000000000000000", "", "zz11111111111111", "11"])
def test_span_ids_are_hex(files, tmp_path, span):
    """Fault 23: empty ids break other viewers."""
    files.spans = {"driver-0-7.jsonl": [[span]]}
    report = audit(files.write(tmp_path))
    assert found(report, file="spans/driver-0-7.jsonl", line=1, field="spanId")


def test_coverage_floor(files, tmp_path):
    """Fault 25: a path that bypasses the hooks leaves most of the wall unaccounted."""
    entry = files.records[4]
    entry["attributes"]["intervals"] = [["g2", None, "generation", 1110, 1147, 1, 0]]
    folder = files.write(tmp_path)
    report = audit(folder, min_coverage=0.9)
    (finding,) = [f for f in report.findings if "coverage" in f.message]
    assert finding.severity == "error"
    assert "lowest on line 6: 22.2%" in finding.message
    for k in (0, 1, 5):
        files.records[k]["iteration"] = None
    files.records = [entry]
    report = audit(files.write(tmp_path), min_coverage=0.5)
    (finding,) = [f for f in report.findings if "coverage" in f.message]
    assert "coverage 37.0% of wall instrumented; 63.0% unaccounted" in finding.message
    assert "coverage: 37.0%" in render(report)
    report = audit(files.write(tmp_path), min_coverage=0.37)
    assert not [f for f in report.findings if "coverage" in f.message]


def test_coverage_floor_is_a_share(tmp_path):
    """37 would be a percentage."""
    with pytest.raises(ValueError, match="share"):
        audit(tmp_path, min_coverage=37)


def test_run_wall_is_the_sum_of_its_parts(files, tmp_path):
    """Fault 27: time outside the windows is named, not lost; no part is negative."""
    files.summary["time"] |= {"wall_ns": 290, "between_ns": 0}
    report = audit(files.write(tmp_path))
    assert found(report, field="time.wall_ns", stored=290, recomputed=370)
    assert found(report, field="time.between_ns", stored=0, recomputed=10)
    files.records[7]["attributes"]["ended_unix_ns"] = 1299
    report = audit(files.write(tmp_path))
    assert any(f.message == "negative" and f.stored == -1 for f in report.findings)


def cumulative(files, values, name="training_tok/s"):
    """Train records of one window whose scalar takes these values."""
    base = files.records[6]
    files.records[6:7] = [
        dict(base, attributes=dict(base["attributes"], scalars={name: value, "kl": None}))
        for value in values
    ]


def test_cumulative_throughput(files, tmp_path):
    """Faults 2 and 3: 5 steps of 1000 tokens and 10 s print 100, 200, ... 500 tok/s."""
    cumulative(files, [100.0, 200.0, 300.0, 400.0, 500.0])
    (finding,) = found(audit(files.write(tmp_path)), severity="warning")
    assert (finding.line, finding.field) == (10, "attributes.scalars.training_tok/s")


def test_cumulative_throughput_after_a_reset(files, tmp_path):
    """It fires again for the ramp after the reset, though the first one was short."""
    cumulative(files, [100.0, 210.0, 95.0, 190.0, 290.0, 390.0])
    (finding,) = found(audit(files.write(tmp_path)), severity="warning")
    assert finding.line == 12


@pytest.mark.parametrize(
    ("name", "values"),
    [("training_tok/s", [100.0, 101.0, 99.0, 100.0, 102.0]), ("num_tokens", [1.0, 2.0, 3.0, 4.0])],
)
def test_true_throughput_is_left_alone(files, tmp_path, name, values):
    """A steady rate, and a count that should grow."""
    cumulative(files, values, name)
    assert not found(audit(files.write(tmp_path)), severity="warning")


@pytest.mark.parametrize(
    ("name", "rate"),
    [
        ("tok/s", True),
        ("training_tok/s", True),
        ("train_tokens_per_second", True),
        ("tokens_per_sec", True),
        ("perf/throughput", True),
        ("perf/tgs", True),
        ("tokens/s/gpu", True),
        ("num_tokens", False),
        ("step_time", False),
        ("tokens/step", False),
        ("targets", False),
    ],
)
def test_names_of_rates(name, rate):
    """By the names that trainers use."""
    assert is_rate(name) is rate


def test_a_ramp_needs_four_values():
    """Three in proportion can be chance; it speaks once."""
    ramp = Ramp()
    assert [ramp.grows(v) for v in (10, 20, 30, 40, 50)] == [False, False, False, True, False]
    assert [ramp.grows(v) for v in (0, 0, 0, 0)] == [False] * 4


@pytest.mark.parametrize(
    ("tokens", "seconds", "warned"),
    [([12, 12, 12, 12], [12, 6, 4, 3], False), ([10, 20, 30, 40], [1, 1, 1, 1], True)],
)
def test_a_ramp_of_the_throughput_is_one_of_tokens(tmp_path, tokens, seconds, warned):
    """Iterations that get faster by chance are no sum since the start."""
    clock = FakeClock()
    device = Device("a", "cpu", "host")
    with recorded_run(tmp_path, clock=clock, devices=[device]) as recorded:
        for number, (n, s) in enumerate(zip(tokens, seconds, strict=True)):
            with recorded.run.iteration() as it:
                it.consumed(number, prompt_lengths=[1], completion_lengths=[n - 1])
                with it.phase("generation"):
                    clock.advance(s)
    named = {one.field for one in found(audit(tmp_path), severity="warning")}
    assert ("metrics.throughput.device" in named) is warned


def test_resets_of_peaks_are_at_least_those_of_the_rows(files, tmp_path):
    """A peak that is lower than before was reset: one that nobody counted is found."""
    line, memory = next(
        (number, record["attributes"]["memory"])
        for number, record in enumerate(files.records, 1)
        if "memory" in record["attributes"]
    )
    memory["allocator_peak_reserved"] = [200, 90, 150]  # ranks 0, 1, 0: rank 0's fell
    wrong = found(audit(files.write(tmp_path)), field="attributes.memory.peak_resets", line=line)
    assert len(wrong) == 1
    memory["peak_resets"] = 1
    later = audit(files.write(tmp_path / "again"))
    assert not found(later, field="attributes.memory.peak_resets")
