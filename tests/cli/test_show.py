"""`show` on files made by hand: every figure worked out apart from the code that shows it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from typing import Any

import msgspec

from otel_grpo.records.model import (
    AttemptSummary,
    Observed,
    RankCounts,
    RolloutRecord,
    SinkCounts,
    Totals,
    WindowCounts,
)

EXPECTED = """\
Run reference: completed
  directory  {path}
  trainer    trl 1.16.0, algorithm grpo, adapter 0.1.0
  devices    8 cuda (Fake H1); 1 rank
  started    2027-01-15 08:00:00 UTC
  ended      2027-01-15 08:06:30 UTC

Iterations: seconds, tokens, rate in token/s/device
  iter  status      wall    work    log  unattributed  tokens     rate
     1  complete  81.659  81.659  0.000        20.191   76019  116.367
     2  complete  59.685  59.685  0.000         4.409   73752  154.461
     3  complete  61.091  61.091  0.000         4.513   75208  153.885

Phases of each iteration: seconds busy / exposed
  Phases run inside and beside each other, so busy seconds are not summed.
  Exposed: time that nothing but the phase and what is below it explains.
  iter       generation     policy_train
     1  46.416 / 46.416  15.052 / 15.052
     2  46.102 / 46.102    9.174 / 9.174
     3  46.640 / 46.640    9.938 / 9.938

Totals of 3 windows: 3 complete, 0 partial, 0 aborted
  wall          390.000 s = start-up 100.000 + windows 202.435 + between 0.000 +
                shutdown 87.565
  windows       202.435 s = generation 139.158 + policy_train 34.164 +
                overlapped 0.000 + log 0.000 + unattributed 29.113
  work          202.435 s without log, evaluation and checkpoint
  process       398.561 s since its start
  counts        groups 24
  samples       consumed 192, visits 192, revisited 0, pending 0
  tokens        prompt 57, completion 224922, total 224979
  updates       attempted 3, applied 3, skipped 0, failed 0, unconfirmed 0
  publications  3, pending 0
  completions   length min 1, max 1024, mean 1171.469

Throughput: sums of the windows, never a mean of their rates
  end to end: prompt and completion tokens, work time, all devices
  224979 tokens * 1e9 / (202435000000 ns * 8 devices) = 138.921 token/s/device
  by wall time: the same tokens, wall time, all devices
  224979 tokens * 1e9 / (202435000000 ns * 8 devices) = 138.921 token/s/device
  generation: completion tokens, its busy time, generating devices
  224922 tokens * 1e9 / (139158000000 ns * 8 devices) = 202.038 token/s/device

Phases of all windows: seconds; busy is not summed over phases
  phase            busy  exposed      top  calls
  generation    139.158  139.158  139.158      3
  policy_train   34.164   34.164   34.164      3

Memory: GiB, the largest reading of each owner, over owners
  memory                          of each      min     mean      max      sum
  torch allocator, peak reserved  rank       8.000    9.000   10.000   72.000
  process, resident               process    2.000    3.000    4.000   24.000
  whole host, used                host     100.000  100.000  100.000  100.000
  Peaks are the allocator's since process start or the trainer's own reset.

Records: 3 train, 3 rollout, 1 run
  sink         created  written  dropped  pending  reasons
  metrics_raw        7        7        0        0  -
  metrics            3        3        0        0  -
  spans             39       39        0        0  -
  own time    1.500 ms, beside the log time
  own errors  none
