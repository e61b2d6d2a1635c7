"""Guard around one report of the training: what the API's calls share."""

from __future__ import annotations

from time import perf_counter_ns
from typing import TYPE_CHECKING

from otel_grpo.tracing.guard import ApiError

if TYPE_CHECKING:
    from types import TracebackType

    from otel_grpo.tracing.run import Run
    from otel_grpo.tracing.window import Window

# Nobody's training waits longer for a lock that an interrupted thread may have left held.
LOCK_S = 3.0


class Event:
    """Locks the ledger and turns bad values into counted misuse, anything else into a counted fault.

    What it takes is the run's own time. Gives the open window, or None when there is nothing to report to.

    Args:
        window: that the report is for.
        needed: outside an open window the report is misuse. Else the block asks `locked`, which is
            False where the run is over, or so busy that nobody waits for it.
    """

    __slots__ = ("_entered", "_name", "_needed", "_run", "_window", "locked")

    def __init__(self, run: Run, name: str, window: Window | None, *, needed: bool = True) -> None:
        self._run = run
        self._name = name
        self._window = window
        self._needed = needed
        self.locked = False
        self._entered = perf_counter_ns()

    def __enter__(self) -> Window | None:
        run = self._run
        if not run.live:
            return None
        self.locked = run._lock.acquire(timeout=LOCK_S)
        if not self.locked:
            run.guard.fault(self._name, TimeoutError("the run is busy"))
            return None
        # Over, too, where another thread has finished it while this one waited.
        if not self._run.live or (
            self._needed and (self._window is None or self._window is not run.window)
        ):
            self.locked = False
            run._lock.release()
            run._misuse(f"{self._name}_outside", f"{self._name!r} outside an open iteration")
            return None
        return self._window

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        if self.locked:
            self.locked = False
            self._run._lock.release()
        self._run.self_ns += perf_counter_ns() - self._entered
        if not isinstance(error, Exception) or isinstance(error, ApiError):
            return False
        if isinstance(error, (ValueError, TypeError, OverflowError)):
            self._run._misuse(self._name, f"{self._name}: {error}")
        else:
            self._run.guard.fault(self._name, error)
        return True
