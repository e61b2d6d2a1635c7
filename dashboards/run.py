"""*Run*: where does an iteration's time go, and what came of it?"""

from __future__ import annotations

from grafana_foundation_sdk.builders import tempo
from grafana_foundation_sdk.builders.dashboard import DashboardLink
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.cog.runtime import UnknownDataquery
from grafana_foundation_sdk.models.dashboard import Dashboard, DashboardLinkType, Panel
from grafana_foundation_sdk.models.tempo import SearchTableType

from dashboards.frame import (
    JAEGER,
    TEMPO,
    Section,
    dashboard,
    event,
    explore,
    source,
    values,
    window,
)
from dashboards.panels import (
    Query,
    bars,
    found,
    heat,
    lines,
    number,
    signed,
    stacked,
    states,
    table,
)
from dashboards.promql import grown, quantile, ratio, total

RUN = 'rl_run_id="$run"'
WALL = f'{RUN}, rl_duration_kind="wall"'
PHASE = f'{RUN}, rl_phase=~"$phase"'
# A counter like those that are divided by it, so that both begin at the same instant.
ITERATIONS = f"scalar({grown('rl_loop_windows_total', RUN)} > 0)"
FEW = "The window should hold a few iterations."


def build() -> Dashboard:
    return dashboard(
        "otel-grpo-run",
        "otel-grpo: run",
        "Where the time of an iteration goes, and what came of it.",
        variables=[
            source("prometheus"),
            source("tempo"),
            source("jaeger"),
            values("run", "Run", "label_values(rl_loop_windows_total, rl_run_id)"),
            values("service", "Service", f"label_values(rl_loop_windows_total{{{RUN}}}, job)"),
            values(
                "phase",
                "Phase",
                f"label_values(rl_phase_duration_seconds_count{{{RUN}}}, rl_phase)",
                many=True,
            ),
            window(),
        ],
        annotations=[
            event("Publication", "green", _rises("rl_sync_publications_total"), "new weights"),
            event(
                "Update not applied",
                "red",
                _rises("rl_train_steps_total", 'rl_update_status!="applied"', "rl_update_status"),
                "{{rl_update_status}}",
            ),
            event(
                "Iteration aborted",
                "dark-red",
                _rises("rl_loop_windows_total", 'rl_window_status="aborted"'),
                "an exception or a stop",
            ),
        ],
        sections=[_now(), _time(), _throughput(), _work(), _learning(), _memory(), _traces()],
        links=[_search_of_run()],
    )


def _now() -> Section:
    return "Now", [
        number(
            "Iterations",
            "short",
            "Windows that ended, whatever their status, since the run began.",
            total("rl_loop_windows_total", RUN),
        ),
        number(
            "Time of an iteration",
            "s",
            "Mean wall time of all iterations of the run.",
            ratio(
                total("rl_loop_duration_seconds_sum", WALL),
                total("rl_loop_duration_seconds_count", WALL),
            ),
        ),
        number(
            "Tokens per second and device",
            "short",
            "Prompt and completion tokens of consumed samples / (work time x devices), over the"
            " whole run: a quotient of sums, never a mean of quotients.",
            ratio(
                total("rl_throughput_tokens_total", f'{RUN}, rl_throughput_kind="end_to_end"'),
                total("rl_device_time_seconds_total", f'{RUN}, rl_throughput_kind="end_to_end"'),
            ),
        ),
        number(
            "Tokens",
            "short",
            "Prompt and completion tokens, each consumed sample once. Exact.",
            total("rl_tokens_total", RUN),
        ),
        number(
            "Updates applied",
            "short",
            "Optimizer steps that changed the weights. Exact.",
            total("rl_train_steps_total", f'{RUN}, rl_update_status="applied"'),
        ),
        number(
            "Version",
            "none",
            "The last one that was published to the generator.",
            f"max (last_over_time(rl_weights_version{{{RUN}}}[$__range]))",
        ),
    ]


