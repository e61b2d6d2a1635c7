"""The ends a process can take: exit, multiprocessing's exit, fork. No signal is handled here."""

from __future__ import annotations

import atexit
import os
import sys
import time
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from otel_grpo.tracing.run import Run

# The runs of this process that are not finished; a strong hold, or a run whose user let go of it
# would end without its summary.
_runs: list[Run] = []
_ready = False
_loaded_ns = time.perf_counter_ns()


def current_run() -> Run | None:
    """The run of this process: the one that started last and is not finished."""
    return _runs[-1] if _runs else None


def register(run: Run) -> None:
    global _ready
    _runs.append(run)
    if not _ready:
        _ready = True
        atexit.register(_finish_all)
        os.register_at_fork(after_in_child=_forget_all)
    if "multiprocessing" in sys.modules:
        # A multiprocessing child ends by os._exit after its finalizers: atexit never runs there.
        from multiprocessing import util

        util.Finalize(None, _finish_all, exitpriority=-1)


def forget(run: Run) -> None:
    if run in _runs:
        _runs.remove(run)


def process_ns() -> int:
    """Time since this process started, in nanoseconds."""
    started = _started_ns(os.getpid())
    if started is None:
        return time.perf_counter_ns() - _loaded_ns
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) - started


@cache
def _started_ns(_pid: int) -> int | None:
    """When this process started, in nanoseconds since boot; None where it can't be read."""
    try:
        # Field 22 of stat, counted after the name, which may hold spaces: clock ticks since boot.
        ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
        return ticks * 10**9 // os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return None


def _finish_all() -> None:
    # A multiprocessing child comes here while its exception is on its way, others after it was told.
    error: Any = sys.exc_info()[1] or getattr(sys, "last_value", None)
    for run in _runs.copy():  # each takes itself off the list
        told = error or run.ended_by
        # Left inside an iteration without an exception that we know of: sys.exit, or a thread's end.
        cut = told is None and (run.window is not None or _forgets_exceptions())
        run.finish("interrupted" if cut else None, error=told)


def _forgets_exceptions() -> bool:
    """A multiprocessing child since Python 3.13: its exception, if any, was printed and is gone.

    A run that nobody finished there is not said to be complete.
    """
    process = sys.modules.get("multiprocessing.process")
    return sys.version_info >= (3, 13) and process is not None and bool(process.parent_process())


def _forget_all() -> None:
    for run in _runs:
        run._die_in_child()
    _runs.clear()
