"""One optimizer step: it counts as applied when its block ends without an error, never before."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from otel_grpo import semconv
from otel_grpo.tracing import given, sanitize
from otel_grpo.tracing.event import Event
from otel_grpo.tracing.evidence import UpdateDraft
from otel_grpo.tracing.phase import Phase

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import TracebackType

    from otel_grpo.tracing.run import Run
    from otel_grpo.tracing.window import Window


class Update:
    """Context manager around the step on every worker, with all their results collected inside."""

    def __init__(
        self,
        run: Run,
        samples: int | None,
        nominal: int | None,
        start_ns: int | None = None,
        attributes: Mapping[str, Any] | None = None,
    ) -> None:
        self.nominal = nominal
        self.samples = samples
        self.status = "applied"
        self.reason: str | None = None
        self.ranks: tuple[int, ...] = ()
        self.end_ns: int | None = None
        self.phase = Phase(run, semconv.OPTIMIZER, attributes, start_ns=start_ns)
        self._run = run
        self._open = False
        self._refused = False
        self._ids: tuple[int, int] | None = None  # of the span, once it is over

    def __enter__(self) -> Update:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop(error)

    def start(self) -> Update:
        self._open = self._starts()
        self._refused = not self._open
        if self._open:
            self.phase.start()
        return self

    def stop(self, error: BaseException | None = None) -> None:
        """End of the step; with `error` the update failed."""
        if not self._open:
            if not self._refused:
                self._run._misuse("update_closed", "an update was ended that is not open")
            return
        self._open = False
        if error is not None:
            self.fail(type(error).__qualname__)
        self._ends(error)

    def submitted(self) -> None:
        """The step is on its way and the caller goes on: `stop` tells later how it ended."""
        self._ids = self.phase.ids
        self.phase.stop()

    def skip(self, reason: str) -> None:
        """The step changed no weights: gradient overflow, a gradient that is not finite."""
        self.status, self.reason = "skipped", sanitize.label(reason)

    def fail(self, reason: str, ranks: Sequence[int] = ()) -> None:
        """A worker reported a failure; `ranks` names those that did."""
        self.status, self.reason = "failed", sanitize.label(reason)
        checked = self._run._checked("update", ranks, given.ranks)
        self.ranks = checked or self.ranks

    def _starts(self) -> bool:
        """False where there is no window for it."""
        run = self._run
        with Event(run, "update", run.window) as window:
            if window is not None:
                run.handover.release_update()
                return True
        return False

    def _ends(self, error: BaseException | None) -> None:
        run, ledger, ids = self._run, self._run.ledger, self.phase.ids or self._ids
        end = self.end_ns = run.clock.now()
        if self.phase.open:
            self.phase.stop(error, end)
        with Event(run, "update", run.window) as window:
            if window is None:
                return
            count = ledger.pending if self.samples is None else self.samples
            if count > ledger.pending:
                run._misuse(
                    "update_samples",
                    f"an update of {count} samples after {ledger.pending} visits: "
                    "call `trained` before",
                )
                count = ledger.pending
            run.handover.release_update()  # one that ended since this one began
            mark = ledger.mark()
            try:
                run.handover.draft = self._draft(window, ids, end, count)
            except BaseException:  # an interrupt: the window's record and the update's agree
                run.handover.draft = None
                ledger.back_to(mark)
                raise

    def _draft(
        self, window: Window, ids: tuple[int, int] | None, end: int, count: int
    ) -> UpdateDraft:
        """Count it: what its record will be made of."""
        run, ledger = self._run, self._run.ledger
        visits = ledger.take(count)
        named = sum(len(visit.indices) for visit in visits)
        start = end if self.phase.start_ns is None else self.phase.start_ns
        event = ledger.update(start, end, count, self.nominal, self.status, self.reason, self.ranks)
        run.handover.cover(event.step)
        return UpdateDraft(
            iteration=window.iteration,
            event=event,
            visits=visits,
            lengths=ledger.trained if named == count else None,
            rows=run.account.take_training(),
            trace_id=None if ids is None else f"{ids[0]:032x}",
            span_id=None if ids is None else f"{ids[1]:016x}",
            scalars=None,
            covers=[],
        )
