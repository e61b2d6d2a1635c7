"""Slices keep their instants, and rows are nested right, whatever comes in whatever order."""

from __future__ import annotations

from collections import Counter, defaultdict

from hypothesis import given, strategies as st

from otel_grpo.report.rows import Rows, Slice
from otel_grpo.report.track_events import Trace

INTERVAL = st.tuples(st.integers(0, 12), st.integers(0, 6), st.integers(0, 2))


def drawn(batches, read_trace, open_since=None):
    packets = []
    trace = Trace(packets.append, "test", 0)
    rows = Rows(trace, "row", trace.root, 0)
    for batch in batches:
        for start, length, lane in batch:
            rows.add(Slice(start, start + length, lane, f"{start}+{length}", {"lane": lane}))
        rows.flush(open_since)
    rows.flush()
    return read_trace(b"".join(packets)).slices


@given(st.lists(st.lists(INTERVAL, max_size=12), max_size=3))
def test_nothing_is_lost_or_moved_and_nothing_crosses(read_trace, batches):
    """Every slice has its instants; two on one row lie apart, or one in the other and of one lane."""
    slices = drawn(batches, read_trace)
    given_ = Counter(
        (f"{start}+{length}", start, start + length, lane)
        for batch in batches
        for start, length, lane in batch
    )
    assert Counter((s.name, s.start_ns, s.end_ns, s.args["lane"]) for s in slices) == given_
    by_row = defaultdict(list)
    for each in slices:
        by_row[each.track].append(each)
    for on_row in by_row.values():
        for at, one in enumerate(on_row):
            for other in on_row[at + 1 :]:
                apart = one.end_ns <= other.start_ns or other.end_ns <= one.start_ns
                inner, outer = sorted((one, other), key=lambda s: s.end_ns - s.start_ns)
                inside = outer.start_ns <= inner.start_ns and inner.end_ns <= outer.end_ns
                assert apart or (inside and one.args["lane"] == other.args["lane"])


def test_children_lie_below_their_parents(read_trace):
    """By hand: [0, 10) holds [0, 4) and [4, 10), which holds [4, 5); a second lane has its own row."""
    slices = drawn([[(4, 1, 0), (0, 4, 0), (4, 6, 0), (0, 10, 0), (2, 3, 1)]], read_trace)
    assert [(s.name, s.track, s.depth) for s in sorted(slices)] == [
        ("0+10", "test > row", 0),
        ("0+4", "test > row", 1),
        ("4+1", "test > row", 2),
        ("4+6", "test > row", 1),
        ("2+3", "test > row (2)", 0),
    ]


def test_what_lies_in_an_open_slice_waits_for_it(read_trace):
    """A phase from 0 to 20 ends in the second window; its child of the first one is drawn below it."""
    packets = []
    trace = Trace(packets.append, "test", 0)
    rows = Rows(trace, "row", trace.root, 0)
    rows.add(Slice(5, 8, 0, "child", {}))
    rows.flush({0: 0})
    assert trace.slices == 0
    rows.add(Slice(0, 20, 0, "parent", {}))
    rows.flush()
    slices = read_trace(b"".join(packets)).slices
    assert [(s.name, s.depth) for s in slices] == [("parent", 0), ("child", 1)]


def test_a_thousand_tasks_take_as_many_rows_as_run_at_a_time(read_trace):
    """1,000 lanes of which two overlap at any instant share two rows."""
    slices = drawn([[(2 * n, 3, n) for n in range(1000)]], read_trace)
    assert {s.track for s in slices} == {"test > row", "test > row (2)"}
    assert len(slices) == 1000


def test_values_of_every_kind_come_back(read_trace):
    """Numbers up to 64 bits are exact; larger ones, and text that is no UTF-8, lose no event."""
    packets = []
    trace = Trace(packets.append, "test", 0)
    args = {"t": "ü\udc80", "b": True, "n": -5, "i": 2**63 - 1, "big": 2**70, "f": 0.1}
    trace.instant(trace.root, 1_796_036_080_531_406_838, "mark", args)
    counter = trace.counter("c", trace.root, 0, "token")
    trace.sample(counter, 1, -(2**63))
    trace.sample(counter, 2, 0.25)
    trace.sample(counter, 3, 2**64)
    found = read_trace(b"".join(packets))
    assert found.instants == [
        ("test", "mark", 1_796_036_080_531_406_838, args | {"t": "ü?", "big": float(2**70)})
    ]
    assert found.samples["test > c"] == [(1, -(2**63)), (2, 0.25), (3, float(2**64))]
    assert found.units == {"test > c": "token"}
