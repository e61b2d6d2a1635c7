"""What `import otel_grpo` costs, in fresh processes."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median
from typing import Any

from benchmarks.measure import python, ratio, stay_on_one_core
from benchmarks.table import Row

REPEATS = 9
NEVER = ("torch", "ray", "trl", "transformers")
NOT_YET = ("numpy", "msgspec")

_TIME = "import time; t = time.thread_time_ns(); import {}; print(time.thread_time_ns() - t)"
_LOADED = "import sys, {}; print(*(name for name in {!r} if name in sys.modules))"


def rows(**_: Any) -> Iterator[Row]:
    """CPU time, so that neither the disk's cache nor a busy machine is what is measured."""
    stay_on_one_core()
    modules = {"sdk": "opentelemetry.sdk.trace", "ours": "otel_grpo", "run": "otel_grpo.api"}
    ms: dict[str, list[float]] = {name: [] for name in modules}
    for turn in range(REPEATS + 1):
        for name, module in modules.items():
            cost = int(python("-c", _TIME.format(module))) / 1e6
            if turn:  # the first one compiles
                ms[name].append(cost)
    lazy, whole = ratio(ms["ours"], ms["sdk"]), ratio(ms["run"], ms["sdk"])
    yield Row(
        "import otel_grpo / import opentelemetry.sdk.trace",
        f"{lazy:.3f} x ({median(ms['ours']):.1f} ms, the SDK {median(ms['sdk']):.0f} ms)",
        "<= 1.3 x",
        lazy <= 1.3,
    )
    yield Row(
        "  with all that the first run loads",
        f"{whole:.2f} x ({median(ms['run']):.0f} ms: numpy and msgspec are in it)",
    )
    heavy = python("-c", _LOADED.format("otel_grpo", (*NEVER, *NOT_YET))).split()
    heavy += python("-c", _LOADED.format("otel_grpo.api", NEVER)).split()
    yield Row(
        "  trainers, torch, ray that it imports",
        ", ".join(heavy) or "none; numpy and msgspec only when a run starts",
        "none",
        not heavy,
    )
