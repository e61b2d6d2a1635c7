"""Shares of several ranks against a brute force that keeps a dict by sample id."""

from __future__ import annotations

from collections import Counter
from random import Random

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from msgspec import UNSET

from otel_grpo.core.ledger import Batch, Ledger, Visit, resolve, visit_runs
from otel_grpo.records import build
from otel_grpo.records.merge import Gathered, merge
from otel_grpo.records.model import (
    Contribution,
    Hardware,
    Memory,
    Ranks,
    RolloutAttributes,
    Update,
    Window,
)

GROUP = 3


def length_of(sample, kind):
    """A length that only its sample and its kind decide; a group has one prompt."""
    rollout, index = sample
    if kind == "prompt":
        index //= GROUP
    return 1 + (hash_of(rollout) * 31 + index * 7 + len(kind)) % 50


def hash_of(rollout):
    return sum(str(rollout).encode())


def runs_of(samples):
    """One run for each sample: what any writer may do."""
    return [(rollout, index, 1) for rollout, index in samples]


def ids_in(runs):
    return [(rollout, first + i) for rollout, first, n in runs for i in range(n)]


def share_of(rank, samples, visits, updates, revisited=None, **fields):
    """The share of one rank; ``visits`` counts by sample, ``updates`` are (visits, nominal, status)."""
    earlier = revisited or Counter()
    attributes = RolloutAttributes(
        window=Window(0, 100, "complete", 0),
        intervals=[],
        segments=[],
        ranks=Ranks(1, 1),
        samples=runs_of(samples) or UNSET,
        prompt_lengths=[length_of(s, "prompt") for s in samples] if samples else UNSET,
        completion_lengths=[length_of(s, "completion") for s in samples] if samples else UNSET,
        trained_lengths=[length_of(s, "trained") for s in samples] if samples else UNSET,
        group_ids=[index // GROUP for _, index in samples] if samples else UNSET,
        visit_counts=[visits[s] for s in samples] if samples else UNSET,
        truncated=[i for i, s in enumerate(samples) if s[1] % 4 == 0] if samples else UNSET,
        generated=runs_of(samples) or UNSET,
        revisited=[(r, i, 1, n, length_of((r, i), "trained")) for (r, i), n in earlier.items()],
        pending=visits.total() + earlier.total() - sum(sum(u[0].values()) for u in updates),
        updates=[
            Update(
                sum(u[2] == "applied" for u in updates[: k + 1]),
                10 * k,
                10 * k + 5,
                sum(took.values()),
                nominal,
                status,
                None if status in ("applied", "unconfirmed") else f"{status} by {rank}",
            )
            for k, (took, nominal, status) in enumerate(updates)
        ],
        **fields,
    )
    return Contribution(
        "run",
        1,
        rank,
        7,
        attributes,
        {"generation": 10 + rank},
        [runs_of(took.elements()) for took, _, _ in updates],
        [sum(length_of(s, "trained") * n for s, n in took.items()) for took, _, _ in updates],
    )


STATUSES = ("applied", "applied", "applied", "skipped", "failed", "unconfirmed")


@st.composite
def jobs(draw):
    """Shares of up to five ranks, two of which may hold the same samples; some are missing."""
    world = draw(st.integers(1, 5))
    parallel = draw(st.sampled_from((1, 1, 2)))
    passes = draw(st.sampled_from((1, 2)))
    n_updates = draw(st.integers(0, 3))
    verdicts = [
        draw(st.sampled_from((["applied"] * world, ["skipped"] * world)))
        if draw(st.booleans())
        else [draw(st.sampled_from(STATUSES)) for _ in range(world)]
        for _ in range(n_updates)
    ]
    pool = {"a": 0, 1: 0, "1": 0}
    shares = []
    data = {}
    for rank in range(world):
        if rank // parallel not in data:
            samples = []
            for rollout in draw(st.lists(st.sampled_from(("a", 1, "1")), max_size=3)):
                n = draw(st.integers(1, 5))
                samples += [(rollout, pool[rollout] + i) for i in range(n)]
                pool[rollout] += n + draw(st.integers(0, 2))
            earlier = Counter(
                {("old", 10 * (rank // parallel) + i): 1 for i in range(draw(st.integers(0, 2)))}
            )
            visits = Counter({s: passes for s in samples if draw(st.integers(0, 5))})
            waiting = list((visits + earlier).elements())
            taken = []
            for _ in range(n_updates):
                n = draw(st.integers(0, len(waiting)))
                took, waiting = Counter(waiting[:n]), waiting[n:]
                taken.append((took, draw(st.sampled_from((None, n, n, n + 1)))))
            data[rank // parallel] = samples, visits, earlier, taken
        samples, visits, earlier, taken = data[rank // parallel]
        updates = [(*each, verdicts[k][rank]) for k, each in enumerate(taken)]
        # Of ranks with the same samples only one tells what is no sample.
        shares.append(share_of(rank, samples, visits, updates, earlier))
    missing = [rank for rank in range(1, world) if not draw(st.integers(0, 3))]
    return shares, missing


def gathered(shares, expected, missing=()):
    here = {share.rank: share for share in shares if share.rank not in missing}
    return Gathered(True, Ranks(expected, 1 + len(here), sorted(missing)), here)


def merged(shares, missing=(), applied=0):
    own, *others = shares
    return merge(own, gathered(others, len(shares), missing), applied)


def plain(struct):
    return msgspec.json.decode(msgspec.json.encode(struct, enc_hook=lambda array: array.tolist()))


def figures(attributes):
    """The metrics that do not hang on the order of the rows."""
    return build.rollout_metrics(msgspec.convert(plain(attributes), RolloutAttributes))


@settings(deadline=None, max_examples=80)
@given(jobs())
def test_samples_and_updates_against_a_dict(job):
    """Every sample once, with the largest number of its visits; each update by what all said."""
    shares, missing = job
    result = merged(shares, missing, applied=5)
    a = result.attributes
    here = [share for share in shares if share.rank not in missing]
    order, most, earlier = [], {}, {}
    for share in here:
        one = share.attributes
        for sample, n in zip(ids_in(one.samples or ()), one.visit_counts or (), strict=True):
            if sample not in most:
                order.append(sample)
            most[sample] = max(n, most.get(sample, 0))
        for rollout, first, n, visits, tokens in one.revisited:
            earlier.setdefault((rollout, first, n), (visits, tokens))
    assert ids_in(a.samples or ()) == order
    assert result.disagreements == 0
    if order:
        assert a.visit_counts.tolist() == [most[s] for s in order]
        for kind in ("prompt", "completion", "trained"):
            column = getattr(a, f"{kind}_lengths").tolist()
            assert column == [length_of(s, kind) for s in order]
        assert a.group_ids.tolist() == [index // GROUP for _, index in order]
        assert a.truncated == [i for i, (_, index) in enumerate(order) if index % 4 == 0]
        assert sorted(map(str, ids_in(a.generated))) == sorted(map(str, order))
    assert {row[:3]: row[3:] for row in a.revisited} == earlier
    applied = 5
    for k, update in enumerate(a.updates):
        said = [share.attributes.updates[k] for share in here]
        took = Counter()
        nominal = []
        for share, one in zip(here, said, strict=True):
            mine = Counter(ids_in(share.update_samples[k]))
            if not nominal or mine - took:
                nominal.append(one.nominal)
            took |= mine
        statuses = {one.status for one in said}
        if "failed" in statuses:
            expected = "failed"
        elif missing or len(statuses) > 1:
            expected = "unconfirmed"
        else:
            expected = statuses.pop()
        assert update.status == expected
        assert update.samples == took.total()
        if None in nominal:
            assert update.nominal is None
        else:
            assert update.nominal == (took.total() if missing else sum(nominal))
        assert Counter(ids_in(result.update_samples[k])) == took
        assert result.update_trained[k] == sum(length_of(s, "trained") * n for s, n in took.items())
        applied += expected == "applied"
        assert update.step == applied
        failed = [
            share.rank for share, one in zip(here, said, strict=True) if one.status == "failed"
        ]
        if expected == "failed":
            assert update.ranks == failed
        elif expected == "unconfirmed":
            assert set(missing) <= set(update.ranks) != set()
        else:
            assert update.ranks == []
    assert set(a.per_rank) == {str(share.rank) for share in here}
    assert a.ranks == Ranks(len(shares), len(here), missing)


@settings(deadline=None, max_examples=50)
@given(jobs(), st.integers())
def test_late_ranks_and_any_order_give_the_same_numbers(job, seed):
    """Merged at once, in any order, or first without some and later with them."""
    shares, late = job
    whole = merged(shares)
    others = shares[1:]
    Random(seed).shuffle(others)
    again = merge(shares[0], gathered(others, len(shares)), 0)
    assert plain(again.attributes) == plain(whole.attributes)
    first = merged(shares, late)
    written = msgspec.structs.replace(
        shares[0],
        attributes=msgspec.convert(plain(first.attributes), RolloutAttributes),
        update_samples=first.update_samples,
        update_trained=first.update_trained,
    )
    came = [share for share in shares if share.rank in late]
    second = merge(written, gathered(came, len(shares)), 0)
    there = msgspec.structs.replace(second.attributes.ranks, received=len(shares))
    assert there == whole.attributes.ranks
    expected, found = figures(whole.attributes), figures(second.attributes)
    if late:  # the record claimed no tail of the ranks that were in time
        for metrics in (expected, found):
            metrics.pop("updates.partial", None)
    assert found == expected
    assert second.update_trained == whole.update_trained
    assert second.attributes.per_rank == whole.attributes.per_rank


@settings(deadline=None, max_examples=20)
@given(jobs())
def test_a_job_of_one_rank_is_what_the_rank_says(job):
    """Nothing is changed but what a job adds: its ranks, their busy times."""
    share = job[0][0]
    a = share.attributes
    own = msgspec.structs.replace(
        share,
        attributes=msgspec.structs.replace(
            a,
            samples=visit_like(a.samples),
            window=msgspec.structs.replace(
                a.window, status=merged([share]).attributes.window.status
            ),
        ),
    )
    result = merged([own])
    expected = plain(own.attributes) | {"per_rank": {"0": {"generation": 10}}}
    for update in expected.get("updates", ()):
        if update["status"] in ("failed", "unconfirmed"):
            update["ranks"] = [0]  # who it is that says so
    assert plain(result.attributes) == expected


def visit_like(runs):
    """Runs that continue each other as one, as every writer of ours gives them."""
    joined = []
    for rollout, first, n in runs or ():
        if joined and joined[-1][0] == rollout and sum(joined[-1][1:]) == first:
            joined[-1] = (rollout, joined[-1][1], joined[-1][2] + n)
        else:
            joined.append((rollout, first, n))
    return joined or UNSET


@settings(deadline=None, max_examples=30)
@given(
    st.integers(1, 4),
    st.integers(1, 6),
    st.sampled_from((1, 2)),
    st.integers(1, 4),
    st.integers(),
)
def test_ranks_count_what_one_process_would(world, n_local, passes, size, seed):
    """The same data on one process and over ranks, through the ledger that both use."""
    random = Random(seed)
    total = world * n_local
    lengths = {
        name: np.array([random.randrange(1, 99) for _ in range(total)])
        for name in ("completion_lengths", "trained_lengths")
    }
    lengths |= {"group_ids": np.arange(total) // GROUP, "prompt_lengths": np.arange(total) // GROUP}

    def window(first, n, step):
        ledger = Ledger()
        columns = {name: column[first : first + n] for name, column in lengths.items()}
        ledger.consume(Batch("r", first, n, columns, None))
        update_samples, trained = [], []
        for _ in range(passes):
            for start in range(0, n, step):
                ledger.visit([Visit("r", range(first + start, first + min(start + step, n)))])
                visits = ledger.take()
                ledger.update(0, 1, sum(len(v.indices) for v in visits), step, "applied")
                update_samples.append(visit_runs(visits))
                trained.append(ledger.trained.total(visits))
        events = ledger.close()
        counts = resolve(events, ledger.trained)
        attributes = RolloutAttributes(
            Window(0, 9, counts.status(events.updates, discarded=False), 0),
            [],
            [],
            Ranks(1, 1),
            samples=counts.samples,
            **counts.columns,
            visit_counts=counts.visit_counts,
            pending=events.pending,
            updates=[
                Update(u.step, u.start_ns, u.end_ns, u.samples, u.nominal, u.status)
                for u in events.updates
            ],
        )
        return Contribution("run", 1, first // n_local, 1, attributes, {}, update_samples, trained)

    single = window(0, total, size * world)
    ranks = [window(rank * n_local, n_local, size) for rank in range(world)]
    result = merged(ranks)
    expected, found = figures(single.attributes), figures(result.attributes)
    if n_local % size:  # the tails lie elsewhere: as many samples, in updates of other sizes
        del expected["updates.partial"], found["updates.partial"]
    assert found == expected
    assert sum(result.update_trained) == sum(single.update_trained)


def test_ranks_that_disagree_on_a_length_are_counted():
    """The lowest rank's row stays; each sample counts once however many differ."""
    samples = [("a", 0), ("a", 1)]
    shares = [share_of(rank, samples, Counter(samples), []) for rank in range(3)]
    for share in shares[1:]:
        share.attributes.completion_lengths[1] += 1
    result = merged(shares)
    assert result.disagreements == 1
    assert result.attributes.completion_lengths.tolist() == [
        length_of(s, "completion") for s in samples
    ]


def test_a_column_that_one_rank_lacks_is_absent():
    """Unless that rank only confirms what another one brought."""
    one = share_of(0, [("a", 0)], Counter(), [])
    two = share_of(1, [("a", 1)], Counter(), [])
    bare = msgspec.structs.replace(
        two, attributes=msgspec.structs.replace(two.attributes, prompt_lengths=UNSET)
    )
    result = merged([one, bare])
    assert result.attributes.prompt_lengths is UNSET
    assert result.attributes.completion_lengths is not UNSET
    same = share_of(1, [("a", 0)], Counter(), [])
    confirms = msgspec.structs.replace(
        same, attributes=msgspec.structs.replace(same.attributes, prompt_lengths=UNSET)
    )
    assert merged([one, confirms]).attributes.prompt_lengths.tolist() == [
        length_of(("a", 0), "prompt")
    ]


def test_a_sample_that_another_rank_trained_on_is_visited_not_revisited():
    """Rank 1 visits what rank 0 consumed in the same window."""
    one = share_of(0, [("a", 0), ("a", 1)], Counter({("a", 0): 1}), [])
    two = share_of(1, [], Counter(), [], Counter({("a", 1): 1, ("old", 4): 2}))
    result = merged([one, two])
    assert result.attributes.visit_counts.tolist() == [1, 1]
    assert [row[:4] for row in result.attributes.revisited] == [("old", 4, 1, 2)]


def test_an_update_that_only_another_rank_made_is_unconfirmed():
    """Rank 0 did not speak of it; its samples are spent all the same."""
    one = share_of(0, [("a", 0)], Counter([("a", 0)]), [(Counter([("a", 0)]), 1, "applied")])
    took = [(Counter([("a", 1)]), 1, "applied"), (Counter([("a", 1)]), 1, "applied")]
    two = share_of(1, [("a", 1)], Counter({("a", 1): 2}), took)
    result = merged([one, two])
    assert [(u.status, u.ranks, u.samples) for u in result.attributes.updates] == [
        ("applied", [], 2),
        ("unconfirmed", [0], 1),
    ]
    assert result.attributes.pending == 0
    assert result.steps == {1: 1}


@pytest.mark.parametrize(
    ("own", "late", "expected"),
    [
        ("applied", "applied", ("applied", None, [])),
        ("skipped", "skipped", ("skipped", "skipped by 0", [])),
        ("skipped", "applied", ("unconfirmed", "skipped by 0", [1])),
        ("applied", "skipped", ("unconfirmed", None, [1])),
        ("applied", "failed", ("failed", "failed by 1", [1])),
        ("failed", "applied", ("failed", "failed by 0", [0])),
    ],
)
def test_a_late_rank_settles_an_unconfirmed_update(own, late, expected):
    """What was claimed is kept in the record, so that it can be confirmed afterwards."""
    shares = [
        share_of(rank, [], Counter(), [(Counter(), None, status)])
        for rank, status in enumerate((own, late))
    ]
    first = merged(shares, missing=[1])
    (update,) = first.attributes.updates
    assert update.status == ("failed" if own == "failed" else "unconfirmed")
    written = msgspec.structs.replace(shares[0], attributes=first.attributes)
    (update,) = merge(written, gathered(shares[1:], 2), 0).attributes.updates
    assert (update.status, update.reason, update.ranks) == expected


def test_what_is_no_sample_is_added_up():
    """Discards by reason, padding where it is known, levels, readings, timed calls by rank."""
    one = share_of(
        0,
        [],
        Counter(),
        [],
        discarded=[("stale", 2, 10), ("failed", 1, None)],
        padding=5,
        workers={"score": {"0": [4]}},
        memory=Memory([1], [0], ["h"], [10], process_rss=[7], peak_resets=1),
        hardware=Hardware([1, 5], [0, 0], energy_mj=[100, 130]),
    )
    two = share_of(
        1,
        [],
        Counter(),
        [],
        discarded=[("stale", 3, 11)],
        workers={"score": {"0": [6, 1]}},
        memory=Memory([2], [1], ["h"], [11], device=[3], device_used=[9], peak_resets=2),
        hardware=Hardware([2, 6], [1, 0], power_mw=[4, 5], energy_mj=[None, 135]),
    )
    a = merged([one, two]).attributes
    assert a.discarded == [("stale", 5, 21), ("failed", 1, None)]
    assert a.padding == 5
    assert a.window.status == "partial"
    assert a.workers == {"score": {"0": [4], "1": [6, 1]}}
    assert a.memory == Memory(
        [1, 2],
        [0, 1],
        ["h", "h"],
        [10, 11],
        device=[None, 3],
        device_used=[None, 9],
        process_rss=[7, None],
        peak_resets=3,
    )
    # Ranks that share a device both read its counter.
    assert a.hardware == Hardware(
        [1, 5, 2, 6],
        [0, 0, 1, 0],
        power_mw=[None, None, 4, 5],
        energy_mj=[100, 130, None, 135],
    )


def test_workers_of_a_driver_add_times_and_readings_alone():
    """Their driver's word on updates stands though one of them is missing."""
    own = share_of(0, [("a", 0)], Counter([("a", 0)]), [(Counter([("a", 0)]), 1, "applied")])
    result = merge(
        own,
        Gathered(
            False,
            Ranks(3, 2, [2]),
            workers={"step": {1: [5, 6]}},
            memory=[Memory([3], [1], ["h"], [12], process_rss=[8])],
            devices=[(0, ["train"])],
        ),
        0,
    )
    a = result.attributes
    assert a.updates == own.attributes.updates
    assert (a.ranks, a.devices) == (Ranks(3, 2, [2]), [(0, ["train"])])
    assert a.workers == {"step": {"1": [5, 6]}}
    assert a.memory.process_rss == [8]
    assert result.update_samples == own.update_samples
