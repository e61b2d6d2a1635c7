"""Metrics of a record from its evidence, and from nothing else.

Each function takes the attributes that will be written and returns the metrics that stand beside
them, so that whoever holds the file can derive the same numbers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from msgspec import UNSET

from otel_grpo.core import energy, lengths, memory, throughput, timeline
from otel_grpo.core.columns import Ints, as_array, total
from otel_grpo.core.intervals import measure
from otel_grpo.records.model import (
    Hardware,
    Memory,
    Number,
    RolloutAttributes,
    RolloutId,
    RunAttributes,
    SampleRun,
    TrainAttributes,
    Update,
)

TRAIN, GENERATE = "train", "generate"

# The columns of the samples, one number each.
COLUMNS = (
    "prompt_lengths",
    "completion_lengths",
    "trained_lengths",
    "environment_lengths",
    "group_ids",
    "visit_counts",
    "policy_lag",
)

# Column of the readings -> the quantity that it reduces to, and the columns that name its owner.
MEMORY_COLUMNS: dict[str, tuple[str, tuple[str, ...]]] = {
    "allocator_allocated": ("allocator.allocated", ("rank",)),
    "allocator_reserved": ("allocator.reserved", ("rank",)),
    "allocator_peak_allocated": ("allocator.peak_allocated", ("rank",)),
    "allocator_peak_reserved": ("allocator.peak_reserved", ("rank",)),
    "process_rss": ("process.rss", ("host", "pid")),
    "device_used": ("device.used", ("host", "device")),
    "host_used": ("host.used", ("host",)),
}


def window_timeline(attributes: RolloutAttributes) -> timeline.Timeline:
    """The partition of the window by its interval rows."""
    window = attributes.window
    spans = [timeline.Span(*row[:6]) for row in attributes.intervals]
    return timeline.partition(spans, window.start_ns, window.end_ns, window.lane)


def segment_rows(partition: timeline.Timeline) -> list[tuple[list[str], int]]:
    """Segments as they are written: sorted, only those with time."""
    return [(list(key), ns) for key, ns in sorted(partition.segments.items()) if ns]


def rollout_metrics(
    attributes: RolloutAttributes, times: timeline.Timeline | None = None
) -> dict[str, Number]:
    """Metrics of a `rollout` record; `times` spares a second partition of the same window."""
    times = times or window_timeline(attributes)
    metrics: dict[str, Number] = {
        f"time.{name}_ns": getattr(times, f"{name}_ns")
        for name in ("wall", "log", "logical", "work", "overlapped", "unattributed",
                     "log_background")
    }  # fmt: skip
    for phase, figures in times.phases.items():
        metrics.update(_phase_metrics(phase, figures))
    columns = {
        name: as_array(values)
        for name in COLUMNS
        if (values := getattr(attributes, name)) is not UNSET
    }
    firsts = _first_of_group(attributes.samples or (), columns.get("group_ids"))
    metrics.update(_sample_metrics(attributes, columns, len(firsts)))
    metrics.update(_token_metrics(attributes, columns, firsts))
    tokens = metrics.get("tokens.total")
    if isinstance(tokens, int):
        for phase, figures in times.phases.items():
            _put(metrics, f"per_token.{phase}_ns", throughput.per_token(figures.busy_ns, tokens))
    metrics.update(_length_metrics(columns))
    metrics.update(_update_metrics(attributes.updates))
    completed = sum(p.completed_ns is not None for p in attributes.publications)
    metrics["publications"] = completed
    metrics["publications.pending"] = len(attributes.publications) - completed
    metrics.update(_worker_metrics(attributes.workers))
    metrics.update(_throughput_metrics(attributes, times, metrics))
    if attributes.memory is not UNSET:
        for name, figures_of in reduce_memory([attributes.memory]).items():
            metrics.update({f"memory.{name}.{key}": value for key, value in figures_of.items()})
    if attributes.hardware is not UNSET:
        _put(metrics, "energy_mj", _energy(attributes.hardware))
    metrics["nonfinite"] = len(attributes.nonfinite)
    return metrics


def train_metrics(attributes: TrainAttributes) -> dict[str, Number]:
    """Metrics of a `train` record."""
    end = attributes.interval[1]
    metrics: dict[str, Number] = {"samples": attributes.n}
    if attributes.trained is not UNSET:
        metrics["tokens.trained"] = attributes.trained
    metrics["update.busy_ns"] = measure(
        (row[3], end if row[4] is None else min(row[4], end)) for row in attributes.intervals
    )
    metrics["nonfinite"] = sum(value is None for value in attributes.scalars.values())
    return metrics


def run_metrics(attributes: RunAttributes) -> dict[str, Number]:
    """Metrics of a `run` record: the numbers of its attributes, flattened with dots."""
    return dict(_flatten(msgspec.to_builtins(attributes), ""))


def reduce_memory(readings: Iterable[Memory]) -> dict[str, dict[str, int | float]]:
    """``{quantity: {min_bytes, max_bytes, sum_bytes, mean_bytes}}`` of one or more tables."""
    tables = list(readings)
    reduced: dict[str, dict[str, int | float]] = {}
    for column, (name, owner) in MEMORY_COLUMNS.items():
        figures = memory.reduce(
            reading for table in tables for reading in memory_readings(table, column, owner)
        )
        if figures is not None:
            reduced[name] = memory_figures(figures)
    return reduced


def _energy(table: Hardware) -> int | None:
    if table.energy_mj is UNSET:
        return None
    return energy.spent(zip(table.device, table.instant, table.energy_mj, strict=True))


def memory_readings(
    table: Memory, column: str, owner: tuple[str, ...]
) -> Iterable[tuple[tuple[object, ...], int | None]]:
    """(owner, bytes) of each row of one column."""
    values = getattr(table, column)
    if values is UNSET:
        return
    nothing = [None] * len(values)
    owners = [getattr(table, name) for name in owner]
    columns = [nothing if c is UNSET else c for c in owners]
    for row, value in enumerate(values):
        yield tuple(c[row] for c in columns), value


def memory_figures(figures: memory.Reduced) -> dict[str, int | float]:
    return {f"{name}_bytes": value for name, value in figures._asdict().items()}


def worker_figures(durations: Mapping[str, Sequence[int]]) -> dict[str, int | float]:
    """Figures of one timed method: calls, and each worker's summed duration over workers."""
    calls = sum(len(values) for values in durations.values())
    return _over_workers(calls, [sum(values) for values in durations.values()])


