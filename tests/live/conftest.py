"""One stack for all tests, and the three demos sent into it: a real TRL training, two on Ray."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.live.files import Files
from tests.live.panels import Viewer
from tests.live.stage import Play, hasten, playing
from tools.stack.ask import wait_for
from tools.stack.stack import Stack, running_stack

sys.path[:0] = [str(Path(__file__).parent)]  # what the tests share

ROOT = Path(__file__).parents[2]
#: What the collector makes of spans.
CALLS = "traces_span_metrics_calls_total"
#: What a demo may take when the machine is busy.
DEMO_S = 900


@dataclass(frozen=True)
class Demo:
    """A finished run, and its files."""

    name: str
    path: Path
    kept: tuple[str, ...] = ()
    """Ids of the spans where Tempo would be, as often as they came, when all had arrived."""
    arrived: float = 0.0
    """When that was, in seconds of the epoch: another test may send the run again."""

    @property
    def run_id(self) -> str:
        found: str = json.loads((self.path / "run.json").read_text())["run_id"]
        return found

    @property
    def summary(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.path / "summary.json").read_text())
        return found

    def records(self, kind: str = "rollout") -> list[dict[str, Any]]:
        """Lines of `metrics_raw.jsonl`."""
        lines = (self.path / "metrics_raw.jsonl").read_text().splitlines()
        return [record for record in map(json.loads, lines) if record["kind"] == kind]

    def spans(self) -> list[dict[str, Any]]:
        """All spans of all processes of the job, as OTLP/JSON has them, each with its resource."""
        return [
            {**span, "resource": resource["resource"]}
            for file in sorted((self.path / "spans").glob("*.jsonl"))
            for line in file.read_text().splitlines()
            for resource in json.loads(line)["resourceSpans"]
            for scope in resource["scopeSpans"]
            for span in scope["spans"]
        ]


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """All servers of docker-compose.yml that run here; asked every second instead of every 15."""
    home = tmp_path_factory.mktemp("stack")
    with running_stack(home, scrape="1s", OTELCOL_SPAN_METRICS_INTERVAL="1s") as found:
        yield found


@pytest.fixture(scope="session")
def demos(stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Demo]:
    """`trl`, `colocated` and `async`: their runs, ended and arrived in the stack."""
    home = tmp_path_factory.mktemp("demos")
    ray = [*_python("ray"), "demo/train_ray.py", "--iterations", "3"]
    commands = {
        "trl": [
            *(ROOT / ".venv/trl/bin/otel-grpo", "run", "--run-dir", home / "trl", "--"),
            *(*_python("trl"), "demo/train_trl.py", "--output-dir", home / "trl-output"),
        ],
        **{
            mode: [*ray, "--mode", mode, "--run-dir", home / mode]
            for mode in ("colocated", "async")
        },
    }
    for name, command in commands.items():
        _run(command, home / f"{name}.log", stack.otlp)
    return {name: _arrived(stack, Demo(name, home / name)) for name in commands}


@pytest.fixture(scope="session")
def play(stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Play]:
    """It mostly sleeps: whoever needs the demos, too, has them run beside it."""
    hasten(stack)
    with playing(stack, tmp_path_factory.mktemp("stage")) as found:
        yield found


@pytest.fixture(scope="session")
def staged(stack: Stack, play: Play) -> dict[str, Demo]:
    """`staged`: a run of three ranks with many faults, which ended; `killed`: what that says."""
    found = {path.name: Demo(path.name, path) for path in play.wait()}
    windows = len(found["staged"].records())
    run = found["staged"].run_id
    counted = f'sum(last_over_time(rl_loop_windows_total{{rl_run_id="{run}"}}[1h]))'
    assert wait_for(lambda: stack.prometheus.value(counted), lambda n: n == windows) == windows
    return found


@pytest.fixture(scope="session")
def runs(play: Play, demos: dict[str, Demo], staged: dict[str, Demo]) -> dict[str, Demo]:
    """Real trainings, and the one that has what they lack."""
    return {**demos, "staged": staged["staged"]}


@pytest.fixture(scope="session")
def files(runs: dict[str, Demo]) -> dict[str, Files]:
    """What the files of each say that is shown."""
    return {name: Files(run.path) for name, run in runs.items()}


@pytest.fixture(scope="session")
def viewer(stack: Stack, runs: dict[str, Demo]) -> Viewer:
    """Looks at dashboards whose picture holds all runs."""
    started = min(run.summary["started_unix_ns"] for run in runs.values()) / 1e9
    return Viewer(stack.prometheus, started - 10, time.time())


def _python(environment: str) -> list[Path]:
    return [ROOT / ".venv" / environment / "bin" / "python"]


def _run(command: list[object], log: Path, endpoint: str) -> None:
    with log.open("w") as output:
        status = subprocess.run(
            [str(word) for word in command],
            cwd=ROOT,
            env={
                **{k: v for k, v in os.environ.items() if not k.startswith(("OTEL_", "PYTEST_"))},
                "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint,
                "OMP_NUM_THREADS": "1",
            },
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            timeout=DEMO_S,
            check=False,
        ).returncode
    assert status == 0, log.read_text()[-3000:]


def _arrived(stack: Stack, demo: Demo) -> Demo:
    """What is queued on the way has arrived, or the tests will say what has not."""
    of_run = f'{{rl_run_id="{demo.run_id}"}}'
    windows = len(demo.records())

    def kept() -> tuple[str, ...]:
        of_the_demo = (s for s in stack.kept_spans() if _attribute(s, "rl.run.id") == demo.run_id)
        return tuple(span["spanId"] for span in of_the_demo)

    def is_there() -> bool:
        spans = len(demo.spans())  # workers may still be saying their last words
        counts = {f"rl_loop_windows_total{of_run}": windows, f"{CALLS}{of_run}": spans}
        return len(kept()) >= spans and all(
            (stack.prometheus.value(f"sum({name})") or 0) >= n for name, n in counts.items()
        )

    wait_for(is_there, bool, within_s=20)
    return Demo(demo.name, demo.path, kept(), time.time())


def _attribute(span: dict[str, Any], key: str) -> str | None:
    for attribute in span.get("attributes", ()):
        if attribute["key"] == key:
            value: str = attribute["value"].get("stringValue", "")
            return value
    return None
