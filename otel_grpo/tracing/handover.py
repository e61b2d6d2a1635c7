"""What waits before the writer's thread gets it: updates for scalars, windows for publications.

Every call is made under the run's lock.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from otel_grpo.records.model import Number
    from otel_grpo.tracing.evidence import UpdateDraft
    from otel_grpo.tracing.output import Output
    from otel_grpo.tracing.window import ClosedWindow

# A publication may be confirmed this long after its window before the record is written without it.
PUBLICATION_DEADLINE_NS = 30 * 10**9


class Handover:
    """The last update, until its scalars come or the next one starts; closed windows, in order."""

    def __init__(self, output: Output) -> None:
        self.windows: deque[ClosedWindow] = deque()
        self.draft: UpdateDraft | None = None
        self._output = output
        self._uncovered: list[int] = []  # steps that no scalars have spoken of

    def cover(self, step: int) -> None:
        """The next scalars speak of this step, too."""
        if self._uncovered[-1:] != [step]:  # they grow; a loop may never log
            self._uncovered.append(step)

    def attach(
        self, values: Mapping[str, Number], nonfinite: set[str], covers: list[int] | None
    ) -> None:
        """The trainer's scalars, for the last update; an empty `covers` says that they are not."""
        if covers is not None and not covers:
            return
        steps, self._uncovered = self._uncovered, []
        if self.draft is not None:
            # What the trainer itself gave as None is no value; null stands for not finite.
            self.draft.scalars = {
                name: value
                for name, value in values.items()
                if value is not None or name in nonfinite
            }
            self.draft.covers = steps if covers is None else covers
            self.release_update()

    def release_update(self) -> None:
        if self.draft is not None:
            self._output.train(self.draft)
            self.draft = None

    def release_windows(self, now_ns: int, *, at_end: bool = False) -> None:
        """Hand over the windows that wait for no publication any more, in their order."""
        for closed in list(self.windows)[:-1]:
            if closed.deadline_ns is None:
                closed.deadline_ns = max(now_ns, closed.end_ns + PUBLICATION_DEADLINE_NS)
        held = False
        while self.windows:
            closed = self.windows[0]
            expired = closed.deadline_ns is not None and now_ns >= closed.deadline_ns
            if closed.waits and not expired and not at_end:
                return
            # As it is now: the record is built later, and what is completed until then has a line of
            # its own.
            rows = []
            for publication in closed.window.publications:
                publication.recorded = True
                rows.append(publication.row(closed.end_ns))
            closed.publications = rows
            # Windows that waited come together, as many as there are: the queue is for those that the
            # disk is too slow for.
            held = self._output.rollout(closed, held=held)
            self.windows.popleft()
