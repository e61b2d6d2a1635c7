"""The metrics of one ``rollout`` record from its evidence."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from msgspec import UnsetType

from otel_grpo.audit.columns import Column, Counted, column, dot, over_keys, over_workers, total
from otel_grpo.audit.energy import energy
from otel_grpo.audit.partition import Account, account
from otel_grpo.records.model import Memory, RolloutAttributes

Number = int | float

_GIGA = 10**9  # nanoseconds in a second

# One entry per consumed sample each.
COLUMNS = (
    "prompt_lengths",
    "completion_lengths",
    "trained_lengths",
    "environment_lengths",
    "group_ids",
    "visit_counts",
    "policy_lag",
)
# Name in `metrics`, column of the readings, what one reading is of.
READINGS = (
    ("allocator.allocated", "allocator_allocated", "rank"),
    ("allocator.reserved", "allocator_reserved", "rank"),
    ("allocator.peak_allocated", "allocator_peak_allocated", "rank"),
    ("allocator.peak_reserved", "allocator_peak_reserved", "rank"),
    ("process.rss", "process_rss", "pid"),
    ("device.used", "device_used", "device"),
    ("host.used", "host_used", "host"),
)


class Ratio(NamedTuple):
    """A throughput as its integers; a part is None where it is not known."""

    numerator: int | None
    denominator: int | None

    def value(self) -> float | None:
        """Units per second and device; None where a part is unknown or nothing was observed."""
        if self.numerator is None or not self.denominator:
            return None
        return self.numerator * _GIGA / self.denominator


@dataclass
class Derived:
    """What one window gives: its metrics, and what the totals of its run are made from."""

    account: Account
    metrics: dict[str, Number]
    status: str
    devices: int | None
    ratios: dict[str, Ratio]
    columns: dict[str, Column | None]
    lengths: dict[str, Counted] = field(default_factory=dict)
    worker_calls: dict[str, int] = field(default_factory=dict)
    worker_ns: dict[str, dict[str, int]] = field(default_factory=dict)
    memory: dict[str, dict[object, int]] = field(default_factory=dict)


def _known(values: list[int] | UnsetType) -> Column | None:
    return None if isinstance(values, UnsetType) else column(values)


def _largest_readings(memory: Memory) -> dict[str, dict[object, int]]:
    n = len(memory.instant)
    device = [None] * n if isinstance(memory.device, UnsetType) else memory.device
    keys: dict[str, list[object]] = {
        "rank": list(memory.rank),
        "pid": list(zip(memory.host, memory.pid, strict=True)),
        "device": list(zip(memory.host, device, strict=True)),
        "host": list(memory.host),
    }
    result: dict[str, dict[object, int]] = {}
    for name, attribute, unit in READINGS:
        values = getattr(memory, attribute)
        if isinstance(values, UnsetType):
            continue
        largest: dict[object, int] = {}
        for key, value in zip(keys[unit], values, strict=True):
            if value is not None:
                largest[key] = max(value, largest.get(key, value))
        if largest:
            result[name] = largest
    return result


def _groups(a: RolloutAttributes, group_ids: Column | None) -> tuple[int, Column] | None:
    """How many prompts there are, and the position of the first sample of each."""
    if group_ids is None:
        return None
    runs = [] if isinstance(a.samples, UnsetType) else a.samples
    codes: dict[object, int] = {}
    code = [codes.setdefault((type(run[0]), run[0]), len(codes)) for run in runs]
    rollout = np.repeat(np.array(code, np.int64), np.array([run[2] for run in runs], np.int64))
    _, group = np.unique(group_ids, return_inverse=True)
    key = rollout * (len(group) + 1) + group.reshape(-1)
    _, first = np.unique(key, return_index=True)
    return len(first), first


def _status(a: RolloutAttributes, consumed: int, visits: Column | None) -> str:
    if a.window.status == "aborted":
        return "aborted"  # an exception or a stop leaves no other trace: it is evidence itself
    tail = any(
        u.status == "applied" and u.nominal is not None and u.samples < u.nominal for u in a.updates
    )
    unvisited = visits is not None and bool((visits == 0).any())
    dropped = bool(sum(row[1] for row in a.discarded)) and not consumed
    return "partial" if tail or unvisited or dropped else "complete"


def derive(a: RolloutAttributes, pending_before: int | None) -> Derived:
    """Every metric of a window; ``pending_before`` is the level of the window before, if known.

    The columns must be of equal length: the laws of a record are checked first.
    """
    spans = account(a.intervals, a.window.start_ns, a.window.end_ns, a.window.lane)
    m: dict[str, Number] = dict(spans.metrics)

    # --- samples and tokens
    consumed = 0 if isinstance(a.samples, UnsetType) else sum(run[2] for run in a.samples)
    given = {name: _known(getattr(a, name)) for name in COLUMNS}
    prompt, completion, trained, environment, group_ids, visits, lag = given.values()
    revisited = sum(row[2] * row[3] for row in a.revisited)
    own_visits = 0 if visits is None else total(visits)
    m["samples.consumed"] = consumed
    m["samples.visits"] = own_visits + revisited
    m["samples.revisited"] = revisited
    if not isinstance(a.generated, UnsetType):
        m["samples.generated"] = sum(run[2] for run in a.generated)
    if not isinstance(a.truncated, UnsetType):
        m["samples.truncated"] = len(a.truncated)
    for reason, n, _ in a.discarded:
        m[f"samples.discarded.{reason}"] = m.get(f"samples.discarded.{reason}", 0) + n
    spent = sum(u.samples for u in a.updates)
    if pending_before is not None:
        m["samples.pending"] = pending_before + own_visits + revisited - spent
    else:  # a window before is lost, or lacked a rank: the level starts anew
        m["samples.pending"] = 0 if isinstance(a.pending, UnsetType) else a.pending
    groups = _groups(a, group_ids)
    if groups is not None:
        m["groups"] = groups[0]
        if prompt is not None:
            m["tokens.prompt_unique"] = total(prompt[groups[1]])
    columns = (("prompt", prompt), ("completion", completion))
    for name, values in (*columns, ("environment", environment), ("trained", trained)):
        if values is not None:
            m[f"tokens.{name}"] = total(values)
    if prompt is not None and completion is not None:
        m["tokens.total"] = total(prompt) + total(completion)
    if not isinstance(a.padding, UnsetType):
        m["tokens.padding"] = a.padding
    unknown = (trained is None and own_visits) or any(row[4] is None for row in a.revisited)
    if (trained is not None or a.revisited) and not unknown:
        own = 0 if trained is None or visits is None else dot(trained, visits)
        m["tokens.visited"] = own + sum((row[4] or 0) * row[3] for row in a.revisited)

    # --- updates, publications
    states = Counter(u.status for u in a.updates)
    m["updates.attempted"] = len(a.updates)
    for state in ("applied", "skipped", "failed", "unconfirmed"):
        m[f"updates.{state}"] = states[state]
    applied = [(u.samples, u.nominal) for u in a.updates if u.status == "applied"]
    if all(nominal is not None for _, nominal in applied):
        m["updates.partial"] = sum(samples < (nominal or 0) for samples, nominal in applied)
    m["publications"] = sum(p.completed_ns is not None for p in a.publications)
    m["publications.pending"] = sum(p.completed_ns is None for p in a.publications)
    m["nonfinite"] = len(a.nonfinite)

    # --- throughput: one division of integers each
    devices = generating = training = None
    if not isinstance(a.devices, UnsetType):
        devices = len({index for index, _ in a.devices})
        generating = len({index for index, roles in a.devices if "generate" in roles})
        training = len({index for index, roles in a.devices if "train" in roles})
        m["devices"] = devices

    def ratio(numerator: str, ns: str, count: int | None) -> Ratio:
        top, time = m.get(numerator), m.get(ns)
        return Ratio(
            top if isinstance(top, int) else None,
            None if count is None or not isinstance(time, int) else time * count,
        )

    ratios = {
        "device": ratio("tokens.total", "time.work_ns", devices),
        "device_wall": ratio("tokens.total", "time.wall_ns", devices),
        "generation": ratio("tokens.completion", "phase.generation.busy_ns", generating),
        "train": ratio("tokens.visited", "phase.policy_train.busy_ns", training),
    }
    for name, pair in ratios.items():
        value = pair.value()
        if value is not None:
            m[f"throughput.{name}"] = value
    tokens = m.get("tokens.total", 0)
    for phase in spans.phases if tokens else ():
        m[f"per_token.{phase}_ns"] = m[f"phase.{phase}.busy_ns"] / tokens

    result = Derived(spans, m, _status(a, consumed, visits), devices, ratios, given)

    # --- spreads
    for name, values in columns:
        if values is not None and len(values):
            result.lengths[name] = Counted(values)
            for key, number in result.lengths[name].describe(ranks=True).items():
                m[f"length.{name}.{key}"] = number
    if lag is not None and len(lag):
        result.lengths["policy_lag"] = Counted(lag)
        for key, number in result.lengths["policy_lag"].describe(ranks=False).items():
            m[f"policy_lag.{key}"] = number
    for method, ranks in a.workers.items():
        result.worker_calls[method] = sum(len(calls) for calls in ranks.values())
        result.worker_ns[method] = {rank: sum(calls) for rank, calls in ranks.items()}
        spread = over_workers(result.worker_calls[method], result.worker_ns[method].values())
        for key, number in spread.items():
            m[f"worker.{method}.{key}"] = number
    if not isinstance(a.memory, UnsetType):
        result.memory = _largest_readings(a.memory)
        for name, largest in result.memory.items():
            for key, number in over_keys(largest).items():
                m[f"memory.{name}.{key}"] = number
    energy_mj = None if isinstance(a.hardware, UnsetType) else energy(a.hardware)
    if energy_mj is not None:
        m["energy_mj"] = energy_mj
    return result
