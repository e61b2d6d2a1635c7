"""Panels as one says them: a title, a unit, what they show, their queries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from string import ascii_uppercase
from types import MappingProxyType
from typing import Any, TypeVar

from grafana_foundation_sdk.builders import (
    bargauge,
    common as build_common,
    heatmap,
    prometheus as build_prometheus,
    stat,
    statetimeline,
    table as build_table,
    timeseries,
)
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.cog.variants import Dataquery
from grafana_foundation_sdk.models import common, prometheus
from grafana_foundation_sdk.models.dashboard import (
    DataTransformerConfig,
    DynamicConfigValue,
    Panel,
    ValueMap,
    ValueMappingResult,
)

PROMETHEUS = common.DataSourceRef(type_val="prometheus", uid="${prometheus}")
TALL = 9
LOW = 4

AnyPanel = TypeVar("AnyPanel", bound=Any)
# Of a field's values: title to address.
Links = Mapping[str, Mapping[str, str]]


@dataclass(frozen=True)
class Query:
    """PromQL and how its series are called."""

    expr: str
    legend: str = ""
    exemplars: bool = False
    """Points that open the trace of an iteration."""


def number(title: str, unit: str, about: str, expr: str, width: int = 4) -> Builder[Panel]:
    """One value at the end of the picture."""
    panel = stat.Panel().reduce_options(build_common.ReduceDataOptions().calcs(["lastNotNull"]))
    panel.graph_mode(common.BigValueGraphMode.NONE)
    return _finished(panel, title, unit, about, [_now(expr)], width, LOW)


def lines(
    title: str, unit: str, about: str, *queries: Query, width: int = 12, top: float | None = None
) -> Builder[Panel]:
    """Values over time; `top` is the largest that there can be."""
    panel = _series().line_width(1).fill_opacity(8).min(0)
    if top is not None:
        panel.max(top)
    return _finished(panel, title, unit, about, _over_time(queries), width, TALL)


def signed(title: str, unit: str, about: str, *queries: Query, width: int = 6) -> Builder[Panel]:
    """Values over time that may be below 0."""
    panel = _series().line_width(1).fill_opacity(0)
    return _finished(panel, title, unit, about, _over_time(queries), width, TALL)


def stacked(
    title: str, unit: str, about: str, *queries: Query, whole: str, width: int = 12
) -> Builder[Panel]:
    """Parts on top of each other, and a line named `whole` that their sum must reach."""
    stacking = build_common.StackingConfig().group("parts").mode(common.StackingMode.NORMAL)
    panel = _series().fill_opacity(70).line_width(0).min(0).stacking(stacking)
    panel.override_by_name(
        whole,
        [
            DynamicConfigValue("custom.stacking", {"group": "whole", "mode": "none"}),
            DynamicConfigValue("custom.fillOpacity", 0),
            DynamicConfigValue("custom.lineWidth", 2),
        ],
    )
    return _finished(panel, title, unit, about, _over_time(queries), width, TALL)


def bars(title: str, unit: str, about: str, *queries: Query, width: int = 12) -> Builder[Panel]:
    """One bar for each series: its value at the end of the picture."""
    panel = bargauge.Panel().min(0).orientation(common.VizOrientation.HORIZONTAL)
    panel.display_mode(common.BarGaugeDisplayMode.BASIC)
    panel.reduce_options(build_common.ReduceDataOptions().calcs(["lastNotNull"]))
    targets = [_now(query.expr).legend_format(query.legend) for query in queries]
    return _finished(panel, title, unit, about, targets, width, TALL)


def states(title: str, about: str, query: Query, width: int = 12) -> Builder[Panel]:
    """When each series was 1."""
    texts = {"0": ValueMappingResult(text=" ", color="transparent")}
    texts["1"] = ValueMappingResult(text="open", color="blue")
    panel = statetimeline.Panel().mappings([ValueMap(options=texts)])
    panel.show_value(common.VisibilityMode.NEVER).merge_values(merge_values=True)
    return _finished(panel, title, "none", about, _over_time([query]), width, TALL)


def heat(title: str, unit: str, about: str, expr: str, width: int = 12) -> Builder[Panel]:
    """A histogram over time: `expr` has the label `le`."""
    target = build_prometheus.Dataquery().expr(expr).legend_format("{{le}}").range()
    target.format(prometheus.PromQueryFormat.HEATMAP)
    panel = heatmap.Panel().calculate(calculate=False).y_axis(heatmap.YAxisConfig().unit(unit))
    return _finished(panel, title, unit, about, [target], width, TALL)


def table(
    title: str,
    unit: str,
    about: str,
    columns: dict[str, str],
    *,
    units: Mapping[str, str] = MappingProxyType({}),
    links: Links = MappingProxyType({}),
) -> Builder[Panel]:
    """One line for each set of labels, one column for each heading and its PromQL.

    `units` is of headings whose unit is not the panel's; `links` lead on from the values of a field.
    """
    targets = [_now(expr).format(prometheus.PromQueryFormat.TABLE) for expr in columns.values()]
    names = {f"Value #{ref}": head for ref, head in zip(ascii_uppercase, columns, strict=False)}
    panel = build_table.Panel().with_transformation(DataTransformerConfig("merge", options={}))
    tidy: dict[str, object] = {"renameByName": names, "excludeByName": {"Time": True}}
    panel.with_transformation(DataTransformerConfig("organize", options=tidy))
    for head, its_unit in units.items():
        panel.override_by_name(head, [DynamicConfigValue("unit", its_unit)])
    _link(panel, links)
    return _finished(panel, title, unit, about, targets, 24, TALL)


def found(
    title: str,
    about: str,
    source: common.DataSourceRef,
    target: Builder[Dataquery],
    links: Links,
    width: int = 12,
) -> Builder[Panel]:
    """What a search for traces finds; `links` lead on from the values of a field."""
    panel = build_table.Panel()
    _link(panel, links)
    panel = _described(panel, title, "string", about, width, TALL).datasource(source)
    return panel.with_target(target)


def _link(panel: build_table.Panel, links: Links) -> None:
    for field, its_links in links.items():
        told: list[object] = [{"title": title, "url": url} for title, url in its_links.items()]
        panel.override_by_name(field, [DynamicConfigValue("links", told)])


def _series() -> timeseries.Panel:
    legend = build_common.VizLegendOptions().show_legend(show_legend=True)
    legend.display_mode(common.LegendDisplayMode.LIST).placement(common.LegendPlacement.BOTTOM)
    tooltip = build_common.VizTooltipOptions().mode(common.TooltipDisplayMode.MULTI)
    return timeseries.Panel().legend(legend).tooltip(tooltip.sort(common.SortOrder.DESCENDING))


def _now(expr: str) -> build_prometheus.Dataquery:
    return build_prometheus.Dataquery().expr(expr).instant()


def _over_time(queries: Sequence[Query]) -> list[build_prometheus.Dataquery]:
    return [
        build_prometheus.Dataquery()
        .expr(query.expr)
        .legend_format(query.legend)
        .exemplar(query.exemplars)
        .range()
        for query in queries
    ]


def _described(
    panel: AnyPanel, title: str, unit: str, about: str, width: int, height: int
) -> AnyPanel:
    panel.title(title).unit(unit).description(about).span(width).height(height)
    return panel


def _finished(
    panel: AnyPanel,
    title: str,
    unit: str,
    about: str,
    targets: Sequence[build_prometheus.Dataquery],
    width: int,
    height: int,
) -> AnyPanel:
    _described(panel, title, unit, about, width, height).datasource(PROMETHEUS)
    for ref, target in zip(ascii_uppercase, targets, strict=False):
        panel.with_target(target.ref_id(ref).datasource(PROMETHEUS))
    return panel
