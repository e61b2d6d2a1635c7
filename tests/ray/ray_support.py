"""What the tests of Ray's workers share."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent

# Ray starts as many workers at once as it has CPUs; the actors of these tests ask for none.
INIT = {"num_cpus": 2, "include_dashboard": False, "object_store_memory": 200 * 2**20}


def until(true: Callable[[], Any], seconds: float = 30) -> None:
    """Wait for what another process does in its time."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)
