"""Whole processes: the command, an interrupt, an exception that nobody catches."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from conftest import HERE, ROOT
from local import Files

ENDS = {"interrupt": "interrupted", "exception": "failed"}
SCRIPT = """
import os, signal, sys
sys.path[:0] = {paths!r}
signal.signal(signal.SIGINT, signal.default_int_handler)  # in the background of a shell it is ignored
import train_twinkle
train_twinkle.on_the_cpu()
from local import Script
script = Script({model!r})
for number in range(2):
    script.generate()
    script.train(script.samples())
    if number == 1 and {how!r} == "interrupt":
        os.kill(os.getpid(), signal.SIGINT)
    if number == 1 and {how!r} == "exception":
        raise ValueError("a reward")
"""


@pytest.mark.parametrize("how", ENDS)
def test_how_a_script_ends(tmp_path, model_id, how):
    """By the command, with nothing added to the script; exit status and traceback are its own."""
    script = tmp_path / "script.py"
    paths = [str(HERE), str(ROOT / "demo")]
    script.write_text(SCRIPT.format(paths=paths, model=model_id, how=how))
    bin_ = Path(sys.prefix) / "bin"
    command = [bin_ / "otel-grpo", "run", "--run-dir", tmp_path / "run", "--"]
    done = subprocess.run(
        [*command, bin_ / "python", "-W", "ignore", script],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    files = Files(tmp_path / "run")
    assert files.summary["status"] == ENDS[how]
    assert files.updates() == [["applied"], ["applied"]]
    assert done.returncode == {"interrupt": -2, "exception": 1}[how]
    last = {"interrupt": "KeyboardInterrupt", "exception": "ValueError: a reward"}[how]
    assert last in done.stderr.splitlines()
    assert files.windows() == ["complete", "aborted"]
