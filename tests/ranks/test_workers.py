"""Calls and readings of workers, placed in the windows of their driver."""

from __future__ import annotations

import os

import msgspec

from otel_grpo.records.model import ClockOffset, ClockPair, Ranks
from tests.ranks.lines import ATTEMPT, RUN, SHIFT, call, left, reading, worker

SECOND = 10**9
START, END = 100 * SECOND, 110 * SECOND


def closed(collector, iteration=1, start=START, end=END):
    return collector.ready(iteration, start, end, end)


def test_calls_belong_to_the_window_in_which_they_end(job):
    """By the driver's clock; one that ended before the window, or between two, to none."""
    collector = job.of_workers()
    job.write(
        "a",
        worker("policy-0"),
        call(START - 9, START - 1),
        call(START - 9, START),
        call(START, END - 1, "generate"),
        call(START, END),
        call(END, END + 5),
    )
    job.write("b", worker("policy-1"), call(START, START + 7))
    closed(collector)
    job.now = END + SECOND
    collector.look()
    assert closed(collector)
    taken = collector.take(1, START, END)
    assert not taken.spmd
    assert taken.workers == {
        "step": {1: [9], 2: [7]},
        "generate": {1: [END - 1 - START]},
    }
    assert taken.ranks == Ranks(3, 3)
    assert [(each.rank, each.name) for each in taken.processes] == [
        (1, "policy-0"),
        (2, "policy-1"),
    ]
    # The next window begins after the call that ended at the edge: it belongs to none.
    after = collector.take(2, END + 3, END + 9)
    assert after.workers == {"step": {1: [5]}}
    assert after.ranks == Ranks(3, 2, [2])
    assert not job.faults


def test_a_window_is_whole_half_a_second_after_its_end(job):
    """Everybody was heard, but a call that ended in it may still be on its way."""
    collector = job.of_workers()
    job.write("a", worker("policy-0"), call(START, START + 1))
    closed(collector)
    job.now = END + SECOND // 2 - 1
    collector.look()
    assert not closed(collector)
    job.write("a", call(START, START + 2))
    job.now += 1
    collector.look()
    assert closed(collector)
    assert collector.take(1, START, END).workers == {"step": {1: [1, 2]}}


def test_a_silent_worker_is_waited_for_and_missing(job):
    """Known by its `joined` line, or watched for by name and never heard of."""
    collector = job.of_workers("policy-1", "gone")
    job.write("a", worker("policy-0"), call(START, START + 1))
    job.write("b", worker("policy-1"))
    closed(collector)
    job.now = END + SECOND
    collector.look()
    assert not closed(collector)
    assert collector.take(1, START, END).ranks == Ranks(4, 2, [1, 2])


def test_a_dead_worker_is_waited_for_once(job):
    """It is missing in each later window, whose records come without it; heard again, it counts."""
    collector = job.of_workers()
    job.write("a", worker("policy-0"), call(START, START + 1))
    job.write("b", worker("policy-1"))
    closed(collector)
    job.now = END + SECOND
    collector.look()
    assert not closed(collector)
    assert collector.take(1, START, END).ranks == Ranks(3, 2, [2])
    job.write("a", call(END, END + 1))
    closed(collector, 2, END, END + SECOND)
    job.now = END + 2 * SECOND
    collector.look()
    assert closed(collector, 2, END, END + SECOND)
    assert collector.take(2, END, END + SECOND).ranks == Ranks(3, 2, [2])
    job.write("a", call(END, END + 3 * SECOND))
    job.write("b", call(END, END + 3 * SECOND))
    later = END + 2 * SECOND, END + 4 * SECOND
    closed(collector, 3, *later)
    job.now = END + 5 * SECOND
    collector.look()
    assert collector.take(3, *later).ranks == Ranks(3, 3)
    job.write("a", call(END, END + 5 * SECOND))
    closed(collector, 4, END + 4 * SECOND, END + 6 * SECOND)
    job.now = END + 7 * SECOND
    collector.look()
    assert not closed(collector, 4, END + 4 * SECOND, END + 6 * SECOND)


def test_a_worker_is_watched_from_now_on(job):
    """A closed window whose record waits for another one is not missing who came after it."""
    collector = job.of_workers("gone")
    closed(collector)
    job.now = END
    collector.watch(["new"])
    assert collector.take(1, START, END).ranks == Ranks(2, 1, [1])
    assert collector.take(2, START, END + 1).ranks == Ranks(3, 1, [1, 2])


def test_a_worker_that_left_is_expected_in_no_later_window(job):
    """It counts where it was heard."""
    collector = job.of_workers()
    job.write("a", worker("policy-0"), call(START, START + 1), left())
    closed(collector)
    closed(collector, 2, END, END + 5)
    job.now = END + SECOND
    collector.look()
    assert collector.take(1, START, END).ranks == Ranks(2, 2)
    assert closed(collector, 2, END, END + 5)
    assert collector.take(2, END, END + 5).ranks == Ranks(1, 1)


def test_a_worker_whose_clock_is_not_known_is_missing_also_when_it_left(job):
    """What it wrote is in no record; once its clock is measured, leaving is leaving."""
    collector = job.of_workers()
    elsewhere = ClockPair("elsewhere", 0, 0)
    job.write("a", worker("policy-0", clock=elsewhere), call(START, START + 1), left())
    collector.look()
    assert collector.take(1, START, END).ranks == Ranks(2, 1, [1])
    job.write("driver-0", ClockOffset(RUN, ATTEMPT, "policy-0", 7, 1, END))
    collector.look()
    assert collector.take(2, END, END + 5).ranks == Ranks(1, 1)


