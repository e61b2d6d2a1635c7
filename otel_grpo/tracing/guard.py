"""Nothing of ours may raise into the trainer: faults are swallowed, counted by place, told rarely."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
from collections import Counter
from time import monotonic

STRICT = "OTEL_GRPO_STRICT"
_SECONDS_BETWEEN_LOGS = 60.0


class _Logger:
    """Python's logger of this package: a handler of the user's that fails must not reach the training."""

    _logger = logging.getLogger("otel_grpo")

    def debug(self, message: str, *about: object) -> None:
        with contextlib.suppress(Exception):
            self._logger.debug(message, *about, stacklevel=2)

    def warning(self, message: str, *about: object, exc_info: bool = False) -> None:
        with contextlib.suppress(Exception):
            self._logger.warning(message, *about, exc_info=exc_info, stacklevel=2)


logger = _Logger()


class ApiError(Exception):
    """The public API was used in a way that has no meaning; raised in strict mode only."""


class Guard:
    """Counts faults by place. In strict mode (for tests) it raises them."""

    def __init__(self, *, strict: bool | None = None) -> None:
        self.strict = is_true(os.environ.get(STRICT)) if strict is None else strict
        self.errors: Counter[str] = Counter()
        # Reentrant: a signal handler or the garbage collector may end a span while we hold it.
        self._lock = threading.RLock()
        self._told: dict[str, float] = {}

    def fault(self, place: str, error: BaseException) -> None:
        """An exception inside the plugin, or of a file or reading that it needs."""
        if self._count(place) and not self.strict:
            logger.warning("otel-grpo: %s failed (training goes on): %r", place, error)
        if self.strict:
            raise error

    def misuse(self, what: str, message: str) -> None:
        """A call of the public API that can't be honoured; warned about once."""
        first = f"api.{what}" not in self.errors
        self._count(f"api.{what}")
        if self.strict:
            raise ApiError(message)
        if first:
            logger.warning("otel-grpo: %s (counted; training goes on)", message)

    def snapshot(self) -> dict[str, int]:
        with self._lock:
            return dict(self.errors)

    def _count(self, place: str) -> bool:
        """Count; True when it may be told again."""
        now = monotonic()
        with self._lock:
            self.errors[place] += 1
            if now - self._told.get(place, -_SECONDS_BETWEEN_LOGS) < _SECONDS_BETWEEN_LOGS:
                return False
            self._told[place] = now
            return True


def tell(message: str) -> None:
    """One line to the person at the terminal, on stderr: stdout belongs to the trainer."""
    with contextlib.suppress(Exception):
        print(f"otel-grpo: {message}", file=sys.stderr, flush=True)  # noqa: T201


def warn_of_loss(sink: str, reason: str, message: str) -> None:
    """What a writer has to say, once for a sink and a reason."""
    logger.warning("otel-grpo: %s (training goes on)", message)


def is_true(value: str | None) -> bool:
    """OpenTelemetry's rule for environment variables: only "true", in any case, is true."""
    return value is not None and value.strip().lower() == "true"
