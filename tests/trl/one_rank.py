"""One rank of a job: trainings one after the other. torchrun starts its script, with a folder.

Each leaves in `<folder>/<name>-<rank>.json` what this process saw of it, apart from the plugin.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import sys
from pathlib import Path

import torch
from accelerate.state import AcceleratorState
from transformers import TrainerCallback

import otel_grpo

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


class Rank:
    """Trains by `train(output, watch, **options)`, where `watch` gets the trainer before it begins;
    `spy(trainer)` counts what it does.
    """

    def __init__(self, train, spy):
        self.train = train
        self.spy = spy
        self.options = json.loads((FOLDER / "options.json").read_text())
        self.heard = Heard()

    def leave(self, name, seen):
        self.heard.lines, said = [], self.heard.lines
        (FOLDER / f"{name}-{RANK}.json").write_text(json.dumps({**seen, "said": said}))

    def copies(self):
        """Without `use_cpu` accelerate takes each process here for the only one, whatever torch says."""
        self.counted("copies", f"out-copies-{RANK}", use_cpu=False, max_steps=1)
        # For the next training, which asks anew; the group stays.
        AcceleratorState._reset_state(reset_partial_state=True)

    def same(self, run):
        """The same training without the plugin and with it: `run(output, **options)` tells all of it."""
        options = self.options["same"]
        self.leave("alone", run(FOLDER / "out-alone", **options))
        with _observed("same"):
            seen = run(FOLDER / "out-same", **options)
        self.leave("same", seen)

    def counted(self, name, output=None, watch=None, **options):
        """An observed training, which may fail, and what a spy saw of it."""
        spies, error = [], None

        def watched(trainer):
            if watch is not None:
                watch(trainer)
            spies.append((trainer, self.spy(trainer)))

        with _observed(name):
            try:
                self.train(
                    FOLDER / (output or f"out-{name}"),
                    watched,
                    **{**self.options.get(name, {}), **options},
                )
            except Exception as raised:
                error = raised
        ((trainer, spy),) = spies
        seen = {
            "prompt": spy.prompt_tokens,
            "completion": spy.completion_tokens,
            "steps": spy.micro_steps,
            "logged": [log["num_tokens"] for log in spy.logs if "num_tokens" in log],
            "rank": trainer.accelerator.process_index,
            "processes": trainer.accelerator.num_processes,
            "group": torch.distributed.get_world_size(),
            "error": error and type(error).__name__,
        }
        self.leave(name, seen)
        if watch is None and error is not None:
            raise error

    def killed(self):
        # torchrun sends it when a rank is gone; what is asked here is what the trainer's error makes.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        self.counted("killed", watch=Killed().watch, max_steps=3)


@contextlib.contextmanager
def _observed(name):
    os.environ["OTEL_GRPO_RUN_DIR"] = str(FOLDER / name)
    otel_grpo.instrument()
    try:
        yield
    finally:
        otel_grpo.uninstrument()
