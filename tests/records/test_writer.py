from __future__ import annotations

import gc
import hashlib
import json
import os
import stat
import threading
import weakref

import msgspec
import pytest
from hypothesis import given, settings, strategies as st

from otel_grpo.records.model import SinkCounts, WindowOpened
from otel_grpo.records.writer import BATCH, Batch, Sink, Writer


class Notes:
    """What the callbacks were told."""

    def __init__(self):
        self.errors = []
        self.warnings = []
        self.written = []

    def writer(self, *sinks, **options):
        return Writer(
            sinks,
            on_error=lambda place, error: self.errors.append((place, str(error))),
            on_warning=lambda *warning: self.warnings.append(warning),
            after_write=lambda *written: self.written.append(written),
            **options,
        )


@pytest.fixture
def notes():
    return Notes()


@pytest.fixture
def hold():
    """An event that the writer thread waits for: a file system that hangs. Set at the end."""
    event = threading.Event()
    yield event
    event.set()


def lines(path):
    return path.read_bytes().splitlines()


def count_lines(items):
    return msgspec.json.encode(items)


def test_chain_numbers_and_links_records(tmp_path, notes, record, check_chain):
    """The seq counts up from where the file stands, prev is the hash of the line before."""
    path = tmp_path / "raw.jsonl"
    writer = notes.writer(Sink("raw", path, 10, chained=True))
    writer.start()
    for _ in range(5):
        assert writer.put("raw", record())
    assert writer.close()

    rows = check_chain(path)
    assert [row["seq"] for row in rows] == [0, 1, 2, 3, 4]
    assert rows[0]["prev"] is None
    assert writer.head == hashlib.sha256(lines(path)[-1]).hexdigest()
    assert [item.seq for _, item, _ in notes.written] == [0, 1, 2, 3, 4]
    assert [line_hash for *_, line_hash in notes.written] == [
        hashlib.sha256(line).hexdigest() for line in lines(path)
    ]


def test_chain_goes_on(tmp_path, record):
    """A new attempt starts from the numbers that it is given."""
    path = tmp_path / "raw.jsonl"
    writer = Writer([Sink("raw", path, 10, chained=True)], seq=7, prev="ab")
    writer.start()
    writer.put("raw", record())
    assert writer.close()
    row = json.loads(path.read_bytes())
    assert (row["seq"], row["prev"], writer.next_seq) == (7, "ab", 8)


def test_work_is_done_on_the_writer_thread(tmp_path, notes, record):
    """A callable runs on the thread and may give a line, many, or none."""
    path = tmp_path / "raw.jsonl"
    threads = set()

    def make(result):
        def work():
            threads.add(threading.current_thread().name)
            return result

        return work

    writer = notes.writer(Sink("raw", path, 10, chained=True))
    writer.start()
    for result in (record(), [record(), record()], None, []):
        writer.put("raw", make(result))
    assert writer.flush()
    assert writer.counts()["raw"] == SinkCounts(created=3, written=3)
    assert threads == {"otel-grpo-writer"}
    assert writer.close()
    assert [json.loads(line)["seq"] for line in lines(path)] == [0, 1, 2]


def test_slow_records_do_not_starve_spans(tmp_path):
    """Twelve spans that come while three records are built fit a bound of eight."""

    def build():
        for _ in range(4):
            writer.put("spans", 1)

    writer = Writer(
        [
            Sink("raw", tmp_path / "raw", 10),
            Sink("spans", tmp_path / "spans", 8, encode=count_lines),
        ]
    )
    for _ in range(3):
        writer.put("raw", build)
    writer.start()
    assert writer.flush()
    assert writer.counts()["spans"] == SinkCounts(created=12, written=12)
    assert writer.close()


def test_plain_items_keep_their_order(tmp_path, notes):
    """Items of all plain sinks and calls are worked off in the order of the put calls."""
    order = []
    writer = notes.writer(Sink("a", tmp_path / "a", 100), Sink("b", tmp_path / "b", 100))
    for n in range(20):
        writer.put("ab"[n % 2], lambda n=n: order.append(n))
        writer.call(lambda n=n: order.append(n + 0.5))
    writer.start()
    assert writer.close()
    assert order == [n / 2 for n in range(40)]


