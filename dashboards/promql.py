"""The few shapes that nearly every query has.

Counters of a run start at 0 and their processes write to series of their own, so the sum of last
values is the exact total of the run. Growth within a window is `increase()`, which extrapolates to
the window's edges by up to one export interval: right for pictures and for ratios, where numerator
and denominator are exported at the same instants and the factor cancels.
"""

from __future__ import annotations

WINDOW = "$window"
RANGE = "$__range"


def total(metric: str, labels: str, by: str = "") -> str:
    """Exact total up to the end of the picture, of processes that have ended too."""
    return f"{_sum(by)} (last_over_time({metric}{{{labels}}}[{RANGE}]))"


def grown(metric: str, labels: str, by: str = "") -> str:
    """What was added in each window."""
    return f"{_sum(by)} (increase({metric}{{{labels}}}[{WINDOW}]))"


def ratio(numerator: str, denominator: str, on: str | None = None) -> str:
    """No point where the denominator is 0.

    `on` are the labels that find the denominator of a numerator that has more labels.
    """
    many = "" if on is None else f" on ({on}) group_left ()"
    return f"{numerator} /{many} ({denominator} > 0)"


def quantile(q: float, metric: str, labels: str, by: str) -> str:
    """Of a histogram's observations in the window, to the width of their bucket."""
    return f"histogram_quantile({q}, {grown(metric + '_bucket', labels, f'le, {by}'.strip(', '))})"


def _sum(by: str) -> str:
    return f"sum by ({by})" if by else "sum"


# What every panel of one run asks for.
RUN = 'rl_run_id="$run"'
# A counter like those that are divided by it, so that both begin at the same instant.
ITERATIONS = f"scalar({grown('rl_loop_windows_total', RUN)} > 0)"
FEW = "The window should hold a few iterations."
