"""New weights on their way to the generator."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from otel_grpo.records.model import PublicationKind
    from otel_grpo.tracing.run import Run


class Publication:
    """A publication that is due. It counts when somebody confirms it, and only then."""

    def __init__(
        self, run: Run, iteration: int, version: int, kind: PublicationKind, started_ns: int
    ) -> None:
        self.iteration = iteration
        self.version = version
        self.kind: PublicationKind = kind
        self.started_ns = started_ns
        self.completed_ns: int | None = None
        self.bytes: int | None = None
        self.snapshot: dict[str, int | None] = {}
        self.recorded = (
            False  # its window's record is made: a later completion is a line of its own
        )
        self._run = run

    def completed(
        self, at_ns: int | None = None, *, bytes: int | None = None, queue: int | None = None
    ) -> None:
        """The last receiver has the weights. From any thread, also after the iteration.

        Args:
            at_ns: instant in Unix nanoseconds of the run's clock; default: now.
            bytes: size of what was transferred.
            queue: rollouts that wait to be trained on at this moment.
        """
        self._run._publication_completed(self, at_ns, bytes, queue)
