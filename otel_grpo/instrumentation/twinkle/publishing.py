"""New weights, as they become known to whoever generates."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from otel_grpo.tracing.iteration import Iteration
    from otel_grpo.tracing.publication import Publication


class Publishing:
    """The publication of the last update: at once where the trained model generates itself.

    A script of which neither is seen may publish as it likes: nothing is said of it.
    """

    def __init__(self) -> None:
        self.elsewhere = False  # a sampler has weights of its own
        self.in_place = False  # the trained model was seen to generate
        self._due: Publication | None = None  # of the newest window with an update
        self._open: list[Publication] = []  # due, and not complete
        self._published = 0

    def version(self, trained: int) -> int | None:
        """Of the weights that generate now."""
        if self.elsewhere:
            return self._published
        return trained if self.in_place else None

    def updated(self, iteration: Iteration, version: int, at_ns: int) -> None:
        """An update was applied: a window's last one is what it publishes."""
        if not (self.elsewhere or self.in_place):
            return
        due = self._due
        if due is not None and due.iteration == iteration.number:
            due.moved(version, at_ns)
        elif self.elsewhere:
            # Complete when somebody is seen to bring the weights there, and not before.
            self._due = iteration.publication(version, started_ns=at_ns)
            self._open.append(self._due)
        else:
            self._due = iteration.publication(version, kind="in_place", started_ns=at_ns)
            self._due.completed(at_ns=at_ns)

    def synchronised(self, started_ns: int) -> None:
        """The samplers have the newest weights; a version that they had already is no news."""
        if not self._open:
            return
        newest = self._open[-1]
        self._open.clear()
        self._published = newest.version
        newest.kind, newest.started_ns = "collective", started_ns
        newest.completed()
