"""Puts `staged.py` on before the real servers, with rules of the same words and a faster clock."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml

from tests.live.boards import ROOT, RULES, rules
from tools.stack.ask import get, wait_for
from tools.stack.stack import Stack

WORLD = 3
#: A minute of the rules is half a second of the stage.
FASTER = 120
_SECONDS = {"s": 1, "m": 60, "h": 3600}
#: The seconds in expressions that are no windows.
_THRESHOLDS = (120, 7200)


def hastened(text: str) -> str:
    """The rules, with every length of time divided by `FASTER` and nothing else changed."""

    def faster(found: re.Match[str]) -> str:
        seconds = int(found[2]) * _SECONDS[found[3]]
        return f"{found[1]}{max(round(1000 * seconds / FASTER), 1)}ms"

    text = re.sub(r"(\[|offset |for: )(\d+)([smh])\b", faster, text)
    for seconds in _THRESHOLDS:
        text = re.sub(rf"(?<=[ >]){seconds}\b(?=\)|\n)", str(seconds // FASTER), text)
    return text


def hasten(stack: Stack) -> None:
    """Prometheus evaluates the hastened rules beside the others.

    What they record is called otherwise, so that the others do not see it; alerts have a label more.
    """
    prometheus = stack.servers["prometheus"]
    folder = prometheus.home / "etc-prometheus"
    records = "|".join(rule["record"] for rule in rules() if "record" in rule)
    text = re.sub(rf"(?<![\w:])(?:{records})\b", r"fast:\g<0>", hastened(RULES.read_text()))
    tree = yaml.safe_load(text)
    for group in tree["groups"]:
        group["name"] += ".fast"
        for rule in group["rules"]:
            if "alert" in rule:
                rule["labels"]["pace"] = "fast"
    (folder / "fast.yml").write_text(yaml.safe_dump(tree))
    settings = folder / "prometheus.yml"
    settings.write_text(settings.read_text().replace("[rules.yml]", "[rules.yml, fast.yml]"))
    assert prometheus.process is not None
    prometheus.process.send_signal(signal.SIGHUP)
    loaded = wait_for(lambda: _groups(stack), lambda groups: len(groups) == 6)
    assert len(loaded) == 6, loaded


@dataclass(frozen=True)
class Play:
    """The faulty run and the one that is killed, while they go on."""

    home: Path
    processes: list[subprocess.Popen[bytes]]

    def wait(self) -> tuple[Path, Path]:
        """Their directories."""
        statuses = [process.wait(150) for process in self.processes]
        logs = [log.read_text() for log in sorted(self.home.glob("*.log"))]
        assert statuses == [0] * WORLD + [-signal.SIGKILL], logs
        return self.home / "staged", self.home / "killed"


@contextlib.contextmanager
def playing(stack: Stack, home: Path) -> Iterator[Play]:
    """They run beside what is done in the block; what is left of them at its end is killed."""
    environment = {
        **{key: value for key, value in os.environ.items() if not key.startswith("OTEL_")},
        "OTEL_EXPORTER_OTLP_ENDPOINT": stack.otlp,
        "OTEL_METRIC_EXPORT_INTERVAL": "500",
        "OTEL_BSP_MAX_QUEUE_SIZE": "1024",
        "OTEL_GRPO_SAMPLE_INTERVAL": "200",
        "TORCHELASTIC_RUN_ID": "staged",  # by it ranks find their rank 0
    }
    words = [["staged", str(rank), str(WORLD)] for rank in range(WORLD)] + [["killed"]]
    processes = []
    for number, (name, *ranks) in enumerate(words):
        with (home / f"{number}.log").open("w") as log:
            process = subprocess.Popen(
                [sys.executable, str(ROOT / "tests/live/staged.py"), str(home / name), *ranks],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
            )
        processes.append(process)
    try:
        yield Play(home, processes)
    finally:
        for process in processes:
            process.kill()
            process.wait()


def _groups(stack: Stack) -> set[str]:
    answer = get(f"{stack.prometheus.url}/api/v1/rules")
    return {group["name"] for group in answer["data"]["groups"]}
