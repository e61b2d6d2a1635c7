"""Bad input is named with file, line and reason, exit 2; torn lines of a kill are set apart."""

import hashlib
import json

import pytest

from otel_grpo.audit import audit, render

NEW = {"attempt": 2, "started_unix_ns": 2000}


def found(report, **wanted):
    return [
        f for f in report.findings if all(getattr(f, key) == value for key, value in wanted.items())
    ]


def only_input(report, file, line, *words):
    assert report.exit_status == 2, render(report)
    assert report.state == "unreadable"
    (finding,) = found(report, severity="input")
    assert (finding.file, finding.line) == (file, line)
    for word in words:
        assert word in finding.message, finding.message
    assert "BAD INPUT" in render(report)


def raw(folder):
    return folder / "metrics_raw.jsonl"


def test_no_directory(tmp_path):
    """A path that is not there, and one that is a file."""
    only_input(audit(tmp_path / "no"), str(tmp_path / "no"), None, "not a directory")
    (tmp_path / "file").write_text("x")
    only_input(audit(tmp_path / "file"), str(tmp_path / "file"), None, "not a directory")


def test_directory_of_another_tool(tmp_path):
    """None of our files, or a file of our name with other things in it."""
    (tmp_path / "events.out.tfevents").write_bytes(b"\x00\x01")
    only_input(audit(tmp_path), str(tmp_path), None, "not a run directory")
    (tmp_path / "metrics_raw.jsonl").write_text('{"step": 1, "loss": 2.0}\n')
    only_input(audit(tmp_path), "run.json", None, "no such file")
    (tmp_path / "run.json").write_text('{"project": "x"}')
    only_input(audit(tmp_path), "run.json", None, "schema")


@pytest.mark.parametrize("name", ["run.json", "summary.json"])
@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"schema":"otel-grpo/1","attempts":3}', "\udcff", "[" * 100_000]
)
def test_broken_whole_files(files, tmp_path, name, text):
    """A file that is no JSON, or other JSON."""
    folder = files.write(tmp_path)
    (folder / name).write_text(text, errors="surrogateescape")
    only_input(audit(folder), name, None)


def test_wrong_schema_version(files, tmp_path):
    """In each file that has one."""
    folder = files.write(tmp_path)
    for name in ("run.json", "summary.json"):
        text = (folder / name).read_text()
        (folder / name).write_text(text.replace("otel-grpo/1", "otel-grpo/2"))
        only_input(audit(folder), name, None, "otel-grpo/2", "otel-grpo/1")
        (folder / name).write_text(text)
    for entry in files.records:
        entry["schema"] = "otel-grpo/2"
    only_input(audit(files.write(tmp_path)), "metrics_raw.jsonl", 1, "otel-grpo/2")


def test_empty_and_missing_records(files, tmp_path):
    """The summary knows that there were some."""
    folder = files.write(tmp_path)
    raw(folder).write_bytes(b"")
    only_input(audit(folder), "metrics_raw.jsonl", None, "is empty")
    raw(folder).unlink()
    only_input(audit(folder), "metrics_raw.jsonl", None, "no such file")
    (folder / "summary.json").unlink()
    only_input(audit(folder), "metrics_raw.jsonl", None, "no such file")


@pytest.mark.parametrize(
    "junk", [b"garbage", b"", b"{", b"null", b'{"a":1}', b"\xff\xfe", b"[" * 9]
)
@pytest.mark.parametrize("place", [0, 4, 8])
def test_a_line_of_garbage(files, tmp_path, junk, place):
    """The chain goes on over it: it was put in, wherever it stands."""
    lines = files.lines()
    folder = files.write(tmp_path, [*lines[:place], junk, *lines[place:]])
    only_input(audit(folder), "metrics_raw.jsonl", place + 1)


def test_a_record_of_wrong_types(files, tmp_path):
    """Chained as it should be, so it was written like that."""
    files.records[4]["attributes"]["prompt_lengths"] = ["four", 4]
    only_input(audit(files.write(tmp_path)), "metrics_raw.jsonl", 5, "attributes", "prompt_lengths")


def test_not_a_number(files, tmp_path):
    """NaN is no JSON."""
    files.records[0]["metrics"]["samples"] = float("nan")
    only_input(audit(files.write(tmp_path)), "metrics_raw.jsonl", 1)


