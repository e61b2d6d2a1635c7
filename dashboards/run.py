"""*Run*: where does an iteration's time go, and what came of it?"""

from __future__ import annotations

from grafana_foundation_sdk.models.dashboard import Dashboard

from dashboards import run_time, run_traces, run_work
from dashboards.frame import dashboard, event, source, values, window
from dashboards.promql import RUN


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
        sections=[*run_time.sections(), *run_work.sections(), run_traces.section()],
        links=[run_traces.link()],
    )


def _rises(metric: str, labels: str = "", by: str = "") -> str:
    """True at each step in which the counter grew."""
    of = ", ".join(filter(None, (RUN, labels)))
    grouped = f"sum by ({by})" if by else "sum"
    return f"{grouped} (increase({metric}{{{of}}}[$__rate_interval])) > 0"
