"""Readings of memory and devices, on a thread of their own: a driver that hangs holds up nobody.

Whoever asks for a reading goes on at once. The writer waits for it before it builds the window's
record, for as long as the driver may take in good health, and not at all once it hangs.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from time import monotonic
from typing import TYPE_CHECKING

from otel_grpo.tracing.samples import owner

if TYPE_CHECKING:
    from otel_grpo.core.clock import Clock
    from otel_grpo.tracing.guard import Guard
    from otel_grpo.tracing.samples import Samples
    from otel_grpo.tracing.window import Reading

Readings = Callable[[], Sequence["Reading"]]

#: How often devices are looked at when nobody asks, so that a peak between two points is seen.
INTERVAL_S = 1.0
#: A reading that takes longer hangs: nobody waits for it any more.
HANG_S = 1.0
# Of a caller whose clock stands still until it is answered: it waits through the machine's hiccups.
_LOCKSTEP_S = 30.0


class Request:
    """A reading that was asked for. `readings` is None until it is there, and if it failed."""

    __slots__ = ("answered", "asked", "readings", "samples")

    def __init__(self, samples: Samples | None, *, asked: bool) -> None:
        self.samples = samples
        self.asked = asked
        self.answered = False
        self.readings: Sequence[Reading] | None = None


class Sampler:
    """Reads when it is asked and every `interval_s` (0: only when asked), from `start` to `stop`.

    Args:
        read: what is known now of each device; may raise, and may hang.
        clock: of the run.
        guard: told of each reading that fails.
        opened: the samples of the window that is open now.
        interval_s: seconds between readings that nobody asked for.
        lockstep: whoever asks waits for the answer: for tests whose clock stands still.
    """

    def __init__(
        self,
        read: Readings,
        clock: Clock,
        guard: Guard,
        opened: Callable[[], Samples | None],
        *,
        interval_s: float = INTERVAL_S,
        lockstep: bool = False,
    ) -> None:
        self._last: Sequence[Reading] = ()
        self._before: dict[object, tuple[int, Reading]] = {}
        self._read = read
        self._clock = clock
        self._guard = guard
        self._opened = opened
        self._interval_s = interval_s
        self._lockstep = lockstep
        self._patience_s = _LOCKSTEP_S if lockstep else HANG_S
        self._requests: deque[Request] = deque()
        self._reading_since: float | None = None
        self._stopping = False
        # A bare lock as the bell: ringing is one atomic call, on whatever thread, in whatever state.
        self._bell = threading.Lock()
        self._bell.acquire()
        self._answer = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="otel-grpo-sampler", daemon=True)

    # --- whoever asks

    def start(self) -> None:
        self._thread.start()

    def ask(self, samples: Samples | None, *, asked: bool = True) -> Request:
        """Ask for a reading; costs a few microseconds.

        Args:
            samples: of the window that it belongs to.
            asked: the window's record shows it, whatever it says.
        """
        request = Request(samples, asked=asked)
        if not self._hangs():  # else they would pile up
            self._requests.append(request)
            self._ring()
            if self._lockstep:
                self.wait([request])
        return request

    def wait(self, requests: Iterable[Request]) -> int:
        """Wait until the requests are answered or the driver hangs; how many are not answered."""
        end = monotonic() + self._patience_s
        missed = 0
        for request in requests:
            with self._answer:
                while not (request.answered or self._hangs() or self._stopping):
                    left = end - monotonic()
                    if left <= 0:
                        break
                    self._answer.wait(min(left, 0.1))  # it may begin to hang meanwhile
            missed += not request.answered
        return missed

    def stop(self) -> None:
        """End the thread; one that hangs is left behind."""
        self._stopping = True
        self._ring()
        end = monotonic() + HANG_S
        while self._thread.is_alive() and not self._hangs() and monotonic() < end:
            self._thread.join(0.02)
        self.forget()

    def latest(self) -> Sequence[Reading]:
        """What was read last; nothing once the run is over or the driver hangs."""
        return () if self._hangs() else self._last

    def forget(self) -> None:
        """There is nothing to tell any more."""
        self._last = ()

    def _hangs(self) -> bool:
        since = self._reading_since
        return since is not None and monotonic() - since > self._patience_s

    def _ring(self) -> None:
        try:  # noqa: SIM105 - without a frame more: the training pays for it
            self._bell.release()
        except RuntimeError:
            pass  # it rings already

    # --- the sampler's thread

    def _run(self) -> None:
        due = monotonic() + self._interval_s
        while not self._stopping:
            left = max(0.0, due - monotonic()) if self._interval_s else -1
            self._bell.acquire(timeout=left)
            requests = [self._requests.popleft() for _ in range(len(self._requests))]
            now = monotonic()
            if requests or (self._interval_s and now >= due):
                due = now + self._interval_s
                self._look(requests)

    def _look(self, requests: list[Request]) -> None:
        """One reading, for all who asked before it; else for the window that is open."""
        self._reading_since = monotonic()
        try:
            instant = self._clock.now()
            readings = self._read()
            shown: dict[Samples, bool] = {}
            for request in requests:
                request.readings = readings
                if request.samples is not None:
                    shown[request.samples] = request.asked or shown.get(request.samples, False)
            opened = None if requests else self._opened()
            if opened is not None:
                shown[opened] = False
            now = {owner(reading): (instant, reading) for reading in readings}
            for samples, asked in shown.items():  # in the order of their windows
                samples.add(instant, readings, self._before, asked=asked)
                self._before |= now
            self._before |= now
            self._last = readings
        except BaseException as error:  # also what would end this thread
            with contextlib.suppress(
                BaseException
            ):  # strict mode raises, and nobody is here to see it
                self._guard.fault("memory", error)
        finally:
            self._reading_since = None
            with self._answer:
                for request in requests:
                    request.answered = True
                self._answer.notify_all()
