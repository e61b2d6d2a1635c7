"""A TRL training behind the agent of a node, whose gateway is killed for a minute in its middle."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from benchmarks.measure import ROOT
from tools.stack.ask import wait_for
from tools.stack.build import SERVERS, binary
from tools.stack.stack import COLLECTOR, Stack, running_stack

AWAY_S = 60.0
ITERATIONS = 60
AGENT = ROOT / "tests" / "live" / "agent.compose.yml"


def main() -> None:
    trl = ROOT / ".venv" / "trl" / "bin"
    if not trl.exists() or not all(binary(server.name).exists() for server in SERVERS):
        print(json.dumps({}))
        return
    with tempfile.TemporaryDirectory() as home, running_stack(Path(home), AGENT) as stack:
        print(json.dumps(measure(stack, trl, Path(home, "run"))))


def measure(stack: Stack, trl: Path, run: Path) -> dict[str, float]:
    training = subprocess.Popen(
        [
            *(trl / "otel-grpo", "run", "--run-dir", run, "--", trl / "python"),
            *("demo/train_trl.py", "--iterations", str(ITERATIONS)),
            *("--output-dir", run.with_name("output")),
        ],
        cwd=ROOT,
        env={
            **os.environ,
            "OTEL_EXPORTER_OTLP_ENDPOINT": stack.url("otel-agent", 4318),
            "OMP_NUM_THREADS": "1",
        },
        stdout=subprocess.DEVNULL,
        stderr=sys.stderr,
    )
    wait_for(stack.kept_spans, lambda spans: len(spans) > 60, within_s=120)
    stack.servers[COLLECTOR].kill()
    time.sleep(AWAY_S)
    still = training.poll() is None
    stack.servers[COLLECTOR].start()
    if training.wait() or not still:
        raise RuntimeError("the training did not outlast the gateway's absence")

    sent = Counter(_ids(run))
    kept = Counter(
        span["spanId"]
        for span in wait_for(
            stack.kept_spans,
            lambda spans: {span["spanId"] for span in spans} >= set(sent),
            within_s=120,
        )
    )
    tokens = json.loads((run / "summary.json").read_text())["tokens"]["total"]
    counted = wait_for(
        lambda: stack.prometheus.value("sum(last_over_time(rl_tokens_total[1h]))"),
        lambda value: value == tokens,
    )
    return {
        "spans": len(sent),
        "lost": len(sent.keys() - kept.keys()),
        "twice": kept.total() - len(kept),
        "tokens": tokens,
        "counted": counted or 0,
    }


def _ids(run: Path) -> list[str]:
    return [
        span["spanId"]
        for file in (run / "spans").glob("*.jsonl")
        for line in file.read_text().splitlines()
        for resource in json.loads(line)["resourceSpans"]
        for scope in resource["scopeSpans"]
        for span in scope["spans"]
    ]


if __name__ == "__main__":
    main()
