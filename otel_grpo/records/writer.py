"""The one thread that owns the files of this process.

The training thread hands items over with `Writer.put`, which takes a short lock and never touches a
file; a daemon thread builds the lines and writes them. What a process that ends without Python's
exit (SIGKILL, ``os._exit``) may lose is therefore what stands in the queue:

* items of plain sinks (records, lines of workers) wake the thread at once: their usual age in the
  queue is what it takes to build and write one line, about a millisecond for small records;
* what need not be there at once (flat lines, the line that says that a window was opened) is written
  with the next of those, and items of a batched sink (spans) are collected: at most `COLLECT_S`
  (0.2 s), or until half of the sink's bound is reached;
* no more than the bound of each sink, see `BOUNDS`, and what the caller had `held` until then. What
  else comes on top is dropped and counted (``queue_full``).

No line is synced to the device on its own: a line that was written survives the end of the process,
but not a power cut. Every file is synced once, when the writer is closed.

Each line is one ``write()`` on an ``O_APPEND`` descriptor. A line that the disk took only in part is
taken back, so that a file holds whole lines only; later lines are tried again. One cut is out of
our hands: a sudden end (SIGKILL, SIGTERM's default, ``os._exit``) may stop the kernel between two
pages of a long line, the last of its file. Readers set it apart.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from otel_grpo.core.atomic import at_once
from otel_grpo.core.columns import as_ints
from otel_grpo.records.files import LineFile, atomic_write, errno_name
from otel_grpo.records.model import SinkCounts

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

__all__ = [
    "BATCH",
    "BOUNDS",
    "CLOSED",
    "COLLECT_S",
    "ERROR",
    "QUEUE_FULL",
    "STALL_S",
    "AfterWrite",
    "OnError",
    "OnWarning",
    "Sink",
    "Writer",
    "atomic_write",
    "errno_name",
]

#: Items that may wait, per sink: the most that a SIGKILL can cost.
BOUNDS = {"metrics_raw": 512, "metrics": 2048, "workers": 4096, "spans": 65536}
#: How long items of a batched sink are collected, and how often the thread looks around.
COLLECT_S = 0.2
#: Items of a batched sink that stand in one line.
BATCH = 512
#: Without any progress for this long, `Writer.close` gives up: the file system hangs.
STALL_S = 3.0

QUEUE_FULL = "queue_full"
CLOSED = "closed"
ERROR = "error"

#: Told of an exception, ours or a callback's, with the place where it happened.
OnError = Callable[[str, BaseException], object]
#: Told once per sink and reason that lines are lost: sink, reason, one sentence.
OnWarning = Callable[[str, str, str], object]
#: Told of each written struct: sink, struct, hash of its line (None in sinks without a chain).
AfterWrite = Callable[[str, Any, "str | None"], object]


def _plain(value: Any) -> Sequence[int]:
    """A column of a record, made Python's integers as its turn comes: one list at a time is alive."""
    if isinstance(value, np.ndarray):
        return as_ints(value)
    raise NotImplementedError


_encoder = msgspec.json.Encoder(enc_hook=_plain)


@dataclass(frozen=True)
class Sink:
    """Where a kind of items goes.

    * ``encode``: makes one line of up to `BATCH` items (a batched sink).
    * ``chained``: the items are records; the writer sets their ``seq`` and ``prev``.
    * ``new_only``: a file of that name that exists already is not ours and is left alone (reason
      ``not_ours``); ``on_created`` is told when we made it.
    * ``lost``: no file can be had: every item is dropped for this reason; with a bound not before it
      was built, for somebody else may want it.
    """

    name: str
    path: Path | None
    bound: int
    encode: Callable[[list[Any]], bytes] | None = None
    chained: bool = False
    new_only: bool = False
    on_created: Callable[[], None] | None = None
    lost: str | None = None

    @classmethod
    def nowhere(cls, name: str, reason: str, *, bound: int = 0) -> Sink:
        """A sink that only counts what is lost: there is no run directory."""
        return cls(name, None, bound, lost=reason)

    def open(self) -> LineFile:
        """Its file, which is made at the first line."""
        return LineFile(self.path, new_only=self.new_only, on_created=self.on_created)


