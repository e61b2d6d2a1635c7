"""A run: the open window, the account, the files. What the training thread calls is cheap and safe."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from time import monotonic, perf_counter_ns, sleep
from typing import TYPE_CHECKING, Any, TypeVar

from opentelemetry.sdk.resources import Resource
from opentelemetry.trace import Link

from otel_grpo import semconv
from otel_grpo.core.atomic import at_once
from otel_grpo.core.clock import Clock
from otel_grpo.core.ledger import Ledger, WindowEvents
from otel_grpo.records.model import (
    OpenPhase,
    OpenWindow,
    RunStatus,
    WindowStatus,
)
from otel_grpo.tracing import given, lanes, lifecycle, sanitize
from otel_grpo.tracing.account import Account
from otel_grpo.tracing.carrier import carrier
from otel_grpo.tracing.event import Event
from otel_grpo.tracing.guard import ApiError, Guard, logger
from otel_grpo.tracing.handover import Handover
from otel_grpo.tracing.iteration import Iteration
from otel_grpo.tracing.light import ids_of
from otel_grpo.tracing.live import CLOSE_S, LiveSources
from otel_grpo.tracing.output import Output, Sources
from otel_grpo.tracing.phase import Phase, current_phase, mark_failed
from otel_grpo.tracing.provider import Tracers
from otel_grpo.tracing.scalars import Scalars
from otel_grpo.tracing.window import ClosedWindow, Window

if TYPE_CHECKING:
    from types import TracebackType

    from otel_grpo.core.ledger import RolloutId, UnreadBatch
    from otel_grpo.records.model import Device
    from otel_grpo.tracing.live import Live
    from otel_grpo.tracing.peers import Peers
    from otel_grpo.tracing.rank_output import RankOutput
    from otel_grpo.tracing.sampler import Request, Sampler
    from otel_grpo.tracing.samples import Samples

T = TypeVar("T")

# At its end a run waits so long for the other processes' last words.
LAST_WORDS_S = 3.0


class Run:
    """One attempt of a run. `live` is False before it starts, after it finished and in fork
    children: every call is then a no-op.
    """

    def __init__(self, guard: Guard) -> None:
        self.guard = guard
        self.live = False
        self.shared = False
        self.self_ns = 0
        self.version = 0
        self.window: Window | None = None
        self.clock = Clock.read()
        self.ledger = Ledger()
        self.path: Path | None = None
        self.run_id = ""
        self._lock = threading.RLock()
        self._iterations = 0
        self._last_end_ns = 0
        self._over = True  # nothing to finish
        self._heard_out = False  # the other processes had their moment
        self.ended_by: BaseException | None = None
        self._replays: set[RolloutId] = set()
        self._unread: UnreadBatch | None = None  # the last one that the writer was given
        self.account = Account()
        self.sampler: Sampler | None = None
        self._view: Live | None = None
        self._devices: Sequence[Device] = ()

    # --- start and end ---------------------------------------------------------------------------

    def sources(self) -> Sources:
        """What the writer's thread may ask for."""
        return Sources(
            self_ns=lambda: self.self_ns,
            open_window=self._open_now,
            release=self._release_if_free,
            settle=self._settle,
        )

    def begin(
        self,
        output: Output | RankOutput,
        tracers: Tracers,
        started_ns: int,
        role: str,
        rank: int = 0,
        *,
        alone: bool = True,
        view: Live | None = None,
        devices: Sequence[Device] = (),
    ) -> None:
        """Called once, by `starting.start`.

        `alone`: the job has no other ranks; `view` gets what `output` gets; readings point into
        `devices`.
        """
        self.path, self.run_id = output.path, output.run_id
        self.output = output
        self.handover = Handover(output, holds=not alone, waits=rank == 0)
        self.shared = tracers.shared
        self.light = tracers.light
        self.start_span = tracers.start
        self.tracer_provider = tracers.provider
        self._tracers = tracers
        self._common: dict[str, Any] = {semconv.ROLE: role, semconv.RANK: rank}
        if output.run_id:
            self._common[semconv.RUN_ID] = output.run_id
        # A trace of its own that no back end gets: it would be open for as long as the run.
        self.run_span = tracers.light.start(semconv.SPAN_RUN, None, self._common, started_ns)
        self._links = [Link(self.run_span.get_span_context())]
        self._view, self._devices = view, devices
        output.start()
        self._start_sampler()
        if output.run_id:  # else it is found on the writer's thread
            self._start_view()
        self.live = True
        self._over = False
        lifecycle.register(self)

    def found(self, output: RankOutput) -> None:
        """Which run this rank belongs to became known: told on the writer's thread."""
        self.path, self.run_id = output.path, output.run_id
        # For the windows to come, also in a shared provider.
        self._common = {**self._common, semconv.RUN_ID: output.run_id}
        light = self._tracers.light
        light.found = {semconv.RUN_ID: output.run_id}
        light.resource = light.resource.merge(
            Resource({semconv.RUN_ID: output.run_id, semconv.ATTEMPT: output.attempt})
        )
        self._start_view()

    def _start_view(self) -> None:
        if self._view is None:
            return
        sampler = self.sampler
        sources = LiveSources(
            self.clock,
            open_window=self._open_now,
            self_ns=lambda: self.self_ns,
            files=self.output.writer.counts,
            devices=self._devices,
            readings=tuple if sampler is None else sampler.latest,
        )
        self._view.start(self._tracers.light.resource, sources)

    @property
    def peers(self) -> Peers | None:
        """Who reads the files of the job's other processes."""
        return self.handover.peers if self.live else None

    def read_peers(self, peers: Peers) -> None:
        """The job has other processes, whose files `peers` reads; for the process that records."""
        if not self.live or not isinstance(self.output, Output):
            return
        with self._lock:
            if self.handover.peers is not None:
                self._misuse("peers", "the other processes of the job are read already")
                return
            try:
                self.output.read_peers(peers)
                peers.start(self._release_if_free)
                self.handover.peers = peers
            except Exception as error:
                self.guard.fault("ranks.start", error)

    def _start_sampler(self) -> None:
        if self.sampler is not None:
            try:
                self.sampler.start()
            except Exception as error:  # no thread to be had: the run goes on without readings
                self.sampler = None
                self.guard.fault("memory", error)

    def __enter__(self) -> Run:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.finish(error=error)

    def finish(
        self, status: RunStatus | None = None, *, error: BaseException | None = None
    ) -> None:
        """Write what is left and the summary; waits for the disk while there is progress.

        Args:
            status: ``completed``, ``failed`` or ``interrupted``; default: what `error` says.
            error: the exception that ended the training, if one did.
        """
        with self._lock:
            # Kept for the exit, should this be interrupted.
            self.ended_by = error = error or self.ended_by
            if self.live and self.window is not None:
                self._close_window(self.window, None, "aborted", error)
        try:
            self._wait_for_peers()
        except Exception as fault:
            self.guard.fault("run.finish", fault)
        with self._lock:
            if self.live:
                said = self._checked("run_status", status, given.run_status)
                try:
                    self._hand_over(said or status_of(error), error)
                except Exception as fault:
                    self.guard.fault("run.finish", fault)
                # An interrupt does not come here: the process's exit calls us again.
                self.live = False
        if self._over:
            return
        # Without the lock: nothing waits for the disk while it holds the lock.
        try:
            self._close_files()
        except Exception as fault:
            self.guard.fault("run.finish", fault)

    def _hand_over(self, status: RunStatus, error: BaseException | None) -> None:
        self.handover.release_update()
        self.handover.release_windows(self.clock.now(), at_end=True)
        ended = self.clock.now()
        if self.run_span.is_recording():  # else an interrupted end is repeated
            if error is not None:
                mark_failed(self.run_span, error)
            self.run_span.end(end_time=ended)
        context = self.run_span.get_span_context()
        ids = (f"{context.trace_id:032x}", f"{context.span_id:016x}")
        applied = self.ledger.applied
        self.output.run(status, ended, applied, ids)

    def _wait_for_peers(self) -> None:
        """The last windows' other processes end when this one does: they get a moment to be heard."""
        peers = self.handover.peers if self.live else None
        if peers is None or self._heard_out:
            return
        # An interrupt ends the wait; the process's exit comes here again and does not wait anew.
        self._heard_out = True
        peers.hurry()
        end = monotonic() + LAST_WORDS_S
        while monotonic() < end:
            # Their reading thread hands over windows, too.
            with self._lock:
                self.handover.release_windows(self.clock.now())
                if not self.handover.lacks_peers(self.clock.now()):
                    return
            sleep(0.02)

    def _close_files(self) -> None:
        if self._view is not None:
            self._view.hurry()
        flushed = self.output.flush()
        if self.handover.peers is not None:
            self.handover.peers.stop()
        if self.sampler is not None:
            self.sampler.stop()
        # Not before: the writer's thread ends the `rl.loop` span of each record that it builds.
        self._tracers.close()
        if self._view is not None:
            self._view.close(CLOSE_S)
        self.output.close(flushed=flushed)
        lifecycle.forget(self)
        self._over = True
        self.ended_by = None  # its frames hold the trainer's tensors

    # --- what a user calls -----------------------------------------------------------------------

    def iteration(self) -> Iteration:
        """Context manager around one iteration of the training loop."""
        return Iteration(self)

    def open_iteration(self, start_ns: int | None = None) -> Iteration:
        """An iteration that is open already, for loops whose windows are not blocks."""
        return Iteration(self).open(start_ns)

    def joined_iteration(self) -> Iteration | None:
        """The open iteration, for who did not open it; None where there is none."""
        return Iteration(self).join() if self.live and self.window is not None else None

    def phase(
        self,
        name: str,
        *,
        attributes: Mapping[str, Any] | None = None,
        parent: Phase | None = None,
        start_ns: int | None = None,
    ) -> Phase:
        """A phase of the open iteration, as `Iteration.phase`."""
        return Phase(self, name, attributes, parent=parent, start_ns=start_ns)

    def carrier(self) -> dict[str, str]:
        """Where a call to another process belongs: below the open phase, in the open iteration.

        A worker's timed method takes it as the keyword ``_otel``. Empty where nothing is open.
        """
        window = self.window
        if not self.live or window is None:
            return {}
        try:
            span = (current_phase(self) or window).span
            return {} if span is None else carrier(span.get_span_context(), window.iteration)
        except Exception as error:
            self.guard.fault("run.carrier", error)
            return {}

    def memory(self) -> Request | None:
        """Have memory and devices read now, on a thread of its own: nothing waits for it here."""
        entered = perf_counter_ns()
        window, sampler = self.window, self.sampler
        request = None
        if window is None:
            self._misuse("memory_outside", "'memory' outside an open iteration")
        elif sampler is not None:
            try:
                request = sampler.ask(window.samples)
                window.requests.append(request)
            except Exception as error:
                self.guard.fault("memory", error)
        self.self_ns += perf_counter_ns() - entered
        return request

    def log_scalars(
        self,
        scalars: Mapping[str, Any],
        *,
        step: int | None = None,
        epoch: float | None = None,
        covers: Sequence[int] | None = None,
        flat: bool = True,
    ) -> None:
        """One log call of the trainer: a line of ``metrics.jsonl`` and the update's scalars.

        Args:
            scalars: numbers under the trainer's own names; others are left out. NaN and infinity are
                written as null and counted.
            step: the trainer's own step number.
            epoch: the trainer's own epoch.
            covers: updates that the scalars speak of; default: all since the last call. An empty
                sequence: none, the line goes to ``metrics.jsonl`` alone.
            flat: whether there is that line; not for a trainer that keeps a flat file of its own.
        """
        event = Event(self, "log_scalars", self.window, needed=False)
        with event:
            if not event.locked:
                return
            told = Scalars(scalars, step, epoch)
            if flat:
                self.output.flat(told)
            if self.window is not None:
                self.window.scalars.append(told)
            self.handover.attach(told, self._checked("log_scalars", covers, given.steps))

    def resumed(self, **base: int) -> None:
        """Counts that were restored from a checkpoint, such as ``optimizer_step`` or ``tokens``."""
        event = Event(self, "resumed", self.window, needed=False)
        with event:
            if event.locked:
                known = {sanitize.label(name): given.natural(n, name) for name, n in base.items()}
                self.output.resumed(known)

    def have_read(self, batch: UnreadBatch) -> None:
        """Have it read soon: it holds all that a trainer generated. Called under the lock."""
        if self._unread is not None and self._unread.unread:
            batch.read()  # the writer's thread hangs, and what it is given would pile up
        else:
            self._unread = batch
            self.output.writer.call(batch.read, soon=False)

    # --- windows ---------------------------------------------------------------------------------

    def _open_window(self, start_ns: int | None) -> tuple[Window | None, bool]:
        """The open window, and whether it was opened just now."""
        if not self.live:
            return None, False
        with self._lock:
            if self.window is not None:
                self._misuse("iteration_inside", "an iteration was opened inside an iteration")
                return self.window, False
            start = self._instant("iteration_start", start_ns)
            if start < self._last_end_ns:
                self._misuse(
                    "iteration_start", "an iteration would start before the last one's end"
                )
                start = self._last_end_ns
            try:
                window = self._new_window(start)
                at_once(
                    partial(setattr, self, "window", window),
                    partial(setattr, self, "_iterations", window.iteration),
                )
                self.output.opened(window.iteration, start)
            except Exception as error:
                self.guard.fault("iteration.open", error)
            return self.window, True

    def _new_window(self, start: int) -> Window:
        number = self._iterations + 1
        attributes = {**self._common, semconv.ITERATION: number}
        span = self.start_span(semconv.SPAN_LOOP, None, attributes, start, links=self._links)
        self.account.begin(start)
        return Window(number, start, lanes.current(), span, ids_of(span), attributes)

    def _close_window(
        self,
        window: Window,
        end_ns: int | None,
        status: WindowStatus | None,
        error: BaseException | None,
    ) -> None:
        with self._lock:
            if self.window is not window:
                self._misuse("iteration_closed", "an iteration was closed that is not open")
                return
            said = self._checked("iteration_status", status, given.window_status)
            try:
                end = self._end_of(window, end_ns)
                closed = ClosedWindow(
                    window=window,
                    end_ns=end,
                    aborted=error is not None or said == "aborted",
                    # Not the exception: its frames hold the trainer's tensors.
                    error_type=None if error is None else type(error).__qualname__,
                    snapshot=self.account.snapshot(),
                    events=self.ledger.closing(),
                    applied=self.ledger.applied,
                )
                # Interrupted before, the window is still open, and the run's end closes it.
                at_once(
                    partial(self.handover.windows.append, closed),
                    partial(setattr, self, "_last_end_ns", end),
                    partial(setattr, self.ledger, "window", WindowEvents()),
                    partial(setattr, self, "window", None),
                )
                self.account.close(end)
            except ApiError:
                self.window = None
                raise
            except Exception as fault:
                self.window = None
                self.guard.fault("iteration.close", fault)
            self.handover.release_windows(self.clock.now())

    def _end_of(self, window: Window, end_ns: int | None) -> int:
        if end_ns is None:
            self.memory()
        end = self._instant("iteration_end", end_ns)
        if end < window.start_ns:
            self._misuse("iteration_end", "an iteration would end before its start")
        return max(end, window.start_ns)

    def worker_call(self, method: str, duration_ns: int) -> None:
        """One call of a timed function that ended in the open window."""
        with Event(self, "timed", self.window, needed=False) as window:
            if window is not None and self.window is not None:
                self.window.workers[method].append(duration_ns)

    # --- asked for by the writer's thread and the sampler's ----------------------------------------

    def _settle(self, window: Window) -> None:
        """Wait a bounded time for the readings of a window that is about to be recorded."""
        requests, window.requests = window.requests, []
        requests += [p.request for p in window.publications if p.request is not None]
        if self.sampler is not None:
            for _ in range(self.sampler.wait(requests)):
                self.guard.fault("memory.late", TimeoutError("a reading did not come in time"))
        for publication in window.publications:
            publication.take_snapshot()

    def opened_samples(self) -> Samples | None:
        window = self.window
        return None if window is None else window.samples

    def _release_if_free(self) -> None:
        # The writer's thread waits for no other: the lock may be held over a reading of memory.
        if self._lock.acquire(blocking=False):
            try:
                self.handover.release_windows(self.clock.now())
            finally:
                self._lock.release()

    def _open_now(self) -> OpenWindow | None:
        window = self.window
        if window is None:
            return None
        return OpenWindow(
            window.iteration,
            window.start_ns,
            [OpenPhase(row.phase, row.start, row.lane) for row in self.account.open_rows()],
        )

    # --- guards ----------------------------------------------------------------------------------

    def _misuse(self, what: str, message: str) -> None:
        if self.live:
            self.guard.misuse(what, message)

    def _checked(
        self, what: str, value: Any, check: Callable[[Any], T], default: T | None = None
    ) -> T | None:
        """A value that a user gave; the default where it is None or makes no sense."""
        if value is None or not self.live:
            return default
        try:
            return check(value)
        except (ValueError, TypeError) as error:
            self._misuse(what, f"{what.replace('_', ' ')}: {error}")
            return default

    def _instant(self, what: str, given_ns: int | None) -> int:
        """An instant that a user gave in nanoseconds, or now."""
        if type(given_ns) is int:
            return given_ns
        checked = self._checked(what, given_ns, _as_instant)
        return self.clock.now() if checked is None else checked

    def _attributes(self, attributes: Mapping[str, Any]) -> dict[str, Any]:
        """Attributes that a user gave; a bad mapping costs no span."""
        try:
            return sanitize.attributes(attributes)
        except Exception as error:
            self._misuse("attributes", f"attributes: {type(error).__name__}")
            return {}

    def _tell_replay(self, rollout_id: RolloutId) -> None:
        if rollout_id not in self._replays:
            if not self._replays:
                logger.warning(
                    "otel-grpo: rollout %r was consumed before: its samples count as revisited, not "
                    "as new ones. Each rollout needs its own id",
                    rollout_id,
                )
            self._replays.add(rollout_id)

    def _die_in_child(self) -> None:
        """In a forked child: nothing is recorded, and no lock is one that the parent held."""
        self.live = False
        self._tracers.close()
        self._over = True
        self._lock = threading.RLock()
        self.window = None
        if self.sampler is not None:
            self.sampler.forget()
        self.sampler = None


def _as_instant(value: Any) -> int:
    return given.whole(value, "an instant in nanoseconds")


def status_of(error: BaseException | None) -> RunStatus:
    """How a run ended, by the exception that ended it."""
    if error is None:
        return "completed"
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    if isinstance(error, SystemExit) and error.code in (None, 0):
        return "completed"
    return "failed"
