"""How things are measured here."""

from __future__ import annotations

import gc
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parent.parent


def stay_on_one_core() -> None:
    """For this process and its children: all that is compared runs on the same core."""
    with suppress(AttributeError, OSError):  # there is no such call on macOS
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})


def in_turns(
    candidates: Mapping[str, Callable[[int], object]], *, n: int, repeats: int
) -> dict[str, list[float]]:
    """CPU nanoseconds that the calling thread pays for one of `n` operations, by candidate.

    The candidates take turns, so that what changes on the machine changes for all of them: the k-th
    entries of two lists are a pair.

    Args:
        candidates: each does the operation as often as it is told.
        n: operations of one turn.
        repeats: turns.
    """
    costs: dict[str, list[float]] = {name: [] for name in candidates}
    for work in candidates.values():
        work(n)  # warm-up
    for _ in range(repeats):
        for name, work in candidates.items():
            gc.collect()
            before = time.thread_time_ns()
            work(n)
            costs[name].append((time.thread_time_ns() - before) / n)
    return costs


def ratio(ours: list[float], theirs: list[float]) -> float:
    """Median of the ratios of the pairs."""
    return median(a / b for a, b in zip(ours, theirs, strict=True))


def python(*arguments: str, executable: str = sys.executable, **variables: str) -> str:
    """What a fresh interpreter prints; its standard error is shown when it fails."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **variables}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    done = subprocess.run(
        [executable, *arguments],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        check=False,
        text=True,
    )
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    return done.stdout


def python_with_trl() -> str | None:
    """This interpreter, or that of the tests' environment."""
    if find_spec("trl") is not None:
        return sys.executable
    there = ROOT / ".venv" / "trl" / "bin" / "python"
    return str(there) if there.exists() else None


def describe_machine() -> str:
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    return (
        f"Python {platform.python_version()}, {platform.machine()}, {os.cpu_count()} cores, "
        f"load {load}"
    )