"""


def told(output: str) -> str:
    """The page as one line, however it was wrapped."""
    return re.sub(r"\s+", " ", output)


def test_the_reference_run_is_shown_as_worked_out_by_hand(reference: Any, call: Any) -> None:
    """116.367, 154.461, 153.885 and, from the sums, 138.921."""
    path = reference.write()
    result = call("show", path)
    assert result.exit_code == 0
    assert result.stdout == EXPECTED.replace("{path}", str(path))
    assert result.stderr == ""


def test_a_mean_of_ratios_is_never_shown(reference: Any, call: Any) -> None:
    path = reference.write()
    assert "141.57" not in call("show", path).stdout
    assert "141.57" not in call("show", path, "--json").stdout


def test_without_a_terminal_the_page_is_plain_text_of_80_columns(
    reference: Any, child: Any
) -> None:
    """No control sequence, also where the environment asks for colours or has a narrow terminal."""
    path = reference.write()
    environment = {"FORCE_COLOR": "1", "COLUMNS": "30", "TERM": "xterm-256color"}
    result = child("show", path.name, cwd=path.parent, env=environment)
    assert result.returncode == 0
    assert result.stdout == EXPECTED.replace("{path}", path.name)
    assert "\x1b" not in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 80


def test_json_has_the_names_of_the_files(reference: Any, call: Any) -> None:
    """A script reads the same names in the files and here."""
    path = reference.write()
    shown = json.loads(call("show", path, "--json").stdout)
    assert set(shown) == {
        "run_dir", "run_id", "attempt", "status", "iterations", "throughput", "job", "summary",
        "notes",
    }  # fmt: skip
    assert shown["status"] == "completed"
    assert shown["notes"] == []
    assert shown["summary"] == json.loads((path / "summary.json").read_bytes())
    assert [each["iteration"] for each in shown["iterations"]] == [1, 2, 3]
    assert [each["line"] for each in shown["iterations"]] == [2, 4, 6]
    lines = [json.loads(line) for line in (path / "metrics_raw.jsonl").read_bytes().splitlines()]
    assert [each["metrics"] for each in shown["iterations"]] == [
        line["metrics"] for line in lines if line["kind"] == "rollout"
    ]
    assert shown["throughput"]["device"] == {
        "tokens": 224979,
        "ns": 202435000000,
        "devices": 8,
        "device_ns": 1619480000000,
        "value": 224979 * 10**9 / 1619480000000,
    }


def test_unknown_numbers_are_dashes_and_not_zeros(reference: Any, call: Any) -> None:
    """A trainer that can't know its tokens and devices."""
    for record in reference.records:
        if isinstance(record, RolloutRecord):
            for name in ("tokens.total", "tokens.completion", "throughput.device"):
                record.metrics.pop(name)
            record.attributes = msgspec.structs.replace(record.attributes, devices=msgspec.UNSET)
    reference.change(tokens={}, throughput={}, memory={}, length={}, groups=msgspec.UNSET)
    output = call("show", reference.write()).stdout
    assert "     1  complete  81.659  81.659  0.000        20.191       -     -\n" in output
    for absent in ("Throughput", "Memory", "completions", "groups"):
        assert absent not in output


def test_devices_that_change_between_windows_are_summed_by_window(
    reference: Any, call: Any
) -> None:
    """81.659 s on 8 devices and the rest on 4: 653272 + 238740 + 244364 device milliseconds."""
    for record in reference.records[3:6:2]:
        record.attributes = msgspec.structs.replace(
            record.attributes, devices=[(index, ["train"]) for index in range(4)]
        )
    value = 224979 * 10**9 / (1136376 * 10**6)
    reference.change(throughput={"device": value, "device_wall": value})
    output = call("show", reference.write()).stdout
    formula = "224979 tokens * 1e9 / 1136376000000 ns of devices = 197.979 token/s/device"
    assert formula in output


def test_a_summary_that_disagrees_with_its_lines_is_said(reference: Any, call: Any) -> None:
    """The value beside the formula is that of the formula."""
    reference.change(throughput={"device": 141.571})
    output = told(call("show", reference.write()).stdout)
    assert "= 138.921 token/s/device, but summary.json has 141.571: see `otel-grpo audit`" in output


def test_a_killed_run_says_what_was_going_on_and_what_is_missing(killed: Any, call: Any) -> None:
    """The open window, the phase in it, and how long, at the instant of the last summary."""
    output = told(call("show", killed.write()).stdout)
    assert "Run reference: running" in output
    assert "as of 2027-01-15 08:04:10 UTC" in output
    assert "open window iteration 3 for 9.000 s, in generation for 9.000 s" in output
    assert "149771 tokens * 1e9 / (141344000000 ns * 8 devices) = 132.453 token/s/device" in output


def test_a_killed_run_on_this_host_is_known_to_be_dead(killed: Any, call: Any) -> None:
    """Its process is gone; the torn line is named; `finish` is offered."""
    from otel_grpo.devices.host import host_name

    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    [attempt] = killed.run_file.attempts
    killed.run_file.attempts[0] = msgspec.structs.replace(attempt, host=host_name(), pid=dead.pid)
    output = told(call("show", killed.write()).stdout)
    assert "the process is gone, so the run was killed: `otel-grpo finish`" in output
    assert "metrics_raw.jsonl:5: cut off when its process was killed, not counted" in output