def test_error_in_work_is_counted_and_leaves_a_gap(tmp_path, notes, record):
    """A record that can't be made is dropped with its place, and its seq is missing."""
    path = tmp_path / "raw.jsonl"
    writer = notes.writer(Sink("raw", path, 10, chained=True))
    writer.put("raw", record())
    writer.put("raw", lambda: 1 / 0)
    writer.put("raw", record(scalars={"x": object()}))
    writer.put("raw", record())
    writer.start()
    assert writer.close()
    assert [json.loads(line)["seq"] for line in lines(path)] == [0, 3]
    assert [place for place, _ in notes.errors] == ["writer.raw"] * 2
    assert writer.counts()["raw"] == SinkCounts(4, 2, 2, 0, {"error": 2})
    assert notes.warnings == []


def test_full_queue_drops_and_leaves_a_gap(tmp_path, notes, record):
    """What comes on top of the bound is dropped, counted, warned of once, and missing in seq."""
    path = tmp_path / "raw.jsonl"
    writer = notes.writer(Sink("raw", path, 3, chained=True))
    assert [writer.put("raw", record()) for _ in range(5)] == [True] * 3 + [False] * 2
    assert writer.counts()["raw"] == SinkCounts(5, 0, 2, 3, {"queue_full": 2})
    writer.start()
    assert writer.flush()
    assert writer.put("raw", record())
    assert writer.close()
    assert [json.loads(line)["seq"] for line in lines(path)] == [0, 1, 2, 5]
    assert writer.counts()["raw"] == SinkCounts(6, 4, 2, 0, {"queue_full": 2})
    assert [warning[:2] for warning in notes.warnings] == [("raw", "queue_full")]


def test_held_item_is_taken_over_the_bound(tmp_path, record):
    """What stood in memory anyway is not dropped for want of room; a closed writer takes nothing."""
    path = tmp_path / "raw.jsonl"
    writer = Writer([Sink("raw", path, 2, chained=True), Sink.nowhere("lost", "EACCES")])
    assert [writer.put("raw", record(), held=n > 1) for n in range(5)] == [True] * 5
    assert not writer.put("raw", record())
    assert not writer.put("lost", record(), held=True)
    writer.start()
    assert writer.close()
    assert not writer.put("raw", record(), held=True)
    assert len(lines(path)) == 5
    assert writer.counts()["raw"] == SinkCounts(7, 5, 2, 0, {"queue_full": 1, "closed": 1})


def test_batched_items_share_lines(tmp_path):
    """Spans are collected: many items on one line, in order, none lost."""
    path = tmp_path / "spans.jsonl"
    writer = Writer([Sink("spans", path, 10_000, encode=count_lines)])
    for n in range(2 * BATCH + 5):
        writer.put("spans", n)
    writer.start()
    assert writer.close()
    batches = [json.loads(line) for line in lines(path)]
    assert [len(batch) for batch in batches] == [BATCH, BATCH, 5]
    assert [item for batch in batches for item in batch] == list(range(2 * BATCH + 5))


def test_batched_items_are_written_without_a_flush(tmp_path):
    """A few spans don't wait for many more: they are written after a moment by themselves."""
    written = threading.Event()

    def encode(items):
        written.set()
        return count_lines(items)

    writer = Writer([Sink("spans", tmp_path / "spans", 10_000, encode=encode)])
    writer.start()
    writer.put("spans", 1)
    assert written.wait(30)
    assert writer.close()


def test_batch_has_room_below_half_of_its_bound(tmp_path):
    """What is left there without a call is written and counted; what would be too much is put."""
    writer = Writer([Sink("spans", tmp_path / "spans.jsonl", bound=8, encode=count_lines)])
    batch = writer.batch("spans")
    taken = 0
    while len(batch) < batch.room:
        batch.append(taken)
        taken += 1
    assert taken == 3  # the fourth is half of the bound: it rings
    assert writer.counts()["spans"] == SinkCounts(created=3, written=0, dropped=0, pending=3)
    assert [writer.put("spans", item) for item in range(3, 9)] == [True] * 5 + [False]
    writer.start()
    assert writer.close()
    assert batch.room == 0
    assert lines(tmp_path / "spans.jsonl") == [b"[0,1,2,3,4,5,6,7]"]
    counts = SinkCounts(9, 8, 1, 0, {"queue_full": 1})
    assert writer.counts()["spans"] == counts


def test_sink_without_a_batch_gives_no_room(tmp_path):
    """Nothing is left where nobody would take it."""
    writer = Writer([Sink.nowhere("spans", "no_directory")])
    assert writer.batch("spans").room == 0


def test_counts_agree_while_a_batch_grows(tmp_path):
    """Each look at the batch finds one item more than the last one: created is pending all the same."""

    class Growing(Batch):
        __slots__ = ()

        def __len__(self):
            self.append("more")
            return super().__len__()

    writer = Writer([Sink("spans", tmp_path / "spans.jsonl", bound=8, encode=count_lines)])
    batch = writer._states["spans"].batch = Growing(3)
    batch.append("first")
    counts = writer.counts()["spans"]
    assert counts.created == counts.pending > 1


