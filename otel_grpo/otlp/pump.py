"""One thread that sends what was put, batch by batch, whatever the receiver does.

`Pump.put` appends to a bounded queue and counts; all else happens on the pump's own thread. At every
instant ``created = written + dropped + pending + unconfirmed``:

* ``written``: the receiver said that it has it;
* ``dropped``, by reason: it never got into the full queue, the receiver refused it, or could not be
  reached for `BUDGET_S` or until the end;
* ``unconfirmed``: sent, but no answer came before it was given up. The receiver may have it.

An attempt that fails for now is repeated, see `circuit`. That a receiver is away is told once, as is
its return; the end of the process then gives it one more chance instead of all the time there is.
"""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections import deque
from time import monotonic
from typing import TYPE_CHECKING, Any

from opentelemetry.instrumentation.utils import suppress_instrumentation

from otel_grpo.otlp.answer import (
    CLOSED,
    ERROR,
    MAX_BYTES,
    PARTIAL_SUCCESS,
    QUEUE_FULL,
    TOO_LARGE,
    Answer,
    Transport,
)
from otel_grpo.otlp.circuit import Circuit
from otel_grpo.records.model import SinkCounts

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from otel_grpo.records.writer import OnError, OnWarning

#: What could not be sent for so long is given up; its place in the queue is somebody else's.
BUDGET_S = 300.0
#: A receiver that finds a smaller request too large is not obeyed for good.
MIN_LIMIT = 16 * 1024
MIN_TIMEOUT_S = 0.05
AWAY = "away"


