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
        """Its stderr."""
        return Path(f"{self._own}.stderr").read_text("utf-8")

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


class Jobs:
    """Starts ranks as forks of one process that has loaded everything."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._started = 0
        self._server = subprocess.Popen(
            [sys.executable, LOOP],
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

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
        return Rank(self._ask({**about, **options}), own)

    def end(self, ranks: Iterable[Rank]) -> None:
        """Wait for them."""
        for rank in ranks:
            rank.code = self._ask({"wait": rank.pid})

    def train(self, *each: dict[str, Any], **options: Any) -> list[Rank]:
        """A whole job: options of each rank, and of all."""
        ranks = [
            self.start(rank, world=len(each), **{**options, **own}) for rank, own in enumerate(each)
        ]
        self.end(ranks)
        return ranks

    def _ask(self, request: dict[str, Any]) -> int:
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        print(json.dumps(request), file=self._server.stdin, flush=True)
        return int(self._server.stdout.readline())

    def close(self) -> None:
        self._server.communicate(timeout=60)
