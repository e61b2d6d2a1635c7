"""What a dashboard must be, each a function of the JSON that returns what is wrong."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable, Iterable, Iterator
from itertools import combinations
from typing import Any
from urllib.parse import parse_qs, urlsplit

import promql_parser
from grafana_foundation_sdk.cog import plugins
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard

from tests.live.boards import Board, filled, panels_of, questions, used, variables
from tests.live.known import labels_by_name
from tools.stack.build import grammars

# The panels of today's Grafana; `graph`, `singlestat` and `table-old` were Angular's.
TYPES = {"bargauge", "heatmap", "row", "stat", "state-timeline", "table", "timeseries"}
SOURCES = {"prometheus", "tempo", "jaeger"}
MACROS = {"range": "30m", "rate_interval": "1m", "interval": "15s", "from": "1", "to": "2"}
LENGTHS = r"\[(?!\$window\]|\$__range\]|\$__rate_interval\])[^\]]*\]"


def unknown_keys(board: Board) -> Iterator[str]:
    """What the library's types of Grafana's model do not know is lost on the way through them."""
    plugins.register_default_plugins()
    through = json.loads(json.dumps(Dashboard.from_json(board), cls=JSONEncoder))
    yield from _lost("", board, through)


def promql(board: Board) -> Iterator[str]:
    """By a parser in Rust, and by the grammar of Prometheus' own editor."""
    texts = [_plain(question.expr) for question in questions("", board)]
    texts += [_plain(variable.series) for variable in variables("", board)]
    for text in texts:
        try:
            promql_parser.parse(text)
        except ValueError as error:
            yield f"{error}: {text}"
    for text, wrong in zip(texts, errors("@prometheus-io/lezer-promql", texts), strict=True):
        if wrong:
            yield f"{wrong} errors: {text}"


def traceql(board: Board) -> Iterator[str]:
    """By the grammar of Grafana's own editor: of panels and of links to Explore."""
    texts = [
        _plain(target["query"])
        for panel in panels_of(board)
        for target in panel.get("targets", ())
        if target.get("queryType") == "traceql"
    ]
    for link in _under("url", board):
        if link.startswith("/explore?"):
            texts += [_plain(query) for query in _queries(link) if "__value" not in query]
    for text, wrong in zip(texts, errors("@grafana/lezer-traceql", texts), strict=True):
        if wrong:
            yield f"{wrong} errors: {text}"


def names(board: Board) -> Iterator[str]:
    """Every metric is in the catalogue or a server's own, and has the labels that are used of it."""
    for question in questions("", board):
        yield from names_of(_plain(question.expr), question.legend)
    for variable in variables("", board):
        yield from names_of(_plain(variable.series), f"{{{{{variable.label}}}}}")


def names_of(expr: str, legend: str = "") -> Iterator[str]:
    """What is not known of PromQL and of the legend of its series."""
    known = labels_by_name()
    at_all: set[str] = set()
    try:
        selectors = list(_selectors(promql_parser.parse(expr)))
    except ValueError as error:
        yield f"{error}: {expr}"
        return
    for selector in selectors:
        matchers = selector.matchers.matchers
        pattern = [m.value for m in matchers if m.name == "__name__"]
        found = [name for name in known if _matches(selector.name, pattern, name)]
        if not found:
            yield f"no metric {selector.name or pattern}: {expr}"
        of_this = {label for name in found for label in known[name]}
        at_all |= of_this
        for matcher in matchers:
            if matcher.name not in of_this | {"__name__"}:
                yield f"{selector.name} has no label {matcher.name}: {expr}"
    grouped = re.findall(r"\b(?:by|on|group_left|without|ignoring) \(([^)]*)\)", expr)
    named = [*",".join(grouped).split(","), *re.findall(r"{{\s*([\w.]+)\s*}}", legend)]
    for label in filter(None, map(str.strip, named)):
        if label not in at_all:
            yield f"no label {label}: {expr}"


def variables_used(board: Board) -> Iterator[str]:
    """Each is defined once and used."""
    defined = [variable["name"] for variable in board["templating"]["list"]]
    text = json.dumps([board["panels"], board["annotations"], board["links"]])
    uses = used(text) | used(json.dumps([v.get("query") for v in board["templating"]["list"]]))
    yield from (f"${name} is not used" for name in set(defined) - uses)
    yield from (f"${name} is not defined" for name in uses - set(defined))
    yield from (f"${name} twice" for name in set(defined) if defined.count(name) > 1)


def described(board: Board) -> Iterator[str]:
    """A title of its own, a description that is a sentence, a unit, a query."""
    titles = [panel.get("title") for panel in panels_of(board)]
    yield from (f"{title} twice" for title in set(titles) if titles.count(title) > 1)
    for panel in panels_of(board):
        if not panel.get("title"):
            yield f"{panel['id']} has no title"
        if not panel.get("description", "").endswith("."):
            yield f"{panel.get('title')} has no description"
        if not panel.get("fieldConfig", {}).get("defaults", {}).get("unit"):
            yield f"{panel.get('title')} has no unit"
        if not panel.get("targets"):
            yield f"{panel.get('title')} has no query"


