"""Trainings of one rank, one after the other; torchrun starts it. The argument is a folder.

Each leaves in `<folder>/<name>-<rank>.json` what this process saw of it, apart from the plugin.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import sys
import warnings
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "demo")]
warnings.simplefilter("ignore")

import torch  # noqa: E402
from accelerate.state import AcceleratorState  # noqa: E402
from same_training import run  # noqa: E402
from support import Spy, trainer  # noqa: E402
from transformers import TrainerCallback  # noqa: E402

import otel_grpo  # noqa: E402

FOLDER = Path(sys.argv[1])
RANK = int(os.environ["RANK"])


class Heard(logging.Handler):
    """What the plugin tells its user."""

    def __init__(self):
        super().__init__()
        self.lines = []
        logging.getLogger("otel_grpo").addHandler(self)

    def emit(self, record):
        self.lines.append(record.getMessage())


HEARD = Heard()


def leave(name, seen):
    HEARD.lines, said = [], HEARD.lines
    (FOLDER / f"{name}-{RANK}.json").write_text(json.dumps({**seen, "said": said}))


@contextlib.contextmanager
def observed(name):
    os.environ["OTEL_GRPO_RUN_DIR"] = str(FOLDER / name)
    otel_grpo.instrument()
    try:
        yield
    finally:
        otel_grpo.uninstrument()


def copies():
    """Without `use_cpu` accelerate takes each process here for the only one, whatever torch says."""
    with observed("copies"):
        given = trainer(FOLDER / f"out-copies-{RANK}", use_cpu=False, max_steps=1)
        spy = Spy(given)
        given.train()
    leave("copies", {**counts(spy), "group": torch.distributed.get_world_size()})
    # For the next training, which asks anew; the group stays.
    AcceleratorState._reset_state(reset_partial_state=True)


def counts(spy):
    return {
        "prompt": spy.prompt_tokens,
        "completion": spy.completion_tokens,
        "steps": spy.micro_steps,
        "logged": [log["num_tokens"] for log in spy.logs if "num_tokens" in log],
    }


def counted(name, options):
    with observed(name):
        given = trainer(FOLDER / f"out-{name}-{RANK}", **options)
        spy = Spy(given)
        given.train()
    leave(name, counts(spy))


class Killed(TrainerCallback):
    """Rank 1 goes while it trains in the second step."""

    def on_step_begin(self, args, state, control, **kwargs):
        self.step = state.global_step

    def watch(self, given):
        loss = given.compute_loss

        def compute_loss(*args, **kwargs):
            if RANK == 1 and self.step == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            return loss(*args, **kwargs)

        given.compute_loss = compute_loss


def killed():
    # torchrun sends it when a rank is gone; what is asked here is what the trainer's error makes.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    error = None
    with observed("killed"):
        callback = Killed()
        given = trainer(FOLDER / f"out-killed-{RANK}", callbacks=[callback], max_steps=3)
        callback.watch(given)
        spy = Spy(given)
        try:
            given.train()
        except Exception as raised:
            error = type(raised).__name__
    leave("killed", {**counts(spy), "error": error})


def main():
    options = json.loads((FOLDER / "options.json").read_text())
    copies()
    leave("alone", run(FOLDER / f"out-alone-{RANK}", **options["same"]))
    with observed("same"):
        seen = run(FOLDER / f"out-same-{RANK}", **options["same"])
    leave("same", seen)
    for name in ("plain", "fixed"):
        counted(name, options[name])
    killed()


main()
