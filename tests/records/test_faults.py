"""Full disks, forks and killed processes, on real child processes."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import time

import pytest

from otel_grpo.records.model import SinkCounts
from otel_grpo.records.reader import Torn, read_records
from otel_grpo.records.writer import Sink, Writer, atomic_write

FILL = """
    run, writer = open_writer(Path(sys.argv[1]))
    for n in range(30):
        writer.put("metrics_raw", record(run, size=3_000))
        writer.put("workers", b"{}")
        writer.flush()
    MAKE_ROOM
    for n in range(3):
        writer.put("metrics_raw", record(run, size=3_000))
    closed = writer.close()
    print(json.dumps([closed, counts(writer), warnings]))
"""


def check_full_disk(result, path, check_chain, reason):
    closed, counts, warnings = result
    raw = counts["metrics_raw"]
    assert closed
    assert raw["created"] == 33
    assert raw["reasons"] == {reason: raw["dropped"]}
    assert 3 < raw["written"] < 30
    assert raw["written"] + raw["dropped"] == 33
    assert warnings.count(["metrics_raw", reason]) == 1
    assert path.read_bytes().endswith(b"\n")
    rows = check_chain(path)
    assert len(rows) == raw["written"]
    # Lines before the disk was full and after there was room; what was lost is a gap between.
    lost = raw["dropped"]
    first = raw["written"] - 3
    assert [row["seq"] for row in rows] == [*range(first), *range(first + lost, 33)]


def test_disk_full_by_a_limit(tmp_path, run_child, check_chain):
    """Lines that do not fit are taken back whole; later lines are written when there is room."""
    limit = "resource.setrlimit(resource.RLIMIT_FSIZE, ({}, resource.RLIM_INFINITY))"
    fill = FILL.replace("MAKE_ROOM", limit.format("resource.RLIM_INFINITY"))
    result = run_child(f"\n    {limit.format(50_000)}{fill}", tmp_path / "run")
    check_full_disk(result, tmp_path / "run" / "metrics_raw.jsonl", check_chain, "EFBIG")
    assert result[1]["workers"]["written"] == 30


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 128 KiB, where mounting is allowed."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = shutil.which("mount")
    command = [mount or "mount", "-t", "tmpfs", "-o", "size=128k", "none", disk]
    if mount is None or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("mounting is not allowed here")
    yield disk
    subprocess.run(["umount", disk], check=True)


def test_disk_full_for_real(small_disk, run_child, check_chain):
    """The same on a file system that is full, until something is deleted."""
    (small_disk / "ballast").write_bytes(b"x" * 60_000)
    fill = FILL.replace("MAKE_ROOM", f"os.unlink({str(small_disk / 'ballast')!r})")
    result = run_child(fill, small_disk / "run")
    check_full_disk(result, small_disk / "run" / "metrics_raw.jsonl", check_chain, "ENOSPC")


def test_atomic_write_on_a_full_disk(small_disk):
    """What does not fit leaves the old file and no draft."""
    path = small_disk / "summary.json"
    atomic_write(path, b"old")
    with pytest.raises(OSError, match="No space left"):
        atomic_write(path, b"x" * 200_000)
    assert path.read_bytes() == b"old"
    assert [one.name for one in small_disk.iterdir()] == ["summary.json"]


def test_disk_that_refuses_to_shorten(tmp_path, monkeypatch):
    """Where the unfinished line can't be taken back at once, it is before the next line."""
    path = tmp_path / "a"
    real_write, real_truncate = os.write, os.ftruncate
    writes, cuts = [], []

    def write(fd, data):
        writes.append(len(data))
        if len(writes) == 2:
            return real_write(fd, data[:4])
        if len(writes) == 3:
            raise OSError(28, "full")
        return real_write(fd, data)

    def truncate(fd, length):
        cuts.append(length)
        if len(cuts) < 3:
            raise OSError(5, "broken")
        real_truncate(fd, length)

    monkeypatch.setattr("otel_grpo.records.files.os.write", write)
    monkeypatch.setattr("otel_grpo.records.files.os.ftruncate", truncate)
    writer = Writer([Sink("a", path, 10)])
    for n in range(4):
        writer.put("a", b'{"line": %d}' % n)
    writer.start()
    assert writer.close()
    # Line 1 stays half in the file, line 2 is refused because of it, line 3 finds it removed.
    assert path.read_bytes() == b'{"line": 0}\n{"line": 3}\n'
    assert cuts == [12, 12, 12]
    assert writer.counts()["a"] == SinkCounts(4, 2, 2, 0, {"ENOSPC": 1, "EIO": 1})


FORK = """
    import multiprocessing, warnings as python_warnings
    python_warnings.simplefilter("ignore", DeprecationWarning)
    run, writer = open_writer(Path(sys.argv[1]))
    hold = threading.Event()
    for n in range(5):
        writer.put("metrics_raw", record(run))
    writer.flush()
    # The child is made while the queue is not empty and other threads hold the lock on and off.
    writer.call(lambda: hold.wait(30))
    for n in range(50):
        writer.put("metrics_raw", record(run))
        writer.put("spans", n)
    stop = False
    def contend():
        while not stop:
            writer.counts()
    thread = threading.Thread(target=contend)
    thread.start()

    def child(answers):
        taken = [writer.put("metrics_raw", record(run)), writer.put("spans", 1),
                 writer.call(lambda: None)]
        writer.start()
        answers.put([taken, writer.flush(), writer.close(),
                     counts(writer)["metrics_raw"]["created"]])

    answers = multiprocessing.get_context("fork").SimpleQueue()
    children = []
    for n in range(10):
        pid = os.fork()
        if not pid:
            child(answers)
            os._exit(0)
        children.append(pid)
    for n in range(3):
        process = multiprocessing.get_context("fork").Process(target=child, args=(answers,))
        process.start()
        process.join()
    for pid in children:
        os.waitpid(pid, 0)
    said = [answers.get() for n in range(13)]
    stop = True
    thread.join()
    hold.set()
    closed = writer.close()
    print(json.dumps([closed, counts(writer), said]))
"""


