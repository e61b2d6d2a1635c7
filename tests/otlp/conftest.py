"""What sends, to receivers of every kind, with the standard variables as a user sets them."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from otel_grpo.otlp import live
from otel_grpo.otlp.sending import OtlpLive
from otel_grpo.records.model import SinkCounts
from otel_grpo.testing import FakeClock
from otel_grpo.tracing.guard import Guard
from otel_grpo.tracing.live import LiveSources

sys.path[:0] = [str(Path(__file__).parent)]

from receivers import RESOURCE  # noqa: E402

Make = Callable[..., OtlpLive]


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of the developer's own environment steers what is sent."""
    for name in [*os.environ]:
        if name.startswith("OTEL_") or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)


@pytest.fixture
def sources() -> LiveSources:
    return LiveSources(
        FakeClock(1_700_000_000 * 10**9),
        open_window=lambda: None,
        self_ns=lambda: 0,
        files=lambda: {"metrics_raw": SinkCounts()},
    )


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch, sources: LiveSources) -> Iterator[Make]:
    """Makes and starts what sends, with variables in short: `endpoint` is OTEL_EXPORTER_OTLP_ENDPOINT."""
    made: list[OtlpLive] = []

    def make_it(guard: Guard | None = None, **variables: str) -> OtlpLive:
        for name, value in variables.items():
            full = name if name.isupper() else f"EXPORTER_OTLP_{name.upper()}"
            monkeypatch.setenv(f"OTEL_{full}", str(value))
        one = live(guard or Guard())
        assert isinstance(one, OtlpLive)
        one.start(RESOURCE, sources)
        made.append(one)
        return one

    yield make_it
    for one in made:
        one.close(0)
