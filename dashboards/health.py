"""*Telemetry health*: what we, the collector, Jaeger and Prometheus took, hold and lost."""

from __future__ import annotations

from grafana_foundation_sdk.models.dashboard import Dashboard

from dashboards.frame import Section, dashboard, event, source, values, window
from dashboards.panels import Query, bars, lines
from dashboards.promql import grown, ratio, total

RUNS = 'rl_run_id=~"$run"'
SINK = "rl_run_id, rl_telemetry_sink, rl_telemetry_outcome"
NAME_OF_SINK = "{{rl_run_id}} {{rl_telemetry_sink}} {{rl_telemetry_outcome}}"
EXPORTER = "job, exporter, data_type"
NAME_OF_EXPORTER = "{{job}} {{exporter}} {{data_type}}"


def build() -> Dashboard:
    return dashboard(
        "otel-grpo-health",
        "otel-grpo: telemetry health",
        "What the observer, the collector, Jaeger and Prometheus took, hold and lost. The files of"
        " a run are not touched by any of it.",
        variables=[
            source("prometheus"),
            values("run", "Run", "label_values(rl_telemetry_records_total, rl_run_id)", many=True),
            window(),
        ],
        annotations=[
            event(
                "Records lost",
                "red",
                "sum by (rl_run_id, rl_telemetry_sink) (increase(rl_telemetry_records_total"
                f'{{{RUNS}, rl_telemetry_outcome!="written"}}[$__rate_interval])) > 0',
                "{{rl_run_id}} {{rl_telemetry_sink}}",
            )
        ],
        sections=[_own(), _collector(), _prometheus()],
    )


def _own() -> Section:
    lost = f'{RUNS}, rl_telemetry_outcome!="written"'
    return "otel-grpo in the trainer's processes", [
        bars(
            "Records lost",
            "short",
            "Spans and records that a sink dropped, or sent without an answer. Totals, exact."
            " The otlp sinks are copies: `otel-grpo replay` sends a run's files again.",
            Query(total("rl_telemetry_records_total", lost, SINK), NAME_OF_SINK),
        ),
        lines(
            "Records written",
            "short",
            "What each sink took in the window.",
            Query(
                grown(
                    "rl_telemetry_records_total",
                    f'{RUNS}, rl_telemetry_outcome="written"',
                    SINK,
                ),
                NAME_OF_SINK,
            ),
        ),
        lines(
            "Own time",
            "percentunit",
            "Time that observing took on training threads / wall time of the iterations, by run.",
            Query(
                ratio(
                    grown("rl_telemetry_self_time_seconds_total", RUNS, "rl_run_id"),
                    grown(
                        "rl_loop_duration_seconds_sum",
                        f'{RUNS}, rl_duration_kind="wall"',
                        "rl_run_id",
                    ),
                ),
                "{{rl_run_id}}",
            ),
        ),
        bars(
            "Own time, totals",
            "s",
            "The same time since each run began, in all its processes. Exact.",
            Query(
                total("rl_telemetry_self_time_seconds_total", RUNS, "rl_run_id"), "{{rl_run_id}}"
            ),
        ),
    ]


def _collector() -> Section:
    """Jaeger is a collector, too, and has the same metrics under its own job."""
    kept = "0 * sum by (job, exporter) (otelcol_exporter_queue_capacity)"
    return "Collectors (Jaeger is one, too)", [
        lines(
            "Received",
            "short",
            "Spans and metric points that were taken in the window.",
            Query(
                grown("otelcol_receiver_accepted_spans", "", "job, receiver"),
                "{{job}} {{receiver}} spans",
            ),
            Query(
                grown("otelcol_receiver_accepted_metric_points", "", "job, receiver"),
                "{{job}} {{receiver}} points",
            ),
            width=8,
        ),
        lines(
            "Refused",
            "short",
            "Spans and metric points that were not taken in the window: the sender keeps them and"
            " tries again.",
            Query(
                grown("otelcol_receiver_refused_spans", "", "job, receiver"),
                "{{job}} {{receiver}} spans",
            ),
            Query(
                grown("otelcol_receiver_refused_metric_points", "", "job, receiver"),
                "{{job}} {{receiver}} points",
            ),
            width=8,
        ),
        bars(
            "Dropped",
            "short",
            "Spans and metric points that no queue took, that a back end refused for good, or that"
            " were too old for Prometheus, since the collector started. These series begin with"
            " the first loss.",
            Query(
                "sum by (job, exporter, filter) (last_over_time("
                '{__name__=~"otelcol_(exporter_(enqueue|send)_failed_(spans|metric_points)'
                '|processor_filter_datapoints_filtered)"}'
                f"[$__range])) or {kept}",
                "{{job}} {{exporter}}{{filter}}",
            ),
            width=8,
        ),
        lines(
            "Queues",
            "percentunit",
            "Fill of each exporter's queue. A full one makes the collector refuse what its senders"
            " send.",
            Query(
                f"max by ({EXPORTER}) (otelcol_exporter_queue_size)"
                f" / max by ({EXPORTER}) (otelcol_exporter_queue_capacity)",
                NAME_OF_EXPORTER,
            ),
            width=8,
            top=1,
        ),
        lines(
            "Sent",
            "short",
            "Spans and metric points that each back end took in the window.",
            Query(
                grown("otelcol_exporter_sent_spans", "", "job, exporter"),
                "{{job}} {{exporter}} spans",
            ),
            Query(
                grown("otelcol_exporter_sent_metric_points", "", "job, exporter"),
                "{{job}} {{exporter}} points",
            ),
            width=8,
        ),
        lines(
            "Memory",
            "bytes",
            "Resident memory of each collector.",
            Query("max by (job) (otelcol_process_memory_rss)", "{{job}}"),
            width=8,
        ),
    ]


def _prometheus() -> Section:
    otlp = 'handler="/api/v1/otlp/v1/metrics"'
    return "Prometheus", [
        lines(
            "Requests with metrics",
            "short",
            "OTLP requests in the window by the status of their answer. 400: samples older than the"
            " out-of-order window, which refuse the whole request.",
            Query(grown("prometheus_http_requests_total", otlp, "code"), "{{code}}"),
            width=8,
        ),
        lines(
            "Series",
            "short",
            "Series in memory.",
            Query("prometheus_tsdb_head_series", "series"),
            width=8,
        ),
        lines(
            "Samples refused",
            "short",
            "Samples in the window that were too old, or the second with their time.",
            Query(grown("prometheus_tsdb_too_old_samples_total", "", "type"), "too old, {{type}}"),
            Query(
                grown("prometheus_target_scrapes_sample_duplicate_timestamp_total", ""),
                "duplicate time",
            ),
            width=8,
        ),
        lines(
            "Rules that failed",
            "short",
            "Evaluations of rules that failed in the window.",
            Query(
                grown("prometheus_rule_evaluation_failures_total", "", "rule_group"),
                "{{rule_group}}",
            ),
            width=8,
        ),
        lines(
            "Exemplars",
            "short",
            "Exemplars in memory, each the id of an iteration's trace.",
            Query("prometheus_tsdb_exemplar_exemplars_in_storage", "exemplars"),
            width=8,
        ),
        lines(
            "Targets that answer",
            "none",
            "1: the last scrape succeeded.",
            Query("min by (job, instance) (up)", "{{job}} {{instance}}"),
            width=8,
            top=1,
        ),
    ]
