"""Faults that were found in public trainers, as small inputs with the right value.

Each names the report it comes from; the naive value is asserted to be another one.
"""

from __future__ import annotations

import numpy as np
import pytest

from otel_grpo.core.ledger import Batch, Ledger, Visit, resolve
from otel_grpo.core.lengths import summarize
from otel_grpo.core.throughput import per_token, rate
from otel_grpo.core.timeline import Span, partition

SECOND = 10**9
LANE = 1


def test_cumulative_tokens_are_not_divided_by_the_last_step() -> None:
    """github.com/allenai/open-instruct/pull/1032 and huggingface/trl/pull/5293 (review).

    Five steps of 1000 tokens and 10 s: 100 tokens/s in each and over any range of them, where
    tokens so far over the last step's time would climb from 100 to 500.
    """
    steps = [(1000, 10 * SECOND)] * 5
    assert [rate(tokens, ns) for tokens, ns in steps] == [100.0] * 5
    so_far = [
        rate(sum(t for t, _ in steps[:n]), sum(ns for _, ns in steps[:n])) for n in range(1, 6)
    ]
    assert so_far == [100.0] * 5
    assert rate(5000, 10 * SECOND) == 500.0


def test_resumed_session_does_not_inherit_tokens() -> None:
    """github.com/huggingface/transformers/issues/40560.

    A session of 1,000,000 tokens in 1000 s, then one of 100,000 in 100 s: 1000 tokens/s for the
    second alone and for both, never 11,000.
    """
    first, second = (1_000_000, 1000 * SECOND), (100_000, 100 * SECOND)
    assert rate(*second) == 1000.0
    assert rate(first[0] + second[0], first[1] + second[1]) == 1000.0
    assert rate(first[0] + second[0], second[1]) == 11_000.0


def test_rollout_devices_are_devices() -> None:
    """github.com/verl-project/verl/pull/7049: 8 training and 8 rollout devices are 16."""
    trainers = {f"GPU-{i}" for i in range(8)}
    generators = {f"GPU-{i}" for i in range(8, 16)}
    assert rate(1_600_000, 100 * SECOND, len(trainers | generators)) == 1000.0
    assert rate(1_600_000, 100 * SECOND, len(trainers)) == 2000.0


def test_time_per_token_is_a_quotient_of_sums() -> None:
    """verl's fully asynchronous metrics average timing_per_token_ms over steps.

    1000 tokens in 10 s and 9000 in 18 s: 2.8 ms a token, where the mean of both ratios is 6. The
    p99 of both is the p99 of all samples.
    """
    assert per_token(28 * SECOND, 10_000) == 2.8e6
    assert [per_token(10 * SECOND, 1000), per_token(18 * SECOND, 9000)] == [10e6, 2e6]
    first, second = [100] * 100, [100] * 98 + [5000] * 2
    assert (summarize(first).p99, summarize(second).p99) == (100, 5000)
    assert summarize(first + second).p99 == 100


@pytest.mark.parametrize("accumulation", [1, 2, 4, 8])
def test_throughput_does_not_depend_on_accumulation(accumulation: int) -> None:
    """github.com/mosaicml/composer/issues/271: samples/s divided by the accumulation steps.

    The same 64 samples in the same 16 s, in any number of micro-batches, are the same samples,
    tokens, visits, one update, and the same rate.
    """
    ledger = Ledger()
    lengths = np.full(64, 250, dtype=np.int64)
    ledger.consume(Batch("batch", 0, 64, {"completion_lengths": lengths}, None))
    spans = []
    share = 64 // accumulation
    duration = 16 * SECOND // accumulation
    for i in range(accumulation):
        spans.append(Span(str(i), None, "policy_train", i * duration, (i + 1) * duration, LANE))
        ledger.visit([Visit("batch", np.arange(i * share, (i + 1) * share))])
    ledger.take(64)
    ledger.update(15 * SECOND, 16 * SECOND, 64, 64, "applied")
    events = ledger.close()
    counts = resolve(events, ledger.trained)
    assert counts.samples == [("batch", 0, 64)]
    assert counts.visit_counts.tolist() == [1] * 64
    assert len(events.updates) == 1
    assert counts.status(events.updates, discarded=False) == "complete"
    account = partition(spans, 0, 16 * SECOND, LANE)
    assert account.phases["policy_train"].calls == accumulation
    tokens = int(counts.columns["completion_lengths"].sum())
    assert rate(tokens, account.work_ns, 8) == 125.0
    assert rate(len(counts.visit_counts), account.work_ns) == 4.0


def test_generation_rate_is_not_the_end_to_end_rate() -> None:
    """github.com/THUDM/slime/pull/232: tokens/s/device over a rollout that includes the reward.

    100 s of generation and 12 s of reward: two figures with two names, neither is the other.
    """
    spans = [
        Span("g", None, "generation", 0, 100 * SECOND, LANE),
        Span("r", None, "reward", 100 * SECOND, 112 * SECOND, LANE),
    ]
    account = partition(spans, 0, 112 * SECOND, LANE)
    completion_tokens, devices = 896_000, 8
    generation = rate(completion_tokens, account.phases["generation"].busy_ns, devices)
    assert generation == 1120.0
    assert rate(completion_tokens, account.work_ns, devices) == 1000.0

    # the same with the reward made inside the generation call: it is not hidden in it
    nested = [
        Span("g", None, "generation", 0, 112 * SECOND, LANE),
        Span("r", "g", "reward", 100 * SECOND, 112 * SECOND, LANE),
    ]
    account = partition(nested, 0, 112 * SECOND, LANE)
    assert account.phases["generation"].self_exposed_ns == 100 * SECOND
    assert account.phases["reward"].self_exposed_ns == 12 * SECOND
    assert account.work_ns == 112 * SECOND


def test_reuse_is_visits_and_not_samples() -> None:
    """github.com/huggingface/trl/issues/3532 and 4531, huggingface/open-r1/issues/583.

    20 prompts, 4 completions each, 3 passes: 80 samples generated and consumed, 240 visits, no
    sample more than 3 times, none unused; tokens count once.
    """
    ledger = Ledger()
    lengths = np.arange(1, 81, dtype=np.int64)
    groups = np.repeat(np.arange(20, dtype=np.int64), 4)
    columns = {"completion_lengths": lengths, "trained_lengths": lengths, "group_ids": groups}
    assert ledger.consume(Batch(0, 0, 80, columns, None)) == 80
    shuffled = np.random.default_rng(7)
    for _ in range(3):
        order = shuffled.permutation(80)
        for micro_batch in np.split(order, 10):
            ledger.visit([Visit(0, micro_batch)])
        ledger.take()
        ledger.update(0, 1, 80, 80, "applied")
    events = ledger.close()
    counts = resolve(events, ledger.trained)
    assert counts.samples == [(0, 0, 80)]
    assert len(np.unique(counts.columns["group_ids"])) == 20
    assert int(counts.visit_counts.sum()) == 240
    assert (int(counts.visit_counts.min()), int(counts.visit_counts.max())) == (3, 3)
    assert counts.revisited == []
    assert int(counts.columns["completion_lengths"].sum()) == 3240
    assert int((counts.columns["trained_lengths"] * counts.visit_counts).sum()) == 3 * 3240
    assert [u.step for u in events.updates] == [1, 2, 3]
