"""A run that is over, sent again into the real stack: the same panels show it, and nothing twice."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from otel_grpo.testing import FakeClock, recorded_run
from tools.stack.ask import wait_for
from tools.stack.stack import Stack

if TYPE_CHECKING:
    from conftest import Demo

HOUR_S = 3600
TOKENS = (31, 32, 33)  # of each window: 4 x 3 of prompts, 19, 20, 21 of completions


def otel_grpo(*arguments: object, **variables: str) -> subprocess.CompletedProcess[str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("OTEL_", "PYTEST_"))}
    return subprocess.run(
        [sys.executable, "-m", "otel_grpo.cli", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env={**kept, **variables},
    )


def train(path: Path, ago_s: float, every_s: float) -> Path:
    """Three windows that began so long ago, each of which took so long; made as each one ends."""
    clock = FakeClock(int((time.time() - ago_s) * 10**9))
    with recorded_run(path, clock=clock) as recorded:
        for number in range(3):
            with recorded.run.iteration() as it:
                with it.phase("generation"):
                    clock.advance(every_s)
                lengths = [4, 5, 5, 5 + number]
                samples = it.consumed(number, prompt_lengths=[3] * 4, completion_lengths=lengths)
                with it.phase("policy_train"):
                    it.trained(samples)
                    clock.advance(1)
                with it.update(samples):
                    clock.advance(1)  # Jaeger mends spans without length, and then shows them twice
            records = path / "metrics_raw.jsonl"
            made = lambda records=records: records.exists() and records.read_text().count("rollout")  # noqa: E731
            assert wait_for(made, lambda n, number=number: n > number)
    return path


def records_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (path / "metrics_raw.jsonl").read_text().splitlines()]


def spans_of(path: Path) -> dict[str, set[str]]:
    """Trace -> ids of its spans."""
    found: dict[str, set[str]] = {}
    for file in (path / "spans").glob("*.jsonl"):
        for line in file.read_text().splitlines():
            for resource in json.loads(line)["resourceSpans"]:
                for scope in resource["scopeSpans"]:
                    for span in scope["spans"]:
                        found.setdefault(span["traceId"], set()).add(span["spanId"])
    return found


def test_an_old_run_is_in_the_same_panels(stack: Stack, tmp_path: Path) -> None:
    """Two hours old: counters exact at each window, grown by all of it; each trace whole; then again."""
    path = train(tmp_path / "old", 2 * HOUR_S, 600)
    run_id = json.loads((path / "run.json").read_text())["run_id"]
    rollouts = [record for record in records_of(path) if record["kind"] == "rollout"]
    made = [record["time_unix_ns"] / 1e9 for record in rollouts]
    tokens = f'rl_tokens_total{{rl_run_id="{run_id}"}}'
    for _ in range(2):
        told = otel_grpo("replay", path, "--otlp", stack.otlp)
        assert told.returncode == 0, told.stdout + told.stderr
        assert "spans: 13 of 13 spans taken" in told.stdout
        assert "metrics: 5 of 5 requests taken" in told.stdout
        wait_for(
            lambda: stack.prometheus.value(f"sum({tokens})", at=made[2] + 1),
            lambda found: found == sum(TOKENS),
        )
        sums = [stack.prometheus.value(f"sum({tokens})", at=at + 1) for at in made]
        assert sums == [31, 63, 96]
        grown = f"sum(increase({tokens}[1h] anchored))"
        assert stack.prometheus.value(grown, at=made[2] + 1) == 96
        samples = f"sum(count_over_time({tokens}[1h]))"
        # Zeros and three windows; the clock stood still from the third one to the end.
        assert stack.prometheus.value(samples, at=made[2] + 60) == 2 * 4
        for trace_id, ids in spans_of(path).items():
            shown = wait_for(
                lambda trace_id=trace_id: stack.jaeger.trace(trace_id),
                lambda found, ids=ids: len(found) >= len(ids),
            )
            assert sorted(span["spanID"] for span in shown) == sorted(ids)
    length = f'rl_sample_length_count{{rl_run_id="{run_id}",gen_ai_token_type="output"}}'
    assert stack.prometheus.value(f"increase({length}[1h] anchored)", at=made[2] + 1) == 12


def test_what_is_too_old_is_named_and_spoils_no_other(stack: Stack, tmp_path: Path) -> None:
    """Straight into Prometheus, whose window of 24 hours the run reaches out of."""
    path = train(tmp_path / "older", 25.2 * HOUR_S, HOUR_S)
    run_id = json.loads((path / "run.json").read_text())["run_id"]
    last = [record for record in records_of(path) if record["kind"] == "rollout"][-1]
    endpoint = f"{stack.url('prometheus', 9090)}/api/v1/otlp/v1/metrics"
    told = otel_grpo("replay", path, "--json", OTEL_EXPORTER_OTLP_METRICS_ENDPOINT=endpoint)
    assert told.returncode == 1, told.stdout + told.stderr
    whole = json.loads(told.stdout)
    assert "traces" not in whole
    assert whole["requests_not_taken"] == {"http_400": ["zeros", "iteration 1"]}
    assert (whole["metrics"]["created"], whole["metrics"]["taken"]) == (5, 3)
    tokens = f'sum(rl_tokens_total{{rl_run_id="{run_id}"}})'
    assert stack.prometheus.value(tokens, at=last["time_unix_ns"] / 1e9 + 1) == sum(TOKENS)


LOOP = """
import time
import otel_grpo
with otel_grpo.start_run(trainer="loop", algorithm="grpo") as run:
    for number in range(3):
        with run.iteration() as it:
            with it.phase("generation"):
                time.sleep(0.01)
            samples = it.consumed(number, prompt_lengths=[3], completion_lengths=[5 + number])
            with it.phase("policy_train"):
                it.trained(samples)
                time.sleep(0.01)
            with it.update(samples):
                time.sleep(0.01)
