"""What waits before the writer's thread gets it: updates for scalars, windows for others' words.

Every call is made under the run's lock.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

from otel_grpo.core.atomic import at_once

if TYPE_CHECKING:
    from otel_grpo.tracing.evidence import UpdateDraft
    from otel_grpo.tracing.output import Output
    from otel_grpo.tracing.peers import Peers
    from otel_grpo.tracing.rank_output import RankOutput
    from otel_grpo.tracing.scalars import Scalars
    from otel_grpo.tracing.window import ClosedWindow

# A publication may be confirmed, and another process be heard, this long after a window before its
# record is written without.
DEADLINE_NS = 30 * 10**9


class Handover:
    """The last update, until its scalars come or the next one starts; closed windows, in order.

    Args:
        output: takes what is ready.
        holds: whether updates wait for the other ranks of their window: in each rank of a job.
        waits: whether windows wait: not where the process only adds its share.
    """

    def __init__(
        self, output: Output | RankOutput, *, holds: bool = False, waits: bool = True
    ) -> None:
        self.windows: deque[ClosedWindow] = deque()
        self.draft: UpdateDraft | None = None
        self.peers: Peers | None = None
        self._output = output
        self._holds = holds
        self._waits = waits
        self._held: list[UpdateDraft] = []
        self._uncovered: list[int] = []  # steps that no scalars have spoken of

    def cover(self, step: int) -> None:
        """The next scalars speak of this step, too."""
        if self._uncovered[-1:] != [step]:  # they grow; a loop may never log
            self._uncovered.append(step)

    def attach(self, scalars: Scalars, covers: list[int] | None) -> None:
        """The trainer's scalars, for the last update; an empty `covers` says that they are not."""
        if covers is not None and not covers:
            return
        steps, self._uncovered = self._uncovered, []
        if self.draft is not None:
            self.draft.scalars = scalars
            self.draft.covers = steps if covers is None else covers
            self.release_update()

    def release_update(self) -> None:
        if self.draft is None:
            return
        if self._holds:
            at_once(
                partial(self._held.append, self.draft),
                partial(setattr, self, "draft", None),
            )
        else:
            self._output.train(self.draft)
            self.draft = None

    def release_windows(self, now_ns: int, *, at_end: bool = False) -> None:
        """Hand over the windows that wait for nobody any more, in their order."""
        if not self.windows:
            return
        # Many may wait, but all before one that has its deadline have theirs.
        for closed in islice(reversed(self.windows), 1, None):
            if closed.deadline_ns is not None:
                break
            closed.deadline_ns = max(now_ns, closed.end_ns + DEADLINE_NS)
        # Asked for when it closes, whatever it waits behind: the peers read for what is asked.
        self._heard(self.windows[-1], now_ns)
        held = False
        while self.windows:
            closed = self.windows[0]
            expired = closed.deadline_ns is not None and now_ns >= closed.deadline_ns
            if self._waits and self._outstanding(closed, now_ns) and not (expired or at_end):
                return
            if self._holds:
                self._give_updates(closed)
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

    def lacks_peers(self, now_ns: int) -> bool:
        """Whether a window waits for other processes."""
        return not all(self._heard(closed, now_ns) for closed in self.windows)

    def _outstanding(self, closed: ClosedWindow, now_ns: int) -> bool:
        heard = self._heard(closed, now_ns)
        scalars = (
            self._holds
            and self.draft is not None
            and self.draft.iteration <= closed.window.iteration
        )
        return not heard or closed.waits or scalars

    def _heard(self, closed: ClosedWindow, now_ns: int) -> bool:
        window = closed.window
        return self.peers is None or self.peers.ready(
            window.iteration, window.start_ns, closed.end_ns, now_ns
        )

    def _give_updates(self, closed: ClosedWindow) -> None:
        """To a window its own updates, whose records are made with its own."""
        iteration = closed.window.iteration
        if self.draft is not None and self.draft.iteration <= iteration:
            self.release_update()
        mine = [draft for draft in self._held if draft.iteration <= iteration]
        left = [draft for draft in self._held if draft.iteration > iteration]
        # Interrupted and repeated, it gives none of them twice.
        at_once(partial(closed.drafts.extend, mine), partial(setattr, self, "_held", left))
