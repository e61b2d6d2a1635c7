"""The union of intervals against the usual way with numpy, and against what HTA does with pandas.

Each gets columns and gives columns of disjoint intervals, made sure to be the same ones. Intervals as
a trace has them, in the order in which they ended, overlapping by a third; and in random order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from statistics import median
from typing import Any

import numpy as np

from benchmarks.measure import in_turns, stay_on_one_core
from benchmarks.table import Row
from otel_grpo.core.intervals import union_of_columns

SIZES = (10**2, 10**3, 10**4, 10**5, 10**6)
REPEATS = 5
GOAL = 20e6  # intervals a second

Union = Callable[[Any, Any], tuple[Any, Any]]


def rows(**_: Any) -> Iterator[Row]:
    """Millions of intervals a second, by their number."""
    stay_on_one_core()
    unions: dict[str, Union] = {"ours": union_of_columns, "numpy": _running_maximum}
    hta = _hta()
    if hta is not None:
        unions["HTA"] = hta
    sizes = ", ".join(f"{n:,}" for n in SIZES)
    for order in ("of a trace", "random"):
        rates = _rates(unions, shuffled=order == "random")
        others = [name for name in unions if name != "ours"]
        ahead = all(
            max(rates[name][k] for name in others) < ours for k, ours in enumerate(rates["ours"])
        )
        yield Row(
            f"union of {sizes} intervals, order {order}, millions a second",
            _millions(rates["ours"]),
            f"ahead, {GOAL / 1e6:.0f} M/s",
            ahead and rates["ours"][-1] >= GOAL,
        )
        for name in [*others, "two sorts alone"]:
            yield Row(f"  {_TOLD[name]}", _millions(rates[name]))
    if hta is None:
        yield Row(f"  {_TOLD['HTA']}", "it is not installed here")


def _rates(unions: dict[str, Union], *, shuffled: bool) -> dict[str, list[float]]:
    """Intervals a second of each, for each size."""
    rates: dict[str, list[float]] = {name: [] for name in [*unions, "two sorts alone"]}
    for n in SIZES:
        starts, ends = _intervals(n, shuffled=shuffled)
        given = union_of_columns(starts, ends)
        for name, union in unions.items():
            assert all(map(np.array_equal, union(starts, ends), given)), name
        loops = {name: _loop(union, starts, ends) for name, union in unions.items()}
        loops["two sorts alone"] = _loop(_two_sorts, starts, ends)
        costs = in_turns(loops, n=max(1, 10**4 // n), repeats=REPEATS)
        for name, each in costs.items():
            rates[name].append(n / median(each) * 1e9)
    return rates


_TOLD = {
    "numpy": "numpy: sorted by start, running maximum of the ends",
    "HTA": "HTA's merge_kernel_intervals (pandas)",
    "two sorts alone": "numpy's sort of the starts and of the ends alone",
}


def _millions(rates: list[float]) -> str:
    return ", ".join(f"{rate / 1e6:.1f}" for rate in rates)


def _loop(union: Union, starts: Any, ends: Any) -> Callable[[int], None]:
    def loop(n: int) -> None:
        for _ in range(n):
            union(starts, ends)

    return loop


def _intervals(n: int, *, shuffled: bool) -> tuple[Any, Any]:
    draw = np.random.default_rng(0)
    # Counted from the start of a trace: HTA compares floats, which can't hold a Unix time's nanoseconds.
    starts = draw.integers(0, n * 1000, n)
    ends = starts + draw.integers(1, 2000, n)
    order = draw.permutation(n) if shuffled else np.argsort(ends)
    return starts[order], ends[order]


def _two_sorts(starts: Any, ends: Any) -> tuple[Any, Any]:
    return np.sort(starts), np.sort(ends)


def _running_maximum(starts: Any, ends: Any) -> tuple[Any, Any]:
    order = np.argsort(starts)
    starts, ends = starts[order], np.maximum.accumulate(ends[order])
    gaps = np.flatnonzero(starts[1:] > ends[:-1])
    return starts[np.append(0, gaps + 1)], ends[np.append(gaps, len(ends) - 1)]


def _hta() -> Union | None:
    try:
        import pandas as pd
        from hta.utils.utils import merge_kernel_intervals
    except ImportError:
        return None

    def union(starts: Any, ends: Any) -> tuple[Any, Any]:
        merged = merge_kernel_intervals(pd.DataFrame({"ts": starts, "dur": ends - starts}))
        return merged["ts"].to_numpy(), merged["end"].to_numpy()

    return union