class Pump:
    """Sends the items of one signal.

    Args:
        name: of the sink in the counts, such as ``otlp_spans``.
        transport: where they go.
        encode: makes the body of a request of some items; what it raises loses the item that it is
            about, and no other.
        cut: makes a body of one item that is too large, within so many bytes; None where it can't.
        collect: asked for items at each turn, and a last time at the end.
        bound: items that may wait.
        batch: items of one request.
        delay_s: between two turns; the queue has a turn at once when it holds a batch.
        on_error: told of an exception that should not be.
        on_warning: told of losses and of the receiver's return.
    """

    def __init__(
        self,
        name: str,
        transport: Transport,
        encode: Callable[[Sequence[Any]], bytes],
        *,
        bound: int,
        batch: int,
        delay_s: float,
        on_error: OnError,
        on_warning: OnWarning,
        cut: Callable[[Any, int], bytes | None] | None = None,
        collect: Callable[[], Sequence[Any]] | None = None,
    ) -> None:
        self.name = name
        self._transport = transport
        self._encode = encode
        self._cut = cut
        self._collect = collect
        self._bound = bound
        self._batch = batch
        self._delay_s = delay_s
        self._on_error = on_error
        self._on_warning = on_warning
        self._queue: deque[Any] = deque()
        # What `put` refused, each in one step: an interrupt finds it counted or not.
        self._full = self._late = 0
        # Under the lock: what was taken out of the queue, and what became of it.
        self._taken = self._working = self._asked = 0
        self._written = self._dropped = self._unconfirmed = 0
        self._reasons: dict[str, int] = {}
        # The thread's own.
        self._circuit = Circuit()
        self._limit = MAX_BYTES
        self._last = CLOSED  # why the last attempt failed
        self._told: set[str] = set()
        self._thread: threading.Thread | None = None
        self._closing = self._final = self._dead = False
        self._set_up_locks()
        _live.add(self)

    def _set_up_locks(self) -> None:
        # As in records/writer.py: reentrant for spans that end inside of this very lock, by the
        # garbage collector or a signal; and a bell that rings by one atomic call.
        self._lock = threading.RLock()
        self._bell = threading.Lock()
        self._bell.acquire()
        self._done = threading.Event()

    # --- any thread ------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the thread; not from ``atexit``, where none can be started."""
        if self._thread is None and not (self._dead or self._closing):
            name = f"otel-grpo-{self.name.replace('_', '-')}"
            self._thread = threading.Thread(target=self._run, name=name, daemon=True)
            self._thread.start()
            if self._collect is not None:
                self._ring()  # what begins at 0 is seen at 0

    def put(self, item: Any) -> bool:
        """Hand an item over; False if it was dropped. Never blocks."""
        with self._lock:
            waiting = len(self._queue)
            if waiting >= self._bound:
                return self._refuse()
            self._queue.append(item)
            if waiting + 1 != self._batch:
                return True
        self._ring()
        return True

    def counts(self) -> SinkCounts:
        with self._lock:
            waiting, full, late = len(self._queue), self._full, self._late
            reasons = dict(self._reasons)
            for reason, n in ((QUEUE_FULL, full), (CLOSED, late)):
                if n:
                    reasons[reason] = reasons.get(reason, 0) + n
            return SinkCounts(
                created=self._taken + waiting + full + late,
                written=self._written,
                dropped=self._dropped + full + late,
                pending=waiting + self._working,
                reasons=reasons,
                unconfirmed=self._unconfirmed,
            )

    def hurry(self) -> None:
        """Send what is there now, and don't sit out a pause of our own choice."""
        self._circuit.impatient = True
        self._ring()

    def close(self, timeout_s: float) -> None:
        """Begin the end: nothing is taken any more, and what is there has so much time."""
        with self._lock:
            if not self._closing:
                self._circuit.deadline = monotonic() + timeout_s
                self._circuit.impatient = self._closing = True
                self._bound = 0
        self._ring()

    def join(self) -> None:
        """Wait until all is settled, until the deadline of `close` at the most; counts are final."""
        if self._thread is not None and not self._dead:
            self._done.wait(max(0.0, self._circuit.deadline - monotonic()))
        with self._lock:
            self._final = True
            asked, waiting = min(self._asked, self._working), len(self._queue)
            self._queue.clear()
            self._taken += waiting
            self._unconfirmed += asked
            self._drop(self._working - asked + waiting, CLOSED)
            self._working = self._asked = 0

    def _refuse(self) -> bool:
        if self._closing:
            self._late += not self._dead
        else:
            self._full += 1
        return False

    def _ring(self) -> None:
        with contextlib.suppress(RuntimeError):  # it rings already
            self._bell.release()

    # --- the pump's thread -----------------------------------------------------------------------

    def _run(self) -> None:
        # Instrumented HTTP and gRPC libraries make spans of requests, which would be sent, too.
        with suppress_instrumentation():
            over = False
            while not over:
                if not self._closing:
                    self._bell.acquire(timeout=self._delay_s)
                over = self._closing
                try:
                    self._turn()
                except BaseException as error:
                    self._report(error)
            with contextlib.suppress(Exception):
                self._transport.close()
        self._done.set()

    def _turn(self) -> None:
        if self._collect is not None:
            collected = self._collect()
            with self._lock:
                if not self._final:  # else the last counts are told
                    self._queue.extend(collected)
        while items := self._take():
            try:
                self._deliver(items)
            except BaseException as error:
                self._report(error)
                self._settle(self._working, dropped=self._working, reason=ERROR)
        if self._full:
            self._tell(QUEUE_FULL, "the receiver is too slow or away, and the queue is full")

    def _take(self) -> list[Any]:
        with self._lock:
            items = [self._queue.popleft() for _ in range(min(len(self._queue), self._batch))]
            self._taken += len(items)
            self._working += len(items)
        return items

    def _deliver(self, items: list[Any]) -> None:
        """Settle each of the items: sent, or given up."""
        n = len(items)
        if self._circuit.hopeless():
            self._settle(n, dropped=n, reason=self._last)
            return
        body: bytes | None = None
        try:
            body = self._encode(items)
            fits = len(body) <= self._limit
            if not fits and n == 1:
                body = None if self._cut is None else self._cut(items[0], self._limit)
        except BaseException as error:
            if n > 1:
                fits = False  # each alone: only those that can't be encoded are lost
            else:
                self._report(error)
                self._settle(n, dropped=n, reason=ERROR)
                return
        if not fits and n > 1:
            self._halve(items)
        elif body is None:
            self._drop_too_large()
        else:
            self._send(items, body)

    def _halve(self, items: list[Any]) -> None:
        middle = len(items) // 2
        self._deliver(items[:middle])
        self._deliver(items[middle:])

    def _drop_too_large(self) -> None:
        self._settle(1, dropped=1, reason=TOO_LARGE)
        self._tell(TOO_LARGE, "one alone is larger than the receiver takes")

    def _send(self, items: list[Any], body: bytes) -> None:
        n, began, sent = len(items), monotonic(), False
        while self._pause():
            with self._lock:
                self._asked = n
            answer = self._transport.send(body, self._time_left())
            sent = sent or answer.sent
            with self._lock:
                self._asked = n if sent else 0
            if answer.kind == "taken":
                self._taken_by_receiver(n, answer)
                return
            if answer.kind != "failed":
                self._circuit.well()
            if answer.kind == "refused":
                self._settle(n, dropped=n, reason=answer.reason)
                self._tell(answer.reason, answer.message)
                return
            if answer.kind == "too_large":
                # From now on its limit is kept unasked; one that refuses anything has none.
                self._limit = max(MIN_LIMIT, len(body) // 2)
                if n > 1:
                    self._halve(items)
                elif len(body) > self._limit:
                    self._deliver(items)
                else:
                    self._drop_too_large()
                return
            self._last = answer.reason
            self._circuit.failed(answer.retry_after_s)
            if self._circuit.open or self._closing:
                again = "" if self._closing else "; what waits is sent when it is back"
                self._tell(AWAY, f"{answer.message}{again}")
            if monotonic() - began >= BUDGET_S:
                break
        if sent:
            self._settle(n, unconfirmed=n)
        else:
            self._settle(n, dropped=n, reason=self._last)

    def _taken_by_receiver(self, n: int, answer: Answer) -> None:
        rejected = min(answer.rejected, n)
        self._settle(n, written=n - rejected, dropped=rejected, reason=PARTIAL_SUCCESS)
        if rejected:
            self._tell(PARTIAL_SUCCESS, answer.message)
        self._circuit.well()
        self._last = CLOSED
        if AWAY in self._told:
            self._told.discard(AWAY)
            self._warn("back", "the receiver is back")

    def _pause(self) -> bool:
        """Wait until the next attempt is due; False where there is none before the end."""
        while not self._circuit.hopeless():
            left = self._circuit.wait_s()
            if left <= 0:
                return True
            self._bell.acquire(timeout=min(left, threading.TIMEOUT_MAX))
        return False

    def _time_left(self) -> float:
        return min(
            self._transport.timeout_s, max(MIN_TIMEOUT_S, self._circuit.deadline - monotonic())
        )

    def _settle(
        self, n: int, *, written: int = 0, dropped: int = 0, unconfirmed: int = 0, reason: str = ""
    ) -> None:
        with self._lock:
            if self._final:
                return  # they were settled without us
            self._working -= n
            self._asked = 0
            self._written += written
            self._unconfirmed += unconfirmed
            self._drop(dropped, reason)

    def _drop(self, n: int, reason: str) -> None:
        if n:
            self._dropped += n
            self._reasons[reason] = self._reasons.get(reason, 0) + n

    def _tell(self, reason: str, message: str) -> None:
        """Once for a reason."""
        if reason not in self._told:
            self._told.add(reason)
            self._warn(reason, message)

    def _warn(self, reason: str, message: str) -> None:
        if not self._final:  # then all is said
            with contextlib.suppress(Exception):
                self._on_warning(self.name, reason, f"{self.name}: {message}")

    def _report(self, error: BaseException) -> None:
        with contextlib.suppress(BaseException):
            self._on_error(self.name, error)

    # --- a forked child --------------------------------------------------------------------------

    def _die_in_child(self) -> None:
        self._dead = self._closing = self._final = True
        self._bound = 0
        self._set_up_locks()  # the parent's may be held by threads that do not exist here
        self._queue = deque()


_live: weakref.WeakSet[Pump] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for pump in list(_live):
        pump._die_in_child()


os.register_at_fork(after_in_child=_after_fork_in_child)
