"""Labels whose values are not all known beforehand: no more of them than back ends can bear."""

from __future__ import annotations

from collections.abc import Iterable

from otel_grpo.metrics.catalogue import OTHER


class Bounded:
    """The values of a label: those that are known, and others up to the bound."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._known: dict[str, None] = {}
        self._seen: dict[str, None] = {}

    def know(self, values: Iterable[str]) -> None:
        """These are values in any case."""
        self._known.update(dict.fromkeys(values))

    def of(self, value: str) -> str:
        """The value, or `OTHER` where it would be one too many. On any thread."""
        if value not in self._known:
            if len(self._known) >= self._most:
                value = OTHER
            else:
                self._known[value] = None
        self._seen[value] = None
        return value

    @property
    def seen(self) -> tuple[str, ...]:
        """What `of` returned until now, in the order in which it did so first."""
        return tuple(self._seen)