def grid(board: Board) -> Iterator[str]:
    """Within 24 columns, one beside the other, each id once."""
    ids = [panel["id"] for panel in board["panels"]]
    if len(set(ids)) < len(ids):
        yield "an id twice"
    for panel in board["panels"]:
        place = panel["gridPos"]
        if place["x"] + place["w"] > 24 or place["w"] < 1 or place["h"] < 1:
            yield f"{panel['title']} is not on the grid"
    for one, other in combinations(board["panels"], 2):
        a, b = one["gridPos"], other["gridPos"]
        apart = (
            a["x"] + a["w"] <= b["x"]
            or b["x"] + b["w"] <= a["x"]
            or a["y"] + a["h"] <= b["y"]
            or b["y"] + b["h"] <= a["y"]
        )
        if not apart:
            yield f"{one['title']} lies over {other['title']}"


def importable(board: Board) -> Iterator[str]:
    """Into any Grafana: no input to answer, no data source by its name, no panel of Angular's."""
    if "__inputs" in board or board.get("schemaVersion") != 42:
        yield "not what a folder of dashboards can hold"
    sources = {
        v["name"]: v["query"] for v in board["templating"]["list"] if v["type"] == "datasource"
    }
    yield from (f"no source {name}" for name, kind in sources.items() if kind not in SOURCES)
    for reference in _under("datasource", board):
        if reference not in [
            {"type": kind, "uid": f"${{{name}}}"} for name, kind in sources.items()
        ]:
            yield f"data source {reference}"
    for panel in board["panels"]:
        if panel["type"] not in TYPES:
            yield f"panel {panel['type']}"


def windows(board: Board) -> Iterator[str]:
    """No length of a window that somebody could not choose: iterations last seconds to hours."""
    for question in questions("", board):
        for length in re.findall(LENGTHS, question.expr):
            yield f"{length} in {question.expr}"


CHECKS: tuple[Callable[[Board], Iterator[str]], ...] = (
    unknown_keys,
    promql,
    traceql,
    names,
    variables_used,
    described,
    grid,
    importable,
    windows,
)


def errors(grammar: str, texts: list[str]) -> list[int]:
    """How many places of each text the grammar of npm's package cannot read."""
    script = (
        f"import {{parser}} from '{grammar}';"
        "let input = ''; for await (const part of process.stdin) input += part;"
        "console.log(JSON.stringify(JSON.parse(input).map(text => {"
        " let wrong = 0; parser.parse(text).iterate({enter: n => {if (n.type.isError) wrong++}});"
        " return wrong; })))"
    )
    answer = subprocess.run(
        ["node", "--input-type=module", "--eval", script],
        cwd=grammars(),
        input=json.dumps(texts),
        capture_output=True,
        text=True,
        check=True,
    )
    found: list[int] = json.loads(answer.stdout)
    return found


def _queries(link: str) -> Iterator[str]:
    """Of Explore's address; raises where it is not the JSON that Explore reads."""
    panes = json.loads(parse_qs(urlsplit(link).query)["panes"][0])
    for pane in panes.values():
        for query in pane["queries"]:
            yield query["query"]


def _plain(text: str) -> str:
    return filled(text, {**MACROS, "run": "r", "service": "s", "phase": ".+", "window": "15m"})


def _matches(name: str | None, pattern: list[str], candidate: str) -> bool:
    if pattern:
        return re.fullmatch(pattern[0], candidate) is not None
    return name == candidate


def _selectors(node: Any) -> Iterator[Any]:
    if isinstance(node, promql_parser.VectorSelector):
        yield node
    elif isinstance(node, promql_parser.MatrixSelector):
        yield node.vector_selector
    for part in ("expr", "lhs", "rhs", "param"):
        if (child := getattr(node, part, None)) is not None:
            yield from _selectors(child)
    for argument in getattr(node, "args", ()):
        yield from _selectors(argument)


def _lost(path: str, before: Any, after: Any) -> Iterator[str]:
    if isinstance(before, dict):
        for key, value in before.items():
            if not isinstance(after, dict) or key not in after:
                yield f"{path}/{key}"
            else:
                yield from _lost(f"{path}/{key}", value, after[key])
    elif isinstance(before, list):
        if not isinstance(after, list) or len(after) != len(before):
            yield path
            return
        for place, (one, other) in enumerate(zip(before, after, strict=True)):
            yield from _lost(f"{path}/{place}", one, other)
    elif before != after:
        yield path


def _under(key: str, node: Any) -> Iterable[Any]:
    if isinstance(node, dict):
        for name, value in node.items():
            if name == key:
                yield value
            yield from _under(key, value)
    elif isinstance(node, list):
        for value in node:
            yield from _under(key, value)
