"""Calls and readings of workers, placed in windows by their clocks."""

import pytest

from otel_grpo.audit import audit
from otel_grpo.audit.clocks import Clock
from otel_grpo.records.model import ClockPair

NAME = "policy-0-8.jsonl"


def wrong(report):
    return [f for f in report.findings if f.severity != "note"]


def found(report, **wanted):
    return [
        f for f in report.findings if all(getattr(f, key) == value for key, value in wanted.items())
    ]


def call(start, end):
    return {"kind": "call", "method": "step", "start_ns": start, "end_ns": end}


def test_a_right_job(driver, tmp_path):
    """A call of 9 ns that ended at 1590 of the worker's clock: 1090, in the first window."""
    report = audit(driver.write(tmp_path))
    assert report.findings == []


@pytest.mark.parametrize(
    ("name", "value", "field"),
    [
        ("start_ns", 1580, "attributes.workers.step.1"),
        ("end_ns", 1601, "attributes.workers.step.1"),
        ("method", "other", "attributes.workers.step.1"),
    ],
)
def test_a_call_that_the_worker_did_not_make(driver, tmp_path, name, value, field):
    """Another duration, another window, another method."""
    driver.others[NAME][1][name] = value
    (finding,) = wrong(audit(driver.write(tmp_path)))
    assert (finding.line, finding.field, finding.stored) == (2, field, 9)
    assert "workers/policy-0-8.jsonl" in finding.message
    assert "iteration 1" in finding.message


@pytest.mark.parametrize(
    ("name", "value"), [("process_rss", 21), ("pid", 9), ("device", 3), ("instant", 1601)]
)
def test_a_reading_that_the_worker_did_not_make(driver, tmp_path, name, value):
    """One value of it, or its window, is another one."""
    driver.others[NAME][2]["memory"][name] = [value]
    report = audit(driver.write(tmp_path))
    assert found(report, line=2, field="attributes.memory", severity="error")


def test_a_reading_of_another_instant(driver, tmp_path):
    """1581 of the worker is 1081 of the driver, and no other instant."""
    driver.record(1)["memory"]["instant"][1] = 1082
    assert found(audit(driver.write(tmp_path)), line=2, field="attributes.memory")


def test_a_worker_that_was_started_again(driver, tmp_path):
    """Its number stays: one call of 9 ns from its first process, one of 4 from its second."""
    second = [driver.others[NAME][0] | {"pid": 80}, call(1601, 1605)]
    driver.others["policy-0-80.jsonl"] = second
    listed = driver.files.run["attempts"][0]["processes"]
    listed.append(listed[0] | {"pid": 80})
    driver.record(2)["workers"] = {"step": {"1": [4]}}
    figures = {"count": 1, "min_ns": 4, "median_ns": 4, "max_ns": 4, "mean_ns": 4.0}
    driver.records[4]["metrics"] |= {f"worker.step.{name}": n for name, n in figures.items()}
    step = {"count": 4, "min_ns": 12, "median_ns": 12, "max_ns": 13, "mean_ns": 12.5}
    driver.totals(workers={"step": step})
    for name, n in step.items():
        driver.records[-1]["metrics"][f"workers.step.{name}"] = n
    assert wrong(audit(driver.write(tmp_path))) == []
    driver.record(2)["workers"] = {"step": {"1": [5]}}
    assert found(audit(driver.write(tmp_path)), line=5, field="attributes.workers.step.1")


def test_a_worker_that_never_joined(driver, tmp_path):
    """It was named to the driver, so it has a number and counts as missing."""
    driver.record(1)["ranks"] = {"expected": 3, "received": 2, "missing": [2]}
    driver.totals(ranks={"expected": 3, "complete_windows": 2, "incomplete_windows": 1})
    assert wrong(audit(driver.write(tmp_path))) == []
    driver.record(1)["ranks"] = {"expected": 4, "received": 2, "missing": [2, 2]}
    assert found(audit(driver.write(tmp_path)), line=2, field="attributes.ranks.missing")


