"""One log call of a trainer. What can't change is looked at by the writer's thread."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import msgspec

from otel_grpo.records.model import Number
from otel_grpo.tracing import sanitize


class Scalars:
    """The numbers of one call, under the trainer's own names.

    Raises TypeError where `given` is no mapping.
    """

    def __init__(self, given: Mapping[str, Any], step: Any, epoch: Any) -> None:
        self._head = {"step": step, "epoch": epoch}
        if type(given) is dict and sanitize.PLAIN.issuperset(map(type, given.values())):
            self._given: Mapping[str, Any] = given.copy()
        else:
            self._read = sanitize.scalars(given)

    @cached_property
    def _read(self) -> tuple[dict[str, Number], list[str]]:
        return sanitize.scalars(self._given)

    @property
    def nonfinite(self) -> list[str]:
        """Names of those that were NaN or infinite."""
        return self._read[1]

    def line(self) -> bytes:
        """The line of ``metrics.jsonl``."""
        head, _ = sanitize.scalars(self._head)
        head = {name: value for name, value in head.items() if value is not None}
        return msgspec.json.encode({**head, **self._read[0]})

    def of_update(self) -> dict[str, Number]:
        """Without what the trainer itself gave as None: null stands for not finite."""
        values, names = self._read
        nonfinite = frozenset(names)
        return {
            name: value for name, value in values.items() if value is not None or name in nonfinite
        }
