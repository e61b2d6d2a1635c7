"""Instants of one process on the clock of another one."""

from __future__ import annotations

from collections.abc import Sequence

from otel_grpo.records.model import ClockPair


class Clock:
    """Places the instants of a process on the driver's clock.

    Exactly where both run on one machine, for its monotonic clock is shared. Else by measured
    offsets, and then as a range: the driver knew fewer measurements than there are now, and each is
    right only to its bound.
    """

    def __init__(
        self, theirs: ClockPair, ours: ClockPair, measured: Sequence[tuple[int, int, int]]
    ) -> None:
        """``measured``: instant of the driver, offset (theirs minus the driver's), bound; ns."""
        self._shift: int | None = None
        if theirs.boot_id is not None and theirs.boot_id == ours.boot_id:
            self._shift = (ours.unix_ns - ours.perf_ns) - (theirs.unix_ns - theirs.perf_ns)
        # By their clock, on which an instant is looked up.
        self._points = sorted((at + offset, at, bound) for at, offset, bound in measured)

    @property
    def known(self) -> bool:
        """Whether anything is known of it: without, none of its instants can be placed."""
        return self._shift is not None or bool(self._points)

    def place(self, instant: int) -> tuple[int, int]:
        """The earliest and the latest instant of the driver, in nanoseconds, that it can be."""
        if self._shift is not None:
            return instant + self._shift, instant + self._shift
        before = [point for point in self._points if point[0] <= instant][-1:]
        after = [point for point in self._points if point[0] > instant][:1]
        around = before + after
        found = [instant - theirs + ours for theirs, ours, _ in around]
        if len(around) == 2:
            (x0, y0, _), (x1, y1, _) = around
            found.append(y0 + (instant - x0) * (y1 - y0) // (x1 - x0))
        bound = max(bound for _, _, bound in around)
        return min(found) - bound, max(found) + bound
