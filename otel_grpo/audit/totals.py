"""The totals of an attempt: sums, levels and merged values of its windows."""

from __future__ import annotations

from collections import Counter, defaultdict

from otel_grpo.audit.columns import Counted, over_keys, over_workers
from otel_grpo.audit.decode import Flat
from otel_grpo.audit.rollout import Derived, Ratio
from otel_grpo.records.model import RolloutAttributes

FORMULA = "sum(tokens) * 1e9 / sum(work_ns * devices)"

_TIMES = ("log_ns", "logical_ns", "work_ns", "overlapped_ns", "unattributed_ns")
# First word of a name in `metrics` -> block of the summary; these are plain sums over the windows.
_SUMS = {"phase": "phases", "samples": "samples", "tokens": "tokens", "updates": "updates"}


class Totals:
    """Adds up windows; its size does not depend on how many there are."""

    def __init__(self) -> None:
        self.sums: Counter[str] = Counter()
        self.windows: Counter[str] = Counter()
        self.first_start: int | None = None
        self.last_end: int | None = None
        self.expected_ranks: int | None = None
        self.complete_ranks = 0
        self.pending: int | None = None
        self._known: set[str] = set()
        self._lengths: dict[str, Counted] = defaultdict(Counted)
        self._calls: Counter[str] = Counter()
        self._worker_ns: dict[str, Counter[str]] = defaultdict(Counter)
        self._memory: dict[str, dict[object, int]] = defaultdict(dict)
        self._ratios: dict[str, tuple[int | None, int | None]] = {}

    def add(self, a: RolloutAttributes, window: Derived) -> None:
        """One window."""
        for name, value in window.metrics.items():
            first, _, rest = name.partition(".")
            if first in _SUMS and name != "samples.pending" and isinstance(value, int):
                self._sum(f"{_SUMS[first]}.{rest}", value)
            elif first == "time" and isinstance(value, int):
                self._sum(name, value)
            elif name in {
                "energy_mj",
                "groups",
                "nonfinite",
                "publications",
                "publications.pending",
            }:
                self._sum(name.replace(".", "_"), int(value))
        pending = window.metrics.get("samples.pending")
        self.pending = pending if isinstance(pending, int) else None
        self.windows[window.status] += 1
        if self.first_start is None:
            self.first_start = a.window.start_ns
        self.last_end = a.window.end_ns
        self.expected_ranks = max(a.ranks.expected, self.expected_ranks or 0)
        self.complete_ranks += a.ranks.received >= a.ranks.expected
        for name, values in window.lengths.items():
            self._lengths[name].merge(values)
        self._calls.update(window.worker_calls)
        for method, ranks in window.worker_ns.items():
            self._worker_ns[method].update(ranks)
        for name, largest in window.memory.items():
            kept = self._memory[name]
            for key, value in largest.items():
                kept[key] = max(value, kept.get(key, value))
        for name, ratio in window.ratios.items():
            self._add_ratio(name, ratio, known=window.devices is not None)

    def _sum(self, name: str, value: int) -> None:
        self.sums[name] += value
        self._known.add(name)

    def _add_ratio(self, name: str, ratio: Ratio, *, known: bool) -> None:
        """Sums above and below; a window without an inventory spoils the whole, not just itself."""
        top, bottom = self._ratios.get(name, (None, 0))
        if ratio.numerator is not None:
            top = (top or 0) + ratio.numerator
        bottom = None if bottom is None or not known else bottom + (ratio.denominator or 0)
        self._ratios[name] = (top, bottom)

    @property
    def count(self) -> int:
        """Windows with a record."""
        return self.windows.total()

    def blocks(self, started: int, ended: int, *, lost: int, late: int, ranks: int) -> Flat:
        """Every number of the summary by its dotted name.

        Args:
            started: Start of the attempt, Unix ns.
            ended: Its end, Unix ns.
            lost: Windows that were opened and have no record, of a killed attempt.
            late: Publications that were confirmed after their record was written.
            ranks: Ranks to expect where no window says so.
        """
        walls = self.sums["time.wall_ns"]
        wall = ended - started
        startup = wall if self.first_start is None else self.first_start - started
        shutdown = 0 if self.last_end is None else ended - self.last_end
        result: Flat = {
            "started_unix_ns": started,
            "ended_unix_ns": ended,
            "time.wall_ns": wall,
            "time.startup_ns": startup,
            "time.windows_ns": walls,
            "time.between_ns": wall - startup - walls - shutdown,
            "time.shutdown_ns": shutdown,
            "windows.complete": self.windows["complete"],
            "windows.partial": self.windows["partial"],
            "windows.aborted": self.windows["aborted"] + lost,
            "publications": self.sums["publications"] + late,
            "publications_pending": self.sums["publications_pending"] - late,
            "nonfinite": self.sums["nonfinite"],
            "ranks.expected": ranks if self.expected_ranks is None else self.expected_ranks,
            "ranks.complete_windows": self.complete_ranks,
            "ranks.incomplete_windows": self.count - self.complete_ranks,
        }
        result |= {f"time.{name}": self.sums[f"time.{name}"] for name in _TIMES}
        for name in sorted(self._known):
            if name in {"energy_mj", "groups"} or name.partition(".")[0] in _SUMS.values():
                result[name] = self.sums[name]
        if self.pending is not None:
            result["samples.pending"] = self.pending
        for name, values in self._lengths.items():
            lag = name == "policy_lag"
            for key, value in values.describe(ranks=not lag).items():
                result[f"policy_lag.{key}" if lag else f"length.{name}.{key}"] = value
        for method, per_rank in self._worker_ns.items():
            for key, value in over_workers(self._calls[method], per_rank.values()).items():
                result[f"workers.{method}.{key}"] = value
        for name, largest in self._memory.items():
            for key, value in over_keys(largest).items():
                result[f"memory.{name}.{key}"] = value
        for name, (top, bottom) in self._ratios.items():
            rate = Ratio(top, bottom).value()
            if rate is not None:
                result[f"throughput.{name}"] = rate
        return result