def _time() -> Section:
    duration = "rl_loop_duration_seconds"
    parts = [
        Query(
            f"({grown('rl_phase_time_seconds_total', RUN, 'rl_phase')} > 0) / {ITERATIONS}",
            "{{rl_phase}}",
        ),
        Query(f"{grown('rl_overlap_time_seconds_total', RUN)} / {ITERATIONS}", "overlapped"),
        Query(f"{grown('rl_log_time_seconds_total', RUN)} / {ITERATIONS}", "log"),
        Query(f"{grown('rl_unattributed_time_seconds_total', RUN)} / {ITERATIONS}", "unattributed"),
    ]
    wall = Query(ratio(grown(f"{duration}_sum", WALL), grown(f"{duration}_count", WALL)), "wall")
    whole = f"scalar({total(f'{duration}_sum', WALL)} > 0)"
    return "Where an iteration's time goes", [
        stacked(
            "Time of an iteration by phase",
            "s",
            "Mean of the iterations that ended in the window. A phase: time that only it explains,"
            " children counted as their uppermost parent. Overlapped: two or more phases at once."
            " Unattributed: no span explains it. The parts add up to the wall time, the line. "
            + FEW,
            *parts,
            wall,
            whole="wall",
            width=16,
        ),
        bars(
            "Share of the wall time",
            "percentunit",
            "The same parts over the whole run; they add up to 1. Exact.",
            Query(
                f"({total('rl_phase_time_seconds_total', RUN, 'rl_phase')} > 0) / {whole}",
                "{{rl_phase}}",
            ),
            Query(f"{total('rl_overlap_time_seconds_total', RUN)} / {whole}", "overlapped"),
            Query(f"{total('rl_log_time_seconds_total', RUN)} / {whole}", "log"),
            Query(f"{total('rl_unattributed_time_seconds_total', RUN)} / {whole}", "unattributed"),
            width=8,
        ),
        states(
            "Open phases",
            "When a phase was open, in any process. A wait is seen while it lasts. What is shorter"
            " than the export interval can be missed here: the trace has it.",
            Query(f"max by (rl_phase) (rl_phase_active{{{PHASE}}})", "{{rl_phase}}"),
        ),
        lines(
            "Age of what is open",
            "s",
            "How long the oldest open phase of each kind, and the open iteration, have lasted;"
            " 0: none is open. A line that climbs without end is a hang.",
            Query(
                f"max by (rl_phase) (rl_phase_active_duration_seconds{{{PHASE}}})", "{{rl_phase}}"
            ),
            Query(f"max (rl_loop_active_duration_seconds{{{RUN}}})", "iteration"),
        ),
        lines(
            "Duration of an iteration",
            "s",
            "Quantiles of the wall time in the window, to the width of a histogram's bucket. Each"
            " point opens the trace of its iteration. " + FEW,
            Query(quantile(0.5, "rl_loop_duration_seconds", WALL, ""), "median", exemplars=True),
            Query(quantile(0.95, "rl_loop_duration_seconds", WALL, ""), "95 %"),
        ),
        lines(
            "Busy time of a phase in an iteration",
            "s",
            "Median over the iterations of the window of each phase's busy time (its spans united;"
            " phases may overlap, so these do not add up). " + FEW,
            Query(
                quantile(
                    0.5,
                    "rl_phase_duration_seconds",
                    f'{PHASE}, rl_duration_kind="busy"',
                    "rl_phase",
                ),
                "{{rl_phase}}",
                exemplars=True,
            ),
        ),
        table(
            "Busy, exposed, logical",
            "s",
            "Totals of the run by phase. Busy: union of its spans. Exposed: time that nothing but"
            " it explains. Logical: busy without blocking log. Exact.",
            {
                kind.capitalize(): total(
                    "rl_phase_duration_seconds_sum",
                    f'{PHASE}, rl_duration_kind="{kind}"',
                    "rl_phase",
                )
                for kind in ("busy", "exposed", "logical")
            },
        ),
    ]


