"""A run: the open window, the account, the files. What the training thread calls is cheap and safe."""

from __future__ import annotations

import hashlib
import os
import re
import socket
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from opentelemetry.context import Context
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import Link, Span, Tracer, set_span_in_context

from otel_grpo import semconv
from otel_grpo._version import __version__
from otel_grpo.core.atomic import at_once
from otel_grpo.core.clock import Clock, boot_id
from otel_grpo.core.ledger import Ledger, WindowEvents
from otel_grpo.records import rundir
from otel_grpo.records.files import atomic_write, errno_name
from otel_grpo.records.model import (
    Attempt,
    ClockPair,
    Device,
    Observed,
    OpenPhase,
    OpenWindow,
    PublicationCompleted,
    RunStatus,
    Trainer,
    WindowOpened,
    WindowStatus,
    World,
)
from otel_grpo.records.summary import encode_summary, load_earlier
from otel_grpo.records.writer import STALL_S, Writer
from otel_grpo.tracing import given, lanes, lifecycle, sanitize
from otel_grpo.tracing.account import Account
from otel_grpo.tracing.event import Event
from otel_grpo.tracing.guard import ApiError, Guard, is_true, logger, tell
from otel_grpo.tracing.iteration import Iteration
from otel_grpo.tracing.otlp_json import encode
from otel_grpo.tracing.phase import Phase, mark_failed
from otel_grpo.tracing.processor import AccountProcessor
from otel_grpo.tracing.provider import RecordingProvider, resource
from otel_grpo.tracing.recorder import DeviceRoles, Recorder, UpdateDraft
from otel_grpo.tracing.window import ClosedWindow, Reading, Window

if TYPE_CHECKING:
    from types import TracebackType

    from otel_grpo.core.ledger import RolloutId
    from otel_grpo.records.rundir import RunDir
    from otel_grpo.tracing.publication import Publication
    from otel_grpo.tracing.update import Update

# A publication may be confirmed this long after its window before the record is written without it.
PUBLICATION_DEADLINE_NS = 30 * 10**9
# How often summary.json is rewritten while nothing else happens: an open wait is visible.
SUMMARY_TICK_S = 5.0
# Short windows do not rewrite it each time.
SUMMARY_EVERY_NS = 10**9