def test_forked_children_write_nothing(tmp_path, run_child, check_chain):
    """Thirteen children of a busy parent: they refuse all, block on nothing; it loses nothing."""
    closed, counts, said = run_child(FORK, tmp_path / "run")
    assert said == [[[False, False, False], True, True, 55]] * 13
    assert closed
    assert counts["metrics_raw"] == {
        "created": 55, "written": 55, "dropped": 0, "pending": 0, "reasons": {},
    }  # fmt: skip
    assert counts["spans"]["written"] == 50
    rows = check_chain(tmp_path / "run" / "metrics_raw.jsonl")
    assert [row["seq"] for row in rows] == list(range(55))


def test_child_that_outlives_us_frees_the_directory(tmp_path, start_child, run_child):
    """A forked child that goes on after its parent was killed does not keep the run locked."""
    child = start_child(
        """
        import warnings as python_warnings
        python_warnings.simplefilter("ignore", DeprecationWarning)
        run, writer = open_writer(Path(sys.argv[1]))
        pid = os.fork()
        if not pid:
            time.sleep(60)
            os._exit(0)
        print(pid, flush=True)
        time.sleep(60)
        """,
        tmp_path / "run",
    )
    orphan = int(child.stdout.readline())
    child.kill()
    child.wait()
    try:
        second = "print(json.dumps(open_run_dir(Path(sys.argv[1])).attempt))"
        assert run_child(second, tmp_path / "run") == 2
    finally:
        os.kill(orphan, signal.SIGKILL)


WRITE_UNTIL_KILLED = """
    run, writer = open_writer(Path(sys.argv[1]))
    print(run.attempt, flush=True)
    n = 0
    while True:
        n += 1
        writer.put("metrics_raw", record(run, size=(n % 7) * 20_000))
        writer.put("metrics", b'{"n": %d}' % n)
        writer.put("spans", n)
        os.write(1, b"%d\\n" % n)
        time.sleep(0.0005)
"""


def test_killed_at_random_points(tmp_path, start_child, check_chain):
    """Ten attempts of one run, each killed: whole lines, one chain, at most the queue is lost."""
    path = tmp_path / "run"
    chance = random.Random(3)
    put = []
    for attempt in range(1, 11):
        child = start_child(WRITE_UNTIL_KILLED, path)
        assert child.stdout.readline() == f"{attempt}\n"
        time.sleep(chance.uniform(0, 0.1))
        child.send_signal(signal.SIGKILL)
        output = child.stdout.read()
        child.wait()
        put.append(int((output.split("\n")[-2:-1] or ["0"])[0] or 0))

    whole, torn = [], set()
    for line in read_records(path):
        if isinstance(line, Torn):
            torn.add(line.line.number)
        else:
            whole.append(line.value)
    rows = check_chain(path / "metrics_raw.jsonl", torn)
    assert len(rows) == len(whole)
    assert [record.seq for record in whole] == list(range(len(whole)))
    assert [record.attempt for record in whole] == sorted(record.attempt for record in whole)
    assert len(torn) <= 10
    for attempt, known in enumerate(put, 1):
        written = sum(record.attempt == attempt for record in whole)
        assert known - 512 <= written <= known + 1
    flat = (path / "metrics.jsonl").read_bytes().split(b"\n")
    assert sum(not line.endswith(b"}") for line in flat if line) <= 10
    for file in (path / "spans").iterdir():
        spans = file.read_bytes().split(b"\n")
        assert all(isinstance(json.loads(line), list) for line in spans[:-1])


def test_exit_without_close_loses_what_is_queued_only(tmp_path, run_child):
    """os._exit right after a flush: every line is there."""
    run_child(
        """
        run, writer = open_writer(Path(sys.argv[1]))
        for n in range(100):
            writer.put("metrics_raw", record(run))
        assert writer.flush()
        print("0", flush=True)
        os._exit(0)
        """,
        tmp_path / "run",
    )
    assert len((tmp_path / "run" / "metrics_raw.jsonl").read_bytes().splitlines()) == 100


def test_close_from_atexit(tmp_path, run_child):
    """At exit no thread can be started any more (3.12): the one that runs does the rest."""
    run_child(
        """
        import atexit
        run, writer = open_writer(Path(sys.argv[1]))
        @atexit.register
        def close():
            for n in range(10):
                writer.put("metrics_raw", record(run))
            print(json.dumps(writer.close()))
        """,
        tmp_path / "run",
    )
    assert len((tmp_path / "run" / "metrics_raw.jsonl").read_bytes().splitlines()) == 10


def test_exit_while_the_file_system_hangs(tmp_path, run_child):
    """A writer that hangs does not keep the process from its end."""
    closed, pending = run_child(
        """
        run, writer = open_writer(Path(sys.argv[1]))
        writer.put("metrics_raw", lambda: time.sleep(3600))
        for n in range(10):
            writer.put("metrics_raw", record(run))
        print(json.dumps([writer.close(stall=0.2), counts(writer)["metrics_raw"]["pending"]]))
        """,
        tmp_path / "run",
    )
    assert (closed, pending) == (False, 11)
