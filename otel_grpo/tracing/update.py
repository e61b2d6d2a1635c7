"""One optimizer step: it counts as applied when its block ends without an error, never before."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from otel_grpo import semconv
from otel_grpo.tracing import given, sanitize
from otel_grpo.tracing.phase import Phase

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import TracebackType

    from otel_grpo.tracing.run import Run


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
        self._open = self._run._update_starts()
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
        self._run._update_ends(self, error)

    def skip(self, reason: str) -> None:
        """The step changed no weights: gradient overflow, a gradient that is not finite."""
        self.status, self.reason = "skipped", sanitize.label(reason)

    def fail(self, reason: str, ranks: Sequence[int] = ()) -> None:
        """A worker reported a failure; `ranks` names those that did."""
        self.status, self.reason = "failed", sanitize.label(reason)
        checked = self._run._checked("update", ranks, given.ranks)
        self.ranks = checked or self.ranks
