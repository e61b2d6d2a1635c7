"""Starts ranks, and knows what each of them said of itself."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

LOOP = Path(__file__).with_name("loop.py")

Window = dict[str, Any]


class Rank:
    """A process that was started."""

    def __init__(self, pid: int, own: Path) -> None:
        self.pid = pid
        self.code: int | None = None
        self._own = own

    @property
    def words(self) -> str:
        """Its stderr; nothing if it was killed before it had one."""
        path = Path(f"{self._own}.stderr")
        return path.read_text("utf-8") if path.exists() else ""

    @property
    def warnings(self) -> list[str]:
        usual = ("otel-grpo: recording to ", "otel-grpo: run ")
        return [line for line in self.words.splitlines() if line and not line.startswith(usual)]

    def told(self, what: str) -> list[Any]:
        """What it said of itself under this name."""
        path = Path(f"{self._own}.told")
        lines = path.read_text().splitlines() if path.exists() else []
        return [value for name, value in map(json.loads, lines) if name == what]

    @property
    def windows(self) -> dict[int, Window]:
        """What it counted, by iteration."""
        return {window["iteration"]: window for window in self.told("window")}


class Server:
    """A process that has loaded everything and forks the ranks."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, LOOP], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def ask(self, request: dict[str, Any]) -> int:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(request), file=self._process.stdin, flush=True)
        return int(self._process.stdout.readline())

    def close(self) -> None:
        self._process.communicate(timeout=60)


class Jobs:
    """Starts ranks, whose working directory is the folder of the test."""

    def __init__(self, server: Server, folder: Path) -> None:
        self.folder = folder
        self._server = server
        self._started = 0

    def start(
        self,
        rank: int,
        *,
        place: str | None = "run",
        world: int = 2,
        launch: str = "a",
        **options: Any,
    ) -> Rank:
        """A rank of the job that `launch` names; the options are those of `loop.Rank`.

        `place` is the run directory that it asks for, below the folder of the test.
        """
        self._started += 1
        own = self.folder / f"own{self._started}"
        about = {"rank": rank, "world": world, "own": str(own), "dir": place, "launch": launch}
        about["folder"] = str(self.folder)
        return Rank(self._server.ask({**about, **options}), own)

    def end(self, ranks: Iterable[Rank]) -> None:
        """Wait for them."""
        for rank in ranks:
            rank.code = self._server.ask({"wait": rank.pid})

    def train(self, *each: dict[str, Any], **options: Any) -> list[Rank]:
        """A whole job: options of each rank, and of all."""
        ranks = [
            self.start(rank, world=len(each), **{**options, **own}) for rank, own in enumerate(each)
        ]
        self.end(ranks)
        return ranks
