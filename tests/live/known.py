"""The names of metrics and labels that there are: of the catalogue, and of the servers' own."""

from __future__ import annotations

from functools import cache

import yaml

from otel_grpo.metrics.catalogue import CATALOGUE
from otel_grpo.metrics.promnames import label_of, series_of
from tests.live.boards import ROOT, rules

_SETTINGS = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yml").read_text())
PROMOTED = {label_of(name) for name in _SETTINGS["otlp"]["promote_resource_attributes"]}
SCRAPED = {"job", "instance"}

_EXPORTER = {"exporter", "data_type"}
_RECEIVER = {"receiver", "transport"}
#: What the servers say of themselves, as the live test finds it with the labels that are used here.
SERVERS = {
    "otelcol_receiver_accepted_spans": _RECEIVER,
    "otelcol_receiver_accepted_metric_points": _RECEIVER,
    "otelcol_receiver_refused_spans": _RECEIVER,
    "otelcol_receiver_refused_metric_points": _RECEIVER,
    "otelcol_exporter_queue_size": _EXPORTER,
    "otelcol_exporter_queue_capacity": _EXPORTER,
    "otelcol_exporter_sent_spans": {"exporter"},
    "otelcol_exporter_sent_metric_points": {"exporter"},
    "otelcol_exporter_send_failed_spans": {"exporter"},
    "otelcol_exporter_send_failed_metric_points": {"exporter"},
    "otelcol_exporter_enqueue_failed_spans": {"exporter"},
    "otelcol_exporter_enqueue_failed_metric_points": {"exporter"},
    "otelcol_processor_filter_datapoints_filtered": {"filter"},
    "otelcol_process_memory_rss": set[str](),
    "prometheus_http_requests_total": {"handler", "code"},
    "prometheus_tsdb_head_series": set[str](),
    "prometheus_tsdb_too_old_samples_total": {"type"},
    "prometheus_target_scrapes_sample_duplicate_timestamp_total": set[str](),
    "prometheus_rule_evaluation_failures_total": {"rule_group"},
    "prometheus_tsdb_exemplar_exemplars_in_storage": set[str](),
    "up": set[str](),
}
_ALERT = {"alertname", "alertstate", "severity", "rl_run_id"}


@cache
def labels_by_name() -> dict[str, set[str]]:
    """Every name of a series, with the labels that it can have."""
    known = {
        name: {
            *(label_of(label.name) for label in metric.labels),
            *PROMOTED,
            *SCRAPED,
            *({"le"} if name.endswith("_bucket") else ()),
        }
        for metric in CATALOGUE
        for name in series_of(metric)
    }
    known |= {name: labels | SCRAPED for name, labels in SERVERS.items()}
    known |= {rule["record"]: PROMOTED | {"rl_phase"} for rule in rules() if "record" in rule}
    return known | {"ALERTS": _ALERT}
