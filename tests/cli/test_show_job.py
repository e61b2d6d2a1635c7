"""`show` of a job of many processes, on files made by hand."""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec
import pytest

from otel_grpo.cli.job import ranges
from otel_grpo.records.model import (
    ClockPair,
    Left,
    Memory,
    Observed,
    Process,
    Publication,
    RankCounts,
    Ranks,
    RolloutRecord,
    SinkCounts,
)

SECOND = 10**9
GIB = 2**30


def told(output: str) -> str:
    """The page as one line, however it was wrapped."""
    return re.sub(r"\s+", " ", output)


def windows(run: Any) -> list[RolloutRecord]:
    return [record for record in run.records if isinstance(record, RolloutRecord)]


def evidence(run: Any, window: int, **fields: Any) -> None:
    record = windows(run)[window]
    record.attributes = msgspec.structs.replace(record.attributes, **fields)


def processes(run: Any, *others: Process) -> None:
    run.run_file.attempts[0] = msgspec.structs.replace(
        run.run_file.attempts[0], processes=list(others)
    )


def process(rank: int, role: str, host: str = "node1", boot: str = "boot") -> Process:
    return Process(rank, role, host, 100 + rank, ClockPair(boot, 0, 0), f"{role}-{rank}")


@pytest.fixture
def workers(reference: Any) -> Any:
    """A driver with two policy workers and a rollout worker, over two windows.

    step: 3 + 4 = 7 s of rank 1, 2 + 3 = 5 s of rank 2, so that 5, 5, 7 has the ratio 7 / 5 with the
    rollout worker's 5. The summary has the same figures.
    """
    processes(reference, process(1, "policy"), process(2, "policy", "node2"), process(3, "rollout"))
    evidence(
        reference, 0, workers={"step": {"1": [3 * SECOND], "2": [2 * SECOND], "3": [5 * SECOND]}}
    )
    evidence(reference, 1, workers={"step": {"1": [4 * SECOND], "2": [2 * SECOND, SECOND]}})
    step = {"count": 6, "min_ns": 5 * SECOND, "median_ns": 5 * SECOND, "max_ns": 7 * SECOND}
    reference.change(workers={"step": step | {"mean_ns": 17 * SECOND / 3}})
    return reference


def test_worker_methods_have_their_spread_and_the_slowest_by_name(workers: Any, call: Any) -> None:
    output = call("show", workers.write()).stdout
    assert (
        "Worker methods: seconds of each worker's sum, over workers\n"
        "  method  calls    min  median    max  max/median  slowest\n"
        "  step        6  5.000   5.000  7.000       1.400  1 (policy-1)\n"
    ) in output
    assert "Other processes: 3 on 2 hosts" in output
    assert "  policy   1 on node1, 1 on node2\n" in output
    assert max(map(len, output.splitlines())) <= 80


def test_a_run_without_a_summary_has_the_same_rows(workers: Any, call: Any) -> None:
    """They follow from the records alone."""
    workers.summary = None
    output = call("show", workers.write()).stdout
    assert "  step        6  5.000   5.000  7.000       1.400  1 (policy-1)\n" in output


def test_late_calls_of_the_summary_are_shown_and_nobody_is_named(workers: Any, call: Any) -> None:
    """`finish` knew of a call that no record has: whose it was is not in the records."""
    step = dict(workers.summary.workers["step"], count=7, max_ns=8 * SECOND)
    workers.change(workers={"step": step})
    output = call("show", workers.write()).stdout
    assert "  step        7  5.000   5.000  8.000       1.600  -\n" in output


def test_the_driver_s_own_calls_are_the_driver_s(workers: Any, call: Any) -> None:
    evidence(workers, 2, workers={"plan": {"0": [SECOND]}})
    output = call("show", workers.write()).stdout
    assert "  plan        1  1.000   1.000  1.000       1.000  0 (driver)\n" in output


def test_ranks_have_their_phases_over_the_windows_of_every_rank(reference: Any, call: Any) -> None:
    """10, 20 and 30 s of generation; the window that lacks rank 2 is not in it."""
    processes(reference, process(1, "trainer"), process(2, "trainer"))
    busy = {"0": 4, "1": 8, "2": 12}, {"0": 6, "1": 12, "2": 18}, {"0": 100, "1": 100}
    for window, seconds in enumerate(busy):
        evidence(
            reference,
            window,
            per_rank={rank: {"generation": n * SECOND} for rank, n in seconds.items()},
            ranks=Ranks(3, len(seconds), [2] if window == 2 else []),
        )
    reference.change(ranks=RankCounts(3, 2, 1))
    output = call("show", reference.write()).stdout
    assert (
        "Phases by rank: seconds busy in the 2 windows of every rank, over ranks\n"
        "  phase          min  median     max  max/median  slowest\n"
        "  generation  10.000  20.000  30.000       1.500  2 (trainer-2)\n"
    ) in output
    assert "Ranks missing: 1 window of 3\n  iteration 3  2 (trainer-2)\n" in output
    assert "`otel-grpo finish` adds what these wrote later." in output
    assert "copied into workers/ and spans/ of this one before" in told(output)


def test_windows_that_lack_the_same_ranks_are_one_line(reference: Any, call: Any) -> None:
    missing = [1, 2, 3, 5, 8, 9]
    for window in (0, 1):
        evidence(reference, window, ranks=Ranks(10, 4, missing))
    output = call("show", reference.write()).stdout
    assert "Ranks missing: 2 windows of 3\n  iteration 1-2  1-3, 5, 8-9\n" in output


