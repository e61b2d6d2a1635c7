"""Real trainings with TRL: a tiny model, a handful of tokens, each in a run directory of its own."""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
# The model of the loop and the helpers of these tests; the demo's tiny model.
sys.path[:0] = [str(HERE), str(ROOT / "demo")]

import stand_in_vllm  # noqa: E402 (it lies there)

pytest.register_assert_rewrite("of_two_ranks")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")


def pytest_collection_modifyitems(items):
    """Torch and the trainers warn of what is theirs to mend."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings("ignore"))


@pytest.fixture(scope="session")
def trl():
    """The real package, imported once; importing it takes seconds. What it takes for vLLM is not."""
    stand_in_vllm.install()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import trl
        import trl.trainer.grpo_trainer
    return trl


@pytest.fixture
def observed(trl, tmp_path, monkeypatch):
    """Trainings of this test are observed, strictly; gives the run directory."""
    import otel_grpo

    directory = tmp_path / "run"
    monkeypatch.setenv("OTEL_GRPO_RUN_DIR", str(directory))
    monkeypatch.setenv("OTEL_GRPO_STRICT", "true")
    otel_grpo.instrument()
    yield directory
    otel_grpo.uninstrument()