"""


@pytest.fixture(scope="module")
def sent(stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that `run --otlp` sent as it went on."""
    path = tmp_path_factory.mktemp("sent") / "run"
    told = otel_grpo(
        *("run", "--run-dir", path, "--otlp", stack.otlp, "--", sys.executable, "-c", LOOP)
    )
    assert told.returncode == 0, told.stderr
    run_id = json.loads((path / "run.json").read_text())["run_id"]
    tokens = f'sum(rl_tokens_total{{rl_run_id="{run_id}"}})'
    assert wait_for(lambda: stack.prometheus.value(tokens), lambda n: n == 27) == 27
    return path


def check_that_nothing_changes(stack: Stack, path: Path) -> None:
    run_id = json.loads((path / "run.json").read_text())["run_id"]
    spans = spans_of(path)
    counts = (
        "sum by (__name__, instance, rl_phase, gen_ai_token_type) "
        f'({{rl_run_id="{run_id}",__name__=~"rl_.*_total",__name__!~"rl_telemetry_.*"}})'
    )
    end = json.loads((path / "summary.json").read_text())["ended_unix_ns"] / 1e9 + 30

    def counted() -> dict[str, float]:
        return {str(each.labels): each.value for each in stack.prometheus.query(counts, at=end)}

    def shown() -> dict[str, list[str]]:
        return {
            trace_id: sorted(span["spanID"] for span in stack.jaeger.trace(trace_id))
            for trace_id in spans
        }

    whole = {trace_id: sorted(ids) for trace_id, ids in spans.items()}
    assert wait_for(shown, lambda found: found == whole) == whole
    before = counted()
    assert before
    told = otel_grpo("replay", path, "--otlp", stack.otlp)
    assert told.returncode == 0, told.stdout + told.stderr
    n = sum(map(len, spans.values()))
    assert f"spans: {n} of {n} spans taken" in told.stdout
    time.sleep(3)  # the batches of the collector
    assert counted() == before
    assert shown() == whole


def test_a_run_that_was_sent_is_not_changed(stack: Stack, sent: Path) -> None:
    """Sent a second time from its files: no span is there twice, and no count grows."""
    check_that_nothing_changes(stack, sent)


def test_a_run_of_many_processes_is_not_changed(stack: Stack, demos: dict[str, Demo]) -> None:
    """The same for workers on Ray, each with its own resource."""
    check_that_nothing_changes(stack, demos["colocated"].path)


def test_doctor_finds_nothing_wrong(stack: Stack, sent: Path) -> None:
    """The collector takes what is sent, took all of the last run, and Jaeger has it."""
    jaeger = stack.url("jaeger", 16686)
    told = otel_grpo(
        *("doctor", "--otlp", stack.otlp, "--run-dir", sent), OTEL_GRPO_JAEGER_URL=jaeger
    )
    assert told.returncode == 0, told.stdout
    assert told.stdout.count("takes them, by http/protobuf") == 2
    assert "otlp_spans: 13 of 13 taken" in told.stdout
    assert "its traces:" in told.stdout