def test_batch_of_a_sink_that_gets_no_file_has_no_room(notes):
    """What stands there is lost for the sink's reason, no fault of ours, and no more is taken."""
    writer = notes.writer(Sink("spans", None, bound=8, encode=count_lines))
    batch = writer.batch("spans")
    batch.append("before")
    writer.call(lambda: writer.replace(Sink.nowhere("spans", "ENOENT")))
    writer.start()
    assert writer.flush()
    assert batch.room == 0
    batch.append("of a thread that had seen room")
    assert not writer.put("spans", "after")
    assert writer.close()
    assert writer.counts()["spans"] == SinkCounts(3, 0, 3, 0, {"ENOENT": 3})
    assert notes.errors == []


def test_items_that_may_wait_ring_at_half_of_their_bound(tmp_path):
    """A flood of them is no reason to lose the later ones."""
    writer = Writer([Sink("flat", tmp_path / "flat.jsonl", bound=8)])
    rings = []
    writer._ring = lambda: rings.append(writer.counts()["flat"].pending)
    for _ in range(4):
        writer.put("flat", b"1", soon=False)
    assert rings == [4]


def test_item_that_may_wait_wakes_nobody(tmp_path):
    """It is written with the next one that is due, before it."""
    writer = Writer([Sink("flat", tmp_path / "flat.jsonl", bound=8)])
    rings = []
    writer._ring = lambda: rings.append(1)
    writer.put("flat", b"1", soon=False)
    assert not rings
    writer.put("flat", b"2")
    assert rings == [1]
    writer.start()
    assert writer.flush()
    assert lines(tmp_path / "flat.jsonl") == [b"1", b"2"]
    writer.close()


def test_items_wait_for_others(tmp_path):
    """With a lull nothing is written at once, all of it in the order given, and none is lost."""
    path = tmp_path / "workers.jsonl"
    writer = Writer([Sink("workers", path, 9)], lull_s=0.5)
    writer.start()
    for number in range(3):
        writer.put("workers", b"%d" % number)
    assert not path.exists()
    assert writer.flush()
    assert lines(path) == [b"0", b"1", b"2"]
    writer.put("workers", b"3")
    assert writer.close()
    assert lines(path)[-1] == b"3"


def test_one_bad_item_costs_no_other(tmp_path, notes):
    """When a batch can't be encoded, only the items at fault are lost."""
    path = tmp_path / "spans.jsonl"
    writer = notes.writer(Sink("spans", path, 100, encode=count_lines))
    for item in (1, object(), 3):
        writer.put("spans", item)
    writer.start()
    assert writer.close()
    assert [json.loads(line) for line in lines(path)] == [[1], [3]]
    assert writer.counts()["spans"] == SinkCounts(3, 2, 1, 0, {"error": 1})
    assert [place for place, _ in notes.errors] == ["writer.spans"]


def test_line_with_a_line_end_is_refused(tmp_path, notes):
    """A line is a line: one that would become two is an error."""
    writer = notes.writer(Sink("flat", tmp_path / "flat", 10))
    writer.put("flat", b'{"a":\n1}')
    writer.put("flat", b'{"a":1}')
    writer.start()
    assert writer.close()
    assert lines(tmp_path / "flat") == [b'{"a":1}']
    assert writer.counts()["flat"] == SinkCounts(2, 1, 1, 0, {"error": 1})


def test_huge_line(tmp_path, record):
    """A line of many megabytes is one whole line."""
    path = tmp_path / "raw.jsonl"
    writer = Writer([Sink("raw", path, 10, chained=True)])
    writer.start()
    writer.put("raw", record(scalars={"x" * 20_000_000: 1}))
    writer.put("raw", record())
    assert writer.close()
    first, second = lines(path)
    assert len(first) > 20_000_000
    assert json.loads(second)["prev"] == hashlib.sha256(first).hexdigest()


def test_files_are_owner_only_and_lazy(tmp_path):
    """A file appears with its first line, readable by its owner alone, whatever the umask."""
    old = os.umask(0)
    try:
        writer = Writer([Sink("a", tmp_path / "a", 10), Sink("b", tmp_path / "b", 10)])
        writer.start()
        writer.put("a", b"{}")
        assert writer.close()
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o600
    assert not (tmp_path / "b").exists()


