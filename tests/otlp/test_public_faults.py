"""A fault of public trainers that only a receiver can bring about, with the right value."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from pathlib import Path

import pytest
from click.testing import CliRunner
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from receivers import Got, Reply, http

import otel_grpo
from otel_grpo import audit
from otel_grpo.cli.show import show
from otel_grpo.records import reader
from otel_grpo.records.model import SinkCounts, TrainRecord

STEP = "trainer.global_step"


class OnlyForward:
    """Has no use for a step before the newest one that it has, as W&B has none."""

    def __init__(self) -> None:
        self.newest = 0
        self.kept: list[int] = []

    def __call__(self, got: Got) -> Reply:
        answer = ExportTraceServiceResponse()
        if got.signal == "traces":
            late = [step for step in _steps(got.body) if not self._keep(step)]
            answer.partial_success.rejected_spans = len(late)
            if late:
                told = ", ".join(map(str, late))
                answer.partial_success.error_message = f"out of order: steps {told}"
        return Reply(body=answer.SerializeToString())

    def _keep(self, step: int) -> bool:
        if step < self.newest:
            return False
        self.newest = step
        self.kept.append(step)
        return True


def _steps(body: bytes) -> Iterable[int]:
    for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
        for scope in resource.scope_spans:
            for span in scope.spans:
                yield from (a.value.int_value for a in span.attributes if a.key == STEP)


def train(path: Path, steps: Iterable[int]) -> None:
    with otel_grpo.start_run(path, trainer="loop", devices=[], readings=list) as run:
        for step in steps:
            with run.iteration() as it:
                with it.update(attributes={STEP: step}):
                    pass
                run.log_scalars({"loss": 1 / step}, step=step)


def test_a_sink_that_rejects_steps_out_of_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """github.com/NVIDIA-NeMo/RL/pull/4044 and 3816, wandb/wandb/issues/10628,
    modelscope/ms-swift/issues/7080, PrimeIntellect-ai/prime-rl/pull/1668.

    A run ends after step 206 and goes on from the checkpoint of step 202: of the second attempt's
    spans the receiver rejects those of 203, 204 and 205. They are counted and named, and the files
    have all.
    """
    sink = OnlyForward()
    first, second = range(201, 207), range(203, 208)
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "60000")  # an attempt's spans are one request
    with http(sink) as receiver, caplog.at_level(logging.WARNING):
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url)
        train(tmp_path, first)
        assert not caplog.messages
        train(tmp_path, second)
    assert sink.kept == [*first, 206, 207]

    summary = reader.read_summary(tmp_path)
    spans = 5 * 2 + 1  # an iteration and an update for each step, and the run
    sent = SinkCounts(
        created=spans,
        written=spans - 3,
        dropped=3,
        reasons={"partial_success": 3},
        unconfirmed=0,
    )
    assert summary.observed.sinks["otlp_spans"] == sent
    said = "refused 3 spans: out of order: steps 203, 204, 205"
    assert any(said in message for message in caplog.messages)
    shown = CliRunner().invoke(show, [str(tmp_path)], catch_exceptions=False).output
    assert "3 spans not taken (`otel-grpo replay` sends them again)" in shown

    for name in ("metrics_raw", "metrics", "spans"):
        counts = summary.observed.sinks[name]
        assert (counts.written, counts.dropped) == (counts.created, 0)
    flat = (tmp_path / "metrics.jsonl").read_bytes().splitlines()
    assert [json.loads(line)["step"] for line in flat] == [*first, *second]
    lines = reader.read_records(tmp_path / "metrics_raw.jsonl")
    trains = [line.value for line in lines if isinstance(line.value, TrainRecord)]
    assert [train.attributes.scalars["loss"] for train in trains] == [
        1 / step for step in (*first, *second)
    ]
    assert audit.audit(tmp_path).exit_status == 0
