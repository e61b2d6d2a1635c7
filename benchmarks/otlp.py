"""Sending by OTLP: what it costs the training, what is lost, how long it holds up an end."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any
from unittest import mock

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

import otel_grpo
from benchmarks.measure import ROOT, in_turns, ratio, stay_on_one_core
from benchmarks.phase import REPEATS, SPANS, bare, ours
from benchmarks.table import Row
from otel_grpo.records.reader import read_summary

TESTS = ROOT / "tests" / "otlp"
FLOOD = 40_000
ENDS = 2_000
EXIT_S = 3.5


def _receivers() -> Any:
    """The receivers of the tests."""
    spec = importlib.util.spec_from_file_location("receivers", TESTS / "receivers.py")
    assert spec is not None
    assert spec.loader is not None
    sys.modules["receivers"] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def rows(**_: Any) -> Iterator[Row]:
    receivers = _receivers()
    reply = receivers.Reply
    yield _training_thread(receivers)
    yield from _flood(lambda: receivers.http(lambda _: reply(after_s=0.05)))
    bad: dict[str, Callable[[], Any]] = {
        "dead": contextlib.nullcontext,
        "hanging": lambda: receivers.raw(receivers.hang),
        "answers 503": lambda: receivers.http(lambda _: reply(503)),
        "1 byte/s": lambda: receivers.raw(receivers.trickle),
        "half-closed": lambda: receivers.raw(receivers.half_close),
    }
    took = {name: _end(make, _ours) for name, make in bad.items()}
    worst = max(took.values())
    yield Row(
        f"exit with a bad collector, {ENDS:,} spans and all metrics",
        ", ".join(f"{name} {seconds:.2f} s" for name, seconds in took.items()),
        f"<= {EXIT_S} s",
        worst <= EXIT_S,
    )
    theirs = {name: _end(bad[name], _bare) for name in ("dead", "hanging")}
    yield Row(
        "  the bare SDK's exit, the same spans and one metric",
        ", ".join(f"{name} {seconds:.1f} s" for name, seconds in theirs.items()),
    )


def _training_thread(receivers: Any) -> Row:
    """CPU time that the thread pays for a span that is also sent, both to a receiver that takes it."""
    stay_on_one_core()
    with receivers.http() as receiver, tempfile.TemporaryDirectory() as folder:
        with mock.patch.dict(os.environ, {"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url}):
            provider = TracerProvider(shutdown_on_exit=False)
            provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
            run = otel_grpo.start_run(folder, trainer="benchmark")
        with run, run.iteration() as it:
            loops = {"bare": bare(provider), "ours": ours(it)}
            costs = in_turns(loops, n=SPANS, repeats=REPEATS)
        provider.shutdown()
    value = ratio(costs["ours"], costs["bare"])
    us = ", ".join(f"{name} {median(values) / 1000:.1f}" for name, values in costs.items())
    return Row(
        "one phase with OTLP on / bare SDK, batch processor, OTLP exporter",
        f"{value:.3f} x ({us} us)",
        "<= 1.3 x",
        value <= 1.3,
    )


def _flood(make: Callable[[], Any]) -> Iterator[Row]:
    """More spans at once than a sink takes that needs 50 ms for a batch."""
    with make() as receiver, tempfile.TemporaryDirectory() as folder:
        with mock.patch.dict(os.environ, {"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url}):
            run = otel_grpo.start_run(folder, trainer="benchmark")
        with run:
            for _ in range(FLOOD // 1000):
                with run.iteration() as it:
                    ours(it)(999)  # and the window
        observed = read_summary(Path(folder)).observed
        sent, files = observed.sinks["otlp_spans"], observed.sinks["spans"]
        arrived = receiver.spans.total()
    settled = sent.written + sent.dropped + (sent.unconfirmed or 0)
    off = sent.created - settled
    yield Row(
        f"{FLOOD:,} spans into a sink that takes 50 ms a batch",
        f"{off} unaccounted, {files.dropped} lost in the file; sent {sent.written} (the sink has "
        f"{arrived}), {sent.reasons}",
        "0, 0",
        off == files.dropped == 0 and files.created == sent.created,
    )
    with make() as receiver:
        _bare(receiver.url, FLOOD)
    lost = FLOOD - receiver.spans.total()
    yield Row("  the bare SDK: lost, of which it counts none", f"{lost:,}")


def _end(make: Callable[[], Any], training: Callable[[str, int], float]) -> float:
    with make() as receiver:
        url = receiver.url if receiver is not None else "http://127.0.0.1:9"
        return training(url, ENDS)


def _ours(url: str, _: int) -> float:
    """Seconds from the last window to the end of the process."""
    with tempfile.TemporaryDirectory() as folder:
        told = {
            "path": f"{folder}/run",
            "environ": {"OTEL_EXPORTER_OTLP_ENDPOINT": url},
            "ends": "by_itself",
        }
        done = subprocess.run(
            [sys.executable, TESTS / "trainings.py"],
            input=json.dumps([told]),
            capture_output=True,
            check=True,
            text=True,
        )
        ((_, seconds),) = json.loads(done.stdout).values()
    return float(seconds)


def _bare(url: str, spans: int) -> float:
    """The same of the bare SDK."""
    done = subprocess.run(
        [sys.executable, ROOT / "benchmarks" / "bare_sdk.py", str(spans)],
        env={**os.environ, "OTEL_EXPORTER_OTLP_ENDPOINT": url},
        capture_output=True,
        check=True,
        text=True,
    )
    return time.monotonic() - float(done.stdout)
