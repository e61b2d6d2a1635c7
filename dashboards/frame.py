"""What is around the panels: variables, annotations, links, sections."""

from __future__ import annotations

import json
from collections.abc import Sequence
from urllib.parse import quote

from grafana_foundation_sdk.builders.dashboard import (
    AnnotationQuery,
    Dashboard as DashboardBuilder,
    DashboardLink,
    DatasourceVariable,
    IntervalVariable,
    QueryVariable,
    Row,
)
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models import common
from grafana_foundation_sdk.models.dashboard import (
    Dashboard,
    DashboardCursorSync,
    DashboardLinkType,
    Panel,
    VariableModel,
    VariableOption,
    VariableRefresh,
    VariableSort,
)

from dashboards.panels import PROMETHEUS

TEMPO = common.DataSourceRef(type_val="tempo", uid="${tempo}")
JAEGER = common.DataSourceRef(type_val="jaeger", uid="${jaeger}")
TAG = "otel-grpo"

Variable = Builder[VariableModel]
Section = tuple[str, Sequence[Builder[Panel]]]


def dashboard(
    uid: str,
    title: str,
    about: str,
    variables: Sequence[Variable],
    annotations: Sequence[AnnotationQuery],
    sections: Sequence[Section],
    links: Sequence[DashboardLink] = (),
) -> Dashboard:
    """The whole; panels are numbered in the order in which one reads them."""
    others = DashboardLink("otel-grpo").type(DashboardLinkType.DASHBOARDS).tags([TAG])
    board = DashboardBuilder(title).uid(uid).description(about).tags([TAG]).editable()
    board.time("now-3h", "now").refresh("30s").tooltip(DashboardCursorSync.CROSSHAIR)
    board.links([others.as_dropdown(as_dropdown=True).keep_time(keep_time=True), *links])
    board.annotations(list(annotations))
    for variable in variables:
        board.with_variable(variable)
    for heading, panels in sections:
        board.with_row(Row(heading))
        for panel in panels:
            board.with_panel(panel)
    built = board.build()
    for number, placed in enumerate(built.panels or [], start=1):
        placed.id_val = number
    return built


def source(kind: str) -> Variable:
    """A data source by its type: no dashboard knows how a Grafana calls its own."""
    return DatasourceVariable(kind).label(kind.capitalize()).type(kind)


def values(name: str, label: str, query: str, *, many: bool = False) -> Variable:
    """The values that `query`, a `label_values(series, label)`, finds.

    `many`: any number of them may be chosen, or all.
    """
    variable = QueryVariable(name).label(label).datasource(PROMETHEUS).definition(query)
    variable.query({"query": query, "refId": name, "qryType": 1})
    variable.refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
    variable.sort(VariableSort.NATURAL_DESC).allow_custom_value(allow_custom_value=False)
    if many:
        everything = VariableOption(selected=True, text="All", value="$__all")
        variable.multi(multi=True).include_all(include_all=True).all_value(".+")
        variable.current(everything)
    return variable


def window() -> Variable:
    """Length of the windows in which growth is counted."""
    lengths = ("1m", "5m", "15m", "30m", "1h", "3h", "6h", "12h", "1d")
    default = "15m"
    variable = IntervalVariable("window").label("Window").values(",".join(lengths))
    variable.description("Growth is counted in windows of this length: a few iterations are right.")
    variable.options([_option(length, length == default) for length in lengths])
    return variable.current(_option(default, selected=True))


def event(name: str, color: str, expr: str, text: str) -> AnnotationQuery:
    """A mark over all panels wherever `expr` has a value."""
    annotation = AnnotationQuery().name(name).datasource(PROMETHEUS).enable(enable=True)
    return annotation.icon_color(color).expr(expr).title_format(name).text_format(text)


def explore(where: common.DataSourceRef, query: dict[str, object]) -> str:
    """Address of Explore with this query, over the dashboard's time.

    Variables of Grafana in it stay as they are, so that Grafana fills them in.
    """
    pane = {
        "datasource": where.uid,
        "queries": [{"refId": "A", "datasource": where.to_json(), **query}],
        "range": {"from": "${__from}", "to": "${__to}"},
    }
    panes = quote(json.dumps({"a": pane}, separators=(",", ":")), safe="${}._")
    return f"/explore?schemaVersion=1&orgId=1&panes={panes}"


def _option(length: str, selected: bool) -> VariableOption:
    return VariableOption(selected=selected, text=length, value=length)
