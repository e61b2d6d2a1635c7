"""Of *Run*: the traces of its iterations, in Jaeger and in Tempo."""

from __future__ import annotations

from grafana_foundation_sdk.builders import tempo
from grafana_foundation_sdk.builders.dashboard import DashboardLink
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.cog.runtime import UnknownDataquery
from grafana_foundation_sdk.models.dashboard import DashboardLinkType
from grafana_foundation_sdk.models.tempo import SearchTableType

from dashboards.frame import JAEGER, TEMPO, Section, explore
from dashboards.panels import found


def section() -> Section:
    """The iterations as Jaeger and as Tempo find them; each has a trace of its own."""
    search: dict[str, object] = {
        "refId": "A",
        "datasource": JAEGER.to_json(),
        "queryType": "search",
        "service": "$service",
        "operation": "rl.loop",
        "tags": "rl.run.id=$run",
        "limit": 100,
    }
    traceql = (
        '{ resource.service.name = "$service" && span.rl.run.id = "$run" && name = "rl.loop" }'
        " | select(span.rl.loop.iteration, span.rl.duration.wall, span.rl.tokens,"
        " span.rl.window.status)"
    )
    query = tempo.Dataquery().ref_id("A").datasource(TEMPO).query_type("traceql").query(traceql)
    query.table_type(SearchTableType.TRACES).limit(100)
    links = {
        "traceID": {
            "Open in Tempo": explore(TEMPO, {"queryType": "traceql", "query": "${__value.raw}"}),
            "Open in Jaeger": explore(JAEGER, {"query": "${__value.raw}"}),
        }
    }
    return "Traces", [
        found(
            "Iterations in Jaeger",
            "One trace for each iteration. Its id opens the waterfall, in Jaeger or in Tempo.",
            JAEGER,
            _Given(search),
            links,
        ),
        found(
            "Iterations in Tempo",
            "One trace for each iteration. Its id opens the waterfall, in Tempo or in Jaeger.",
            TEMPO,
            query,
            links,
        ),
    ]


def link() -> DashboardLink:
    """To the span of the whole run."""
    url = explore(
        TEMPO, {"queryType": "traceql", "query": '{ span.rl.run.id = "$run" && name = "rl.run" }'}
    )
    shown = DashboardLink("The run's trace in Tempo").type(DashboardLinkType.LINK).url(url)
    return shown.icon("external link").target_blank(target_blank=True)


class _Given(Builder[UnknownDataquery]):
    """A query of a data source that the library has no type for."""

    def __init__(self, query: dict[str, object]) -> None:
        self._query = query

    def build(self) -> UnknownDataquery:
        return UnknownDataquery(self._query)
