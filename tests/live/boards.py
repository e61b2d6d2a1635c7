"""The dashboards and the rules as the tests read them: every query, and where it stands."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
JSON = ROOT / "dashboards/json"
RULES = ROOT / "deploy/prometheus/rules.yml"
NAMES = ("run", "fleet", "health")

Board = dict[str, Any]


@dataclass(frozen=True)
class Question:
    """A query of Prometheus, and how it is asked."""

    board: str
    place: str
    expr: str
    legend: str = ""
    instant: bool = False
    exemplars: bool = False

    def __str__(self) -> str:
        return f"{self.board}: {self.place}"


def panels_of(board: Board) -> list[dict[str, Any]]:
    """All panels that are no headings."""
    return [panel for panel in board["panels"] if panel["type"] != "row"]


def board(name: str) -> Board:
    found: Board = json.loads((JSON / f"{name}.json").read_text())
    return found


def questions(name: str, of: Board) -> Iterator[Question]:
    """Panels, then annotations; what variables ask is in `variables`."""
    for panel in panels_of(of):
        for target in panel.get("targets", ()):
            if "expr" in target:
                yield Question(
                    name,
                    f"{panel['id']} {panel['title']}, {target['refId']}",
                    target["expr"],
                    target.get("legendFormat", ""),
                    target.get("instant", False),
                    target.get("exemplar", False),
                )
    for annotation in of["annotations"]["list"]:
        legend = annotation.get("textFormat", "")
        yield Question(name, f"mark {annotation['name']}", annotation["expr"], legend)


@dataclass(frozen=True)
class LabelValues:
    """`label_values(series, label)` of a variable."""

    board: str
    variable: str
    series: str
    label: str

    def __str__(self) -> str:
        return f"{self.board}: ${self.variable}"


def variables(name: str, of: Board) -> Iterator[LabelValues]:
    for variable in of["templating"]["list"]:
        if variable["type"] == "query":
            found = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["query"]["query"])
            assert found is not None, variable
            yield LabelValues(name, variable["name"], found[1], found[2])


def rules() -> list[dict[str, Any]]:
    return [
        rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]
    ]


def used(text: str) -> set[str]:
    """The variables of Grafana in a text, its own macros left out."""
    names = {a or b for a, b in re.findall(r"\$(?:(\w+)|\{([\w.]+)(?::\w+)?\})", text)}
    return {name for name in names if not name.startswith("__")}


def filled(text: str, values: dict[str, str]) -> str:
    """`text` with all variables and macros replaced, the longest names first."""
    for name in sorted(values, key=len, reverse=True):
        text = re.sub(rf"\$(?:__)?{name}\b|\$\{{(?:__)?{name}\}}", lambda _: values[name], text)  # noqa: B023
    assert "$" not in text, text
    return text
