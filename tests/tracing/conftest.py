"""Runs on a fake clock, lanes that one can command, and the OTLP reading of spans/."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import pytest
from google.protobuf import json_format
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from otel_grpo.testing import FakeClock

T = TypeVar("T")


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of the developer's own environment steers a run."""
    for name in ("RUN_DIR", "RUN_ID", "DISABLED", "STRICT"):
        monkeypatch.delenv(f"OTEL_GRPO_{name}", raising=False)


@pytest.fixture
def clock() -> FakeClock:
    """Starts at a round number, so that a test can count from it."""
    return FakeClock(1_700_000_000 * 10**9)


class Lane:
    """A thread that does one thing at a time, each to its end before the caller goes on."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1)

    def __call__(self, work: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        return self._pool.submit(work, *args, **kwargs).result(30)

    def close(self) -> None:
        self._pool.shutdown()


@pytest.fixture
def lanes() -> Iterator[list[Lane]]:
    """Three threads beside the test's own."""
    made = [Lane() for _ in range(3)]
    yield made
    for lane in made:
        lane.close()


@pytest.fixture
def read_otlp() -> Callable[[Path], list[Span]]:
    """All spans of a run directory as protobuf messages, read by protobuf's own JSON reader."""

    def read(run_dir: Path) -> list[Span]:
        spans: list[Span] = []
        for file in sorted((run_dir / "spans").glob("*.jsonl")):
            for line in file.read_bytes().splitlines():
                # OTLP/JSON differs from protobuf's JSON in one thing: ids are hex, not base64.
                request = json.loads(line, object_hook=_ids_as_base64)
                message = json_format.ParseDict(request, ExportTraceServiceRequest())
                spans += [
                    span
                    for resource in message.resource_spans
                    for scope in resource.scope_spans
                    for span in scope.spans
                ]
        return spans

    return read


def _ids_as_base64(fields: dict[str, Any]) -> dict[str, Any]:
    for name in ("traceId", "spanId", "parentSpanId"):
        if name in fields:
            fields[name] = base64.b64encode(bytes.fromhex(fields[name])).decode()
    return fields
