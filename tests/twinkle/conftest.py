"""Real trainings with Twinkle: a tiny model, a handful of tokens, each in a run directory of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(HERE), str(ROOT / "demo")]

os.environ.setdefault("HF_HUB_OFFLINE", "1")
for _name in ("RUN_DIR", "RUN_ID", "DISABLED"):
    os.environ.pop(f"OTEL_GRPO_{_name}", None)

import stand_ins  # noqa: E402
from local import Files  # noqa: E402


def pytest_collection_modifyitems(items):
    """Torch, transformers and Ray warn of what is theirs to mend."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings("ignore"))


@pytest.fixture(scope="session")
def model_id(tmp_path_factory):
    """A directory with the demo's tiny model."""
    import tiny

    folder = tmp_path_factory.mktemp("model")
    words = tiny.tokenizer()
    tiny.model(words).save_pretrained(folder)
    words.save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="session")
def twinkle():
    """The real package, on this CPU; importing it takes seconds."""
    import train_twinkle

    train_twinkle.on_the_cpu()
    import twinkle

    return twinkle


@pytest.fixture
def observed(twinkle, tmp_path, monkeypatch):
    """What this test trains is observed, strictly; ends the run and gives its audited files."""
    import otel_grpo

    monkeypatch.setenv("OTEL_GRPO_RUN_DIR", str(tmp_path / "run"))
    monkeypatch.setenv("OTEL_GRPO_STRICT", "true")
    otel_grpo.instrument()

    def files():
        otel_grpo.uninstrument()
        return Files(tmp_path / "run")

    yield files
    otel_grpo.uninstrument()


@pytest.fixture(scope="session")
def over_ray(tmp_path_factory, model_id):
    """A training over Ray by its arguments: made when it is first asked for, in a process of its own."""
    made = {}

    def train(*arguments, observed=True):
        key = (arguments, observed)
        if key not in made:
            made[key] = OverRay(tmp_path_factory.mktemp("ray"), arguments, model_id, observed)
        return made[key]

    return train


class OverRay:
    """A run of `over_ray.py`: what it told, and the files if it was observed."""

    def __init__(self, folder, arguments, model_id, observed):
        self.path = folder / "run"
        (folder / "shared").mkdir()
        bin_ = Path(sys.prefix) / "bin"
        command = [str(bin_ / "python"), "-W", "ignore", str(HERE / "over_ray.py")]
        command += [str(folder / "told.json"), *arguments, model_id]
        if observed:
            command = [str(bin_ / "otel-grpo"), "run", "--run-dir", str(self.path), "--", *command]
        done = subprocess.run(
            command,
            env={
                **os.environ,
                "RAY_USAGE_STATS_ENABLED": "0",
                "RAY_AUTH_MODE": "disabled",
                "OTEL_GRPO_STRICT": "true",
                stand_ins.FOLDER: str(folder / "shared"),
            },
            capture_output=True,
            text=True,
            timeout=900,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-4000:]
        self.stderr = done.stderr
        self.told = json.loads((folder / "told.json").read_text())
        self.files = Files(self.path) if observed else None
