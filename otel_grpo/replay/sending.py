"""One request after the other, and an exact account of what became of each."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from otel_grpo.otlp.answer import MAX_BYTES, TOO_LARGE

if TYPE_CHECKING:
    from otel_grpo.otlp.answer import Answer, Transport

#: Pauses before a request that failed is sent again; then the receiver counts as away.
PAUSES_S = (0.5, 1.0, 2.0, 4.0)
#: A receiver that wants to be left alone for longer counts as away, too.
LONGEST_PAUSE_S = 30.0


@dataclass
class Account:
    """created = taken + the sum of ``lost`` at every instant.

    Attributes:
        lost: by reason; ``unconfirmed`` of those were sent and may have arrived.
        said: the first message of each reason.
    """

    created: int = 0
    taken: int = 0
    lost: Counter[str] = field(default_factory=Counter)
    unconfirmed: int = 0
    said: dict[str, str] = field(default_factory=dict)

    def lose(self, n: int, reason: str, message: str) -> None:
        if n:
            self.lost[reason] += n
            self.said.setdefault(reason, message)


class Sender:
    """Sends the requests of one signal. Once the receiver is away nothing more is tried."""

    def __init__(self, transport: Transport, sleep: Callable[[float], object] = time.sleep) -> None:
        self.account = Account()
        self._transport = transport
        self._sleep = sleep
        self._away: Answer | None = None

    def send(self, body: bytes, n: int) -> bool:
        """Sends a request of `n` items and enters what became of it.

        False where it is too large; then it is not entered, and the caller makes it smaller or calls
        `give_up`.
        """
        account = self.account
        if self._away is None and len(body) > MAX_BYTES:
            return False
        answer, sent = self._tried(body) if self._away is None else (self._away, False)
        if answer.kind == "too_large":
            return False
        account.created += n
        if answer.kind == "taken":
            rejected = min(answer.rejected, n)
            account.taken += n - rejected
            account.lose(rejected, answer.reason, answer.message)
            return True
        account.lose(n, answer.reason, answer.message)
        account.unconfirmed += n * sent
        if answer.kind == "failed":
            self._away = answer
        return True

    def give_up(self, n: int) -> None:
        """Enters items that the receiver finds too large."""
        self.account.created += n
        self.account.lose(n, TOO_LARGE, "one alone is larger than the receiver takes")

    def _tried(self, body: bytes) -> tuple[Answer, bool]:
        answer = self._transport.send(body, self._transport.timeout_s)
        sent = answer.sent
        for pause in PAUSES_S:
            pause_s = max(pause, answer.retry_after_s or 0.0)
            if answer.kind != "failed" or pause_s > LONGEST_PAUSE_S:
                break
            self._sleep(pause_s)
            answer = self._transport.send(body, self._transport.timeout_s)
            sent = sent or answer.sent
        return answer, sent