class Batch(deque[Any]):
    """Items of a batched sink, until the writer's thread takes them.

    While there are fewer than `room` of them, another one may be appended without a call of
    `Writer.put`: one step under the interpreter's lock, which needs no other.
    """

    __slots__ = ("room",)

    def __init__(self, room: int = 0) -> None:
        super().__init__()
        self.room = room


class Writer:
    """Writes the lines of one process, in the order of the `put` calls (batched sinks apart).

    With a ``lull_s`` items wait that long for others before any is written: a thread that is woken
    for each of many costs those that put them more than its own time.

    `put` takes bytes (a line without its end), a msgspec struct, or a callable without arguments
    that returns one of these, a list of them, or None, and that runs on the writer thread. All
    callbacks run on the writer thread as well; an exception in any of them is counted, never
    raised.

    Call `start` from the process that trains, before its exit begins: no thread can be started
    from ``atexit``. In a forked child the writer is dead: it writes nothing and `put` is False.
    """

    def __init__(
        self,
        sinks: Iterable[Sink],
        *,
        seq: int = 0,
        prev: str | None = None,
        on_error: OnError | None = None,
        on_warning: OnWarning | None = None,
        after_write: AfterWrite | None = None,
        tick: Callable[[], object] | None = None,
        tick_s: float = 1.0,
        lull_s: float = 0.0,
    ) -> None:
        self._states = {sink.name: _State(sink) for sink in sinks}
        self._batched = [state for state in self._states.values() if state.sink.encode is not None]
        self._seq = seq
        self._prev = prev
        self._on_error = on_error
        self._on_warning = on_warning
        self._after_write = after_write
        self._tick = tick
        self._tick_s = tick_s
        self._lull_s = lull_s
        self._queue: deque[_Entry] = deque()
        self._thread: threading.Thread | None = None
        self._thread_id = 0
        self._progress = 0
        self._next_batch = self._next_tick = 0.0
        self._set_up_locks()
        self._closing = False  # only the writer thread may put any more
        self._over = False  # not even the writer thread
        self._dead = False
        _live.add(self)

    def _set_up_locks(self) -> None:
        # Reentrant, because the garbage collector or a signal handler may end a span, and so call
        # `put`, on a thread that is inside this very lock.
        self._lock = threading.RLock()
        # A bare lock as the bell, for the same reason: ringing is one atomic call.
        self._bell = threading.Lock()
        self._bell.acquire()
        self._done = threading.Event()

    # --- the training thread -------------------------------------------------------------------

    def start(self) -> None:
        """Start the thread. What was put before is written now."""
        if self._thread is None and not self._dead:
            self._thread = threading.Thread(target=self._run, name="otel-grpo-writer", daemon=True)
            self._thread.start()

    def replace(self, sink: Sink) -> None:
        """Give the sink of that name its file, which was not known before.

        For work on the writer thread that comes before the sink's first line.
        """
        state = self._states[sink.name]
        with self._lock:
            state.sink, state.file = sink, sink.open()
            if not sink.bound:
                state.refuse_from_now_on()

    def put(self, name: str, item: Any, *, held: bool = False, soon: bool = True) -> bool:
        """Hand an item over; False if it was dropped. Never blocks on a file.

        One that was `held` in memory until now is taken even where the queue is full. Not ``soon``:
        written with the next one that is, within `COLLECT_S`, or once half of the sink's bound waits.
        To wake a thread costs who wakes it tens of microseconds.
        """
        state = self._states[name]
        with self._lock:
            batch, waiting = state.batch, state.pending
            if batch is not None:
                waiting += len(batch)
            full = waiting >= state.bound and not (held and state.bound)
            if full and not self._still_takes(state):
                return self._refuse(state)
            # An item that is interrupted on its way here is queued and counted, or neither.
            if batch is not None:
                batch.append(item)  # counted as it is taken out
                soon = False
            else:
                at_once(
                    partial(self._queue.append, _Entry(state, state.gap, item)),
                    partial(setattr, state, "gap", 0),
                    partial(setattr, state, "created", state.created + 1),
                    partial(setattr, state, "pending", state.pending + 1),
                )
        if soon or waiting + 1 >= state.half:
            self._ring()
        return True

    def batch(self, name: str) -> Batch:
        """What the items of a batched sink stand in; never with room for those of another one."""
        batch = self._states[name].batch
        return Batch() if batch is None else batch

    def call(self, work: Callable[[], object], *, soon: bool = True) -> bool:
        """Run ``work`` on the writer thread, in the order of the plain items; False if closed.

        Not ``soon``: see `put`.
        """
        with self._lock:
            if self._closing and not self._still_open():
                return False
            self._queue.append(_Entry(None, 0, work))
        if soon:
            self._ring()
        return True

    def counts(self) -> dict[str, SinkCounts]:
        """The counts by sink; created = written + dropped + pending at every instant."""
        with self._lock:
            return {name: state.counts() for name, state in self._states.items()}

    def unwritten(self) -> str:
        """How many of what were dropped or still wait, as one says it; empty where there is nothing."""
        lost = {name: each.dropped + each.pending for name, each in self.counts().items()}
        return ", ".join(f"{name} {n}" for name, n in lost.items() if n)

    @property
    def head(self) -> str | None:
        """Hash of the last line of the chained sink."""
        return self._prev

    @property
    def next_seq(self) -> int:
        """The ``seq`` that the next record gets if none was dropped before it."""
        return self._seq

    def flush(self, timeout: float | None = None) -> bool:
        """Wait until all that was put before is written; False at the timeout or without progress."""
        if self._dead:
            return True  # a forked child has nothing of its own to write
        if self._thread is None or self._on_own_thread():
            return False
        written = threading.Event()

        def barrier() -> None:
            self._write_batches()
            written.set()

        return self.call(barrier) and self._wait(written, timeout, STALL_S)

    def close(self, timeout: float | None = None, stall: float = STALL_S) -> bool:
        """Write what is left, sync and close the files, end the thread; True if all was done.

        Waits as long as there is progress, at most ``timeout`` seconds. After ``stall`` seconds
        without progress it leaves: the thread is a daemon, and `counts` says what is pending.
        """
        if self._dead:
            return True
        if self._on_own_thread():
            return False
        with self._lock:
            self._refuse_from_now_on()
        if self._thread is None:
            return not any(state.waiting for state in self._states.values())
        self._ring()
        return self._wait(self._done, timeout, stall)

    def _wait(self, event: threading.Event, timeout: float | None, stall: float) -> bool:
        start = moved = time.monotonic()
        seen = self._progress
        while not event.wait(0.02):
            now = time.monotonic()
            if self._progress != seen:
                seen, moved = self._progress, now
            if now - moved >= stall or (timeout is not None and now - start >= timeout):
                return event.is_set()
        return True

    def _still_takes(self, state: _State) -> bool:
        return self._closing and self._still_open() and state.waiting < state.sink.bound

    def _still_open(self) -> bool:
        # Work that is done while the writer closes may still put: its lines belong to the run.
        return self._on_own_thread() and not self._over

    def _refuse(self, state: _State) -> bool:
        if not self._dead:
            state.created += 1
            state.gap += 1
            state.drop(1, state.sink.lost or (CLOSED if self._closing else QUEUE_FULL))
        return False

    def _refuse_from_now_on(self) -> None:
        self._closing = True
        for state in self._states.values():
            state.refuse_from_now_on()

    def _on_own_thread(self) -> bool:
        return threading.get_ident() == self._thread_id

    def _ring(self) -> None:
        try:  # noqa: SIM105 - without a frame more: the training pays for it
            self._bell.release()
        except RuntimeError:
            pass  # it rings already

    # --- the writer thread ---------------------------------------------------------------------

    def _run(self) -> None:
        self._thread_id = threading.get_ident()
        over = False
        while not over:
            if self._bell.acquire(timeout=COLLECT_S) and self._lull_s and not self._closing:
                time.sleep(self._lull_s)
            try:
                over = self._round()
            except BaseException as error:
                self._report("writer", error)
        for state in self._states.values():
            self._guarded("writer.close", partial(self._close_file, state))
        self._done.set()

    def _round(self) -> bool:
        """Write what is there; True if the writer is being closed and nothing is left."""
        closing = self._closing
        self._drain()
        now = time.monotonic()
        if closing or now >= self._next_batch or any(s.waiting >= s.half for s in self._batched):
            self._next_batch = now + COLLECT_S
            self._write_batches()
        if self._tick is not None and now >= self._next_tick and not closing:
            self._next_tick = now + self._tick_s
            self._guarded("writer.tick", self._tick)
        self._warn_of_full_queues()
        return closing and self._nothing_left()

    def _nothing_left(self) -> bool:
        with self._lock:
            self._over = not self._queue and not any(state.batch for state in self._batched)
            return self._over

    def _drain(self) -> None:
        while True:
            with self._lock:
                if not self._queue:
                    return
                entry = self._queue.popleft()
            if entry.state is None:
                self._guarded("writer.call", entry.item)
            else:
                self._seq += entry.gap
                self._write_entry(entry.state, entry.item)
            self._progress += 1
            # A flood of records, each of which takes its time, is no reason to lose spans.
            if any(state.waiting >= state.half for state in self._batched):
                self._write_batches()

    def _write_entry(self, state: _State, item: Any) -> None:
        if callable(item):
            try:
                made = item()
            except BaseException as error:
                self._report(f"writer.{state.sink.name}", error)
                self._seq += state.sink.chained
                self._settle(state, 1, ERROR)
                return
            items = made if isinstance(made, list) else [] if made is None else [made]
            with self._lock:  # one item was counted when it was put
                state.created += len(items) - 1
                state.pending += len(items) - 1
        else:
            items = [item]
        for one in items:
            self._write_item(state, one)

    def _write_item(self, state: _State, item: Any) -> None:
        chained = state.sink.chained
        try:
            if chained:
                seq, self._seq = self._seq, self._seq + 1  # lost below or not, it is used up
                item.seq, item.prev = seq, self._prev
            line = item if isinstance(item, bytes) else _encoder.encode(item)
        except BaseException as error:
            self._report(f"writer.{state.sink.name}", error)
            self._settle(state, 1, ERROR)
            return
        if not self._write_line(state, line, 1):
            return
        line_hash = None
        if chained:
            line_hash = self._prev = hashlib.sha256(line).hexdigest()
        after = self._after_write
        if after is not None and not isinstance(item, bytes):
            self._guarded("writer.after_write", partial(after, state.sink.name, item, line_hash))

    def _write_batches(self) -> None:
        for state in self._batched:
            # A snapshot of the number, so that a flood of new items can't hold the thread here.
            left = len(state.batch or ())
            while left > 0:
                with self._lock:
                    take = min(left, BATCH)
                    items = [state.batch.popleft() for _ in range(take)]  # type: ignore[union-attr]
                    state.created += take
                    state.pending += take
                left -= take
                self._write_batch(state, items)

    def _write_batch(self, state: _State, items: list[Any]) -> None:
        try:
            encode = state.sink.encode
            # One that was replaced by nowhere makes no lines: what still came is lost like the rest.
            line = b"" if encode is None else encode(items)
        except BaseException as error:
            if len(items) > 1:  # only the items that can't be written are lost
                for item in items:
                    self._write_batch(state, [item])
                return
            self._report(f"writer.{state.sink.name}", error)
            self._settle(state, 1, ERROR)
        else:
            self._write_line(state, line, len(items))
        self._progress += 1

    def _write_line(self, state: _State, line: bytes, n: int) -> bool:
        if b"\n" in line:
            self._report(f"writer.{state.sink.name}", ValueError("a line holds a line end"))
            reason: str | None = ERROR
        else:
            try:
                reason = state.sink.lost or state.file.write(line)
            except BaseException as error:
                self._report(f"writer.{state.sink.name}", error)
                reason = ERROR
        self._settle(state, n, reason)
        return reason is None

    def _settle(self, state: _State, n: int, reason: str | None) -> None:
        with self._lock:
            state.pending -= n
            if reason is None:
                state.written += n
                return
            state.drop(n, reason)
        # An error was reported with its place, and that there is no file when it was known.
        if reason != ERROR and state.sink.lost is None:
            self._warn_once(state, reason, f"cannot write ({reason}), lines are lost")

    def _warn_of_full_queues(self) -> None:
        for state in self._states.values():
            if QUEUE_FULL in state.reasons:
                self._warn_once(state, QUEUE_FULL, "the disk is too slow, lines are lost")

    def _warn_once(self, state: _State, reason: str, what: str) -> None:
        warn = self._on_warning
        if warn is None or reason in state.warned:
            return
        state.warned.add(reason)
        message = f"{state.sink.path}: {what}; training goes on"
        self._guarded("writer.warning", partial(warn, state.sink.name, reason, message))

    def _close_file(self, state: _State) -> None:
        try:
            state.file.close()
        except OSError as error:
            reason = errno_name(error)
            self._warn_once(state, f"sync {reason}", f"cannot sync ({reason}), lines may be lost")
        self._progress += 1

    def _guarded(self, place: str, work: Callable[[], object]) -> None:
        try:
            work()
        except BaseException as error:
            self._report(place, error)

    def _report(self, place: str, error: BaseException) -> None:
        if self._on_error is not None:
            with contextlib.suppress(BaseException):
                self._on_error(place, error)

    # --- a forked child ------------------------------------------------------------------------

    def _die_in_child(self) -> None:
        self._dead = self._over = True
        self._refuse_from_now_on()
        self._set_up_locks()  # the parent's may be held by threads that do not exist here
        self._queue = deque()
        for state in self._states.values():
            state.file.abandon()
            if state.batch is not None:
                state.batch = Batch()


