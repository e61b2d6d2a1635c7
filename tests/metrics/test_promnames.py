"""Names behind Prometheus' OTLP receiver."""

from __future__ import annotations

import pytest

from otel_grpo.metrics.catalogue import BY_NAME, Metric
from otel_grpo.metrics.promnames import label_of, name_of, series_of

# As a Prometheus 3.16 named them, behind a collector.
MEASURED = {
    "rl.loop.duration": "rl_loop_duration_seconds",
    "rl.phase.time": "rl_phase_time_seconds_total",
    "rl.device.time": "rl_device_time_seconds_total",
    "rl.devices": "rl_devices",
    "rl.sample.visits": "rl_sample_visits_total",
    "rl.tokens": "rl_tokens_total",
    "rl.train.steps": "rl_train_steps_total",
    "rl.sync.publications": "rl_sync_publications_total",
    "rl.telemetry.records": "rl_telemetry_records_total",
    "rl.throughput.device": "rl_throughput_device_per_second",
    "rl.sample.length": "rl_sample_length",
    "rl.policy.lag": "rl_policy_lag",
    "rl.train.grad_norm": "rl_train_grad_norm",
    "rl.phase.active": "rl_phase_active",
    "rl.allocator.memory": "rl_allocator_memory_bytes",
    "rl.allocator.memory.peak": "rl_allocator_memory_peak_bytes",
    "hw.gpu.memory.usage": "hw_gpu_memory_usage_bytes",
    "hw.gpu.utilization": "hw_gpu_utilization_ratio",
    "hw.energy": "hw_energy_joules_total",
    "hw.temperature": "hw_temperature_celsius",
}


@pytest.mark.parametrize("name", MEASURED)
def test_names_as_a_real_server_gave_them(name: str) -> None:
    """Our translation says what was measured."""
    assert name_of(BY_NAME[name]) == MEASURED[name]


def test_words_that_are_there_are_not_said_again() -> None:
    """A unit in the name stays where it is; `total` and `ratio` move to the end."""
    assert name_of(Metric("a.seconds.spent", "counter", "s", "")) == "a_seconds_spent_total"
    assert name_of(Metric("a.total.bytes", "counter", "By", "")) == "a_bytes_total"
    assert name_of(Metric("rl.test.ratio", "gauge", "1", "")) == "rl_test_ratio"
    assert name_of(Metric("rl.test", "level", "1", "")) == "rl_test"


def test_series_of_a_histogram_and_labels() -> None:
    """Three series a histogram; dots of a label become underscores."""
    assert series_of(BY_NAME["rl.sample.length"]) == (
        "rl_sample_length_bucket", "rl_sample_length_sum", "rl_sample_length_count"
    )  # fmt: skip
    assert series_of(BY_NAME["rl.tokens"]) == ("rl_tokens_total",)
    assert label_of("gen_ai.token.type") == "gen_ai_token_type"