Readings = Callable[[], Sequence[Reading]]
T = TypeVar("T")


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
        self._closed: deque[ClosedWindow] = deque()
        self._iterations = 0
        self._last_end_ns = 0
        self._over = True  # nothing to finish
        self.ended_by: BaseException | None = None
        self._draft: UpdateDraft | None = None
        self._uncovered: list[int] = []
        self._replays: set[RolloutId] = set()
        self._account = Account()
        self._summary_due_ns = 0

    # --- start and end ---------------------------------------------------------------------------

    def _begin(
        self,
        *,
        clock: Clock,
        directory: RunDir | None,
        unwritable: str | None,
        trainer: Trainer,
        world: World,
        roles: DeviceRoles | None,
        readings: Readings | None,
        config: Any,
        role: str,
        base: Mapping[str, int],
        provider: TracerProvider | None,
        run_id: str,
    ) -> None:
        self.clock = clock
        self.started_ns = clock.now()
        self.path = directory.path if directory is not None else None
        self.run_id = run_id
        self._directory = directory
        self._readings = readings
        self._common: dict[str, Any] = {semconv.RUN_ID: run_id, semconv.ROLE: role, semconv.RANK: 0}
        attempt = Attempt(
            attempt=1 if directory is None else directory.attempt,
            started_unix_ns=self.started_ns,
            host=socket.gethostname(),
            pid=os.getpid(),
            clock=ClockPair(boot_id(), clock.unix_ns, clock.perf_ns),
            trainer=trainer,
            world=world,
            config_fingerprint=fingerprint(config),
            base=dict(base),
        )
        self._recorder = Recorder(
            run_id=run_id,
            attempt=attempt,
            clock=clock,
            devices=roles,
            trained=self.ledger.trained,
            observe=self._observe,
        )
        self._writer = Writer(
            rundir.nowhere(unwritable or "no_directory")
            if directory is None
            else directory.sinks(encode, role=role),
            seq=0 if directory is None else directory.seq,
            prev=None if directory is None else directory.prev,
            on_error=self.guard.fault,
            on_warning=self._warn_of_loss,
            after_write=self._written,
            tick=self._tick,
            tick_s=SUMMARY_TICK_S,
        )
        self._recorder.head = None if directory is None else directory.prev
        self._processor = AccountProcessor(
            self._account, self.guard, partial(self._writer.put, "spans")
        )
        self._open_tracers(provider, attempt, role)
        self.run_span = self._private.start_span(
            semconv.SPAN_RUN,
            Context(),
            attributes=self._common,
            start_time=self.started_ns,
        )
        self._writer.call(self._prepare_directory)
        self._writer.start()
        self.live = True
        self._over = False
        lifecycle.register(self)
        if self.path is not None:
            tell(f"recording to {self.path}")

    def _open_tracers(self, provider: TracerProvider | None, attempt: Attempt, role: str) -> None:
        private = RecordingProvider(
            resource(
                {
                    semconv.RL_SYSTEM: attempt.trainer.name,
                    semconv.RL_SYSTEM_VERSION: attempt.trainer.version,
                    semconv.RL_ALGORITHM: attempt.trainer.algorithm,
                    semconv.RUN_ID: self.run_id,
                    semconv.ATTEMPT: attempt.attempt,
                    semconv.ROLE: role,
                    semconv.RANK: 0,
                    semconv.RL_WORLD_SIZE: attempt.world.size,
                }
            )
        )
        private.add_span_processor(self._processor)
        self.tracer_provider: TracerProvider = private
        self._private: Tracer = private.get_tracer(semconv.SCOPE, __version__)
        self._tracer = self._private
        if provider is not None:
            provider.add_span_processor(self._processor)
            self.tracer_provider = provider
            self._tracer = provider.get_tracer(semconv.SCOPE, __version__)
            self.shared = True

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
        if self.window is not None:
            self._close_window(self.window, None, "aborted", error)
        self._emit_draft()
        self._release(at_end=True)
        ended = self.clock.now()
        if self.run_span.is_recording():  # else an interrupted end is repeated
            if error is not None:
                mark_failed(self.run_span, error)
            self.run_span.end(end_time=ended)
        context = self.run_span.get_span_context()
        ids = (f"{context.trace_id:032x}", f"{context.span_id:016x}")
        applied = self.ledger.applied
        self._writer.put("metrics_raw", lambda: self._recorder.run(status, ended, applied, ids))

    def _close_files(self) -> None:
        flushed = self._writer.flush()
        # Not before: the writer's thread ends the `rl.loop` span of each record that it builds.
        self._processor.live = False
        self._writer.call(self._write_summary)
        # A file system that hung for the first wait is not waited for again.
        whole = self._writer.close(stall=STALL_S if flushed else 0)
        if whole and self._directory is not None:
            # Else the thread may still write: the directory stays ours as long as this process is.
            self._directory.release()
        lifecycle.forget(self)
        self._over = True
        self.ended_by = None  # its frames hold the trainer's tensors
        self._say_goodbye(whole)

    def _say_goodbye(self, whole: bool) -> None:
        lost = {
            name: counts.dropped + counts.pending
            for name, counts in self._writer.counts().items()
            if counts.dropped or counts.pending
        }
        if lost or not whole:
            told = ", ".join(f"{name} {n}" for name, n in lost.items()) or "the summary"
            logger.warning("otel-grpo: not written: %s (run %s, %s)", told, self.run_id, self.path)
        elif self.path is not None:
            tell(f"run {self.run_id} is recorded in {self.path}")

    # --- what a user calls -----------------------------------------------------------------------

    def iteration(self) -> Iteration:
        """Context manager around one iteration of the training loop."""
        return Iteration(self)

    def open_iteration(self, start_ns: int | None = None) -> Iteration:
        """An iteration that is open already, for loops whose windows are not blocks."""
        return Iteration(self).open(start_ns)

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

    def memory(self) -> None:
        """Read memory now, on this thread; the time is a `log` interval, marked as our own."""
        with self._event("memory", self.window) as window:
            if window is None or self._readings is None:
                return
            with Phase(self, semconv.LOG, {semconv.OWN: True}):
                instant = self.clock.now()
                window.readings.extend((instant, reading) for reading in self._readings())

    def log_scalars(
        self,
        scalars: Mapping[str, Any],
        *,
        step: int | None = None,
        epoch: float | None = None,
        covers: Sequence[int] | None = None,
    ) -> None:
        """One log call of the trainer: a line of ``metrics.jsonl`` and the update's scalars.

        Args:
            scalars: numbers under the trainer's own names; others are left out. NaN and infinity are
                written as null and counted.
            step: the trainer's own step number.
            epoch: the trainer's own epoch.
            covers: updates that the scalars speak of; default: all since the last call. An empty
                sequence: none, the line goes to ``metrics.jsonl`` alone.
        """
        with self._event("log_scalars", self.window, window_needed=False):
            if not self.live:
                return
            values, nonfinite = sanitize.scalars(scalars)
            head, _ = sanitize.scalars({"step": step, "epoch": epoch})
            head = {name: value for name, value in head.items() if value is not None}
            self._writer.put("metrics", msgspec.json.encode({**head, **values}))
            if self.window is not None:
                self.window.nonfinite.extend(nonfinite)
            told = self._checked("log_scalars", covers, given.steps)
            self._attach_scalars(values, set(nonfinite), told)

    def resumed(self, **base: int) -> None:
        """Counts that were restored from a checkpoint, such as ``optimizer_step`` or ``tokens``."""
        with self._event("resumed", self.window, window_needed=False):
            if self.live:
                known = {name: given.natural(value, name) for name, value in base.items()}
                attempt = msgspec.structs.replace(self._recorder.attempt, base=known)
                self._recorder.attempt = attempt
                self._writer.call(self._write_run_file)

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
                self._writer.put(
                    "workers",
                    WindowOpened(
                        self.run_id, self._recorder.attempt.attempt, window.iteration, start
                    ),
                )
            except Exception as error:
                self.guard.fault("iteration.open", error)
            return self.window, True

    def _new_window(self, start: int) -> Window:
        number = self._iterations + 1
        attributes = {**self._common, semconv.ITERATION: number}
        span = self.start_span(
            semconv.SPAN_LOOP,
            Context(),
            attributes,
            start,
            links=[Link(self.run_span.get_span_context())],
        )
        self._account.begin(start)
        context = set_span_in_context(span, Context())
        return Window(number, start, lanes.current(), span, context, attributes)

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
                rows, foreign = self._account.rows(end)
                closed = ClosedWindow(
                    window=window,
                    end_ns=end,
                    aborted=error is not None or said == "aborted",
                    # Not the exception: its frames hold the trainer's tensors.
                    error_type=None if error is None else type(error).__qualname__,
                    rows=rows,
                    foreign_spans=foreign,
                    events=self.ledger.closing(),
                    applied=self.ledger.applied,
                )
                # Interrupted before, the window is still open, and the run's end closes it.
                at_once(
                    partial(self._closed.append, closed),
                    partial(setattr, self, "_last_end_ns", end),
                    partial(setattr, self.ledger, "window", WindowEvents()),
                    partial(setattr, self, "window", None),
                )
                self._account.close(end)
            except ApiError:
                self.window = None
                raise
            except Exception as fault:
                self.window = None
                self.guard.fault("iteration.close", fault)
            self._release()

    def _end_of(self, window: Window, end_ns: int | None) -> int:
        if end_ns is None:
            self.memory()
        end = self._instant("iteration_end", end_ns)
        if end < window.start_ns:
            self._misuse("iteration_end", "an iteration would end before its start")
        return max(end, window.start_ns)

    def _release(self, *, at_end: bool = False) -> None:
        """Hand over the records that wait for no publication any more, in the order of windows."""
        with self._lock:
            now = self.clock.now()
            for closed in list(self._closed)[:-1]:
                if closed.deadline_ns is None:
                    closed.deadline_ns = max(now, closed.end_ns + PUBLICATION_DEADLINE_NS)
            while self._closed:
                closed = self._closed[0]
                expired = closed.deadline_ns is not None and now >= closed.deadline_ns
                if closed.waits and not expired and not at_end:
                    return
                # As it is now: the record is built later, and what is completed until then has a
                # line of its own.
                rows = []
                for publication in closed.window.publications:
                    publication.recorded = True
                    rows.append(publication.row(closed.end_ns))
                closed.publications = rows
                self._writer.put("metrics_raw", partial(self._recorder.rollout, closed))
                self._closed.popleft()

    # --- updates, publications -------------------------------------------------------------------

    def _update_starts(self) -> bool:
        """False where there is no window for it."""
        with self._event("update", self.window) as window:
            if window is not None:
                self._emit_draft()
                return True
        return False

    def _update_ends(self, update: Update, error: BaseException | None) -> None:
        phase = update.phase
        span = phase.span
        with self._event("update", self.window) as window:
            end = update.end_ns = self.clock.now()
            phase.stop(error, end)
            if window is None:
                return
            pending = self.ledger.pending
            count = pending if update.samples is None else update.samples
            if count > pending:
                self._misuse(
                    "update_samples",
                    f"an update of {count} samples after {pending} visits: call `trained` before",
                )
                count = pending
            mark = self.ledger.mark()
            try:
                self._draft = self._count_update(update, window, span, end, count)
            except BaseException:  # an interrupt: the window's record and the update's agree
                self._draft = None
                self.ledger.back_to(mark)
                raise

    def _count_update(
        self, update: Update, window: Window, span: Span | None, end: int, count: int
    ) -> UpdateDraft:
        visits = self.ledger.take(count)
        start = end if update.phase.start_ns is None else update.phase.start_ns
        event = self.ledger.update(
            start, end, count, update.nominal, update.status, update.reason, update.ranks
        )
        if event.step not in self._uncovered:
            self._uncovered.append(event.step)
        context = None if span is None else span.get_span_context()
        return UpdateDraft(
            iteration=window.iteration,
            event=event,
            visits=visits,
            trained=self.ledger.trained.total(visits),
            rows=self._account.take_training(),
            trace_id=None if context is None else f"{context.trace_id:032x}",
            span_id=None if context is None else f"{context.span_id:016x}",
            scalars={},
            covers=[],
        )

    def _attach_scalars(
        self, values: dict[str, Any], nonfinite: set[str], covers: list[int] | None
    ) -> None:
        if covers is not None and not covers:
            return
        steps, self._uncovered = self._uncovered, []
        if self._draft is not None:
            # What the trainer itself gave as None is no value; null stands for not finite.
            self._draft.scalars = {
                name: value
                for name, value in values.items()
                if value is not None or name in nonfinite
            }
            self._draft.covers = steps if covers is None else covers
            self._emit_draft()

    def _emit_draft(self) -> None:
        if self._draft is not None:
            self._writer.put("metrics_raw", partial(self._recorder.train, self._draft))
            self._draft = None

    def _publication_completed(
        self, publication: Publication, at_ns: int | None, size: int | None, queue: int | None
    ) -> None:
        with self._event("publication", self.window, window_needed=False):
            if not self.live:
                return
            if publication.completed_ns is not None:
                self._misuse("publication_twice", "a publication was completed twice")
                return
            publication.completed_ns = self._instant("publication", at_ns)
            publication.bytes = self._checked("publication", size, _as_bytes)
            publication.snapshot = self._snapshot(publication.version, queue)
            if publication.recorded:
                self._writer.put(
                    "workers",
                    PublicationCompleted(
                        self.run_id,
                        self._recorder.attempt.attempt,
                        publication.iteration,
                        publication.version,
                        publication.completed_ns,
                    ),
                )
            self._release()

    def _snapshot(self, version: int, queue: int | None) -> dict[str, int | None]:
        """Resources at the moment of a publication: memory of this process, queue, version."""
        snapshot: dict[str, int | None] = {"version": version}
        waiting = self._checked("publication", queue, _as_queue)
        if waiting is not None:
            snapshot["queue"] = waiting
        try:
            readings = [] if self._readings is None else self._readings()
        except Exception as error:  # the publication counts without them
            self.guard.fault("publication.snapshot", error)
            return snapshot
        for reading in readings:
            for name in ("process_rss", "host_used", "device_used", "allocator_allocated"):
                value = getattr(reading, name)
                if value is not None:
                    snapshot[name] = (snapshot.get(name) or 0) + value
        return snapshot

    # --- spans -----------------------------------------------------------------------------------

    def start_span(
        self,
        name: str,
        context: Context,
        attributes: dict[str, Any],
        start_ns: int,
        links: Sequence[Link] | None = None,
    ) -> Span:
        """A span that is recorded whatever the sampler of a shared provider says."""
        span = self._tracer.start_span(
            name, context, attributes=attributes, links=links, start_time=start_ns
        )
        if self.shared and not span.is_recording():
            span = self._private.start_span(
                name, context, attributes=attributes, links=links, start_time=start_ns
            )
        return span

    def worker_call(self, method: str, duration_ns: int) -> None:
        """One call of a timed function that ended in the open window."""
        with self._lock:
            if self.window is not None:
                self.window.workers[method].append(duration_ns)

    # --- on the writer's thread ------------------------------------------------------------------

    def _prepare_directory(self) -> None:
        """First of all: the earlier attempts' totals, then run.json and a running summary."""
        if self._directory is None:
            return
        if self._recorder.attempt.attempt > 1:
            self._recorder.earlier = load_earlier(
                self._directory.path, self._recorder.attempt.attempt
            )
        self._write_run_file()
        self._write_summary()

    def _write_run_file(self) -> None:
        if self._directory is not None:
            self._directory.write_run_file(self._recorder.attempt)

    def _written(self, sink: str, item: Any, line_hash: str | None) -> None:
        if sink == "metrics_raw" and line_hash is not None:
            self._recorder.written(item, line_hash)
            if item.scope != "update" and self.clock.now() >= self._summary_due_ns:
                self._write_summary()
        elif sink == "workers":
            self._recorder.totals.add_line(item)

    def _tick(self) -> None:
        # The writer's thread waits for no other: the lock may be held over a reading of memory.
        if self._lock.acquire(blocking=False):
            try:
                self._release()
            finally:
                self._lock.release()
        self._write_summary()

    def _write_summary(self) -> None:
        if self._directory is None:
            return
        now = self.clock.now()
        self._summary_due_ns = now + SUMMARY_EVERY_NS
        over = self._recorder.totals.run_record is not None
        summary = self._recorder.summary(now, self._open_now())
        atomic_write(self._directory.summary, encode_summary(summary), fsync=over)

    def _open_now(self) -> OpenWindow | None:
        window = self.window
        if window is None:
            return None
        return OpenWindow(
            window.iteration,
            window.start_ns,
            [OpenPhase(row.phase, row.start, row.lane) for row in self._account.open_rows()],
        )

    def _observe(self) -> Observed:
        return Observed(
            process_ns=lifecycle.process_ns(),
            self_ns=self.self_ns,
            errors=self.guard.snapshot(),
            sinks=self._writer.counts(),
            time_unix_ns=self.clock.now(),
        )

    def _warn_of_loss(self, sink: str, reason: str, message: str) -> None:
        logger.warning("otel-grpo: %s (training goes on)", message)

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

    def _event(self, name: str, window: Window | None, *, window_needed: bool = True) -> Event:
        return Event(self, name, window, window_needed)

    def _die_in_child(self) -> None:
        """In a forked child: nothing is recorded, and no lock is one that the parent held."""
        self.live = self._processor.live = False
        self._over = True
        self._lock = threading.RLock()
        self.window = None


