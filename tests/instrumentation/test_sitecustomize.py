"""What runs at the start of every process below `otel-grpo run`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
AUTO = ROOT / "otel_grpo" / "instrumentation" / "auto"
TRAINER = "trl.trainer.grpo_trainer"


@pytest.fixture
def python(tmp_path):
    """Runs a script with our `sitecustomize` first on the path; gives its standard output."""

    def run(script, **modules):
        for name, text in modules.items():
            file = tmp_path.joinpath(*name.split("__")).with_suffix(".py")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        path = os.pathsep.join([str(AUTO), str(tmp_path), str(ROOT)])
        done = subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONPATH": path},
            capture_output=True,
            text=True,
            check=True,
            cwd=tmp_path,
        )
        return done.stdout.split(), done.stderr

    return run


def test_a_process_without_a_trainer_stays_dormant(python):
    """Nothing of ours is imported and no thread runs."""
    script = (
        "import sys, threading;"
        "print(*[m for m in sys.modules if m.startswith(('otel_grpo', 'opentelemetry'))]);"
        "print(threading.active_count())"
    )
    assert python(script)[0] == ["1"]


def test_the_users_own_sitecustomize_runs(python):
    """As if ours were not there: under its name, with what it does."""
    out, _ = python(
        "import sitecustomize; print(sitecustomize.__file__, sitecustomize.MINE)",
        sitecustomize="MINE = 'mine'; print('ran')",
    )
    assert out[0] == "ran"
    assert Path(out[1]).parent != AUTO
    assert out[2] == "mine"


def test_importing_a_trainer_instruments(python):
    """At the moment of the import, by the facade."""
    out, _ = python(
        f"import sys; import {TRAINER}; print('otel_grpo.instrumentation' in sys.modules)",
        trl____init__="",
        trl__trainer____init__="",
        trl__trainer__grpo_trainer="",
    )
    assert out == ["True"]


def test_it_waits_for_every_trainer_that_has_an_adapter():
    """The list stands twice, for this one may import nothing of ours."""
    from otel_grpo.instrumentation import ADAPTERS

    text = (AUTO / "sitecustomize.py").read_text()
    assert all(f'"{trainer}"' in text for trainer in ADAPTERS)


def test_without_its_packages_the_process_starts(python):
    """An environment that is not ours: one line says that nothing is observed."""
    out, told = python("print('started')", wrapt="raise ImportError('not here')")
    assert out == ["started"]
    assert told == "otel-grpo: nothing is observed: ImportError('not here')\n"
