"""The ledger's laws: random schedules of a training loop against sets, lists and counters.

The model keeps one entry per sample and per visit, as ``(rollout_id, index)``; the ledger keeps
runs and arrays.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, event, given, settings, strategies as st

from otel_grpo.core import ledger as ledger_module
from otel_grpo.core.ledger import (
    Batch,
    Ledger,
    RolloutId,
    Run,
    Samples,
    TrainedLengths,
    UnreadBatch,
    UpdateEvent,
    Visit,
    WindowCounts,
    WindowEvents,
    merge_runs,
    resolve,
    visit_runs,
)

# a busy machine is no fault of the test
SLOW = [HealthCheck.too_slow]
settings_ = settings(max_examples=200, deadline=None, suppress_health_check=SLOW)

Sample = tuple[RolloutId, int]

# 7 and "7" are two rollouts.
ROLLOUTS: tuple[RolloutId, ...] = ("a", "b", 7, "7")
# Rollouts whose trainer tells the tokens under the loss mask.
TOLD: tuple[RolloutId, ...] = ("a", 7)


# --- the model ------------------------------------------------------------------------------------


def length(sample: Sample) -> int:
    """Some length that differs from sample to sample."""
    rollout_id, index = sample
    return 100 * ROLLOUTS.index(rollout_id) + 3 * index


def ids(rollout_id: RolloutId, indices: Iterable[int]) -> list[Sample]:
    return [(rollout_id, int(index)) for index in indices]


def expand(runs: Iterable[Run]) -> list[Sample]:
    return [s for rollout_id, first, n in runs for s in ids(rollout_id, range(first, first + n))]


def visited(visits: Iterable[Visit]) -> list[Sample]:
    return [s for visit in visits for s in ids(visit.rollout_id, visit.indices)]


def tokens_of(samples: Iterable[Sample], consumed: set[Sample]) -> int | None:
    """Tokens of one pass over samples: not known as soon as one is not known."""
    samples = list(samples)
    if any(s not in consumed or s[0] not in TOLD for s in samples):
        return None
    return sum(map(length, samples))


@dataclass
class Model:
    """The account of a run by plain enumeration."""

    ever: set[Sample] = field(default_factory=set)
    waiting: list[Sample] = field(default_factory=list)
    applied: int = 0
    # of the open window
    consumed: list[Sample] = field(default_factory=list)
    truncated: list[bool | None] = field(default_factory=list)
    with_prompts: list[bool] = field(default_factory=list)
    visits: list[Sample] = field(default_factory=list)
    updates: list[UpdateEvent] = field(default_factory=list)

    def consume(self, batch: Batch, *, prompts: bool, cut: set[int] | None) -> int:
        fresh = [s for s in ids_of(batch) if s not in self.ever]
        self.ever.update(fresh)
        self.consumed += fresh
        self.with_prompts += [prompts] * len(fresh)
        self.truncated += [None if cut is None else s[1] - batch.first in cut for s in fresh]
        return len(fresh)


def ids_of(batch: Batch) -> list[Sample]:
    return ids(batch.rollout_id, range(batch.first, batch.first + batch.n))


def make_batch(
    rollout_id: RolloutId, first: int, n: int, *, prompts: bool = False, cut: set[int] | None = None
) -> Batch:
    samples = ids(rollout_id, range(first, first + n))
    column = np.array([length(s) for s in samples], dtype=np.int64)
    columns = {"completion_lengths": column + 1}
    if rollout_id in TOLD:
        columns["trained_lengths"] = column
    if prompts:
        columns["prompt_lengths"] = column + 2
    truncated = None if cut is None else np.array(sorted(cut), dtype=np.int64)
    return Batch(rollout_id, first, n, columns, truncated)


def make_visit(rollout_id: RolloutId, indices: Iterable[int]) -> Visit:
    if isinstance(indices, range):  # a slice of a batch stays one
        return Visit(rollout_id, indices)
    return Visit(rollout_id, np.array(list(indices), dtype=np.int64))


# --- random schedules -----------------------------------------------------------------------------

rollouts = st.sampled_from(ROLLOUTS)
consume = st.tuples(
    st.just("consume"),
    rollouts,
    st.integers(0, 12),  # first index
    st.integers(1, 8),  # samples
    st.booleans(),  # prompt lengths told
    st.one_of(st.none(), st.sets(st.integers(0, 7))),  # positions that were cut off
)
# Slices that follow each other, overlap or are empty, backwards and with steps too.
slices = st.builds(
    lambda start, stop, step: range(21)[start:stop:step],
    st.integers(0, 20), st.integers(0, 21), st.sampled_from([1, 1, 1, 2, -1]),
)  # fmt: skip
micro_batches = st.builds(
    lambda start, n, size: [range(i, min(i + size, 21)) for i in range(start, start + n, size)],
    st.integers(0, 12), st.integers(1, 8), st.integers(1, 8),
)  # fmt: skip
indices = st.one_of(st.lists(st.integers(0, 20), min_size=1, max_size=8), slices)
several = st.one_of(
    st.lists(st.tuples(rollouts, indices), min_size=1, max_size=3),
    st.tuples(rollouts, micro_batches).map(lambda pair: [(pair[0], part) for part in pair[1]]),
)
visit = st.tuples(st.just("visit"), several)
update = st.tuples(
    st.just("update"),
    st.one_of(st.none(), st.integers(0, 30)),  # samples: all that wait, or this many at most
    st.one_of(st.none(), st.integers(0, 12)),  # nominal
    st.sampled_from(["applied", "skipped", "failed", "unconfirmed"]),
)
schedules = st.lists(
    st.one_of(consume, consume, visit, visit, update, st.tuples(st.just("close"))), max_size=30
)


def check_window(events: WindowEvents, counts: WindowCounts, model: Model) -> None:
    """The evidence of one window equals the model's."""
    mine = set(model.consumed)
    # unique: each sample once, in the order consumed; runs as long as they can be
    assert expand(counts.samples) == model.consumed
    assert counts.samples == merge_runs(counts.samples)
    # visits of this window's samples, and of others
    times = Counter(model.visits)
    assert counts.visit_counts.tolist() == [times[s] for s in model.consumed]
    earlier: Counter[Sample] = Counter()
    for rollout_id, first, n, each, tokens in counts.revisited:
        row = ids(rollout_id, range(first, first + n))
        assert each > 0
        assert not earlier.keys() & set(row), "a sample stands in two rows"
        earlier.update(dict.fromkeys(row, each))
        assert tokens == tokens_of(row, model.ever)
    assert earlier == Counter({s: n for s, n in times.items() if s not in mine})
    # columns: those that every consumed sample has, one value each
    expected = {}
    if model.consumed:
        expected["completion_lengths"] = [length(s) + 1 for s in model.consumed]
        if all(s[0] in TOLD for s in model.consumed):
            expected["trained_lengths"] = [length(s) for s in model.consumed]
        if all(model.with_prompts):
            expected["prompt_lengths"] = [length(s) + 2 for s in model.consumed]
    assert {name: column.tolist() for name, column in counts.columns.items()} == expected
    if not model.consumed or None in model.truncated:
        assert counts.truncated is None
    else:
        assert counts.truncated == [i for i, cut in enumerate(model.truncated) if cut]
    # pending, updates
    assert events.pending == len(model.waiting)
    assert events.updates == model.updates
    for discarded in (False, True):
        partial = (
            any(
                u.status == "applied" and u.nominal is not None and u.samples < u.nominal
                for u in model.updates
            )
            or any(times[s] == 0 for s in model.consumed)
            or (discarded and not model.consumed)
        )
        status = counts.status(events.updates, discarded=discarded)
        assert status == ("partial" if partial else "complete")