def test_file_of_another_is_left_alone(tmp_path, notes):
    """A sink that may only make a new file drops its lines where one exists."""
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b"theirs")
    writer = notes.writer(Sink("metrics", path, 10, new_only=True))
    writer.start()
    writer.put("metrics", b"{}")
    writer.put("metrics", b"{}")
    assert writer.close()
    assert path.read_bytes() == b"theirs"
    assert writer.counts()["metrics"] == SinkCounts(2, 0, 2, 0, {"not_ours": 2})
    assert [warning[:2] for warning in notes.warnings] == [("metrics", "not_ours")]


def test_torn_end_is_closed_not_truncated(tmp_path):
    """The first line of a new attempt starts on a line of its own."""
    path = tmp_path / "workers.jsonl"
    path.write_bytes(b'{"a":1}\n{"b')
    writer = Writer([Sink("workers", path, 10)])
    writer.start()
    writer.put("workers", WindowOpened("run", 2, 1, 0))
    assert writer.close()
    assert lines(path)[:2] == [b'{"a":1}', b'{"b']
    assert json.loads(lines(path)[2])["kind"] == "window_opened"


def test_no_directory_counts_everything(notes, record):
    """Without a directory each item is dropped for the reason of that, and nothing breaks."""
    writer = notes.writer(Sink.nowhere("raw", "EACCES"))
    writer.start()
    assert not writer.put("raw", record())
    assert writer.close()
    assert writer.counts()["raw"] == SinkCounts(1, 0, 1, 0, {"EACCES": 1})


def test_closed_writer_drops(tmp_path):
    """After the end every item is dropped and counted; closing twice is harmless."""
    writer = Writer([Sink("a", tmp_path / "a", 10)])
    writer.start()
    assert writer.close()
    assert not writer.put("a", b"{}")
    assert not writer.call(lambda: None)
    assert writer.close()
    assert writer.counts()["a"] == SinkCounts(1, 0, 1, 0, {"closed": 1})


def test_work_during_close_may_put(tmp_path):
    """The last work may still hand lines over: they belong to the run."""
    path = tmp_path / "a"
    writer = Writer([Sink("a", path, 10)])
    gate = threading.Event()

    def last_work():
        gate.wait(30)
        writer.put("a", b'"from work"')

    writer.start()
    writer.call(last_work)
    threading.Timer(0.05, gate.set).start()
    assert writer.close()
    assert lines(path) == [b'"from work"']


def test_hanging_file_system_blocks_nobody(tmp_path, notes, hold):
    """The training thread goes on while the writer hangs; close gives up and says what is pending."""
    writer = notes.writer(Sink("a", tmp_path / "a", 50))
    writer.start()
    entered = threading.Event()

    def hang():
        entered.set()
        hold.wait(60)

    writer.put("a", hang)
    assert entered.wait(30)
    taken = [writer.put("a", b"{}") for _ in range(100)]
    assert sum(taken) == 49
    assert not writer.flush(timeout=0.05)
    assert not writer.close(stall=0.1)
    assert writer.counts()["a"] == SinkCounts(101, 0, 51, 50, {"queue_full": 51})