def test_a_clock_that_is_measured_while_the_files_are_read(job, monkeypatch):
    """Measured, and then called, between two files of one look: the call is placed."""
    collector = job.of_workers()
    own = f"driver-0-{os.getpid()}"
    job.write(own)
    job.write("policy-0-1", worker("policy-0", clock=ClockPair("elsewhere", 0, 0)))
    read, first = collector._folder.read, [True]

    def meanwhile(peer):
        lines = read(peer)
        if first:
            first.clear()
            job.write(own, ClockOffset(RUN, ATTEMPT, "policy-0", SHIFT, 1, START))
            job.write("policy-0-1", call(START, START + 1))
        return lines

    monkeypatch.setattr(collector._folder, "read", meanwhile)
    collector.look()
    collector.look()
    assert job.faults == {}
    assert collector.take(1, START, END).workers == {"step": {1: [1]}}


def test_a_worker_that_starts_again_keeps_its_number(job):
    """Another process of the same name has a clock of its own."""
    collector = job.of_workers()
    job.write("a", worker("policy-0"), call(START, START + 1))
    shifted = ClockPair("boot", 1_000_550, 400_250)  # 200 ns more
    moved = msgspec.structs.replace(
        call(START, START + 3), start_ns=START + 300, end_ns=START + 303
    )
    job.write("b", worker("policy-0", clock=shifted), moved)
    collector.look()
    taken = collector.take(1, START, START + 4)
    assert taken.workers == {"step": {1: [1, 3]}}
    assert [each.rank for each in taken.processes] == [1, 1]


def test_readings_lie_in_the_window_of_their_instant(job):
    """With the driver's instant, the worker's number and the job's device."""
    collector = job.of_workers()
    job.write(
        "a",
        worker("policy-0", devices=["GPU-a"]),
        reading(START - 1, START, END - 1, END, device=0, peak_resets=2),
        reading(START + 5),
    )
    collector.look()
    taken = collector.take(1, START, END)
    rows = [
        (table.instant, table.rank, table.pid, table.device, table.process_rss)
        for table in taken.memory
    ]
    assert rows == [
        ([START], [1], [9], [1], [1]),
        ([END - 1], [1], [9], [1], [2]),
        ([START + 5], [1], [9], [None], [0]),
    ]
    (last,) = collector.take(2, END, END + 1).memory
    assert last.instant == [END]


def test_late_calls_and_readings_are_counted(job):
    """They stay in their file; what lies between two windows is not late."""
    collector = job.of_workers()
    collector.take(1, START, END)
    collector.take(2, END + 10, END + 20)
    job.write(
        "a",
        worker("policy-0"),
        call(START, END - 1),
        call(START, END + 5),
        reading(END + 10),
        call(START, END + 20),
    )
    collector.look()
    assert job.faults == {"ranks.late": 2}
    assert collector.take(3, END + 20, END + 30).workers == {"step": {1: [END + 20 - START]}}


def test_a_worker_of_another_machine_needs_a_measured_clock(job):
    """Without one its instants are refused, by name and once; with one they are placed."""
    other = ClockPair("elsewhere", 5, 5)
    collector = job.of_workers()
    job.write("a", worker("policy-0", clock=other), call(START, START + 1), call(START, START + 2))
    job.write("b", worker("policy-1", clock=other), call(START, START + 3))
    # In the driver's file, which comes after theirs by its name.
    job.write("driver", ClockOffset(RUN, ATTEMPT, "policy-1", 100, 20, START))
    closed(collector)
    job.now = END + SECOND
    collector.look()
    assert job.faults == {"ranks.unknown_clock": 1}
    assert not closed(collector)
    taken = collector.take(1, START, END)
    assert taken.workers == {"step": {2: [3]}}
    assert taken.ranks == Ranks(3, 2, [1])


def test_windows_with_a_record_are_forgotten(job):
    """Of a million windows the last 10,000 are known, and a call before those is late."""
    collector = job.of_workers()
    for second in range(25_000):
        collector._store.gather(second, second * SECOND, (second + 1) * SECOND)
    assert 10_000 <= len(collector._store._ends) < 20_000
    job.write("a", worker("policy-0"), call(5, 3 * SECOND), call(5, 24_999 * SECOND))
    collector.look()
    assert job.faults == {"ranks.late": 2}


def test_readings_that_do_not_fit_together_cost_no_other_line(job):
    """A line with a column too short is counted, and what follows it is read."""
    collector = job.of_workers()
    short = msgspec.structs.replace(reading(START, START + 1).memory, process_rss=[1])
    bad = msgspec.structs.replace(reading(START), memory=short)
    job.write("a", worker("policy-0"), bad, call(START, START + 7))
    collector.look()
    assert collector.take(1, START, END).workers == {"step": {1: [7]}}
    assert job.faults == {"ranks.bad_line": 1}


def test_a_worker_is_expected_from_its_start_on(job):
    """One that joined while a window waited for something else is not missing in it; a watched one is."""
    collector = job.of_workers("watched-1")
    started = END + SHIFT
    for name in ("watched-1", "policy-0"):
        line = msgspec.structs.replace(worker(name), started_unix_ns=started)
        job.write(name, line, call(END, END + 5))
    closed(collector)
    closed(collector, 2, END, END + SECOND)
    job.now = END + 2 * SECOND
    collector.look()
    assert not closed(collector)
    assert collector.take(1, START, END).ranks == Ranks(2, 1, [1])
    assert closed(collector, 2, END, END + SECOND)
    assert collector.take(2, END, END + SECOND).ranks == Ranks(3, 3)
