"""For tests of instrumented loops, ours and yours: a clock that you turn, a run that you read back.

from otel_grpo.testing import FakeClock, recorded_run

def test_generation_is_timed():
    clock = FakeClock()
    with recorded_run(clock=clock) as recorded:
        with recorded.run.iteration() as it, it.phase("generation"):
            clock.advance(2.5)
    (window,) = recorded.rollouts
    assert window.metrics["phase.generation.busy_ns"] == 2_500_000_000
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
from opentelemetry.metrics import MeterProvider

from otel_grpo import otlp
from otel_grpo.core.clock import Clock
from otel_grpo.records import reader
from otel_grpo.records.model import (
    Device,
    Record,
    RolloutRecord,
    RunRecord,
    Summary,
    TrainRecord,
)
from otel_grpo.tracing import starting
from otel_grpo.tracing.guard import Guard
from otel_grpo.tracing.run import Run
from otel_grpo.tracing.sampler import Readings

__all__ = ["FakeClock", "RecordedRun", "recorded_run"]


class FakeClock(Clock):
    """A clock that stands still until it is advanced."""

    __slots__ = ("_now",)

    def __init__(self, start_ns: int = 1_700_000_000 * 10**9) -> None:
        super().__init__(start_ns, 0)
        self._now = start_ns

    def now(self) -> int:
        return self._now

    def at(self, perf_ns: int) -> int:
        return self._now

    def advance(self, seconds: float = 0, *, ns: int = 0) -> None:
        """Let time pass; `ns` where a float is not exact enough."""
        self._now += round(seconds * 10**9) + ns


class RecordedRun:
    """A run and, once it is finished, what its files hold."""

    def __init__(self, run: Run, path: Path) -> None:
        self.run = run
        self.path = path
        self.records: list[Record] = []
        self.flat: list[dict[str, Any]] = []
        self.spans: list[dict[str, Any]] = []
        self.summary: Summary

    @property
    def rollouts(self) -> list[RolloutRecord]:
        return [record for record in self.records if isinstance(record, RolloutRecord)]

    @property
    def trains(self) -> list[TrainRecord]:
        return [record for record in self.records if isinstance(record, TrainRecord)]

    @property
    def run_record(self) -> RunRecord:
        (record,) = (record for record in self.records if isinstance(record, RunRecord))
        return record

    def read(self) -> None:
        """Read the files as they are now."""
        raw = self.path / "metrics_raw.jsonl"
        lines = reader.read_records(raw) if raw.exists() else iter(())
        self.records = [line.value for line in lines if isinstance(line, reader.Whole)]
        self.flat = [msgspec.json.decode(line) for line in _lines(self.path / "metrics.jsonl")]
        self.spans = [
            span
            for file in sorted((self.path / "spans").glob("*.jsonl"))
            for line in _lines(file)
            for resource in msgspec.json.decode(line)["resourceSpans"]
            for scope in resource["scopeSpans"]
            for span in scope["spans"]
        ]
        self.summary = reader.read_summary(self.path)


@contextmanager
def recorded_run(
    run_dir: Path | None = None,
    *,
    clock: Clock | None = None,
    devices: Sequence[Device] = (),
    readings: Readings | None = None,
    lockstep: bool = True,
    strict: bool = True,
    meter_provider: MeterProvider | None = None,
    **options: Any,
) -> Iterator[RecordedRun]:
    """A run in a temporary directory, whose files are read when the block ends.

    In strict mode, the default here, wrong use of the API and faults of ours raise.

    Args:
        run_dir: a directory to keep; default: a temporary one.
        clock: a `FakeClock`, say.
        devices: of the job; default: none, so that there are no throughputs.
        readings: gives memory readings; default: none.
        lockstep: read when the loop asks and have it wait for the answer, so that a clock that
            stands still tells when; False: beside the loop, as in a real run.
        strict: raise what a training must not see.
        meter_provider: gets the metrics; with an `InMemoryMetricReader` they can be looked at.
        options: of `otel_grpo.start_run`.
    """
    with tempfile.TemporaryDirectory() as temporary:
        path = run_dir or Path(temporary, "run")
        guard = Guard(strict=strict)
        if meter_provider is not None:
            options["live"] = otlp.live(
                guard, spans=False, meter_provider=meter_provider, environ={}
            )
        roles = options.pop("device_roles", None) or [["train", "generate"] for _ in devices]
        run = starting.start(
            path,
            trainer=options.pop("trainer", "test"),
            clock=clock,
            devices=devices,
            roles=list(enumerate(roles)) if devices else None,
            readings=readings,
            lockstep=lockstep,
            guard=guard,
            **options,
        )
        recorded = RecordedRun(run, run.path or path)
        try:
            with run:
                yield recorded
        finally:
            recorded.read()
        faults = {name: n for name, n in run.guard.errors.items() if not name.startswith("api.")}
        if strict and faults:  # those of the writer's thread can be raised nowhere else
            raise AssertionError(f"faults of the plugin: {faults}")


def _lines(path: Path) -> list[bytes]:
    return path.read_bytes().splitlines() if path.exists() else []