def test_pipe_that_nobody_reads(tmp_path):
    """A write that never returns costs lines, not time of the training thread."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    writer = Writer([Sink("a", path, 10)])
    writer.start()
    line = b"x" * 10_000
    for _ in range(10):
        writer.put("a", line)
    assert not writer.close(stall=0.2)
    counts = writer.counts()["a"]
    assert counts.created == 10
    assert 0 < counts.written < 10
    assert counts.written + counts.pending == 10
    received = b""
    while not writer.close(stall=0.05):
        received += os.read(reader, 1 << 16)
    received += os.read(reader, 1 << 20)
    os.close(reader)
    assert received == (line + b"\n") * 10
    assert writer.counts()["a"] == SinkCounts(10, 10)


def test_tick_is_called_and_its_errors_counted(tmp_path, notes):
    """The running summary is written from time to time; a fault in it ends nothing."""
    ticked = threading.Event()

    def tick():
        ticked.set()
        raise RuntimeError("no summary")

    writer = notes.writer(Sink("a", tmp_path / "a", 10), tick=tick, tick_s=0.01)
    writer.start()
    assert ticked.wait(30)
    writer.put("a", b"{}")
    assert writer.close()
    assert set(notes.errors) == {("writer.tick", "no summary")}
    assert writer.counts()["a"].written == 1


def test_faulty_callbacks_lose_no_line(tmp_path):
    """Whatever the callbacks raise, the lines are written."""

    def fail(*_):
        raise SystemExit

    writer = Writer([Sink("a", tmp_path / "a", 10)], on_error=fail, after_write=fail)
    writer.start()
    writer.put("a", WindowOpened("run", 1, 1, 0))
    writer.put("a", fail)
    writer.put("a", WindowOpened("run", 1, 2, 0))
    assert writer.close()
    assert len(lines(tmp_path / "a")) == 2
    assert writer.counts()["a"] == SinkCounts(3, 2, 1, 0, {"error": 1})


def test_put_from_a_finalizer_inside_the_lock(tmp_path):
    """The garbage collector may end a span while this thread is inside `put`: no deadlock."""
    writer = Writer([Sink("a", tmp_path / "a", 10)])
    with writer._lock:
        assert writer.put("a", b"{}")
    writer.start()
    assert writer.close()
    assert writer.counts()["a"] == SinkCounts(1, 1)


def test_closed_writer_is_collected(tmp_path):
    """Nothing keeps a closed writer alive, the fork hook included."""
    writer = Writer([Sink("a", tmp_path / "a", 10)])
    writer.start()
    assert writer.close()
    writer._thread.join()
    gone = weakref.ref(writer)
    del writer
    gc.collect()
    assert gone() is None


def test_counts_are_exact_from_many_threads(tmp_path):
    """100,000 items from four threads with drops: each is counted once, in one place."""
    writer = Writer(
        [
            Sink("spans", tmp_path / "spans", 2_000, encode=count_lines),
            Sink("a", tmp_path / "a", 50),
        ]
    )
    writer.start()
    taken = []

    def feed():
        spans = sum(writer.put("spans", 1) for _ in range(24_000))
        taken.append((spans, sum(writer.put("a", b"{}") for _ in range(1_000))))

    threads = [threading.Thread(target=feed) for _ in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        for counts in writer.counts().values():
            assert counts.created == counts.written + counts.dropped + counts.pending
        threads[0].join(0.001)
    for thread in threads:
        thread.join()
    assert writer.close()
    spans, plain = writer.counts()["spans"], writer.counts()["a"]
    assert (spans.created, plain.created) == (96_000, 4_000)
    assert spans.written == sum(len(json.loads(line)) for line in lines(tmp_path / "spans"))
    assert spans.written == sum(spans for spans, _ in taken)
    assert plain.written == len(lines(tmp_path / "a")) == sum(plain for _, plain in taken)
    assert spans.dropped == spans.reasons.get("queue_full", 0) == 96_000 - spans.written
    assert plain.dropped == plain.reasons.get("queue_full", 0) == 4_000 - plain.written


STEPS = st.lists(
    st.sampled_from(["line", "many", "none", "fail", "bad", "span", "bad span", "open", "flush"]),
    max_size=40,
)


@settings(max_examples=60, deadline=None)
@given(steps=STEPS)
def test_counts_add_up_at_every_step(tmp_path_factory, steps):
    """Always created = written + dropped + pending, whatever happens in whatever order."""
    folder = tmp_path_factory.mktemp("counts")
    writer = Writer(
        [Sink("a", folder / "a", 5), Sink("spans", folder / "spans", 4, encode=count_lines)]
    )
    gate = threading.Event()
    writer.put("a", lambda: [b"{}"] if gate.wait(60) else None)
    writer.start()

    def fail():
        raise ValueError

    puts = {
        "line": ("a", b"{}"),
        "many": ("a", lambda: [b"{}", b"{}", b"\n"]),
        "none": ("a", lambda: None),
        "fail": ("a", fail),
        "bad": ("a", b"\n"),
        "span": ("spans", 1),
        "bad span": ("spans", object()),
    }
    made = {"a": [1, 1, 0], "spans": [0, 0, 0]}  # created, written, dropped by the model
    results = {
        "line": (1, 1, 0), "many": (3, 2, 1), "none": (0, 0, 0), "fail": (1, 0, 1),
        "bad": (1, 0, 1), "span": (1, 1, 0), "bad span": (1, 0, 1),
    }  # fmt: skip
    for step in steps:
        if step == "open":
            gate.set()
        elif step == "flush":
            assert writer.flush(timeout=None if gate.is_set() else 0) in (True, gate.is_set())
        else:
            name, item = puts[step]
            result = results[step] if writer.put(name, item) else (1, 0, 1)
            made[name] = [a + b for a, b in zip(made[name], result, strict=True)]
        for counts in writer.counts().values():
            assert counts.created == counts.written + counts.dropped + counts.pending
            assert counts.dropped == sum(counts.reasons.values())
            assert min(counts.created, counts.written, counts.dropped, counts.pending) >= 0
    gate.set()
    assert writer.close()
    for name, counts in writer.counts().items():
        assert [counts.created, counts.written, counts.dropped] == made[name]
        assert counts.pending == 0