def test_memory_of_each_device(reference: Any, call: Any) -> None:
    """The largest reading of each; what was not read is a dash."""
    for window, used in ((0, 10), (1, 30)):
        memory = Memory(
            instant=[1, 2, 3],
            rank=[0, 1, 0],
            host=["node1"] * 3,
            pid=[1, 2, 1],
            device=[0, 1, None],
            device_used=[used * GIB, 5 * GIB, None],
            device_total=[96 * GIB, 96 * GIB, None],
            allocator_peak_reserved=[8 * GIB, None, 99 * GIB],
        )
        evidence(reference, window, memory=memory)
    output = call("show", reference.write()).stdout
    assert (
        "Memory of each device: GiB, the largest reading; allocator of one rank\n"
        "  device  host     used   total  peak allocated  peak reserved\n"
        "  GPU-0   node1  30.000  96.000               -          8.000\n"
        "  GPU-1   node1   5.000  96.000               -              -\n"
    ) in output


def test_versions_that_were_published(reference: Any, call: Any) -> None:
    for window in range(3):
        publication = Publication("collective", 5 + window, 1, 2, in_window=True)
        evidence(reference, window, publications=[publication])
    reference.change(publications_pending=1)
    output = call("show", reference.write()).stdout
    assert "  publications  3, pending 1; version 5 to 7\n" in output


def test_clocks_of_other_machines(workers: Any, call: Any) -> None:
    """One measured twice, to 2 ms and 1.5 ms; one never; one on this machine, exact and not said."""
    processes(
        workers,
        process(1, "policy", "node2", "other"),
        process(2, "policy", "node3", "third"),
        process(3, "rollout"),
    )
    path = workers.write()
    (path / "workers").mkdir()
    lines = [
        {
            "kind": "clock",
            "run_id": "reference",
            "attempt": 1,
            "name": "policy-1",
            "offset_ns": 11_560_000_000,
            "bound_ns": bound,
            "measured_ns": 7,
        }
        for bound in (2_000_000, 1_500_000)
    ]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (path / "workers" / "driver-0-1.jsonl").write_text(text)
    output = told(call("show", path).stdout)
    assert (
        "clock policy-1 on node2: its calls and readings are placed in windows to +-2.000 ms "
        "(2 measurements)"
    ) in output
    assert "clock not known of policy-2: in no window, and compared with nothing" in output
    assert "rollout-3 on" not in output
    shown = json.loads(call("show", path, "--json").stdout)["job"]["clocks"]
    assert [(each["name"], each["bound_ns"]) for each in shown] == [
        ("policy-1", 2_000_000),
        ("policy-2", None),
    ]


def test_json_has_every_figure(workers: Any, call: Any) -> None:
    evidence(workers, 2, ranks=Ranks(4, 3, [3]))
    shown = json.loads(call("show", workers.write(), "--json").stdout)["job"]
    assert shown["workers"] == [
        {
            "name": "step",
            "calls": 6,
            "min_ns": 5 * SECOND,
            "median_ns": 5 * SECOND,
            "max_ns": 7 * SECOND,
            "straggler_ratio": 1.4,
            "slowest_rank": 1,
        }
    ]
    assert shown["missing"] == [{"iteration": 3, "ranks": [3]}]
    assert (shown["ranks"], shown["devices"], shown["clocks"]) == ([], [], [])


def test_a_method_that_took_no_time_has_no_ratio(workers: Any, call: Any) -> None:
    evidence(workers, 2, workers={"idle": {"1": [0]}})
    assert (
        "  idle        1  0.000   0.000  0.000           -  1 (policy-1)\n"
        in call("show", workers.write()).stdout
    )


def test_numbers_as_ranges() -> None:
    assert ranges([7, 1, 2, 3, 9, 10]) == "1-3, 7, 9-10"
    assert ranges([]) == ""


def last_words(dropped: int, errors: dict[str, int], attempt: int = 1) -> bytes:
    sinks = {"spans": SinkCounts(dropped + 1, 1, dropped, 0)}
    left = Left("run-1", attempt, "completed", 9, Observed(sinks=sinks, errors=errors))
    return b"x" * 100_000 + b"\n" + msgspec.json.encode(left) + b"\n"


def test_what_other_processes_lost_themselves(workers: Any, call: Any) -> None:
    """Rank 2 dropped spans and rank 3 had a fault; rank 1 was killed, its last line is another one."""
    (workers.path / "workers").mkdir(parents=True)
    workers.extra = {
        "workers/policy-1-101.jsonl": b'{"kind":"call"}\n',
        "workers/policy-2-102.jsonl": last_words(5, {"memory": 1}),
        "workers/rollout-3-103.jsonl": last_words(0, {"memory": 2, "loop_span": 1}),
        "workers/old-4-104.jsonl": last_words(7, {"memory": 9}, attempt=3),
        "workers/empty-5-105.jsonl": b"",
    }
    output = told(call("show", workers.write()).stdout)
    assert "workers/policy-2-102.jsonl: 5 lines of spans dropped" in output
    assert output.count("spans dropped") == 1
    assert "own errors loop_span 1, memory 3" in output
    page = json.loads(call("show", workers.path, "--json").stdout)
    assert page["job"]["errors"] == {"memory": 3, "loop_span": 1}


def test_a_thousand_processes_that_lost_lines_are_few_notes(workers: Any, call: Any) -> None:
    """Eight are named, the others counted."""
    (workers.path / "workers").mkdir(parents=True)
    workers.extra = {
        f"workers/policy-{rank}-{100 + rank}.jsonl": last_words(1, {}) for rank in range(10)
    }
    notes = json.loads(call("show", workers.write(), "--json").stdout)["notes"]
    assert [note for note in notes if "dropped" in note][7:] == [
        "workers/policy-7-107.jsonl: 1 line of spans dropped",
        "2 more files in workers/: lines were dropped there, too",
    ]
