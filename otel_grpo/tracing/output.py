"""The files of a run. The training thread hands over and goes on; the writer's thread does the rest."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from otel_grpo.records import rundir
from otel_grpo.records.files import atomic_write
from otel_grpo.records.inventory import DeviceRoles
from otel_grpo.records.model import Observed, PublicationCompleted, WindowOpened
from otel_grpo.records.replay import load_earlier
from otel_grpo.records.summary import encode_summary
from otel_grpo.records.writer import STALL_S, Writer
from otel_grpo.tracing import lifecycle
from otel_grpo.tracing.evidence import UpdateDraft
from otel_grpo.tracing.guard import logger, tell, warn_of_loss
from otel_grpo.tracing.light import encode_spans
from otel_grpo.tracing.live import counts_of, span_sink
from otel_grpo.tracing.recorder import Recorder

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_grpo.core.clock import Clock
    from otel_grpo.core.ledger import TrainedLengths
    from otel_grpo.records.model import (
        Attempt,
        OpenWindow,
        Record,
        RolloutRecord,
        RunRecord,
        RunStatus,
        TrainRecord,
        WorkerLine,
    )
    from otel_grpo.records.rundir import RunDir
    from otel_grpo.tracing.guard import Guard
    from otel_grpo.tracing.live import Live
    from otel_grpo.tracing.peers import Peers
    from otel_grpo.tracing.scalars import Scalars
    from otel_grpo.tracing.window import ClosedWindow, Window

T = TypeVar("T")
R = TypeVar("R", bound="Record | PublicationCompleted | None")

# How often summary.json is rewritten while nothing else happens: an open wait is visible.
SUMMARY_TICK_S = 5.0
# Short windows do not rewrite it each time.
SUMMARY_EVERY_NS = 10**9


@dataclass(frozen=True, slots=True)
class Sources:
    """What the writer's thread asks of the run while it goes on."""

    self_ns: Callable[[], int]
    open_window: Callable[[], OpenWindow | None]
    release: Callable[[], None]  # hand over windows whose publications waited long enough
    settle: Callable[[Window], None]  # wait, within a bound, for a window's readings


