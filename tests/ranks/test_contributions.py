"""Contributions of ranks as their files grow: what is whole, missing, late, twice or not ours."""

from __future__ import annotations

import os
import threading

import msgspec
import pytest

from otel_grpo.records.model import Memory, Ranks
from tests.ranks.lines import ATTEMPT, contribution, joined, left


def ready(collector, iteration):
    return collector.ready(iteration, 0, 1, 2)


def test_a_window_is_whole_when_every_rank_has_spoken(job):
    """Rank 0 waits for three others; what is there is taken, and told once."""
    collector = job.of_ranks(4)
    assert not ready(collector, 1)
    for rank in (1, 2):
        job.write(f"trainer-{rank}", joined(rank), contribution(rank, 1))
    collector.look()
    assert not ready(collector, 1)
    job.write("trainer-3", joined(3), contribution(3, 1), contribution(3, 2))
    collector.look()
    assert ready(collector, 1)
    assert not ready(collector, 2)
    taken = collector.take(1, 0, 1)
    assert taken.spmd
    assert taken.ranks == Ranks(4, 4)
    assert taken.contributions == {rank: contribution(rank, 1) for rank in (1, 2, 3)}
    assert [(each.rank, each.name) for each in taken.processes] == [
        (rank, f"trainer-{rank}") for rank in (1, 2, 3)
    ]
    assert collector.take(2, 0, 1).ranks == Ranks(4, 2, [1, 2])
    assert not job.faults


def test_release_is_called_while_a_window_waits(job):
    """So that whoever holds windows may ask again."""
    collector = job.of_ranks(2)
    collector.look()
    assert job.released == 0
    ready(collector, 1)
    collector.look()
    collector.look()
    assert job.released == 2
    collector.take(1, 0, 1)
    collector.look()
    assert job.released == 2


def test_a_line_counts_once_it_is_whole(job):
    """A torn line is no line until its rest comes."""
    collector = job.of_ranks(2)
    ready(collector, 1)
    whole = msgspec.json.encode(contribution(1, 1))
    job.write("trainer-1", joined(1))
    job.write("trainer-1", whole[:40], end=b"")
    collector.look()
    assert not ready(collector, 1)
    job.write("trainer-1", whole[40:], end=b"\n")
    collector.look()
    assert ready(collector, 1)
    assert not job.faults


def test_what_is_not_ours_is_counted_and_ignored(job):
    """Another run's line, a broken one, one for another rank, one twice, one without `joined`."""
    collector = job.of_ranks(4)
    ready(collector, 1)
    job.write(
        "trainer-1",
        contribution(1, 1),
        joined(1),
        contribution(1, 1, run_id="other"),
        contribution(1, 1, attempt=ATTEMPT + 1),
        contribution(1, 1, attempt=0),
        b'{"kind": "contribution"',
        b"\0\0\0",
        b"[" * 100_000,
        contribution(2, 1),
        contribution(1, 1),
        contribution(1, 1),
    )
    # Whole lines of the right rank, of which one says more than it has, and one is of odd types.
    flawed = msgspec.structs.replace(contribution(2, 1), update_samples=[[("r", 0, 1)]])
    job.write("trainer-2", joined(2), flawed)
    odd = msgspec.json.encode(contribution(3, 1)).replace(b'"samples":[[', b'"samples":[["x",')
    job.write("trainer-3", joined(3), odd)
    collector.look()
    assert job.faults == {"ranks.bad_line": 5, "ranks.foreign": 3, "ranks.twice": 1}
    taken = collector.take(1, 0, 1)
    assert taken.contributions == {1: contribution(1, 1)}
    assert taken.ranks == Ranks(4, 2, [2, 3])
    assert job.faults["ranks.bad_line"] == 7


def test_a_rank_beyond_the_job_is_not_counted(job):
    """A file that says rank 7 in a job of two is of another one."""
    collector = job.of_ranks(2)
    job.write("trainer-7", joined(7), contribution(7, 1))
    collector.look()
    assert job.faults == {"ranks.bad_line": 1}


def test_earlier_attempts_are_left_alone(job):
    """Their files are no fault, and the same file may go on with this attempt."""
    collector = job.of_ranks(2)
    ready(collector, 1)
    job.write(
        "trainer-1",
        joined(1, attempt=ATTEMPT - 1),
        contribution(1, 1, attempt=ATTEMPT - 1),
    )
    collector.look()
    assert not ready(collector, 1)
    job.write("trainer-1", joined(1), contribution(1, 1))
    for _ in range(30):  # a file of an earlier attempt is looked at seldom
        collector.look()
    assert ready(collector, 1)
    assert not job.faults
    assert len(collector.take(1, 0, 1).processes) == 1


def test_late_lines_are_counted(job):
    """One for a window that has its record; again, and it is one that came twice."""
    collector = job.of_ranks(2)
    ready(collector, 1)
    collector.look()
    assert collector.take(1, 0, 1).ranks == Ranks(2, 1, [1])
    job.write("trainer-1", joined(1), contribution(1, 1), contribution(1, 1), contribution(1, 2))
    ready(collector, 2)
    collector.look()
    assert job.faults == {"ranks.late": 1, "ranks.twice": 1}
    assert ready(collector, 2)
    assert collector.take(2, 0, 1).contributions == {1: contribution(1, 2)}


