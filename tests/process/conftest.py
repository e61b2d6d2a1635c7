"""Children that train and end in every way a process can end, and the checks of what they left."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

from otel_grpo import audit
from otel_grpo.records import reader
from otel_grpo.records.files import atomic_write
from otel_grpo.records.model import Summary
from otel_grpo.records.replay import summarize
from otel_grpo.records.summary import encode_summary

LOOP = Path(__file__).with_name("loop.py")
OS_EXIT = 7  # the status of its ends by `os._exit`


@dataclass
class Ended:
    """A child that is over: its exit code (negative: the signal), its words, what it left."""

    code: int
    stderr: str
    path: Path
    seconds: float

    @property
    def iterations(self) -> int:
        """How many iterations it says it trained."""
        dots = Path(f"{self.path}.dots")
        return dots.stat().st_size if dots.exists() else 0

    @property
    def trained_to_the_end(self) -> bool:
        return Path(f"{self.path}.trained").exists()

    @property
    def sudden(self) -> bool:
        """SIGKILL; and SIGTERM's default and `os._exit`, by which the kernel kills the other threads."""
        return self.code in (-signal.SIGKILL, -signal.SIGTERM, OS_EXIT)

    def records(self) -> Counter[str]:
        """Whole records by kind; none may be bad or out of order, and only a sudden end may cut one."""
        counts: Counter[str] = Counter()
        raw = self.path / "metrics_raw.jsonl"
        # A kill may come between the making of the file and its first line.
        any_line = raw.exists() and raw.stat().st_size > 0
        for line in reader.read_records(raw) if any_line else ():
            if isinstance(line, reader.Torn):
                assert self.sudden
                continue
            counts[type(line.value).__name__.removesuffix("Record").lower()] += 1
        return counts

    def check_lines(self) -> None:
        """Every line of every file is whole JSON.

        Only a sudden end may cut the very last one: the kernel gives a write up between two pages.
        """
        for path in self.path.rglob("*.jsonl"):
            *lines, rest = path.read_bytes().split(b"\n")
            assert not rest or self.sudden, path
            for line in lines:
                json.loads(line)

    def finish(self, *, lossy: bool = False) -> Summary:
        """As `otel-grpo finish`: the summary from the lines, and then the audit."""
        self.check_lines()
        summary = summarize(self.path)
        written = self.path / "summary.json"
        if written.exists() and reader.read_summary(self.path).status != "running":
            told = msgspec.to_builtins(reader.read_summary(self.path))
            again = msgspec.to_builtins(summary)
            assert {**told, "observed": 0} == {**again, "observed": 0}
        else:
            atomic_write(written, encode_summary(summary))
        report = audit.audit(self.path)
        # A sudden end may cut the last line of any file, which the audit notes.
        expected = {"note"} if self.sudden else set()
        expected |= {"note", "warning"} if lossy else set()
        serious = [one for one in report.findings if one.severity not in expected]
        assert serious == [], audit.render(report)
        return summary


class Children:
    """Runs ends of `loop.py` in forks of one process that has loaded everything."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._server: subprocess.Popen[str] | None = None
        self._number = 0

    def _next(self) -> Path:
        self._number += 1
        return self._folder / f"run{self._number}"

    def forked(self, end: str, argument: Any = 0.0, path: Path | None = None) -> Ended:
        """The end in a fork of the server, in a new directory or in that of another child."""
        if self._server is None:
            self._server = subprocess.Popen(
                [sys.executable, LOOP, "serve"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        path, begun = path or self._next(), time.monotonic()
        request = {"end": end, "dir": str(path), "argument": argument}
        print(json.dumps(request), file=self._server.stdin, flush=True)
        code = int(self._server.stdout.readline())
        words = Path(f"{path}.stderr").read_text("utf-8")
        return Ended(code, words, path, time.monotonic() - begun)

    def started(self, end: str, argument: Any = 0.0, python: str = sys.executable) -> Ended:
        """The end in a Python process of its own."""
        path, begun = self._next(), time.monotonic()
        done = subprocess.run(
            [python, LOOP, end, path, json.dumps(argument)],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        return Ended(done.returncode, done.stderr, path, time.monotonic() - begun)

    def close(self) -> None:
        if self._server is not None:
            self._server.communicate(timeout=60)


@pytest.fixture
def children(tmp_path: Path) -> Iterator[Children]:
    made = Children(tmp_path)
    yield made
    made.close()


@pytest.fixture
def quiet() -> Callable[[Ended], None]:
    """Asserts that the child's stderr holds no traceback and no warning of ours."""

    def check(ended: Ended) -> None:
        assert "Traceback" not in ended.stderr, ended.stderr
        lines = [line for line in ended.stderr.splitlines() if line.strip()]
        known = ("otel-grpo: recording to ", "otel-grpo: run ")
        assert all(line.startswith(known) for line in lines), ended.stderr

    return check
