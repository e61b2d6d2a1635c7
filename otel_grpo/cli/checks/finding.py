"""What a check says."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

State = Literal["good", "note", "bad"]


@dataclass(frozen=True)
class Finding:
    """One line of the page.

    Attributes:
        topic: the heading that it stands under.
        state: ``bad`` is a finding by which the command's exit status is 1.
        text: what was found and, where it is bad, how to mend it. No secret.
        details: for scripts.
    """

    topic: str
    state: State
    text: str
    details: dict[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Plain types only."""
        return asdict(self)
