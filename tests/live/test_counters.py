"""What Prometheus says of three real runs, against their files: to the integer where they count."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tools.stack.ask import Sample
from tools.stack.stack import Stack

if TYPE_CHECKING:
    from conftest import Demo

DEMOS = ("trl", "colocated", "async")
#: A counter of seconds adds floats of integer nanoseconds: each step rounds in the 53rd bit.
ROUNDING = 1e-9


@pytest.fixture(params=DEMOS)
def demo(request: pytest.FixtureRequest, demos: dict[str, Demo]) -> Demo:
    found: Demo = demos[request.param]
    return found


def counted(stack: Stack, demo: Demo, name: str, label: str) -> dict[str, float]:
    """The last value of each series that is not 0, by its label; no two series share one."""
    samples = stack.prometheus.query(f'last_over_time({name}{{rl_run_id="{demo.run_id}"}}[1h])')
    found = {sample.labels[label]: sample.value for sample in samples}
    assert len(found) == len(samples), samples
    return {key: value for key, value in found.items() if value}


def only(stack: Stack, demo: Demo, name: str) -> float:
    (sample,) = every(stack, demo, name)
    return sample.value


def every(stack: Stack, demo: Demo, name: str) -> list[Sample]:
    return stack.prometheus.query(f'last_over_time({name}{{rl_run_id="{demo.run_id}"}}[1h])')


def not_zero(counts: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in counts.items() if value}


def test_windows(stack: Stack, demo: Demo) -> None:
    """By status, as the summary has them."""
    windows = counted(stack, demo, "rl_loop_windows_total", "rl_window_status")
    assert windows == not_zero(demo.summary["windows"])


def test_tokens(stack: Stack, demo: Demo) -> None:
    """Prompts are input, completions are output; each sample counts once."""
    tokens = demo.summary["tokens"]
    assert counted(stack, demo, "rl_tokens_total", "gen_ai_token_type") == {
        "input": tokens["prompt"],
        "output": tokens["completion"],
    }


def test_samples(stack: Stack, demo: Demo) -> None:
    """Consumed, visited, and discarded by reason."""
    samples = demo.summary["samples"]
    assert only(stack, demo, "rl_sample_samples_total") == samples["consumed"]
    assert only(stack, demo, "rl_sample_visits_total") == samples["visits"]
    discarded = counted(stack, demo, "rl_sample_discarded_total", "rl_discard_reason")
    assert discarded == not_zero(samples["discarded"])


def test_updates(stack: Stack, demo: Demo) -> None:
    """By what became of them."""
    updates = dict(demo.summary["updates"])
    del updates["attempted"], updates["partial"]
    found = counted(stack, demo, "rl_train_steps_total", "rl_update_status")
    assert found == not_zero(updates)


def test_publications(stack: Stack, demo: Demo) -> None:
    """Those that were confirmed."""
    assert only(stack, demo, "rl_sync_publications_total") == demo.summary["publications"]


def test_lengths(stack: Stack, demo: Demo) -> None:
    """The histogram of lengths holds each sample once, and their sum is the tokens'."""
    tokens, samples = demo.summary["tokens"], demo.summary["samples"]
    sums = counted(stack, demo, "rl_sample_length_sum", "gen_ai_token_type")
    counts = counted(stack, demo, "rl_sample_length_count", "gen_ai_token_type")
    assert sums == {"input": tokens["prompt"], "output": tokens["completion"]}
    assert counts == {"input": samples["consumed"], "output": samples["consumed"]}


def test_time_of_the_windows_adds_up(stack: Stack, demo: Demo) -> None:
    """Phases, overlap, log and the rest are the wall time of the windows, each as in the files."""
    summary = demo.summary
    found = counted(stack, demo, "rl_phase_time_seconds_total", "rl_phase")
    stated = {name: phase["top_ns"] / 1e9 for name, phase in summary["phases"].items()}
    assert found == pytest.approx(not_zero(stated), rel=ROUNDING)
    rest = {
        name: only(stack, demo, f"rl_{name}_time_seconds_total")
        for name in ("overlap", "log", "unattributed")
    }
    time = summary["time"]
    assert rest == pytest.approx(
        {
            "overlap": time["overlapped_ns"] / 1e9,
            "log": time["log_ns"] / 1e9,
            "unattributed": time["unattributed_ns"] / 1e9,
        },
        rel=ROUNDING,
    )
    total = sum(found.values()) + sum(rest.values())
    assert total == pytest.approx(time["windows_ns"] / 1e9, rel=ROUNDING)


def test_throughput_is_a_ratio_of_sums(stack: Stack, demo: Demo) -> None:
    """Tokens by device time: what the summary states, for each kind that it states."""
    tokens = counted(stack, demo, "rl_throughput_tokens_total", "rl_throughput_kind")
    seconds = counted(stack, demo, "rl_device_time_seconds_total", "rl_throughput_kind")
    stated = demo.summary["throughput"]
    wanted = {
        "end_to_end": stated["device"],
        "generation": stated.get("generation"),
        "train": stated.get("train"),
    }
    found = {kind: tokens[kind] / seconds[kind] for kind in seconds}
    assert found == pytest.approx(
        {kind: value for kind, value in wanted.items() if value}, rel=ROUNDING
    )


def test_the_files_lost_nothing(stack: Stack, demo: Demo) -> None:
    """What each sink of the main process wrote and lost, at the end of the run."""
    name = "rl_telemetry_records_total"
    lost = [
        each
        for each in every(stack, demo, name)
        if each.value and each.labels["rl_telemetry_outcome"] != "written"
    ]
    assert lost == []


def test_all_that_was_sent_is_accounted_for(demo: Demo) -> None:
    """Created = written + dropped + pending + unconfirmed, and here all of it was written."""
    sinks = demo.summary["observed"]["sinks"]
    for sink in ("otlp_spans", "otlp_metrics"):
        counts = sinks[sink]
        assert counts["created"] == counts["written"] > 0
        assert not counts.get("dropped")
        assert not counts.get("unconfirmed")


def test_exemplars_lead_to_the_trace_of_the_iteration(stack: Stack, demo: Demo) -> None:
    """Each window's length was observed inside its span."""
    match = f'rl_loop_duration_seconds_bucket{{rl_run_id="{demo.run_id}"}}'
    start = demo.summary["started_unix_ns"] / 1e9
    found = stack.prometheus.exemplars(match, start=start - 60, end=start + 3600)
    traces = {each["labels"]["trace_id"] for series in found for each in series["exemplars"]}
    windows = {record["trace_id"] for record in demo.records()}
    assert traces
    assert traces <= windows


def test_no_iteration_is_a_label(stack: Stack, demo: Demo) -> None:
    """What changes with each iteration would be a new series each time."""
    series = stack.prometheus.series(f'{{rl_run_id="{demo.run_id}"}}')
    labels = {label for each in series for label in each}
    assert not labels & {"rl_loop_iteration", "rl_optimizer_step", "rl_sample_id", "trace_id"}
