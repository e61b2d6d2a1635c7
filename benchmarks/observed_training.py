"""The demo's training with a stopwatch around every hook of ours; prints what it read as JSON.

Run by `training.py` in the environment of TRL. Beside what the run accounts for itself, this counts
all that the hooks do on the training thread: phases, counts, memory readings, records handed over.
"""

from __future__ import annotations

import functools
import json
import runpy
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
WRITER = "otel-grpo-writer"


class Stopwatch:
    """Time of the training thread inside our code, the trainer's own below it taken out."""

    def __init__(self) -> None:
        self.wall_ns = 0
        self._thread = threading.get_ident()
        self._runs = False
        self._since = 0

    def switch(self, *, on: bool) -> bool:
        """Start or stop it; returns whether it ran."""
        now = time.perf_counter_ns()
        before, self._runs = self._runs, on
        if before:
            self.wall_ns += now - self._since
        self._since = now
        return before

    def timed(self, function: Callable[..., Any], *, on: bool) -> Callable[..., Any]:
        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if threading.get_ident() != self._thread:
                return function(*args, **kwargs)
            before = self.switch(on=on)
            try:
                return function(*args, **kwargs)
            finally:
                self.switch(on=before)

        return wrapper


def main() -> None:
    watch, steps = Stopwatch(), []

    from otel_grpo.instrumentation import training as hooks
    from otel_grpo.instrumentation.trl.session import Session

    around, stepped = hooks.around, Session.optimizer_stepped

    def timed_around(original: Callable[..., Any], *hook: Any) -> Callable[..., Any]:
        return watch.timed(around(watch.timed(original, on=False), *hook), on=True)

    def optimizer_stepped(session: Session) -> None:
        stepped(session)
        watch.switch(on=False)  # what it says is not ours, and to read a file lets others run
        steps.append((time.perf_counter_ns(), watch.wall_ns, writer_ns()))
        watch.switch(on=True)

    hooks.around = timed_around
    Session.optimizer_stepped = watch.timed(optimizer_stepped, on=True)
    Session.logged = watch.timed(Session.logged, on=True)

    import otel_grpo

    otel_grpo.instrument()
    sys.path.insert(0, str(ROOT / "demo"))
    runpy.run_path(str(ROOT / "demo" / "train_trl.py"), run_name="__main__")
    print(json.dumps({"steps": steps}))


def writer_ns() -> int:
    """CPU of the writer's thread so far."""
    thread = next(t for t in threading.enumerate() if t.name == WRITER)
    stat = Path(f"/proc/self/task/{thread.native_id}/schedstat")
    return int(stat.read_text().split()[0]) if stat.exists() else 0


if __name__ == "__main__":
    main()
