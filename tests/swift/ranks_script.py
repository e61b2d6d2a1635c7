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
sys.path[:0] = [str(HERE), str(HERE.parent / "trl"), str(HERE.parents[1] / "demo")]
warnings.simplefilter("ignore")

import torch  # noqa: E402
from accelerate.state import AcceleratorState  # noqa: E402
from same_swift import run  # noqa: E402
from swift_support import Spy, train  # noqa: E402
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


def counts(spy):
    return {
        "prompt": spy.prompt_tokens,
        "completion": spy.completion_tokens,
        "steps": spy.micro_steps,
        "rank": spy.trainer.accelerator.process_index,
        "processes": spy.trainer.accelerator.num_processes,
    }


def counted(name, **options):
    spy = Spy()
    with observed(name):
        train(FOLDER, FOLDER / f"out-{name}", watch=spy, **options)
    leave(name, counts(spy))


def copies():
    """Without `use_cpu` accelerate takes each process here for the only one, whatever torch says."""
    counted("copies", max_steps=1, use_cpu="false", output_dir=FOLDER / f"out-copies-{RANK}")
    # For the next training, which asks anew; the group stays.
    AcceleratorState._reset_state(reset_partial_state=True)


class Killed(TrainerCallback):
    """Rank 1 goes while it trains in the second step."""

    def on_step_begin(self, args, state, control, **kwargs):
        self.step = state.global_step

    def watch(self, trainer):
        trainer.add_callback(self)
        loss = trainer.compute_loss

        def compute_loss(*args, **kwargs):
            if RANK == 1 and self.step == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            return loss(*args, **kwargs)

        trainer.compute_loss = compute_loss


def killed():
    # torchrun sends it when a rank is gone; what is asked here is what the trainer's error makes.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    error, callback = None, Killed()
    with observed("killed"):
        try:
            train(FOLDER, FOLDER / "out-killed", watch=callback.watch, max_steps=3)
        except Exception as raised:
            error = type(raised).__name__
    leave("killed", {"error": error})


def main():
    options = json.loads((FOLDER / "options.json").read_text())
    copies()
    leave("alone", run(FOLDER, FOLDER / "out-alone", **options["same"]))
    with observed("same"):
        seen = run(FOLDER, FOLDER / "out-same", **options["same"])
    leave("same", seen)
    counted("plain", **options["plain"])
    counted("sampled", **options["sampled"])
    killed()
    assert torch.distributed.is_initialized()


main()