def test_huge_integers(files, tmp_path):
    """Instants and lengths beyond 64 bits: judged or refused by line, never a traceback."""
    files.records[1]["attributes"]["prompt_lengths"][0] = 10**30
    report = audit(files.write(tmp_path))
    assert found(report, line=2, field="metrics.tokens.prompt", recomputed=10**30 + 13)
    files.records[1]["attributes"]["intervals"][0][3] = -(10**30)
    files.records[1]["attributes"]["window"]["end_ns"] = 10**30
    files.records[0]["attributes"]["intervals"][0][3] = -(10**30)
    report = audit(files.write(tmp_path))
    assert report.exit_status == 1
    assert found(report, line=1, field="metrics.update.busy_ns", recomputed=10**30 + 1090)
    assert found(report, line=2, field="metrics")


def test_unequal_columns(files, tmp_path):
    """A column of another length than the samples is named, and nothing is made up from it."""
    files.records[1]["attributes"]["trained_lengths"].pop()
    files.records[4]["attributes"]["revisited"] = []
    report = audit(files.write(tmp_path))
    (finding,) = found(report, line=2, field="attributes.trained_lengths")
    assert "3 entries for 4 samples" in finding.message
    assert found(report, line=2, field="metrics")


def test_torn_last_line_of_a_killed_run(files, tmp_path):
    """Set apart and named; good as long as the run has not ended in order."""
    files.summary = None
    lines = files.lines()
    folder = files.write(tmp_path, lines[:5])
    with raw(folder).open("ab") as file:
        file.write(lines[5][:200])
    report = audit(folder)
    assert report.exit_status == 0, render(report)
    (note,) = [f for f in report.findings if "torn" in f.message]
    assert (note.line, note.severity) == (6, "note")
    assert report.records == {"train": 3, "rollout": 2}


def test_torn_last_line_after_an_orderly_end(files, tmp_path):
    """Nothing should have been written after the summary."""
    folder = files.write(tmp_path)
    with raw(folder).open("ab") as file:
        file.write(b'{"schema":"otel-grpo/1","ki')
    only_input(audit(folder), "metrics_raw.jsonl", 9, "torn")


def second_attempt(files, lines):
    """Appends a window-less second attempt to the lines of a killed first one."""
    last = hashlib.sha256(lines[-1]).hexdigest()
    totals = json.loads(json.dumps(files.summary))
    apart = ("schema", "run_id", "attempt", "attempts", "records", "head", "open", "observed")
    first = {key: value for key, value in totals.items() if key not in apart}
    empty = {
        "status": "completed",
        "started_unix_ns": 2000,
        "ended_unix_ns": 2010,
        "trainer": first["trainer"],
        "world": first["world"],
        "time": dict.fromkeys(first["time"], 0) | {"wall_ns": 10, "startup_ns": 10},
        "windows": {"complete": 0, "partial": 0, "aborted": 0},
        "ranks": {"expected": 2, "complete_windows": 0, "incomplete_windows": 0},
    }
    numbers = {}
    for name in ("time", "windows", "ranks"):
        numbers |= {f"{name}.{key}": value for key, value in empty[name].items()}
    run = dict(
        files.records[-1],
        attempt=2,
        seq=len(lines),
        prev=last,
        iteration=None,
        optimizer_step=0,
        attributes=empty,
        metrics=numbers
        | {"started_unix_ns": 2000, "ended_unix_ns": 2010, "world.size": 2, "publications": 0},
    )
    files.run["attempts"].append(files.attempt(2, 2000))
    files.summary = {
        "schema": "otel-grpo/1",
        "run_id": "run-1",
        "attempt": 2,
        "attempts": [{**first, "attempt": 1, "records": totals["records"]}],
        **empty,
        "records": {"run": 1},
        "observed": {},
    }
    text = json.dumps(run, separators=(",", ":")).encode()
    files.summary["head"] = hashlib.sha256(text).hexdigest()
    return text


def write_attempts(files, folder, lines, text):
    summary, files.summary = files.summary, None
    files.write(folder, lines)
    files.summary = summary
    raw(folder).write_bytes(text)
    (folder / "summary.json").write_text(json.dumps(summary))
    return audit(folder)


