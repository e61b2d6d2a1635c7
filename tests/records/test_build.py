"""Metrics of a window's samples against plain enumeration, from arrays and from a reader's lists."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import msgspec
from hypothesis import HealthCheck, given, settings, strategies as st

from otel_grpo.core.columns import as_array
from otel_grpo.records import build, writer
from otel_grpo.records.model import Ranks, RolloutAttributes, Window
from otel_grpo.records.summary import TotalsBuilder

settings_ = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])

# Tokens that a model has, and sizes at which arithmetic of fixed width fails.
tokens = st.one_of(st.integers(0, 9), st.integers(2**31 - 1, 2**31 + 1), st.just(2**63 - 1))
# Groups that straddle runs, come back, and have the same number in several rollouts.
runs = st.lists(st.tuples(st.sampled_from(["a", "b", 7, "7"]), st.integers(1, 5)), max_size=8)
COLUMNS = {
    "prompt_lengths": tokens,
    "completion_lengths": tokens,
    "trained_lengths": tokens,
    "environment_lengths": tokens,
    "group_ids": st.one_of(st.integers(-1, 3), st.just(2**40)),
    "visit_counts": st.integers(0, 3),
    "policy_lag": st.integers(-2, 3),
}


@st.composite
def evidence(draw: st.DrawFn) -> dict[str, Any]:
    """The columns of one window, some of them not known."""
    samples: list[tuple[str | int, int, int]] = []
    for rollout_id, n in draw(runs):
        # The next samples of that rollout, with a hole before them.
        samples.append((rollout_id, 10 * len(samples), n))
    n = sum(n for _, _, n in samples)
    columns = {
        name: draw(st.lists(values, min_size=n, max_size=n))
        for name, values in COLUMNS.items()
        if n and draw(st.integers(0, 4))
    }
    return {"samples": samples, **columns} if n else {}


def attributes(given: dict[str, Any]) -> RolloutAttributes:
    return RolloutAttributes(
        window=Window(0, 10, "complete", 1), intervals=[], segments=[], ranks=Ranks(1, 1), **given
    )


def nearest_rank(values: list[int], percent: int) -> int:
    return sorted(values)[max(math.ceil(Fraction(percent * len(values), 100)), 1) - 1]


def mean(values: list[int]) -> float:
    return float(Fraction(sum(values), len(values)))


def expected(given: dict[str, Any]) -> dict[str, Any]:
    """The metrics of the samples, one sample after the other."""
    metrics: dict[str, Any] = {}
    ids = [rollout_id for rollout_id, _, n in given.get("samples", ()) for _ in range(n)]
    metrics["samples.consumed"] = len(ids)
    metrics["samples.visits"] = sum(given.get("visit_counts", ()))
    for name in ("prompt", "completion", "environment", "trained"):
        if f"{name}_lengths" in given:
            metrics[f"tokens.{name}"] = sum(given[f"{name}_lengths"])
    if "prompt_lengths" in given and "completion_lengths" in given:
        metrics["tokens.total"] = metrics["tokens.prompt"] + metrics["tokens.completion"]
    if "trained_lengths" in given:
        visits = given.get("visit_counts", [0] * len(ids))
        metrics["tokens.visited"] = sum(
            each for each, n in zip(given["trained_lengths"], visits, strict=True) for _ in range(n)
        )
    if "group_ids" in given:
        seen: dict[tuple[str | int, int], int] = {}
        for position, group in enumerate(zip(ids, given["group_ids"], strict=True)):
            seen.setdefault(group, position)
        metrics["groups"] = len(seen)
        if "prompt_lengths" in given:
            prompts = given["prompt_lengths"]
            metrics["tokens.prompt_unique"] = sum(prompts[position] for position in seen.values())
    for name in ("prompt", "completion"):
        if values := given.get(f"{name}_lengths"):
            figures = {f"p{q}": nearest_rank(values, q) for q in (50, 90, 99)}
            figures |= {"min": min(values), "max": max(values)}
            metrics.update({f"length.{name}.{key}": value for key, value in figures.items()})
            metrics[f"length.{name}.mean"] = mean(values)
    if values := given.get("policy_lag"):
        metrics["policy_lag.min"], metrics["policy_lag.max"] = min(values), max(values)
        metrics["policy_lag.mean"] = mean(values)
    return metrics


def of_samples(metrics: dict[str, Any]) -> dict[str, Any]:
    words = {"samples", "tokens", "groups", "length", "policy_lag"}
    others = {"samples.revisited", "samples.pending"}
    return {k: v for k, v in metrics.items() if k.partition(".")[0] in words and k not in others}


@settings_
@given(evidence())
def test_metrics_of_samples(given: dict[str, Any]) -> None:
    """Arrays at hand, lists from the file and an enumeration give the same numbers and types."""
    held = attributes({k: v if k == "samples" else as_array(v) for k, v in given.items()})
    read = msgspec.json.decode(writer._encoder.encode(held), type=RolloutAttributes)
    assert read == attributes(given)
    of_held, of_read = build.rollout_metrics(held), build.rollout_metrics(read)
    assert of_held == of_read
    assert of_samples(of_held) == expected(given)
    whole = {k for k, v in of_held.items() if type(v) is int}
    assert whole == {k for k, v in of_read.items() if type(v) is int}
    # The mean of values is the only number here that is not whole.
    assert all(k.endswith(".mean") for k in of_samples(of_held).keys() - whole)


@settings(settings_, max_examples=40)
@given(st.lists(evidence(), max_size=3))
def test_lengths_of_a_run(windows: list[dict[str, Any]]) -> None:
    """Percentiles and means of a run are those of all its windows' values, in both forms."""
    held, read = TotalsBuilder(), TotalsBuilder()
    merged: dict[str, list[int]] = {"prompt": [], "completion": [], "policy_lag": []}
    for window in windows:
        in_arrays = attributes({k: v if k == "samples" else as_array(v) for k, v in window.items()})
        metrics = build.rollout_metrics(in_arrays)
        held._add_window(1, metrics, in_arrays)
        read._add_window(1, metrics, attributes(window))
        for name in merged:
            merged[name] += window.get(name if name == "policy_lag" else f"{name}_lengths", [])
    for totals in (held, read):
        for name, histogram in totals._lengths.items():
            values = merged[name]
            assert histogram.n == len(values)
            if values:
                figures = histogram.summarize()
                assert figures[:2] == (min(values), max(values))
                assert figures[2:5] == tuple(nearest_rank(values, q) for q in (50, 90, 99))
                assert figures.mean == mean(values)
        lag = merged["policy_lag"]
        assert totals._extremes_of_lag() == (
            {"min": min(lag), "max": max(lag), "mean": mean(lag)} if lag else {}
        )


def test_groups_by_hand() -> None:
    """Group 1 of rollout a stands in two runs, between them group 1 of rollout b."""
    given = {
        "samples": [("a", 0, 3), ("b", 0, 2), ("a", 3, 2)],
        "group_ids": [0, 0, 1, 1, 1, 1, 2],
        "prompt_lengths": [10, 10, 20, 30, 30, 20, 40],
    }
    metrics = build.rollout_metrics(attributes(given))
    assert metrics["groups"] == 4  # a/0, a/1, b/1, a/2
    assert metrics["tokens.prompt_unique"] == 10 + 20 + 30 + 40


def test_what_is_no_column_is_not_encoded() -> None:
    """The writer writes arrays of numbers as lists, and nothing else that is no plain value."""
    assert (
        writer._encoder.encode({"a": as_array([1, -2]), "b": as_array([])})
        == b'{"a":[1,-2],"b":[]}'
    )
    for value in (object(), {1j}):
        try:
            writer._encoder.encode(value)
        except (TypeError, NotImplementedError):
            continue
        raise AssertionError(value)