def _throughput() -> Section:
    kind = "rl_throughput_kind"
    return "Throughput", [
        lines(
            "Throughput by kind",
            "short",
            "Tokens per second and device: growth of tokens / growth of device time. end_to_end: all tokens / (work time"
            " x devices). generation: completion tokens / (busy generation x generating devices)."
            " train: visited tokens / (busy policy_train x training devices). " + FEW,
            Query(
                ratio(
                    grown("rl_throughput_tokens_total", RUN, kind),
                    grown("rl_device_time_seconds_total", RUN, kind),
                ),
                "{{rl_throughput_kind}}",
            ),
        ),
        bars(
            "Throughput by kind, whole run",
            "short",
            "Tokens per second and device of the whole run: quotients of exact totals.",
            Query(
                ratio(
                    total("rl_throughput_tokens_total", RUN, kind),
                    total("rl_device_time_seconds_total", RUN, kind),
                ),
                "{{rl_throughput_kind}}",
            ),
            width=6,
        ),
        lines(
            "Last iteration alone",
            "short",
            "Tokens per second and device of the last iteration. Never averaged: a mean of"
            " quotients is no throughput.",
            Query(f"rl_throughput_device_per_second{{{RUN}}}", "{{rl_throughput_kind}}"),
            width=6,
        ),
        lines(
            "Tokens of an iteration",
            "short",
            "Mean of the iterations in the window. Input: prompts. Output: completions. " + FEW,
            Query(
                f"{grown('rl_tokens_total', RUN, 'gen_ai_token_type')} / {ITERATIONS}",
                "{{gen_ai_token_type}}",
            ),
        ),
        lines(
            "Devices",
            "short",
            "Distinct physical devices of the job by what they do; one that does two things counts"
            " in both.",
            Query(f"max by (rl_role) (rl_devices{{{RUN}}})", "{{rl_role}}"),
        ),
    ]


def _work() -> Section:
    return "Samples, updates, publications", [
        bars(
            "Samples",
            "short",
            "Consumed: each once. Visits: how often samples were trained on. Discarded: by reason."
            " Totals of the run, exact.",
            Query(total("rl_sample_samples_total", RUN), "consumed"),
            Query(total("rl_sample_visits_total", RUN), "visits"),
            Query(
                total("rl_sample_discarded_total", RUN, "rl_discard_reason"),
                "discarded: {{rl_discard_reason}}",
            ),
            width=8,
        ),
        bars(
            "Updates by status",
            "short",
            "Attempted optimizer steps. Skipped: overflow or a gradient that is not finite. Failed:"
            " a failure was reported. Unconfirmed: a rank has not spoken. Totals, exact.",
            Query(total("rl_train_steps_total", RUN, "rl_update_status"), "{{rl_update_status}}"),
            width=8,
        ),
        bars(
            "Iterations by status",
            "short",
            "Complete, partial (a tail or dropped batch), aborted (an exception or a stop)."
            " Totals, exact.",
            Query(total("rl_loop_windows_total", RUN, "rl_window_status"), "{{rl_window_status}}"),
            width=8,
        ),
        heat(
            "Length of completions",
            "short",
            "Tokens of a consumed sample's completion: samples in each bucket, in each window.",
            grown(
                "rl_sample_length_bucket",
                f'{RUN}, gen_ai_token_type="output"',
                "le",
            ),
            width=8,
        ),
        lines(
            "Lengths",
            "short",
            "Quantiles of tokens per sample, to the width of a histogram's bucket. " + FEW,
            *(
                Query(
                    quantile(q, "rl_sample_length", RUN, "gen_ai_token_type"),
                    f"{{{{gen_ai_token_type}}}} {100 * q:.0f} %",
                )
                for q in (0.5, 0.95)
            ),
            width=8,
        ),
        lines(
            "Policy lag",
            "short",
            "Version of the trainer that consumed a sample - version that generated it. Mean over"
            " the samples of the window, and 95 %. " + FEW,
            Query(
                ratio(grown("rl_policy_lag_sum", RUN), grown("rl_policy_lag_count", RUN)), "mean"
            ),
            Query(quantile(0.95, "rl_policy_lag", RUN, ""), "95 %"),
            width=8,
        ),
        lines(
            "Publications",
            "short",
            "Versions that were handed to the generator in the window.",
            Query(grown("rl_sync_publications_total", RUN), "publications"),
        ),
        lines(
            "Version of the weights",
            "none",
            "The last one that was published.",
            Query(f"max (rl_weights_version{{{RUN}}})", "version"),
        ),
    ]