@settings_
@given(schedules)
def test_schedules(schedule: list[tuple[Any, ...]]) -> None:
    """Whatever a loop reports, in whatever order, each sample and each visit is accounted once."""
    ledger, model = Ledger(), Model()
    pending_before = fresh = all_visits = all_taken = revisits = 0
    for now, (what, *details) in enumerate([*schedule, ("close",)]):
        if what == "consume":
            rollout_id, first, n, prompts, cut = details
            cut = None if cut is None else {i for i in cut if i < n}
            batch = make_batch(rollout_id, first, n, prompts=prompts, cut=cut)
            new = ledger.consume(batch)
            assert new == model.consume(batch, prompts=prompts, cut=cut)
            fresh += new
        elif what == "visit":
            visits = [make_visit(*pair) for pair in details[0]]
            ledger.visit(visits)
            model.visits += visited(visits)
            model.waiting += visited(visits)
        elif what == "update":
            samples, nominal, status = details
            samples = None if samples is None else min(samples, len(model.waiting))
            taken = ledger.take(samples)
            # the oldest visits first, in order
            count = len(model.waiting) if samples is None else samples
            assert visited(taken) == model.waiting[:count]
            assert ledger.trained.total(taken) == tokens_of(visited(taken), model.ever)
            del model.waiting[:count]
            made = ledger.update(now, now + 1, count, nominal, status, "why", (3,))
            # only what is applied advances the step
            model.applied += status == "applied"
            expected = UpdateEvent(model.applied, now, now + 1, count, nominal, status, "why", (3,))
            assert made == expected
            model.updates.append(expected)
        else:
            events = ledger.close()
            counts = resolve(events, ledger.trained)
            check_window(events, counts, model)
            # the level goes on: what was pending, plus the visits, less what updates took
            in_window = int(counts.visit_counts.sum())
            again = sum(n * each for _, _, n, each, _ in counts.revisited)
            taken_now = sum(u.samples for u in events.updates)
            assert in_window + again == len(model.visits)
            assert events.pending == pending_before + in_window + again - taken_now
            pending_before = events.pending
            all_visits += in_window + again
            all_taken += taken_now
            revisits += again
            model.consumed, model.truncated, model.with_prompts = [], [], []
            model.visits, model.updates = [], []
    # over the run: unique samples once, each visit either taken by one attempt or still waiting
    assert fresh == len(model.ever)
    assert all_visits == all_taken + ledger.pending
    assert ledger.applied == model.applied
    event(f"revisits: {revisits > 0}, pending: {ledger.pending > 0}")


