"""The worker that this process is, if it is one: made at its first timed call, not before."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from otel_grpo.tracing.worker import Worker

# Nobody's call waits longer for another thread that wakes the worker.
_WAIT_S = 3.0

_lock = threading.RLock()
_asleep = False
_start: Callable[[], Worker | None] | None = None
_worker: Worker | None = None


def offer(start: Callable[[], Worker | None]) -> None:
    """This process is a worker of a run, and `start`, which raises nothing, makes it one."""
    global _asleep, _start
    _start = start
    _asleep = True


def current() -> Worker | None:
    """The worker; None in any other process."""
    return _wake() if _asleep else _worker


def _wake() -> Worker | None:
    global _asleep, _start, _worker
    if not _lock.acquire(timeout=_WAIT_S):
        return None
    try:
        # First of all: what is timed on the way comes here again, and finds nobody.
        start, _start = _start, None
        if start is not None:
            _worker = start()
            _asleep = False
        return _worker
    finally:
        _lock.release()


def _forget() -> None:
    global _asleep, _lock, _start, _worker
    _asleep = False
    if _worker is not None:
        _worker.live = False
    _start = _worker = None
    _lock = threading.RLock()


# A child of a worker is none.
os.register_at_fork(after_in_child=_forget)
