"""The reward of the demo as ms-swift takes it: `--external_plugins` names this file."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import tiny
from swift.rewards import ORM, orms


class RightOrDigits(ORM):
    """1 for the right sum, plus the share of digits."""

    def __call__(self, completions: list[str], answer: list[str], **_: Any) -> list[float]:
        """One reward for each completion."""
        replies = [[{"content": completion}] for completion in completions]
        return tiny.right_or_digits(replies, answer)


orms["right_or_digits"] = RightOrDigits
