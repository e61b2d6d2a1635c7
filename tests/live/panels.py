"""What a panel shows of a run, asked as Grafana would ask."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from tests.live.boards import NAMES, Question, board, filled, questions
from tools.stack.ask import Prometheus

#: Of a dashboard that shows the last hour.
MACROS = {"range": "1h", "window": "30m", "rate_interval": "1m", "interval": "15s", "phase": ".+"}
Series = dict[tuple[str, ...], float]


@dataclass(frozen=True)
class Viewer:
    """Looks at dashboards at one instant.

    Args:
        start: seconds of the epoch, of what range queries show.
        at: the end of it.
    """

    prometheus: Prometheus
    start: float
    at: float
    variables: dict[str, str] = field(default_factory=lambda: dict(MACROS))

    def ask(self, question: Question, run: str) -> list[tuple[dict[str, str], list[float]]]:
        """Labels and values of each series; what is not a number is left out."""
        expr = self.fill(question.expr, run)
        if question.instant:
            found = [
                (each.labels, [each.value]) for each in self.prometheus.query(expr, at=self.at)
            ]
        else:
            step = max((self.at - self.start) / 500, 1)
            found = [
                (labels, [value for _, value in points])
                for labels, points in self.prometheus.range(
                    expr, start=self.start, end=self.at, step=step
                )
            ]
        return [(labels, list(filter(math.isfinite, values))) for labels, values in found]

    def shown(self, question: Question, run: str, at: float) -> Series:
        """The value of each series at an instant, by its labels less that of the run."""
        expr = self.fill(question.expr, run)
        return series((each.labels, each.value) for each in self.prometheus.query(expr, at=at))

    def fill(self, expr: str, run: str) -> str:
        return filled(expr, {**self.variables, "run": run})


def series(points: Iterable[tuple[dict[str, str], float]]) -> Series:
    """By the values of labels, sorted by the labels' names; 0 is no different from nothing."""
    found = {
        tuple(
            value for name, value in sorted(labels.items()) if name not in {"__name__", "rl_run_id"}
        ): value
        for labels, value in points
    }
    return {labels: value for labels, value in found.items() if value}


ALL = [question for name in NAMES for question in questions(name, board(name))]


def of(name: str, title: str, ref: str = "A") -> Question:
    """The query `ref` of the panel `title`."""
    return next(q for q in ALL if q.board == name and q.place.endswith(f" {title}, {ref}"))