def killed(files):
    """The first attempt without its run record, and its block in the summary."""
    lines = files.lines()[:7]
    block = files.summary
    block["status"], block["ended_unix_ns"] = "interrupted", 1310  # the late publication
    block["time"] |= {"wall_ns": 360, "shutdown_ns": 10}
    block["records"] = {"train": 4, "rollout": 3, "run": 0}
    return lines


def test_a_killed_attempt_and_the_next(files, tmp_path):
    """Its end is the last instant of its files; a window that was opened is aborted."""
    files.workers.append({"kind": "window_opened", "iteration": 4, "start_ns": 1305})
    lines = killed(files)
    files.summary["windows"]["aborted"] = 2
    lines.append(second_attempt(files, lines))
    text = b"".join(line + b"\n" for line in lines)
    report = write_attempts(files, tmp_path, lines, text)
    assert report.findings == [], render(report)
    assert (report.exit_status, report.attempts, report.state) == (0, 2, "finished")
    # One digit in the earlier attempt's block.
    files.summary["attempts"][0]["time"]["wall_ns"] = 361
    report = write_attempts(files, tmp_path, lines, text)
    assert found(report, field="attempts[0].time.wall_ns", stored=361, recomputed=360)


@pytest.mark.parametrize("torn", ["part", "whole", "twice"])
def test_a_torn_line_before_an_attempt(files, tmp_path, torn):
    """The next attempt ended the line and went on from the one before."""
    rest = files.lines()[7]
    lines = killed(files)
    second = second_attempt(files, lines)
    text = b"".join(line + b"\n" for line in lines)
    bad = {"part": [rest[:300]], "whole": [rest], "twice": [rest[:300], rest[:9]]}[torn]
    text += b"\n".join((*bad, second, b""))
    report = write_attempts(files, tmp_path, [*lines, second], text)
    assert report.exit_status == 0, render(report)
    lines = [(note.line, note.severity) for note in report.findings]
    assert lines == [(8, "note"), (9, "note")][: len(bad)]
    assert report.lines == 8


def test_garbage_before_an_attempt(files, tmp_path):
    """No kill leaves a line that does not begin like a record, nor a whole line of other JSON."""
    lines = killed(files)
    second = second_attempt(files, lines)
    for bad in ([b"garbage"], [b'{"a":1}'], [b'{"schema"', b"garbage"]):
        text = b"\n".join((*lines, *bad, second, b""))
        report = write_attempts(files, tmp_path, [*lines, second], text)
        only_input(report, "metrics_raw.jsonl", 8)


def test_a_finished_killed_run_with_a_torn_line(files, tmp_path):
    """`finish` speaks of the whole lines; the torn one is named."""
    rest = files.lines()[7]
    lines = killed(files)
    files.summary["head"] = hashlib.sha256(lines[-1]).hexdigest()
    text = b"".join(line + b"\n" for line in lines) + rest[:50]
    report = write_attempts(files, tmp_path, lines, text)
    assert report.exit_status == 0, render(report)
    assert [(f.line, f.severity) for f in report.findings] == [(8, "note")]


def test_bad_lines_of_other_files(files, tmp_path):
    """Named by file and line; a torn last line is set apart."""
    folder = files.write(tmp_path)
    spans, workers = folder / "spans/driver-0-7.jsonl", folder / "workers/driver-0-7.jsonl"
    for path, line in ((spans, 2), (workers, 5)):
        before = path.read_bytes()
        for bad in (b"garbage", b'{"x":' + b"[" * 100_000):
            path.write_bytes(before + bad + b"\n")
            only_input(audit(folder), f"{path.parent.name}/{path.name}", line)
        path.write_bytes(before + b'{"torn')
        report = audit(folder)
        assert report.exit_status == 0
        assert [f.severity for f in report.findings] == ["note"]
        path.write_bytes(before)


def test_too_many_findings_are_counted(files, tmp_path, monkeypatch):
    """What is kept has a bound; the rest is a number."""
    monkeypatch.setattr("otel_grpo.audit.report.MAX_FINDINGS", 5)
    for name in files.records[1]["metrics"]:
        files.records[1]["metrics"][name] += 1
    report = audit(files.write(tmp_path))
    assert len(report.findings) == 5
    assert report.findings_left_out > 50
    assert f"{report.findings_left_out} more" in render(report)