def _as_instant(value: Any) -> int:
    return given.whole(value, "an instant in nanoseconds")


def _as_bytes(value: Any) -> int:
    return given.natural(value, "bytes")


def _as_queue(value: Any) -> int:
    return given.natural(value, "the length of the queue")


def fingerprint(config: Any) -> str | None:
    """SHA-256 over a configuration, so that two runs can be told apart without recording it."""
    if config is None:
        return None
    try:
        data = msgspec.json.encode(config, order="sorted", enc_hook=_plain)
    except (ValueError, TypeError, RecursionError):
        return None
    return hashlib.sha256(data).hexdigest()


def _plain(value: Any) -> str:
    # Whatever it is tells configurations apart, but for a tensor, which is not read.
    return sanitize.label(value) if hasattr(type(value), "__array__") else str(value)


def status_of(error: BaseException | None) -> RunStatus:
    """How a run ended, by the exception that ended it."""
    if error is None:
        return "completed"
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    if isinstance(error, SystemExit) and error.code in (None, 0):
        return "completed"
    return "failed"


def start(
    run_dir: str | os.PathLike[str] | None = None,
    *,
    trainer: str,
    algorithm: str | None = None,
    trainer_version: str | None = None,
    adapter_version: str | None = None,
    config: Any = None,
    run_id: str | None = None,
    devices: Sequence[Device] = (),
    roles: DeviceRoles | None = None,
    readings: Readings | None = None,
    role: str = "driver",
    base: Mapping[str, int] | None = None,
    tracer_provider: TracerProvider | None = None,
    clock: Clock | None = None,
    guard: Guard | None = None,
) -> Run:
    """Start a run (see `otel_grpo.start_run`). Never raises: a run that can't start is not live."""
    guard = guard or Guard()
    run = Run(guard)
    if is_true(os.environ.get("OTEL_GRPO_DISABLED")):
        return run
    try:
        run_id = run_id or os.environ.get("OTEL_GRPO_RUN_ID") or None
        if run_id is not None:
            run_id = sanitize.label(run_id)
        directory, unwritable = _open_directory(run_dir, run_id)
        run._begin(
            clock=clock or Clock.read(),
            directory=directory,
            unwritable=unwritable,
            trainer=Trainer(
                sanitize.label(trainer),
                *(
                    None if text is None else sanitize.label(text)
                    for text in (trainer_version, adapter_version, algorithm)
                ),
            ),
            world=World(1, list(devices)),
            roles=roles,
            readings=readings,
            config=config,
            role=re.sub(r"[^A-Za-z0-9._-]+", "_", sanitize.label(role)),
            base=_base(guard, base or {}),
            provider=tracer_provider,
            run_id=directory.run_id if directory is not None else run_id or os.urandom(8).hex(),
        )
    except Exception as error:
        run.live = False
        guard.fault("run.start", error)
    return run


def _base(guard: Guard, base: Mapping[str, int]) -> dict[str, int]:
    try:
        return {sanitize.label(name): given.natural(n, name) for name, n in base.items()}
    except Exception as error:  # the run starts without it
        guard.misuse("base", f"base: {error}")
        return {}


def _open_directory(
    run_dir: str | os.PathLike[str] | None, run_id: str | None
) -> tuple[RunDir | None, str | None]:
    """The directory, or why there is none: then the run only counts what is lost."""
    asked = run_dir or os.environ.get("OTEL_GRPO_RUN_DIR") or None
    try:
        directory = rundir.open_run_dir(
            None if asked is None else Path(asked), run_id or os.environ.get("OTEL_GRPO_RUN_ID")
        )
    except rundir.RunDirError as error:
        logger.warning("otel-grpo: nothing is recorded (training goes on): %s", error)
        return None, errno_name(error)
    if directory.warning:
        logger.warning("otel-grpo: %s", directory.warning)
    return directory, None


def dormant() -> Run:
    """A run that records nothing: every call is a no-op."""
    return Run(Guard())
