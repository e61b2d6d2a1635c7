"""A remote call of a timed method against the same call of one that isn't timed."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from statistics import median
from typing import Any

from benchmarks.measure import ROOT, python, ratio
from benchmarks.table import Row

GOAL = 1.15


def rows(**_: Any) -> Iterator[Row]:
    """On all cores: driver, Ray's own processes and the worker share them, as they do in a training."""
    executable = _python_with_ray()
    if executable is None:
        yield Row("remote call of a timed method", "Ray is not installed here", f"<= {GOAL} x")
        return
    costs = json.loads(python("-m", "benchmarks.ray_calls", executable=executable).splitlines()[-1])
    yield _against("plain call, no carrier", costs["timed"], costs["plain"])
    what = "untimed call with the same carrier"
    yield _against(what, costs["timed, carrier"], costs["plain, carrier"])
    yield Row(
        "  microseconds of a call, there and back",
        ", ".join(f"{name} {median(values):.0f}" for name, values in costs.items()),
    )


def _against(what: str, ours: list[float], theirs: list[float]) -> Row:
    value = ratio(ours, theirs)
    return Row(f"remote timed call / {what}", f"{value:.3f} x", f"<= {GOAL} x", value <= GOAL)


def _python_with_ray() -> str | None:
    """This interpreter, or that of the tests' environment."""
    if find_spec("ray") is not None:
        return sys.executable
    there = ROOT / ".venv" / "ray" / "bin" / "python"
    return str(there) if there.exists() else None
