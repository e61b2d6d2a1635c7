"""The merge of the records and the audit, written apart, agree about jobs drawn at random."""

import random
from pathlib import Path

import msgspec
import pytest

from otel_grpo.audit import ranks as laws, rollout
from otel_grpo.audit.contributed import Place, Spoken, check_amounts, check_samples
from otel_grpo.audit.late import with_late
from otel_grpo.audit.peers import Devices
from otel_grpo.audit.report import Findings
from otel_grpo.audit.workers import Peer
from otel_grpo.records.merge import Gathered, merge
from otel_grpo.records.model import (
    UNSET,
    ClockPair,
    Contribution,
    Joined,
    Memory,
    Ranks,
    RolloutAttributes,
    TrainAttributes,
    Update,
    Window,
)

WORLD = 4
COLUMNS = ("prompt_lengths", "completion_lengths", "trained_lengths", "group_ids", "policy_lag")
REASONS = {"skipped": "overflow", "failed": "remote"}


def runs(samples):
    result = []
    for rollout_id, index in samples:
        if result and result[-1][0] == rollout_id and sum(result[-1][1:]) == index:
            result[-1] = (rollout_id, result[-1][1], result[-1][2] + 1)
        else:
            result.append((rollout_id, index, 1))
    return result


class Draw:
    """A job drawn by a seed: samples with their values, and what each rank says of them."""

    def __init__(self, seed):
        self.rng = random.Random(seed)
        self.table = {
            ("r", k) if k < 6 else (7, k): {name: self.rng.randint(0, 9) for name in COLUMNS}
            for k in range(10)
        }
        self.cut = [sample for sample in self.table if self.chance(0.3)]
        self.states = self.rng.choices(["applied", "skipped"], k=3) if self.chance(0.6) else None
        self.shares = [self.share(rank) for rank in range(WORLD)]
        self.missing = [rank for rank in range(1, WORLD) if self.chance(0.3)]

    def chance(self, share):
        return self.rng.random() < share

    def share(self, rank):
        mode = self.rng.choice(["parallel", "same", "none"])
        own = [
            sample
            for k, sample in enumerate(self.table)
            if mode != "none" and (k % WORLD == rank if mode == "parallel" else self.chance(0.5))
        ]
        fields = self.samples(own) if own else {}
        old = [("old", k) for k in range(4)]
        revisited = [
            (*sample, 1, self.rng.randint(1, 2), self.rng.choice([None, 5]))
            for sample in [*old, *self.table]
            if sample not in own and self.chance(0.15)
        ]
        updates, visits, trained = [], [], []
        for k in range(self.rng.choice([2, 2, 2, 1, 0, 3])):
            taken = [s for s in [*self.table, *old] for _ in range(2) if self.chance(0.2)]
            visits.append(runs(taken))
            tokens = sum(self.table[s]["trained_lengths"] if s in self.table else 5 for s in taken)
            trained.append(self.rng.choice([None, tokens]))
            updates.append(self.update(rank, k, len(taken)))
        attributes = RolloutAttributes(
            Window(0, 10, self.rng.choice(["complete"] * 5 + ["aborted"]), 1),
            [],
            [([], 10)],
            Ranks(1, 1),
            revisited=revisited,
            discarded=[("stale", self.rng.randint(0, 3), None)] if self.chance(0.5) else [],
            pending=self.rng.randint(0, 3),
            updates=updates,
            memory=self.memory(rank),
            workers={"score": {"0": [self.rng.randint(1, 9)]}} if self.chance(0.5) else {},
            generated=runs(s for s in self.table if self.chance(0.4)) or UNSET,
            padding=self.rng.choice([UNSET, 3]),
            **fields,
        )
        busy = {"generation": self.rng.randint(0, 9)}
        return Contribution("r", 1, rank, 1, attributes, busy, visits, trained)

    def samples(self, own):
        known = [name for name in COLUMNS if self.chance(0.9)]
        fields = {name: [self.table[sample][name] for sample in own] for name in known}
        if self.chance(0.9):
            fields["visit_counts"] = [self.rng.randint(0, 2) for _ in own]
        if self.chance(0.9):
            fields["truncated"] = [k for k, sample in enumerate(own) if sample in self.cut]
        return fields | {"samples": runs(own)}

    def update(self, rank, k, visits):
        status = self.rng.choice(["applied"] * 6 + ["skipped", "failed"])
        if self.states is not None:
            status = self.states[k]
        n = visits + self.rng.choice([0, 0, 0, 2])
        ranks = [rank] if status == "failed" and self.chance(0.5) else []
        nominal = self.rng.choice([None, n, n + 1])
        return Update(0, 1, 2, n, nominal, status, REASONS.get(status), ranks)

    def memory(self, rank):
        if self.chance(0.4):
            return UNSET
        columns = {name: [self.rng.randint(1, 99)] for name in ("process_rss", "host_used")}
        kept = {name: values for name, values in columns.items() if self.chance(0.7)}
        instant = [self.rng.randint(1, 9)]
        return Memory(instant=instant, rank=[rank], host=["h"], pid=[rank], **kept)

    def merged(self, own, came, missing):
        """By the records' own merge."""
        others = {rank: self.shares[rank] for rank in came}
        return merge(own, Gathered(True, Ranks(WORLD, WORLD - len(missing), missing), others), 0)