class Output:
    """Owns the directory, the writer and the recorder of one attempt."""

    def __init__(
        self,
        directory: RunDir | None,
        unwritable: str | None,
        *,
        run_id: str,
        attempt: Attempt,
        clock: Clock,
        guard: Guard,
        devices: DeviceRoles | None,
        trained: TrainedLengths,
        role: str,
        sources: Sources,
        live: Live | None = None,
    ) -> None:
        self.path = None if directory is None else directory.path
        self.run_id = run_id
        self._directory = directory
        self._clock = clock
        self._guard = guard
        self._sources = sources
        self._live = live
        self._summary_due_ns = 0
        self._recorder = Recorder(
            run_id=run_id,
            attempt=attempt,
            clock=clock,
            devices=devices,
            trained=trained,
            observe=self._observe,
            on_error=guard.fault,
        )
        self.writer = Writer(
            rundir.nowhere(unwritable or "no_directory", built=live is not None)
            if directory is None
            else directory.sinks(encode_spans, role=role),
            seq=0 if directory is None else directory.seq,
            prev=None if directory is None else directory.prev,
            on_error=guard.fault,
            on_warning=warn_of_loss,
            after_write=self._written,
            tick=self.tick,
            tick_s=SUMMARY_TICK_S,
        )
        self.span, self.spans = span_sink(self.writer, live)
        self._recorder.head = None if directory is None else directory.prev

    @property
    def attempt(self) -> int:
        return self._recorder.attempt.attempt

    @property
    def known(self) -> Attempt:
        """What is known of the attempt: other processes and their devices are added to it."""
        return self._recorder.attempt

    @property
    def roles(self) -> DeviceRoles | None:
        """What the devices of this process do."""
        return self._recorder.devices

    # --- on the training thread

    def start(self) -> None:
        self.writer.call(self._prepare_directory)
        self.writer.start()
        if self.path is not None:
            tell(f"recording to {self.path}")

    def read_peers(self, peers: Peers) -> None:
        """The job has other processes; before the first window closes."""
        self._recorder.peers = peers

    def opened(self, iteration: int, start_ns: int) -> None:
        """A window without a record was cut by the process's end."""
        line = WindowOpened(self.run_id, self.attempt, iteration, start_ns)
        self.writer.put("workers", line, soon=False)

    def published_late(self, iteration: int, version: int, completed_ns: int) -> None:
        """A publication was confirmed after the record of its window."""
        line = PublicationCompleted(self.run_id, self.attempt, iteration, version, completed_ns)
        self.writer.put("workers", partial(self._told, line))

    def rollout(self, closed: ClosedWindow, *, held: bool) -> bool:
        peers = self._recorder.peers
        if peers is not None and peers.spmd:
            # One more than this rank attempted: another one may have gone further.
            for k in range(len(closed.drafts) + 1):
                record = partial(self._train_of_job, closed, k)
                held = self.writer.put("metrics_raw", record, held=held)
        else:  # a rank that can't read the others', for it has no directory
            for draft in closed.drafts:
                self.train(draft)
        return self.writer.put("metrics_raw", partial(self._rollout, closed), held=held)

    def train(self, draft: UpdateDraft) -> None:
        self.writer.put("metrics_raw", partial(self._train, draft))

    def run(self, status: RunStatus, ended_ns: int, applied: int, ids: tuple[str, str]) -> None:
        record = partial(self._run, status, ended_ns, applied, ids)
        # One, whatever waits before it: without it the attempt would count as killed.
        self.writer.put("metrics_raw", record, held=True)

    def flat(self, scalars: Scalars) -> None:
        self.writer.put("metrics", scalars.line, soon=False)

    def worker(self, line: WorkerLine) -> None:
        self.writer.put("workers", line)

    def resumed(self, base: dict[str, int]) -> None:
        """What was restored from a checkpoint became known after the start."""
        self.writer.call(partial(self._resume, base))

    def flush(self) -> bool:
        """Wait for what was handed over; False where the file system hangs."""
        if self._live is not None:
            # The network may take its time: who has none for that ends us with a summary.
            self.writer.call(self._write_summary)
        return self.writer.flush()

    def close(self, *, flushed: bool) -> None:
        """The final summary; then the directory is free for the next attempt."""
        self.writer.call(self._write_summary)
        # A file system that hung for the first wait is not waited for again.
        whole = self.writer.close(stall=STALL_S if flushed else 0)
        if whole and self._directory is not None:
            # Else the thread may still write: the directory stays ours as long as this process is.
            self._directory.release()
        self._say_goodbye(whole)

    def _say_goodbye(self, whole: bool) -> None:
        lost = self.writer.unwritten()
        if lost or not whole:
            told = lost or "the summary"
            logger.warning("otel-grpo: not written: %s (run %s, %s)", told, self.run_id, self.path)
        elif self.path is not None:
            tell(f"run {self.run_id} is recorded in {self.path}{self._lacking()}")

    def _lacking(self) -> str:
        last = self._recorder.totals.run_record
        n = 0 if last is None else last.attributes.ranks.incomplete_windows
        return f"; `otel-grpo finish` adds what ranks told too late in {n} windows" if n else ""

    # --- on the writer's thread

    def _rollout(self, closed: ClosedWindow) -> RolloutRecord | None:
        self._sources.settle(closed.window)
        return self._told(self._knowing_the_job(self._recorder.rollout, closed))

    def _train_of_job(self, closed: ClosedWindow, k: int) -> TrainRecord | None:
        self._sources.settle(closed.window)
        return self._told(self._knowing_the_job(self._recorder.train_of_job, closed, k))

    def _train(self, draft: UpdateDraft) -> TrainRecord | None:
        return self._told(self._recorder.train(draft))

    def _run(self, *about: Any) -> RunRecord | None:
        return self._told(self._recorder.run(*about))

    def _knowing_the_job(self, make: Callable[..., T], *about: Any) -> T:
        """A record, after `run.json` has what was learnt about the job on the way."""
        before = self._recorder.attempt
        record = make(*about)
        if self._recorder.attempt is not before:
            self._write_run_file()
        return record

    def _told(self, line: R) -> R:
        """What the live view knows of, whatever becomes of its line."""
        if line is not None and self._live is not None:
            self._live.made(line)
        return line

    def tick(self) -> None:
        self._sources.release()
        self._write_summary()

    def _prepare_directory(self) -> None:
        """First of all: run.json, then the earlier attempts' totals and a running summary.

        Without its entry in run.json nobody could read this attempt, so it waits for no other one:
        the files of those may be long, or damaged.
        """
        if self._directory is None:
            return
        self._write_run_file()
        try:
            if self.attempt > 1:
                self._recorder.earlier = load_earlier(self._directory.path, self.attempt)
        finally:
            self._write_summary()

    def _resume(self, base: dict[str, int]) -> None:
        self._recorder.attempt = msgspec.structs.replace(self._recorder.attempt, base=base)
        self._write_run_file()

    def _write_run_file(self) -> None:
        if self._directory is not None:
            self._directory.write_run_file(self._recorder.attempt)

    def _written(self, sink: str, item: Any, line_hash: str | None) -> None:
        if sink == "metrics_raw" and line_hash is not None:
            self._recorder.written(item, line_hash)
            if item.scope != "update" and self._clock.now() >= self._summary_due_ns:
                self._write_summary()
        elif sink == "workers":
            self._recorder.totals.add_line(item)

    def _write_summary(self) -> None:
        if self._directory is None:
            return
        now = self._clock.now()
        self._summary_due_ns = now + SUMMARY_EVERY_NS
        over = self._recorder.totals.run_record is not None
        summary = self._recorder.summary(now, self._sources.open_window())
        atomic_write(self._directory.summary, encode_summary(summary), fsync=over)

    def _observe(self) -> Observed:
        return Observed(
            process_ns=lifecycle.process_ns(),
            self_ns=self._sources.self_ns(),
            errors=self._guard.snapshot(),
            sinks=counts_of(self.writer, self._live),
            time_unix_ns=self._clock.now(),
        )
