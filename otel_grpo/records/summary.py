"""Totals of a run from its lines alone.

The running process feeds each line that it wrote; `otel-grpo finish` feeds the lines of the files.
Both get the same totals, because nothing but lines goes in.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
from msgspec import UNSET

from otel_grpo.core import lengths, memory, throughput
from otel_grpo.records import build
from otel_grpo.records.model import (
    Attempt,
    AttemptSummary,
    Number,
    Observed,
    OpenWindow,
    PublicationCompleted,
    RankCounts,
    Record,
    RolloutAttributes,
    RolloutRecord,
    RunAttributes,
    RunRecord,
    RunStatus,
    RunTime,
    Summary,
    Totals,
    WindowCounts,
    WindowOpened,
    WorkerLine,
)

FORMULA = "sum(tokens) * 1e9 / sum(work_ns * devices)"

# First words of the names of `metrics` that are summed as they are into a block of the totals.
_SUMMED = frozenset({"time", "samples", "tokens", "updates"})


@dataclass
class _Rate:
    """Numerator and denominator of one throughput, each summed over the windows."""

    tokens: int = 0
    device_ns: int = 0

    def value(self) -> float | None:
        return throughput.rate(self.tokens, self.device_ns)


@dataclass
class TotalsBuilder:
    """Totals of one attempt, fed line by line; its size does not grow with their number."""

    records: dict[str, int] = field(default_factory=lambda: {"train": 0, "rollout": 0, "run": 0})
    run_record: RunRecord | None = None
    iteration: int | None = None
    last_ns: int = 0
    late: int = 0  # contributions in the totals that are in no record

    def __post_init__(self) -> None:
        self._sums: dict[str, Counter[str]] = defaultdict(Counter)
        self._phases: dict[str, Counter[str]] = defaultdict(Counter)
        self._windows: Counter[str] = Counter()
        self._opened: set[int] = set()
        self._pending_samples = 0
        self._groups: int | None = None
        self._energy_mj: int | None = None
        self._publications = self._publications_pending = self._nonfinite = 0
        self._lengths = {name: lengths.Histogram() for name in ("prompt", "completion")}
        self._policy_lag = lengths.Histogram()
        self._peaks: dict[str, dict[Hashable, int]] = defaultdict(dict)
        self._workers: dict[str, dict[str, list[int]]] = defaultdict(dict)
        self._rates: dict[str, _Rate] = defaultdict(_Rate)
        self._unknown_devices = False
        self._complete_ranks = self._incomplete_ranks = 0
        self._first_start: int | None = None
        self._last_end = 0
        self._windows_ns = 0

    def add(self, record: Record) -> None:
        """Count one line of ``metrics_raw.jsonl``."""
        self.last_ns = max(self.last_ns, record.time_unix_ns)
        if isinstance(record, RolloutRecord):
            self.records["rollout"] += 1
            self._add_window(record.iteration, record.metrics, record.attributes)
        elif isinstance(record, RunRecord):
            self.records["run"] += 1
            self.run_record = record
        else:
            self.records["train"] += 1

    def add_line(self, line: WorkerLine) -> None:
        """Count one line of ``workers/``."""
        if isinstance(line, WindowOpened):
            self._opened.add(line.iteration)
            self.last_ns = max(self.last_ns, line.start_ns)
        elif isinstance(line, PublicationCompleted):
            self._publications += 1
            self._publications_pending -= 1
            self.last_ns = max(self.last_ns, line.completed_ns)

    def totals(
        self, attempt: Attempt, status: RunStatus, ended_ns: int, *, lost: int = 0
    ) -> RunAttributes:
        """The totals as they stand, for an attempt that ends at `ended_ns`."""
        started = attempt.started_unix_ns
        return RunAttributes(
            status=status,
            started_unix_ns=started,
            ended_unix_ns=ended_ns,
            trainer=attempt.trainer,
            world=attempt.world,
            time=self._time(started, ended_ns),
            windows=WindowCounts(
                self._windows["complete"],
                self._windows["partial"],
                self._windows["aborted"] + lost,
            ),
            phases={phase: dict(sums) for phase, sums in sorted(self._phases.items())},
            workers={
                method: build.worker_totals(durations)
                for method, durations in self._workers.items()
            },
            groups=UNSET if self._groups is None else self._groups,
            samples=self._samples(),
            tokens=dict(self._sums["tokens"]),
            updates=dict(self._sums["updates"]),
            publications=self._publications,
            publications_pending=self._publications_pending,
            length={
                name: histogram.summarize()._asdict()
                for name, histogram in self._lengths.items()
                if histogram.n
            },
            memory=self._memory(),
            energy_mj=UNSET if self._energy_mj is None else self._energy_mj,
            policy_lag=self._extremes_of_lag(),
            nonfinite=self._nonfinite,
            throughput=self._throughput(),
            ranks=RankCounts(
                attempt.world.size, self._complete_ranks, self._incomplete_ranks, self.late
            ),
            base=attempt.base,
        )

    def final(self, attempt: Attempt) -> RunAttributes:
        """The totals of an attempt that is over: as its `run` record says, or killed."""
        if self.run_record is not None:
            said = self.run_record.attributes
            return self.totals(attempt, said.status, said.ended_unix_ns)
        # A window that was open when the process was killed has a line in workers/ and no record.
        ended = max(self.last_ns, attempt.started_unix_ns)
        return self.totals(attempt, "interrupted", ended, lost=len(self._opened))

    def _add_window(
        self, iteration: int | None, metrics: Mapping[str, Number], a: RolloutAttributes
    ) -> None:
        window = a.window
        self._windows[window.status] += 1
        self._first_start = (
            window.start_ns
            if self._first_start is None
            else min(self._first_start, window.start_ns)
        )
        self._last_end = max(self._last_end, window.end_ns)
        self._windows_ns += window.end_ns - window.start_ns
        self.last_ns = max(self.last_ns, window.end_ns)
        if iteration is not None:
            self.iteration = max(self.iteration or 0, iteration)
            self._opened.discard(iteration)
        for name, value in metrics.items():
            if not isinstance(value, int):
                continue
            block, _, key = name.partition(".")
            if block in _SUMMED:
                self._sums[block][key] += value
            elif block == "phase":
                phase, _, key = key.rpartition(".")
                self._phases[phase][key] += value
        if (groups := metrics.get("groups")) is not None:
            self._groups = (self._groups or 0) + int(groups)
        if (energy := metrics.get("energy_mj")) is not None:
            self._energy_mj = (self._energy_mj or 0) + int(energy)
        self._pending_samples = int(metrics["samples.pending"] or 0)
        self._publications += int(metrics["publications"] or 0)
        self._publications_pending += int(metrics["publications.pending"] or 0)
        self._nonfinite += int(metrics["nonfinite"] or 0)
        for name, histogram in self._lengths.items():
            if (column := getattr(a, f"{name}_lengths")) is not UNSET:
                histogram.add(column)
        if a.policy_lag is not UNSET:
            self._policy_lag.add(a.policy_lag)
        self._add_memory(a)
        for method, durations in a.workers.items():
            for rank, values in durations.items():
                calls_and_sum = self._workers[method].setdefault(rank, [0, 0])
                calls_and_sum[0] += len(values)
                calls_and_sum[1] += sum(values)
        self._add_rates(metrics, a)
        if a.ranks.received == a.ranks.expected and not a.ranks.missing:
            self._complete_ranks += 1
        else:
            self._incomplete_ranks += 1

    def _add_memory(self, a: RolloutAttributes) -> None:
        if a.memory is UNSET:
            return
        for column, (name, owner) in build.MEMORY_COLUMNS.items():
            peaks = self._peaks[name]
            found = memory.largest(build.memory_readings(a.memory, column, owner))
            for key, value in found.items():
                peaks[key] = max(value, peaks.get(key, value))

    def _add_rates(self, metrics: Mapping[str, Number], a: RolloutAttributes) -> None:
        if a.devices is UNSET:
            self._unknown_devices = True
            return
        devices = build.device_count(a)
        for name, tokens, ns, count in (
            ("device", "tokens.total", "time.work_ns", devices),
            ("device_wall", "tokens.total", "time.wall_ns", devices),
            ("generation", "tokens.completion", "phase.generation.busy_ns",
             build.device_count(a, build.GENERATE)),
            ("train", "tokens.visited", "phase.policy_train.busy_ns",
             build.device_count(a, build.TRAIN)),
        ):  # fmt: skip
            self._rates[name].tokens += int(metrics.get(tokens) or 0)
            self._rates[name].device_ns += int(metrics.get(ns) or 0) * count

    def _time(self, started: int, ended: int) -> RunTime:
        wall = ended - started
        first = ended if self._first_start is None else self._first_start
        last = ended if self._first_start is None else self._last_end
        startup, shutdown = first - started, ended - last
        sums = self._sums["time"]
        return RunTime(
            wall_ns=wall,
            startup_ns=startup,
            windows_ns=self._windows_ns,
            between_ns=wall - startup - self._windows_ns - shutdown,
            shutdown_ns=shutdown,
            log_ns=sums["log_ns"],
            logical_ns=sums["logical_ns"],
            work_ns=sums["work_ns"],
            overlapped_ns=sums["overlapped_ns"],
            unattributed_ns=sums["unattributed_ns"],
        )

    def _samples(self) -> dict[str, int | dict[str, int]]:
        samples: dict[str, int | dict[str, int]] = {}
        discarded: dict[str, int] = {}
        for name, value in self._sums["samples"].items():
            if name.startswith("discarded."):
                discarded[name[len("discarded.") :]] = value
            else:
                samples[name] = value
        samples["pending"] = self._pending_samples
        samples["discarded"] = discarded
        return samples

    def _extremes_of_lag(self) -> dict[str, int | float]:
        if not self._policy_lag.n:
            return {}
        figures = self._policy_lag.summarize()
        return {"min": figures.min, "max": figures.max, "mean": figures.mean}

    def _memory(self) -> dict[str, dict[str, int | float]]:
        reduced = {name: memory.reduce(peaks.items()) for name, peaks in self._peaks.items()}
        return {
            name: build.memory_figures(figures)
            for name, figures in reduced.items()
            if figures is not None
        }

    def _throughput(self) -> dict[str, float | str]:
        rates: dict[str, float | str] = {}
        if not self._unknown_devices:
            for name, needs in (
                ("device", "total"),
                ("device_wall", "total"),
                ("generation", "completion"),
                ("train", "visited"),
            ):
                value = self._rates[name].value()
                if value is not None and needs in self._sums["tokens"]:
                    rates[name] = value
        rates["formula"] = FORMULA
        return rates


def summary_of(
    totals: Totals,
    *,
    run_id: str,
    attempt: int,
    records: Mapping[str, int],
    head: str | None,
    attempts: Iterable[AttemptSummary],
    observed: Observed,
    opened: OpenWindow | None = None,
) -> Summary:
    """``summary.json`` from the totals of the latest attempt and the blocks of the earlier ones."""
    return Summary(
        **_fields(totals),
        run_id=run_id,
        attempt=attempt,
        records=dict(records),
        head=head,
        attempts=list(attempts),
        observed=observed,
        open=opened,
    )


def earlier(totals: Totals, attempt: int, records: Mapping[str, int]) -> AttemptSummary:
    """The block of an attempt that is not the latest any more."""
    return AttemptSummary(**_fields(totals), attempt=attempt, records=dict(records))


def encode_summary(summary: Summary) -> bytes:
    """The bytes of ``summary.json``: what names the run stands first."""
    fields = msgspec.to_builtins(summary)
    first = {name: fields.pop(name) for name in ("schema", "run_id", "attempt", "status")}
    return msgspec.json.format(msgspec.json.encode(first | fields), indent=1) + b"\n"


def _fields(totals: Totals) -> dict[str, Any]:
    return {name: getattr(totals, name) for name in Totals.__struct_fields__}