class _Entry:
    """One thing to do on the writer thread; ``gap`` records were dropped right before it."""

    __slots__ = ("gap", "item", "state")

    def __init__(self, state: _State | None, gap: int, item: Any) -> None:
        self.state = state
        self.gap = gap
        self.item = item


class _State:
    """A sink with its counts and its file. The counts change under the writer's lock only."""

    __slots__ = (
        "batch", "bound", "created", "dropped", "file", "gap", "half", "pending", "reasons", "sink",
        "warned", "written",
    )  # fmt: skip

    def __init__(self, sink: Sink) -> None:
        self.sink = sink
        self.file = sink.open()
        # What `put` compares with; 0 once nothing is taken any more.
        self.bound = sink.bound
        self.half = max(1, sink.bound // 2)
        # The half is noticed by `put`, which rings.
        self.batch = None if sink.encode is None else Batch(self.half - 1)
        self.gap = 0
        self.created = self.written = self.dropped = self.pending = 0
        self.reasons: dict[str, int] = {}
        self.warned: set[str] = set()

    @property
    def waiting(self) -> int:
        """Items that are not settled: those in the queue or the batch, and those in work."""
        return self.pending + len(self.batch or ())

    def refuse_from_now_on(self) -> None:
        self.bound = 0
        if self.batch is not None:
            self.batch.room = 0

    def drop(self, n: int, reason: str) -> None:
        self.dropped += n
        self.reasons[reason] = self.reasons.get(reason, 0) + n

    def counts(self) -> SinkCounts:
        collected = len(self.batch or ())  # asked once: it grows without the lock
        return SinkCounts(
            created=self.created + collected,
            written=self.written,
            dropped=self.dropped,
            pending=self.pending + collected,
            reasons=dict(self.reasons),
        )


_live: weakref.WeakSet[Writer] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for writer in list(_live):
        writer._die_in_child()


os.register_at_fork(after_in_child=_after_fork_in_child)
