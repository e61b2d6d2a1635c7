"""Jobs of several ranks, what each of them counted itself, and the files that they left."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE)]  # the helpers of these tests

pytest.register_assert_rewrite("left")

from jobs import Jobs  # noqa: E402


@pytest.fixture
def jobs(tmp_path: Path) -> Iterator[Jobs]:
    made = Jobs(tmp_path)
    yield made
    made.close()