@settings_
@given(st.lists(st.tuples(rollouts, st.integers(0, 20), st.integers(1, 5)), max_size=12))
def test_merge_runs(runs: list[Run]) -> None:
    """Merged runs are the same samples in the same order, and no two neighbours could be one."""
    merged = merge_runs(runs)
    assert expand(merged) == expand(runs)
    for (left, first, n), (right, start, _) in itertools.pairwise(merged):
        assert left != right or first + n != start
    assert merge_runs(iter(runs)) == merged


@settings(settings_, max_examples=60)
@given(st.one_of(several, st.lists(st.tuples(rollouts, indices), max_size=8)))
def test_visit_runs(pairs: list[tuple[RolloutId, Iterable[int]]]) -> None:
    """No visit is lost or merged with another one of the same sample."""
    visits = [make_visit(*pair) for pair in pairs]
    runs = visit_runs(visits)
    assert Counter(expand(runs)) == Counter(visited(visits))
    assert all(n > 0 for _, _, n in runs)


# --- by hand --------------------------------------------------------------------------------------


def window_of(ledger: Ledger) -> tuple[WindowEvents, WindowCounts]:
    events = ledger.close()
    return events, resolve(events, ledger.trained)


def attempt(ledger: Ledger, samples: int, nominal: int | None, status: str) -> UpdateEvent:
    ledger.take(samples)
    return ledger.update(0, 1, samples, nominal, status)


def test_tail_is_partial() -> None:
    """Ten samples in updates of four: the last one is applied with two, so the window is partial."""
    ledger = Ledger()
    assert ledger.consume(make_batch("a", 0, 10)) == 10
    for first in (0, 4, 8):
        part = range(first, min(first + 4, 10))
        ledger.visit([make_visit("a", part)])
        attempt(ledger, len(part), 4, "applied")
    events, counts = window_of(ledger)
    assert [u.samples for u in events.updates] == [4, 4, 2]
    assert [u.step for u in events.updates] == [1, 2, 3]
    assert counts.visit_counts.tolist() == [1] * 10
    assert counts.status(events.updates, discarded=False) == "partial"
    assert counts.status(events.updates[:2], discarded=False) == "complete"


