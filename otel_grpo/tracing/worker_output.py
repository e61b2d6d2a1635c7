"""The files of a process that is observed but does not write the records: a rank, or a worker.

Only its own lines in `workers/` and its spans in `spans/`. Which run it belongs to may become known
later than its first line: it is found on the writer's thread, and lines wait in the bounded queue.
"""

from __future__ import annotations

import os
import threading
from functools import partial
from typing import TYPE_CHECKING

from otel_grpo.records.files import errno_name
from otel_grpo.records.model import Left, Observed
from otel_grpo.records.writer import BOUNDS, STALL_S, Sink, Writer
from otel_grpo.tracing.guard import logger, warn_of_loss
from otel_grpo.tracing.light import encode_spans
from otel_grpo.tracing.live import counts_of, span_sink

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from otel_grpo.core.clock import Clock
    from otel_grpo.records.model import Joined, RunStatus, WorkerLine
    from otel_grpo.records.worker_dir import WorkerDir
    from otel_grpo.tracing.guard import Guard
    from otel_grpo.tracing.live import Live

#: Lines of many short calls are written together; what a killed process may lose of them.
LULL_S = 0.02


class WorkerOutput:
    """Owns the files of one process.

    Args:
        find: gives the directory, on the writer's thread; may raise OSError. It may wait, until the
            event that it is given says that the process ends.
        joined: gives the first line, on the writer's thread, for a run id and an attempt.
        name: of the process, unique in the job, such as `policy-3`.
        clock: of the process.
        guard: told of faults.
        self_ns: what the observer cost this process until now.
        live: gets its spans and lines, too; started and closed by others.
    """

    def __init__(
        self,
        find: Callable[[threading.Event], WorkerDir],
        joined: Callable[[str, int], Joined],
        *,
        name: str,
        clock: Clock,
        guard: Guard,
        self_ns: Callable[[], int],
        live: Live | None = None,
    ) -> None:
        self.path: Path | None = None
        self.run_id = ""
        self.attempt = 0
        self._find = find
        self._joined = joined
        self._file = f"{name}-{os.getpid()}.jsonl"
        self._clock = clock
        self._guard = guard
        self._self_ns = self_ns
        self._live = live
        self._ending = threading.Event()
        self.writer = Writer(
            [self._workers(None), self._spans(None)],
            on_error=guard.fault,
            on_warning=warn_of_loss,
            lull_s=LULL_S,
        )
        self.span, self.spans = span_sink(self.writer, live)

    # --- on any thread

    def start(self) -> None:
        self.writer.call(self._settle)
        self.writer.put("workers", self._first)
        self.writer.start()

    def worker(self, line: WorkerLine | Callable[[], WorkerLine | None]) -> bool:
        """A line, or what makes it on the writer's thread, when run id and attempt are known."""
        return self.writer.put("workers", line)

    def left(self, status: RunStatus, ended_ns: int) -> None:
        """The last line."""
        self.writer.put("workers", partial(self._last, status, ended_ns), held=True)

    def flush(self) -> bool:
        """Wait for what was handed over, at the end; False where the file system hangs."""
        self._ending.set()
        return self.writer.flush()

    def close(self, *, flushed: bool) -> None:
        self._ending.set()
        # A file system that hung for the first wait is not waited for again.
        whole = self.writer.close(stall=STALL_S if flushed else 0)
        lost = self.writer.unwritten()
        if lost or not whole:
            told = lost or "the last lines"
            logger.warning("otel-grpo: not written: %s (%s, %s)", told, self._file, self.path)

    # --- on the writer's thread

    def _settle(self) -> None:
        try:
            found = self._find(self._ending)
        except OSError as error:
            logger.warning("otel-grpo: nothing is recorded (training goes on): %s", error)
            sinks = [Sink.nowhere(name, errno_name(error)) for name in ("workers", "spans")]
        else:
            self.path, self.run_id, self.attempt = found
            sinks = [self._workers(found.path), self._spans(found.path)]
        for sink in sinks:
            self.writer.replace(sink)

    def _workers(self, path: Path | None) -> Sink:
        file = None if path is None else path / "workers" / self._file
        return Sink("workers", file, BOUNDS["workers"])

    def _spans(self, path: Path | None) -> Sink:
        file = None if path is None else path / "spans" / self._file
        return Sink("spans", file, BOUNDS["spans"], encode=encode_spans)

    def _first(self) -> Joined:
        return self._joined(self.run_id, self.attempt)

    def _last(self, status: RunStatus, ended_ns: int) -> Left:
        return Left(
            run_id=self.run_id,
            attempt=self.attempt,
            status=status,
            ended_unix_ns=ended_ns,
            observed=Observed(
                self_ns=self._self_ns(),
                errors=self._guard.snapshot(),
                sinks=counts_of(self.writer, self._live),
                time_unix_ns=self._clock.now(),
            ),
        )
