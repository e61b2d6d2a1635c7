"""Trainings that end together, each with a receiver of its own; run as a script.

One process loads the libraries and forks for each: a start of Python for each would take longer than
what the tests measure. Told by JSON on standard input, it tells by JSON on standard output.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import otel_grpo

WINDOWS = 20
PHASES = 99


def train(path: Path, environ: dict[str, str], ends: str) -> None:
    """2,000 spans; then it waits for the others, and ends."""
    os.environ.update(environ)
    if ends == "by_sigterm":
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with otel_grpo.start_run(path, trainer="loop", devices=[], readings=list) as run:
        for _ in range(WINDOWS):
            with run.iteration() as it:
                for _ in range(PHASES):
                    with it.phase("generation"):
                        pass
        path.with_suffix(".ready").touch()
        while not path.with_name("go").exists():
            time.sleep(0.02)
        path.with_suffix(".over").write_text(str(time.monotonic()))
        if ends == "by_sigterm":
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(60)


def main() -> None:
    told: list[dict[str, Any]] = json.load(sys.stdin)
    for module in (
        "grpc",
        "otel_grpo.api",
        "otel_grpo.devices",
        "otel_grpo.metrics.views",
        "otel_grpo.metrics.columns",
        "otel_grpo.otlp.limits",
        "otel_grpo.otlp.pump",
        "otel_grpo.otlp.sending",
        "opentelemetry.sdk.metrics.view",
    ):
        importlib.import_module(module)
    for name in ("http", "grpc"):
        importlib.import_module(f"otel_grpo.otlp.over_{name}")
    paths = {}
    for training in told:
        path = Path(training["path"])
        child = os.fork()
        if child == 0:
            train(path, training["environ"], training["ends"])
            return
        paths[child] = path
    while not all(path.with_suffix(".ready").exists() for path in paths.values()):
        time.sleep(0.02)
    next(iter(paths.values())).with_name("go").touch()
    ends = {}
    for _ in told:
        child, status = os.wait()
        took = time.monotonic() - float(paths[child].with_suffix(".over").read_text())
        ends[str(paths[child])] = [os.waitstatus_to_exitcode(status), took]
    json.dump(ends, sys.stdout)


if __name__ == "__main__":
    main()
