"""A lane is what can do one thing at a time: a thread, or an asyncio task."""

from __future__ import annotations

import asyncio
import itertools
import threading
from typing import Any
from weakref import WeakKeyDictionary

_numbers = itertools.count()


class LaneState(threading.local):
    """What belongs to the running thread: its lane."""

    def __init__(self) -> None:
        self.lane = next(_numbers)


of_thread = LaneState()
_tasks: WeakKeyDictionary[asyncio.Task[Any], int] = WeakKeyDictionary()
#: The loop that runs in this thread, or None; `asyncio.current_task` raises where there is none.
in_a_loop = asyncio._get_running_loop


def current() -> int:
    """Number of the running lane; a number is used once per process."""
    if in_a_loop() is not None and (task := asyncio.current_task()) is not None:
        lane = _tasks.get(task)
        if lane is None:
            lane = _tasks[task] = next(_numbers)
        return lane
    return of_thread.lane
