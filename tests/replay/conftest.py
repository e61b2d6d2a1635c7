"""Runs to send again, and a real receiver on this machine that keeps what it is sent."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from otel_grpo.cli.endpoint import ENDPOINT, OF_SIGNALS

sys.path[:0] = [str(Path(__file__).parents[1] / "otlp")]

import receivers  # noqa: E402


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of the developer's own environment steers what is sent, and nothing stays behind."""
    for name in [*os.environ]:
        if name.startswith("OTEL_") or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    for name in (ENDPOINT, *OF_SIGNALS):  # what the command sets is unset afterwards
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)


@pytest.fixture
def receiver() -> Iterator[receivers.Receiver]:
    """Takes everything."""
    with receivers.http() as one:
        yield one
