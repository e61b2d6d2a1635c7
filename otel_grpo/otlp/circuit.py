"""When the next attempt at a receiver is due, and when there is no more sense in one."""

from __future__ import annotations

import math
import random
from time import monotonic
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

FIRST_PAUSE_S = 0.5
MAX_PAUSE_S = 30.0
#: After so many failures in a row the receiver counts as away.
OPEN_AFTER = 3


class Circuit:
    """Pauses double from failure to failure, up to a bound; the receiver may ask for a longer one.

    Attributes:
        deadline: there are no attempts from then on; infinite while the process goes on.
        impatient: the next pause of our own choice is not sat out.
    """

    def __init__(self, now: Callable[[], float] = monotonic) -> None:
        self.deadline = math.inf
        self.impatient = False
        self._now = now
        self._failures = 0
        self._due = 0.0
        self._bidden = False
        # The training draws from the global one, and must draw the same with us as without.
        self._random = random.Random()  # noqa: S311 - spreads attempts, keeps no secret

    @property
    def open(self) -> bool:
        """Whether the receiver is away."""
        return self._failures >= OPEN_AFTER

    def well(self) -> None:
        """An attempt was answered."""
        self._failures, self._due, self._bidden = 0, 0.0, False

    def failed(self, retry_after_s: float | None) -> None:
        """An attempt failed; the receiver may have said when to come again."""
        self._failures += 1
        doublings = min(self._failures - 1, 30)  # a receiver may be away for weeks
        pause = min(MAX_PAUSE_S, FIRST_PAUSE_S * 2.0**doublings)
        pause *= self._random.uniform(0.8, 1.2)
        self._bidden = retry_after_s is not None and retry_after_s > pause
        self._due = self._now() + max(pause, retry_after_s or 0.0)

    def wait_s(self) -> float:
        """How long until the next attempt."""
        left = self._due - self._now()
        if left > 0 and self.impatient and not self._bidden:
            self.impatient, self._due, left = False, 0.0, 0.0
        return max(0.0, left)

    def hopeless(self) -> bool:
        """Whether the process ends before the next attempt, or would spend its end on a vain one."""
        now = self._now()
        if self.deadline == math.inf or now >= self.deadline:
            return now >= self.deadline
        if now >= self._due or (self.impatient and not self._bidden):
            return False
        return self.open or self._due >= self.deadline
