"""Trainings of the reference trainer: each takes half a minute, so the tests share them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from training import Files, Training


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """A training by its arguments, made when it is first asked for."""
    made = {}

    def train(*arguments, how="observed"):
        key = (arguments, how)
        if key not in made:
            made[key] = Training(tmp_path_factory.mktemp(how), arguments, how=how)
        return made[key]

    return train


@pytest.fixture(scope="session")
def recorded(trained):
    """The files of an observed training."""
    return lambda *arguments: Files(trained(*arguments).path)