def test_a_rank_that_left_is_not_waited_for(job):
    """It is missing in the windows that it did not see, at once."""
    collector = job.of_ranks(2)
    ready(collector, 1)
    ready(collector, 2)
    job.write("trainer-1", joined(1), contribution(1, 1), left())
    collector.look()
    assert ready(collector, 1)
    assert ready(collector, 2)
    assert collector.take(1, 0, 1).ranks == Ranks(2, 2)
    assert collector.take(2, 0, 1).ranks == Ranks(2, 1, [1])


def test_files_are_read_only_for_what_is_waited_for(job, monkeypatch):
    """A rank that has spoken is left alone until the next window waits."""
    opened = []
    real = os.open
    collector = job.of_ranks(3)
    job.write("trainer-1", joined(1), contribution(1, 1))
    job.write("trainer-2", joined(2))
    ready(collector, 1)
    collector.look()
    monkeypatch.setattr(
        "otel_grpo.ranks.tail.os.open", lambda path, *rest: opened.append(path) or real(path, *rest)
    )
    collector.look()
    assert [path.name for path in opened] == ["trainer-2.jsonl"]
    collector.take(1, 0, 1)
    opened.clear()
    collector.look()
    assert opened == []


def test_devices_are_numbered_for_the_job(job):
    """A reading points into the devices of its own process, and in the record into the job's."""
    collector = job.of_ranks(3)
    memory = Memory([1, 2], [2, 2], ["h", "h"], [102, 102], device=[1, 0])
    job.write("trainer-1", joined(1, devices=["GPU-a"]), contribution(1, 1))
    job.write("trainer-2", joined(2, devices=["GPU-b", "GPU-a"]), contribution(2, 1, memory=memory))
    ready(collector, 1)
    collector.look()
    taken = collector.take(1, 0, 1)
    assert [device.id for device in taken.inventory] == ["cpu:h:1", "GPU-a", "GPU-b"]
    assert taken.devices == [(0, ["train"]), (1, ["train"]), (2, ["train"])]
    assert taken.contributions[2].attributes.memory.device == [1, 2]


@pytest.mark.parametrize("kind", ["directory", "gone"])
def test_a_file_that_can_t_be_read_is_counted(job, kind):
    """The others are read all the same."""
    collector = job.of_ranks(3)
    ready(collector, 1)
    if kind == "directory":
        (job.path / "trainer-1.jsonl").mkdir()
    else:
        (job.path / "trainer-1.jsonl").symlink_to("nowhere")
    job.write("trainer-2", joined(2), contribution(2, 1))
    collector.look()
    assert job.faults == {"ranks.unreadable": 1}
    assert collector.take(1, 0, 1).ranks == Ranks(3, 2, [1])


def test_a_folder_that_is_gone_is_an_error_of_the_thread(job):
    collector = job.of_ranks(2)
    job.path.rmdir()
    with pytest.raises(FileNotFoundError):
        collector.look()
    assert collector.take(1, 0, 1).ranks == Ranks(2, 1, [1])


def test_the_thread_reads_and_stops(job):
    """Told to hurry it looks often; faults of the directory are counted, the thread goes on."""
    collector = job.of_ranks(2)
    came = threading.Event()
    ready(collector, 1)
    collector.start(came.set)
    collector.hurry()
    assert came.wait(10)
    job.write("trainer-1", joined(1), contribution(1, 1))
    for _ in range(200):
        came.clear()
        assert came.wait(10)
        if ready(collector, 1):
            break
    assert collector.take(1, 0, 1).ranks == Ranks(2, 2)
    (thread,) = [each for each in threading.enumerate() if each.name == "otel-grpo-peers"]
    assert thread.daemon
    collector.stop()
    thread.join(10)
    assert not thread.is_alive()


def test_a_window_without_a_record_is_not_waited_for_for_ever(job):
    """Its record did not fit the writer's queue, so it was never taken: the next one's is."""
    collector = job.of_ranks(2)
    ready(collector, 1)
    ready(collector, 2)
    collector.take(2, 0, 1)
    collector.look()
    assert job.released == 0


def test_a_rank_that_never_speaks_costs_no_memory(job):
    """What is remembered of windows without it has a bound; what comes for an older one is late."""
    store = job.of_ranks(3)._store
    for iteration in range(1, 302):
        store.gather(iteration, 0, 1)
    assert sum(len(ranks) for ranks in store._missing.values()) == 2 * 100
    collector = job.of_ranks(3)
    collector._store = store
    ready(collector, 302)
    job.write(
        "trainer-1", joined(1), contribution(1, 1), contribution(1, 301), contribution(1, 301)
    )
    collector.look()
    assert job.faults == {"ranks.late": 2, "ranks.twice": 1}


def test_readings_that_do_not_fit_together_are_left_out(job):
    """A contribution with a column too short would cost the record of the whole job."""
    collector = job.of_ranks(2)
    memory = Memory([1, 2], [1, 1], ["h"], [9, 9], process_rss=[3, 4])
    job.write("trainer-1", joined(1), contribution(1, 1, memory=memory))
    ready(collector, 1)
    collector.look()
    assert collector.take(1, 0, 1).ranks == Ranks(2, 1, [1])
    assert job.faults == {"ranks.bad_line": 1}
