"""Which process of its job this one is."""

from __future__ import annotations

import sys
from typing import NamedTuple


class Identity(NamedTuple):
    """Rank in the process group, and how many processes it has."""

    rank: int
    world: int


ALONE = Identity(0, 1)


def identity() -> Identity:
    """As the process group says, once there is one; the environment may speak of another job.

    Raises nothing: a torch that can't tell leaves the process alone.
    """
    torch = sys.modules.get("torch")
    try:
        distributed = torch.distributed  # type: ignore[union-attr]
        if distributed.is_available() and distributed.is_initialized():
            return Identity(int(distributed.get_rank()), int(distributed.get_world_size()))
    except Exception:  # no torch, half-imported, or a group that is going down
        return ALONE
    return ALONE