def test_skipped_tail_is_no_partial_update() -> None:
    """A short update that was not applied says nothing about the window."""
    ledger = Ledger()
    ledger.consume(make_batch("a", 0, 2))
    ledger.visit([make_visit("a", range(2))])
    attempt(ledger, 2, 4, "skipped")
    events, counts = window_of(ledger)
    assert counts.status(events.updates, discarded=False) == "complete"


def test_unvisited_sample_is_partial() -> None:
    """A consumed sample that no pass saw belongs to a dropped tail."""
    ledger = Ledger()
    ledger.consume(make_batch("a", 0, 3))
    ledger.visit([make_visit("a", [0, 2])])
    events, counts = window_of(ledger)
    assert counts.visit_counts.tolist() == [1, 0, 1]
    assert counts.status(events.updates, discarded=False) == "partial"


def test_dropped_batch_is_partial() -> None:
    """A batch that was generated and thrown away as a whole."""
    events, counts = window_of(Ledger())
    assert counts.status(events.updates, discarded=True) == "partial"
    assert counts.status(events.updates, discarded=False) == "complete"


def test_failed_and_skipped_updates_use_up_their_visits() -> None:
    """An attempt takes its visits whatever comes of it; only applied ones advance the step."""
    ledger = Ledger()
    ledger.consume(make_batch("a", 0, 4))
    steps = []
    for status in ("applied", "skipped", "failed", "unconfirmed", "applied"):
        ledger.visit([make_visit("a", range(4))])
        steps.append(attempt(ledger, 4, 4, status).step)
        assert ledger.pending == 0
    assert steps == [1, 1, 1, 1, 2]
    _, counts = window_of(ledger)
    assert counts.visit_counts.tolist() == [5] * 4


def test_pending_goes_on_over_windows() -> None:
    """An update made of two windows' samples belongs to the window in which it is applied."""
    ledger = Ledger()
    ledger.consume(make_batch("a", 0, 4))
    ledger.visit([make_visit("a", range(4))])
    events, _ = window_of(ledger)
    assert (events.pending, events.updates) == (4, [])
    ledger.consume(make_batch("b", 0, 4))
    ledger.visit([make_visit("b", range(4))])
    attempt(ledger, 8, 8, "applied")
    events, counts = window_of(ledger)
    assert (events.pending, events.updates[0].samples) == (0, 8)
    assert counts.visit_counts.tolist() == [1] * 4
    assert counts.revisited == []


def test_revisited_samples_of_an_earlier_window() -> None:
    """Visits of samples consumed before are a matter of this window, with their tokens."""
    ledger = Ledger()
    ledger.consume(make_batch("a", 0, 4))
    ledger.visit([make_visit("a", range(4))])
    window_of(ledger)
    ledger.consume(make_batch("a", 4, 2))
    ledger.visit([make_visit("a", [4, 5, 0, 1, 3, 3])])
    _, counts = window_of(ledger)
    assert counts.samples == [("a", 4, 2)]
    assert counts.visit_counts.tolist() == [1, 1]
    # lengths of a: 0, 3, 6, 9
    assert counts.revisited == [("a", 0, 2, 1, 3), ("a", 3, 1, 2, 9)]


def test_replayed_sample_is_not_consumed_again() -> None:
    """A sample that comes again keeps its first account: unique samples stay unique."""
    ledger = Ledger()
    assert ledger.consume(make_batch("a", 0, 4)) == 4
    assert ledger.consume(make_batch("a", 2, 4)) == 2
    window_of(ledger)
    assert ledger.consume(make_batch("a", 0, 6)) == 0
    ledger.visit([make_visit("a", [0])])
    _, counts = window_of(ledger)
    assert counts.samples == []
    assert counts.revisited == [("a", 0, 1, 1, 0)]


