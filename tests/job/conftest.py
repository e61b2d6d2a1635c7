"""Jobs of several ranks, what each of them counted itself, and the files that they left."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE)]  # the helpers of these tests

pytest.register_assert_rewrite("left")

from jobs import Jobs, Server  # noqa: E402


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.close()


@pytest.fixture
def jobs(server: Server, tmp_path: Path) -> Jobs:
    return Jobs(server, tmp_path)
