"""What a receiver says to one request."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

#: The encoded size that receivers take by default, less what surrounds a message on the wire.
MAX_BYTES = 4 * 1024 * 1024 - 1024

QUEUE_FULL = "queue_full"
CLOSED = "closed"
ERROR = "error"
TOO_LARGE = "too_large"
PARTIAL_SUCCESS = "partial_success"

Signal = Literal["traces", "metrics"]
_SHORTEST_SECRET = 4


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of a request.

    Attributes:
        kind: ``taken``; ``too_large``; ``refused``, and would be again; ``failed``, and may be tried
            again.
        reason: a word for the counts, such as ``http_503``.
        message: a sentence that says what to mend.
        rejected: how many of the items of a request that was taken were not.
        retry_after_s: how long the receiver wants to be left alone.
        sent: it failed without an answer, and the receiver may have it all the same.
    """

    kind: Literal["taken", "too_large", "refused", "failed"]
    reason: str = ""
    message: str = ""
    rejected: int = 0
    retry_after_s: float | None = None
    sent: bool = False


class Transport(Protocol):
    """Sends encoded requests of one signal to one receiver, on one thread."""

    @property
    def timeout_s(self) -> float:
        """How long a request may take."""

    @property
    def exporter(self) -> Any:
        """The released exporter whose settings are used."""

    def send(self, body: bytes, timeout_s: float) -> Answer:
        """One attempt; raises nothing that a receiver or a network can cause."""

    def close(self) -> None:
        """Let connections go."""


def without(secrets: Iterable[str], answer: Answer) -> Answer:
    """The same without the values of headers, which receivers and libraries repeat in messages."""
    message = answer.message
    for secret in secrets:
        if len(secret) >= _SHORTEST_SECRET:
            message = message.replace(secret, "...")
    return answer if message == answer.message else replace(answer, message=message)


class SeamError(Exception):
    """The installed exporter is not made as those that this package was tested with."""


def shortened(text: object, length: int = 200) -> str:
    """A foreign text in one line."""
    line = " ".join(str(text).split())
    return line if len(line) <= length else f"{line[: length - 3]}..."