def worker_totals(calls_and_sums: Mapping[str, Sequence[int]]) -> dict[str, int | float]:
    """The same of a whole run, from ``{rank: [calls, summed duration]}``."""
    return _over_workers(
        sum(calls for calls, _ in calls_and_sums.values()),
        [total for _, total in calls_and_sums.values()],
    )


def _over_workers(calls: int, sums: Sequence[int]) -> dict[str, int | float]:
    ordered = sorted(sums)
    return {
        "count": calls,
        "min_ns": ordered[0],
        "median_ns": lengths.percentile(ordered, 50),
        "max_ns": ordered[-1],
        "mean_ns": sum(ordered) / len(ordered),
    }


def _phase_metrics(phase: str, figures: timeline.PhaseTimes) -> dict[str, Number]:
    named = {
        "busy_ns": figures.busy_ns,
        "logical_ns": figures.logical_ns,
        "top_ns": figures.top_ns,
        "exposed_ns": figures.exposed_ns,
        "self_exposed_ns": figures.self_exposed_ns,
        "sum_ns": figures.sum_ns,
        "calls": figures.calls,
    }
    return {f"phase.{phase}.{key}": ns for key, ns in named.items() if ns is not None}


def _sample_metrics(
    a: RolloutAttributes, columns: Mapping[str, Ints], groups: int
) -> dict[str, Number]:
    metrics: dict[str, Number] = {}
    if "group_ids" in columns:
        metrics["groups"] = groups
    if a.generated is not UNSET:
        metrics["samples.generated"] = sum(n for _, _, n in a.generated)
    metrics["samples.consumed"] = sum(n for _, _, n in a.samples) if a.samples else 0
    revisited = sum(n * visits for _, _, n, visits, _ in a.revisited)
    visits = total(columns["visit_counts"]) if "visit_counts" in columns else 0
    metrics["samples.visits"] = visits + revisited
    metrics["samples.revisited"] = revisited
    if a.truncated is not UNSET:
        metrics["samples.truncated"] = len(a.truncated)
    metrics["samples.pending"] = 0 if a.pending is UNSET else a.pending
    for reason, n, _ in a.discarded:
        key = f"samples.discarded.{reason}"
        metrics[key] = int(metrics.get(key) or 0) + n
    return metrics


def _token_metrics(
    a: RolloutAttributes, columns: Mapping[str, Ints], firsts: Sequence[int]
) -> dict[str, Number]:
    metrics: dict[str, Number] = {}
    tokens = {
        name: total(columns[f"{name}_lengths"])
        for name in ("prompt", "completion", "environment", "trained")
        if f"{name}_lengths" in columns
    }
    metrics.update({f"tokens.{name}": n for name, n in tokens.items()})
    if "group_ids" in columns and "prompt_lengths" in columns:
        metrics["tokens.prompt_unique"] = total(columns["prompt_lengths"][firsts])
    _put(metrics, "tokens.visited", _visited_tokens(a, columns))
    if a.padding is not UNSET:
        metrics["tokens.padding"] = a.padding
    if "prompt" in tokens and "completion" in tokens:
        metrics["tokens.total"] = tokens["prompt"] + tokens["completion"]
    return metrics