def spoken(draw, came):
    pair = ClockPair(None, 0, 0)
    result = []
    for rank in came:
        joined = Joined("r", 1, "t", f"t-{rank}", rank, WORLD, "h", rank, pair, 0)
        peer = Peer(Path("file"), "file", 1, joined)
        result.append(Spoken(peer, 2, draw.shares[rank], Devices(peer, {})))
    return result


def as_read(attributes):
    """Through the file and back."""
    data = msgspec.json.encode(attributes, enc_hook=lambda column: column.tolist())
    return msgspec.json.decode(data, type=RolloutAttributes)


@pytest.mark.parametrize("part", range(4))
def test_they_agree(part):
    """Every merged record keeps every law, and late ranks give the same numbers in both."""
    for seed in range(part * 40, part * 40 + 40):
        draw = Draw(seed)
        came = [rank for rank in range(1, WORLD) if rank not in draw.missing]
        merged = draw.merged(draw.shares[0], came, draw.missing)
        a = as_read(merged.attributes)
        trains = [
            (9, TrainAttributes((0, 1), [], u.samples, u.status, samples=visits,
                                trained=UNSET if tokens is None else tokens))
            for u, visits, tokens in zip(
                a.updates, merged.update_samples, merged.update_trained, strict=True
            )
        ]  # fmt: skip
        findings, others = Findings(), spoken(draw, came)
        at = Place(findings, 1, 1, disagreed=merged.disagreements > 0)
        assert [each.fits() for each in others] == [""] * len(others)
        check_samples(at, a, others)
        check_amounts(at, a, others)
        laws.check_updates(at, a, others)
        laws.check_trains(at, a, others, trains)
        laws.check_memory(at, a, others)
        laws.check_busy(at, a, others, draw.shares[0].busy_ns)
        laws.check_calls(at, a, others)
        assert [str(finding) for finding in findings.kept] == [], seed

        late = [rank for rank in draw.missing if draw.chance(0.8)]
        left = [rank for rank in draw.missing if rank not in late]
        mine = with_late(a, spoken(draw, late), [train for _, train in trains])
        own = Contribution("r", 1, 0, 1, a, {}, merged.update_samples, merged.update_trained)
        theirs = as_read(draw.merged(own, late, left).attributes)
        ours, other = rollout.derive(mine, None), rollout.derive(theirs, None)
        assert (ours.metrics, ours.status) == (other.metrics, other.status), seed