def test_a_run_without_a_summary_shows_its_lines(killed: Any, call: Any) -> None:
    killed.summary = None
    output = call("show", killed.write()).stdout
    assert "Run reference: no summary\n" in output
    assert "     2  complete  59.685" in output
    assert "(141344000000 ns * 8 devices) = 132.453 token/s/device" in output
    assert "no summary.json: `otel-grpo finish` makes it" in output


def test_a_run_that_has_just_started(reference: Any, call: Any) -> None:
    """`run.json` alone."""
    path = reference.write()
    (path / "metrics_raw.jsonl").unlink()
    (path / "summary.json").unlink()
    result = call("show", path)
    assert result.exit_code == 0
    assert "Iterations: none recorded" in result.stdout
    assert "no metrics_raw.jsonl: no record was written" in result.stdout


def test_earlier_attempts_are_kept_apart(reference: Any, call: Any) -> None:
    """Their lines are not in the iterations or the sums of the latest; they have a line each."""
    [first] = reference.run_file.attempts
    reference.run_file.attempts.append(msgspec.structs.replace(first, attempt=2))
    totals = {name: getattr(reference.summary, name) for name in Totals.__struct_fields__}
    totals |= {"status": "interrupted", "windows": WindowCounts(1, 0, 1)}
    earlier = AttemptSummary(**totals, attempt=1, records={"train": 1, "rollout": 1, "run": 0})
    reference.change(attempt=2, attempts=[earlier])
    for record in reference.records[2:]:
        record.attempt = 2
    output = call("show", reference.write()).stdout
    assert output.startswith("Run reference, attempt 2 of 2: completed\n")
    assert "attempt 1  interrupted, 1 window and 1 aborted, 224979 tokens\n" in output
    assert "     1  complete  81.659" not in output
    assert "148960 tokens * 1e9 / (120776000000 ns * 8 devices)" in output


def test_a_summary_of_an_earlier_attempt_is_not_shown_as_this_one(
    reference: Any, call: Any
) -> None:
    [first] = reference.run_file.attempts
    reference.run_file.attempts.append(msgspec.structs.replace(first, attempt=2))
    output = told(call("show", reference.write()).stdout)
    assert "attempt 2 of 2: no summary" in output
    assert "summary.json ends with attempt 1, the run with 2: `otel-grpo finish`" in output


def test_names_from_the_files_are_text_and_nothing_else(reference: Any, call: Any) -> None:
    """Markup, control characters and direction marks of a reward's name show as they are written."""
    reward = "[red]reward[/red]"
    evil = "a\x1b[31m\n\u202eb"
    for record in reference.records:
        if isinstance(record, RolloutRecord):
            for name in (reward, evil):
                record.metrics[f"phase.{name}.busy_ns"] = 10**9
    reference.summary.phases[reward] = {"busy_ns": 10**9}
    output = call("show", reference.write()).stdout
    assert output.count("[red]reward[/red]") == 2
    assert "a\\x1b[31m\\n\\u202eb" in output
    assert "\x1b" not in output
    assert "\u202e" not in output


def test_many_phases_go_on_below_and_no_number_is_cut(reference: Any, call: Any) -> None:
    """Twenty phases with big figures: each of them is whole, the iteration is named again."""
    for record in reference.records:
        if isinstance(record, RolloutRecord):
            for number in range(20):
                record.metrics[f"phase.my_phase_{number:02d}.busy_ns"] = (10**6 + number) * 10**9
    output = call("show", reference.write()).stdout
    for number in range(20):
        assert f"my_phase_{number:02d}" in output
        assert output.count(f"{10**6 + number}.000 / -") == 3
    assert max(map(len, output.splitlines())) <= 80


def test_what_was_lost_is_said(reference: Any, call: Any) -> None:
    """Dropped lines with their reason, windows that lack a rank, our own errors."""
    sinks = {
        "metrics_raw": SinkCounts(9, 7, 2, 0, {"ENOSPC": 2}),
        "otlp_spans": SinkCounts(30, 20, 7, 0, {"http_401": 7}, unconfirmed=3),
    }
    reference.change(
        observed=Observed(errors={"tracing.account": 3}, sinks=sinks),
        ranks=RankCounts(2, 1, 2),
    )
    output = call("show", reference.write()).stdout
    assert "metrics_raw        9        7        2        0  ENOSPC 2" in output
    assert "otlp_spans        30       20        7        0  http_401 7, unconfirmed 3" in output
    assert "7 spans not taken, 3 spans sent without an answer" in output
    assert "own errors  tracing.account 3" in output
    assert "2 lines of metrics_raw dropped" in output
    assert "2 windows without the numbers of every rank" in told(output)
