"""Actors of a trainer that knows nothing of us; the workers import this module."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from pathlib import Path
from typing import Any


class Failure(Exception):
    """An exception of the trainer."""


class Meeting:
    """Of calls in several processes: each leaves a file and waits for those of the others."""

    def __init__(self, folder: str, me: str, others: int) -> None:
        Path(folder, me).touch()
        self._folder = Path(folder)
        self._others = others
        self._deadline = time.monotonic() + 60

    def complete(self) -> bool:
        if time.monotonic() > self._deadline:
            raise TimeoutError(sorted(path.name for path in self._folder.iterdir()))
        return len(list(self._folder.iterdir())) >= self._others


class Plain:
    """Notes of each call where and when it ran, by the worker's own clock."""

    def __init__(self) -> None:
        self.notes: list[tuple[str, int, int, int, bool]] = []

    def add(self, value: int) -> int:
        return value + 1

    def all(self, **kwargs: Any) -> list[str]:
        return sorted(kwargs)

    def fail(self, text: str) -> None:
        raise Failure(text, 7)

    def vanish(self) -> None:
        os._exit(1)

    def pid(self) -> int:
        return os.getpid()

    def meet(self, folder: str, me: str, others: int) -> str:
        """Returns once so many calls are in it at the same time, wherever they run."""
        start = time.perf_counter_ns()
        here = Meeting(folder, me, others)
        while not here.complete():
            time.sleep(0.002)
        self._note(me, start)
        return me

    def _note(self, me: str, start: int) -> None:
        main = threading.current_thread() is threading.main_thread()
        self.notes.append((me, start, time.perf_counter_ns(), threading.get_ident(), main))

    def noted(self) -> list[tuple[str, int, int, int, bool]]:
        return self.notes

    @staticmethod
    def still(value: int) -> int:
        return value * 2


class Concurrent(Plain):
    """The same with methods that run on an event loop."""

    async def ameet(self, folder: str, me: str, others: int) -> str:
        start = time.perf_counter_ns()
        here = Meeting(folder, me, others)
        for _ in range(30_000):
            if here.complete():
                break
            await asyncio.sleep(0.002)
        self._note(me, start)
        return me