def _visited_tokens(a: RolloutAttributes, columns: Mapping[str, Ints]) -> int | None:
    """Tokens under the loss mask, once per visit; None when a part of it is not known."""
    trained, visit_counts = columns.get("trained_lengths"), columns.get("visit_counts")
    if trained is None and not a.revisited:
        return None
    visited = 0
    if visit_counts is not None:
        if trained is not None:
            visited = total(trained, visit_counts)
        elif visit_counts.any():
            return None
    for _, _, _, visits, tokens in a.revisited:
        if tokens is None:
            return None
        visited += tokens * visits
    return visited


def _first_of_group(samples: Sequence[SampleRun], groups: Ints | None) -> list[int]:
    """Position of the first sample of each group; a group's samples may stand in several runs."""
    if groups is None or not samples:
        return []
    starts = np.cumsum([0, *(n for _, _, n in samples)][:-1])
    # Only where the group or the run changes may one be the first.
    changes = np.ones(len(groups), dtype=bool)
    changes[1:] = groups[1:] != groups[:-1]
    changes[starts] = True
    positions = np.flatnonzero(changes)
    bounds = [*np.searchsorted(positions, starts).tolist(), len(positions)]
    firsts: dict[RolloutId, dict[int, int]] = defaultdict(dict)
    # From the last to the first, so that the first is what remains.
    for (rollout_id, _, _), low, high in reversed(
        [*zip(samples, bounds, bounds[1:], strict=False)]
    ):
        here = positions[low:high][::-1]
        firsts[rollout_id].update(zip(groups[here].tolist(), here.tolist(), strict=True))
    return [position for positions in firsts.values() for position in positions.values()]


def _length_metrics(columns: Mapping[str, Ints]) -> dict[str, Number]:
    metrics: dict[str, Number] = {}
    for name in ("prompt", "completion"):
        column = columns.get(f"{name}_lengths")
        if column is not None and len(column):
            for key, value in lengths.summarize(column)._asdict().items():
                metrics[f"length.{name}.{key}"] = value
    lag = columns.get("policy_lag")
    if lag is not None and len(lag):
        metrics["policy_lag.min"] = int(lag.min())
        metrics["policy_lag.max"] = int(lag.max())
        metrics["policy_lag.mean"] = total(lag) / len(lag)
    return metrics


def _update_metrics(updates: Sequence[Update]) -> dict[str, Number]:
    metrics: dict[str, Number] = {"updates.attempted": len(updates)}
    for status in ("applied", "skipped", "failed", "unconfirmed"):
        metrics[f"updates.{status}"] = sum(u.status == status for u in updates)
    applied = [(u.samples, u.nominal) for u in updates if u.status == "applied"]
    if all(nominal is not None for _, nominal in applied):
        metrics["updates.partial"] = sum(n < m for n, m in applied if m is not None)
    return metrics


def _worker_metrics(workers: Mapping[str, Mapping[str, Sequence[int]]]) -> dict[str, Number]:
    return {
        f"worker.{method}.{key}": value
        for method, durations in workers.items()
        for key, value in worker_figures(durations).items()
    }


def _throughput_metrics(
    a: RolloutAttributes, times: timeline.Timeline, metrics: Mapping[str, Number]
) -> dict[str, Number]:
    if a.devices is UNSET:
        return {}
    devices = device_count(a)
    rates: dict[str, Number] = {"devices": devices}
    for name, tokens, ns, count in (
        ("device", "tokens.total", times.work_ns, devices),
        ("device_wall", "tokens.total", times.wall_ns, devices),
        ("generation", "tokens.completion", busy(times, "generation"), device_count(a, GENERATE)),
        ("train", "tokens.visited", busy(times, "policy_train"), device_count(a, TRAIN)),
    ):
        value = metrics.get(tokens)
        if isinstance(value, int):
            _put(rates, f"throughput.{name}", throughput.rate(value, ns, count))
    return rates


def busy(times: timeline.Timeline, phase: str) -> int:
    return times.phases[phase].busy_ns if phase in times.phases else 0


def device_count(a: RolloutAttributes, role: str | None = None) -> int:
    """Distinct devices of the window, of all roles or of one."""
    if a.devices is UNSET:
        return 0
    return len({index for index, roles in a.devices if role is None or role in roles})


def _put(metrics: dict[str, Number], name: str, value: Number) -> None:
    """A ratio without a denominator is absent."""
    if value is not None:
        metrics[name] = value


def _flatten(value: dict[str, Any], prefix: str) -> Iterable[tuple[str, Number]]:
    for key, inner in value.items():
        name = f"{prefix}{key}"
        if isinstance(inner, dict):
            yield from _flatten(inner, f"{name}.")
        elif isinstance(inner, (int, float)) and not isinstance(inner, bool):
            yield name, inner