def test_replay_keeps_the_first_account() -> None:
    """Lengths that come with a replay change nothing; those of its new samples count."""
    ledger = Ledger()
    ledger.consume(make_batch("a", 0, 4))
    window_of(ledger)
    other = np.full(4, 1000, dtype=np.int64)
    assert ledger.consume(Batch("a", 2, 4, {"trained_lengths": other}, None)) == 2
    ledger.visit([make_visit("a", range(6))])
    _, counts = window_of(ledger)
    assert counts.columns["trained_lengths"].tolist() == [1000, 1000]
    assert counts.revisited == [("a", 0, 4, 1, 0 + 3 + 6 + 9)]


def test_unknown_tokens_do_not_spoil_those_of_neighbours() -> None:
    """Samples 4 and 5 were never consumed: their row has no tokens, the row before has its own."""
    ledger = Ledger()
    ledger.consume(make_batch("a", 0, 4))
    window_of(ledger)
    ledger.visit([make_visit("a", range(6))])
    _, counts = window_of(ledger)
    assert counts.revisited == [("a", 0, 4, 1, 18), ("a", 4, 2, 1, None)]


def test_take_refuses_what_is_not_there() -> None:
    """An update is made of visits that happened."""
    ledger = Ledger()
    ledger.visit([make_visit("a", range(3))])
    for samples in (4, -1):
        with pytest.raises(ValueError, match="pending"):
            ledger.take(samples)
    assert ledger.pending == 3
    assert visited(ledger.take(2)) == [("a", 0), ("a", 1)]
    assert visited(ledger.take()) == [("a", 2)]
    assert ledger.take() == []


def test_trained_lengths_are_forgotten_oldest_first() -> None:
    """Beyond the bound the oldest batch is no longer known; a visit of it has no token count."""
    trained = TrainedLengths(bound=8)
    for first in (0, 4, 8):
        trained.remember(make_batch("a", first, 4))
    assert trained.of("a", np.array([9, 3, 4])).tolist() == [27, -1, 12]
    assert trained.of("b", np.array([0])).tolist() == [-1]
    assert trained.total([make_visit("a", [4, 9])]) == 39
    assert trained.total([make_visit("a", [4, 3])]) is None
    assert trained.total([]) == 0


def test_trained_lengths_of_any_size() -> None:
    """Lengths beyond 32 bits are as exact as others, and a sum beyond 64 bits too."""
    ledger = Ledger()
    lengths = np.array([2**32 + 5, 2**31, 2**63 - 1, 2**63 - 1], dtype=np.int64)
    ledger.consume(Batch("a", 0, 4, {"trained_lengths": lengths}, None))
    visits = [make_visit("a", range(2)), make_visit("a", [2, 3])]
    assert ledger.trained.total(visits[:1]) == 2**32 + 5 + 2**31
    assert ledger.trained.total(visits) == 2**32 + 5 + 2**31 + 2**64 - 2
    window_of(ledger)
    ledger.visit(visits)
    _, counts = window_of(ledger)
    assert counts.revisited == [("a", 0, 4, 1, 2**32 + 5 + 2**31 + 2**64 - 2)]


def test_slices_of_a_batch_are_one_run() -> None:
    """Micro-batches that follow each other, empty ones among them, and the same in two halves."""
    ledger = Ledger()
    ledger.consume(make_batch("a", 0, 8))
    parts = [range(2), range(5, 3), range(2, 5), range(5, 8)]
    ledger.visit([make_visit("a", part) for part in parts])
    assert visit_runs(ledger.take(3)) == [("a", 0, 3)]
    assert visit_runs(ledger.take()) == [("a", 3, 5)]
    _, counts = window_of(ledger)
    assert counts.visit_counts.tolist() == [1] * 8


def test_samples_are_ids() -> None:
    """Slices, lists and single positions give ids again."""
    samples = Samples("a", range(10, 18))
    assert list(samples[np.int64(3)]) == list(samples[np.array([3])]) == [("a", 13)]
    assert list(samples[[True, False] * 4]) == list(samples[np.arange(8) % 2 == 0])
    assert list(samples[[True, False] * 4]) == list(samples[::2])
    for nothing in (8, [8, -9], [], None, "x", [1.5]):
        assert list(samples[nothing]) == []
    assert len(samples) == 8
    assert list(samples[:2]) == [("a", 10), ("a", 11)]
    assert list(samples[[3, 1]]) == [("a", 13), ("a", 11)]
    assert list(samples[-1]) == [("a", 17)]
    assert list(samples[2:6][[0, -1]]) == [("a", 12), ("a", 15)]
    assert len(samples[8:]) == 0