def _learning() -> Section:
    def gauge(title: str, about: str, *names: str) -> Builder[Panel]:
        queries = [Query(f"max ({name}{{{RUN}}})", name) for name in names]
        return signed(title, "none", about + " Of the last update that told it.", *queries)

    return "Learning, as the trainer tells it", [
        gauge("Loss", "The trainer's loss.", "rl_train_loss"),
        gauge("Reward", "Mean and deviation of the reward.", "rl_reward_mean", "rl_reward_std"),
        gauge("Gradient norm", "Before it was clipped.", "rl_train_grad_norm"),
        gauge("KL, entropy", "Of the policy.", "rl_train_kl", "rl_train_entropy"),
        gauge("Learning rate", "Of the optimizer.", "rl_train_learning_rate"),
        bars(
            "Values that were not finite",
            "short",
            "NaN or infinity among the trainer's scalars, by scalar. Totals of the run, exact.",
            Query(total("rl_train_nonfinite_total", RUN, "rl_scalar"), "{{rl_scalar}}"),
            width=18,
        ),
    ]


def _memory() -> Section:
    return "Memory", [
        lines(
            "Of processes",
            "bytes",
            "Resident memory of each process that is observed.",
            Query(
                f"sum by (rl_role, rl_rank, instance) (process_memory_usage_bytes{{{RUN}}})",
                "{{rl_role}} {{rl_rank}}",
            ),
            width=8,
        ),
        lines(
            "Of the allocator",
            "bytes",
            "What the trainer's allocator holds on each device. The peak is since the process"
            " started or the trainer reset it.",
            Query(
                f"max by (hw_id, rl_allocator_kind) (rl_allocator_memory_bytes{{{RUN}}})",
                "{{hw_id}} {{rl_allocator_kind}}",
            ),
            Query(
                f"max by (hw_id, rl_allocator_kind) (rl_allocator_memory_peak_bytes{{{RUN}}})",
                "{{hw_id}} {{rl_allocator_kind}}, peak",
            ),
            width=8,
        ),
        lines(
            "Of devices",
            "bytes",
            "Used as the driver tells it: other processes and inference engines are in it.",
            Query(f"max by (hw_id) (hw_gpu_memory_usage_bytes{{{RUN}}})", "{{hw_id}}"),
            Query(f"max by (hw_id) (hw_gpu_memory_limit_bytes{{{RUN}}})", "{{hw_id}}, size"),
            width=8,
        ),
    ]


def _traces() -> Section:
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


class _Given(Builder[UnknownDataquery]):
    """A query of a data source that the library has no type for."""

    def __init__(self, query: dict[str, object]) -> None:
        self._query = query

    def build(self) -> UnknownDataquery:
        return UnknownDataquery(self._query)


def _rises(metric: str, labels: str = "", by: str = "") -> str:
    """True at each step in which the counter grew."""
    of = ", ".join(filter(None, (RUN, labels)))
    grouped = f"sum by ({by})" if by else "sum"
    return f"{grouped} (increase({metric}{{{of}}}[$__rate_interval])) > 0"


def _search_of_run() -> DashboardLink:
    url = explore(
        TEMPO, {"queryType": "traceql", "query": '{ span.rl.run.id = "$run" && name = "rl.run" }'}
    )
    link = DashboardLink("The run's trace in Tempo").type(DashboardLinkType.LINK).url(url)
    return link.icon("external link").target_blank(target_blank=True)
