"""How a training ends with a receiver that is dead, hangs, refuses, drips, or is busy.

Each has 2,000 spans and all metrics; all end at the same time, each in a process of its own.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from receivers import (
    Reply,
    dead_port,
    half_close,
    hang,
    http,
    over_grpc,
    raw,
    trickle,
)

from otel_grpo import audit
from otel_grpo.records import reader
from otel_grpo.tracing.live import CLOSE_S

SPANS = 2001  # 20 windows of 99 phases, and the run


def nobody():
    return contextlib.nullcontext()


# name: receiver, protocol, end, how many spans of 2,000 arrive (None: some may), why others do not
SCENARIOS = {
    "good": (http, "http/protobuf", "by_itself", None, {"closed"}),  # a busy machine may lose some
    "dead": (nobody, "http/protobuf", "by_itself", 0, {"unreachable"}),
    "hanging": (lambda: raw(hang), "http/protobuf", "by_itself", 0, {"closed"}),
    "dripping": (lambda: raw(trickle), "http/protobuf", "by_itself", 0, {"closed"}),
    "half_closed": (lambda: raw(half_close), "http/protobuf", "by_itself", 0, {"connection_lost"}),
    "http_503": (lambda: http(lambda _: Reply(503)), "http/protobuf", "by_itself", 0, {"http_503"}),
    "hanging_sigterm": (lambda: raw(hang), "http/protobuf", "by_sigterm", 0, {"closed"}),
    "grpc_good": (over_grpc, "grpc", "by_itself", None, {"closed"}),
    "grpc_dead": (nobody, "grpc", "by_itself", 0, {"unreachable"}),
    "grpc_hanging": (
        lambda: over_grpc(lambda *_: time.sleep(6) or b""),
        "grpc",
        "by_itself",
        None,
        {"closed"},
    ),
    "grpc_half_closed": (lambda: raw(half_close), "grpc", "by_itself", 0, {"unreachable"}),
}


class Ended:
    def __init__(self, path, receiver, code, seconds):
        self.path = path
        self.receiver = receiver
        self.code = code
        self.seconds = seconds
        self.sinks = reader.read_summary(path).observed.sinks


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    """All trainings, by the name of their scenario."""
    folder = tmp_path_factory.mktemp("trainings")
    clean = {
        name: value
        for name, value in os.environ.items()
        if not (name.startswith("OTEL_") or name.lower().endswith("_proxy"))
    }
    with contextlib.ExitStack() as stack:
        receivers: dict[str, object] = {}
        told = [{"path": str(folder / "without"), "environ": {}, "ends": "by_itself"}]
        for name, (make, protocol, ends, *_) in SCENARIOS.items():
            receivers[name] = stack.enter_context(make())
            url = getattr(receivers[name], "url", f"http://127.0.0.1:{dead_port()}")
            environ = {
                "OTEL_EXPORTER_OTLP_ENDPOINT": url,
                "OTEL_EXPORTER_OTLP_PROTOCOL": protocol,
            }
            told.append({"path": str(folder / name), "environ": environ, "ends": ends})
        child = subprocess.run(
            [sys.executable, Path(__file__).with_name("trainings.py")],
            input=json.dumps(told),
            capture_output=True,
            text=True,
            check=True,
            timeout=120,
            env=clean,
        )
        ends = json.loads(child.stdout)
    return {
        name: Ended(folder / name, receivers.get(name), *ends[str(folder / name)])
        for name in ("without", *SCENARIOS)
    }


@pytest.mark.parametrize("name", SCENARIOS)
def test_an_end(ended, name):
    """It takes no longer than it may, and every span is accounted for; the files lack none."""
    *_, ends, arrive, reasons = SCENARIOS[name]
    it = ended[name]
    assert it.code == (143 if ends == "by_sigterm" else 0)
    # Twelve share the machine, which may be busy: without OTLP an end takes what it takes.
    assert it.seconds <= 1.5 * CLOSE_S + 4 * ended["without"].seconds
    files, sent = it.sinks["spans"], it.sinks["otlp_spans"]
    assert files.created == files.written == sent.created
    assert files.created == SPANS
    assert sent.created == sent.written + sent.dropped + sent.unconfirmed
    assert sum(sent.reasons.values()) == sent.dropped
    assert set(sent.reasons) <= reasons | {"closed", "timeout"}  # there may have been no time
    if arrive is not None:
        assert sent.written == arrive
    if it.receiver is not None:
        # What it has without having said so is unconfirmed.
        assert sent.written <= it.receiver.spans.total() <= sent.written + sent.unconfirmed
    metrics = it.sinks["otlp_metrics"]
    assert metrics.created == metrics.written + metrics.dropped + metrics.unconfirmed
    assert arrive is None or metrics.written == 0
    assert audit.audit(it.path).findings == []
