"""Real trainings with ms-swift: a tiny model, a handful of tokens, all in one process."""

from __future__ import annotations

import importlib
import os
import sys
import warnings
from pathlib import Path

import pytest

HERE = Path(__file__).parent
TESTS = HERE.parent
# The helpers of these tests; the model of the loop and the readers of files of TRL's, whose loop it
# is; the demo's tiny model.
sys.path[:0] = [str(HERE), str(TESTS / "trl"), str(TESTS.parent / "demo")]

pytest.register_assert_rewrite("of_two_ranks")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
os.environ.setdefault("LOG_LEVEL", "ERROR")


def pytest_collection_modifyitems(items):
    """Torch and the trainers warn of what is theirs to mend."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings("ignore"))


@pytest.fixture(scope="session")
def swift():
    """The module of the real trainer, imported once; importing it takes seconds."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        importlib.import_module("swift.pipelines")
        return importlib.import_module("swift.rlhf_trainers.grpo_trainer")


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """Model and data set of the demo."""
    import train_swift

    made = tmp_path_factory.mktemp("swift")
    train_swift.prepare(made)
    return made


@pytest.fixture
def observed(swift, tmp_path, monkeypatch):
    """Trainings of this test are observed, strictly; gives the run directory."""
    import otel_grpo

    directory = tmp_path / "run"
    monkeypatch.setenv("OTEL_GRPO_RUN_DIR", str(directory))
    monkeypatch.setenv("OTEL_GRPO_STRICT", "true")
    otel_grpo.instrument()
    yield directory
    otel_grpo.uninstrument()