def test_a_late_call_is_counted(driver, tmp_path):
    """It ended in the second window, whose record does not have it."""
    driver.others[NAME].insert(3, call(1601, 1605))
    report = audit(driver.write(tmp_path))
    assert wrong(report) == []
    (note,) = [f.message for f in report.findings]
    assert "1 call(s) or reading(s) of workers came after the records" in note


def test_lines_out_of_order(driver, tmp_path):
    """Two threads of a worker: the call that ended first stands behind the other."""
    lines = driver.others[NAME]
    lines[1], lines[3] = lines[3], lines[1]
    assert audit(driver.write(tmp_path)).findings == []


def test_an_unknown_clock_places_nothing(driver, tmp_path):
    """Another machine, never measured: its calls are in no window, and it is named."""
    driver.others[NAME][0]["clock"]["boot_id"] = "other"
    driver.files.run["attempts"][0]["processes"][0]["clock"]["boot_id"] = "other"
    report = audit(driver.write(tmp_path))
    assert {f.field for f in wrong(report)} == {"attributes.workers.step.1", "attributes.memory"}
    assert all("the clock of rank 1 is not known" in f.message for f in wrong(report))
    assert any("the clock is not known: policy-0" in f.message for f in report.findings)


@pytest.mark.parametrize(("bound", "good"), [(3, True), (0, False)])
def test_a_measured_clock_places_to_its_bound(driver, tmp_path, bound, good):
    """Measured as 488 ahead, so the call ended at 1102; the window ends at 1100."""
    driver.others[NAME][0]["clock"]["boot_id"] = "other"
    driver.files.run["attempts"][0]["processes"][0]["clock"]["boot_id"] = "other"
    del driver.others[NAME][2]
    for name in ("workers", "memory"):
        driver.record(1)[name] = {"step": {"0": [5, 7], "1": [9]}} if name == "workers" else None
    memory = driver.record(1).pop("memory")
    assert memory is None
    driver.files.workers.append(
        {
            "kind": "clock",
            "name": "policy-0",
            "offset_ns": 488,
            "bound_ns": bound,
            "measured_ns": 1000,
        }
    )
    report = audit(driver.write(tmp_path))
    calls = found(report, field="attributes.workers.step.1")
    assert (calls == []) == good


def test_a_process_that_run_json_lacks(driver, tmp_path):
    """The record has a number that nobody has."""
    driver.files.run["attempts"][0]["processes"][0]["rank"] = 2
    report = audit(driver.write(tmp_path))
    assert found(report, line=2, field="attributes.workers", stored=1)


def test_two_processes_of_one_number(driver, tmp_path):
    """Numbers are given once."""
    listed = driver.files.run["attempts"][0]["processes"]
    listed.append(listed[0] | {"pid": 80, "name": "policy-1"})
    assert found(audit(driver.write(tmp_path)), file="run.json", stored=1)


def test_who_spoke_is_not_missing(driver, tmp_path):
    """A call of rank 1 is in the record that calls it missing."""
    driver.record(1)["ranks"] = {"expected": 2, "received": 1, "missing": [1]}
    report = audit(driver.write(tmp_path))
    assert found(report, line=2, field="attributes.ranks.missing", stored=1)


def test_clocks():
    """Exact on one machine; else between two measurements, and outside by the nearest one."""
    ours = ClockPair("boot", 1_000, 100)
    exact = Clock(ClockPair("boot", 5_040, 90), ours, [])
    # 1000 - 100 = 900 and 5040 - 90 = 4950: 4050 ahead.
    assert exact.place(5_050) == (1_000, 1_000)
    other = ClockPair("other", 0, 0)
    assert not Clock(other, ours, []).known
    assert not Clock(ClockPair(None, 0, 0), ClockPair(None, 0, 0), []).known
    drifting = Clock(other, ours, [(1_000, 100, 2), (2_000, 200, 3)])
    # Its 1650 is half way from 1100 to 2200: 1500; 1550 and 1450 by either measurement alone.
    assert drifting.place(1_650) == (1_447, 1_553)
    assert drifting.place(1_000) == (898, 902)
    assert drifting.place(2_300) == (2_097, 2_103)