def test_visits_that_no_update_takes_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loop that reports no updates keeps counting; only the ids of the oldest are forgotten."""
    monkeypatch.setattr(ledger_module, "WAITING_SAMPLES", 10)
    ledger = Ledger()
    for first in range(0, 28, 4):
        ledger.visit([make_visit("a", range(first, first + 4))])
    assert ledger.pending == 28
    assert sum(len(visit.indices) for visit in ledger._waiting) == 8
    mark = ledger.mark()
    assert ledger.take(5) == []
    assert visit_runs(ledger.take(17)) == [("a", 20, 2)]
    assert ledger.pending == 6
    ledger.back_to(mark)
    assert visit_runs(ledger.take(None)) == [("a", 20, 8)]
    assert (ledger.pending, ledger.take(0)) == (0, [])
    ledger.visit([make_visit("a", [1, 2])])
    assert visit_runs(ledger.take(2)) == [("a", 1, 2)]


def test_rollout_with_holes_costs_no_look_at_all_of_it() -> None:
    """A stream under one id, with samples left out, finds its neighbours without a search of all."""

    class Ranges(list[tuple[int, int]]):
        def __iter__(self) -> Any:
            raise AssertionError("every range is looked at")

    ledger = Ledger()
    ledger._known["a"] = Ranges()
    for first in (9, 0, 18, 4, 27):
        assert ledger.consume(Batch("a", first, 4, {}, None)) == 4
    assert list.__len__(ledger._known["a"]) == 4
    assert ledger.consume(Batch("a", 2, 20, {}, None)) == 6
    assert ledger.consume(Batch("a", 0, 31, {}, None)) == 5
    assert ledger.consume(Batch("a", 0, 31, {}, None)) == 0


def test_unread_batches_count_as_read_ones() -> None:
    """A batch whose columns are read later: its samples at once, its tokens once they are read."""
    eager, lazy, calls = Ledger(), Ledger(), 0

    def read(batch: Batch) -> Batch:
        nonlocal calls
        calls += 1
        return batch

    parts = [make_batch("a", 0, 4), make_batch("a", 2, 4), make_batch("a", 6, 2)]
    unread = [UnreadBatch(b.rollout_id, b.first, b.n, partial(read, b)) for b in parts]
    # the second one has two samples that are known
    assert [eager.consume(b) for b in parts] == [lazy.consume(b) for b in unread] == [4, 2, 2]
    assert [batch.unread for batch in unread] == [True, False, True]  # it was cut
    assert calls == 1
    assert lazy.trained.total([make_visit("a", [0, 1])]) == 0 + 3  # lengths of a: 0, 3, 6, ...
    assert calls == 2
    for ledger in (eager, lazy):
        ledger.visit([make_visit("a", range(8))])
    first, second = window_of(eager)[1], window_of(lazy)[1]
    assert calls == 3
    assert first.columns.keys() == second.columns.keys()
    assert all(np.array_equal(first.columns[name], second.columns[name]) for name in first.columns)
    assert first.samples == second.samples
    assert first.visit_counts.tolist() == second.visit_counts.tolist() == [1] * 8
    assert lazy.trained.total([make_visit("a", range(8))]) == 3 * sum(range(8))


def test_a_batch_that_can_not_be_read_has_its_samples() -> None:
    """They are consumed and visited, their tokens are not known; it is tried once."""
    ledger = Ledger()

    def fails() -> Batch:
        raise TypeError("tensors")

    batch = UnreadBatch("a", 0, 4, fails)
    assert ledger.consume(batch) == 4
    with pytest.raises(TypeError):
        batch.read()
    visits = [make_visit("a", range(4))]
    ledger.visit(visits)
    assert ledger.trained.total(visits) is None
    _, counts = window_of(ledger)
    assert counts.samples == [("a", 0, 4)]
    assert counts.columns == {}
    assert counts.visit_counts.tolist() == [1] * 4
