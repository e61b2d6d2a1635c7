"""All that a training leaves behind, and the random states on its way."""

from __future__ import annotations

import hashlib
import random

import numpy as np
from support import trainer

# The trainer's own readings of clocks.
TIMES = {"step_time", "train_runtime", "train_samples_per_second", "train_steps_per_second"}


def digest(*parts) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def random_states() -> tuple[str, ...]:
    """Of Python, numpy and torch, each apart."""
    import torch

    return (
        digest(random.getstate()),
        digest(np.random.get_state()[1].tolist(), np.random.get_state()[2:]),  # noqa: NPY002
        digest(torch.get_rng_state().tolist()),
    )


def run(output, **options):
    """All that a training leaves behind, and the random states on its way."""
    import tiny
    import torch
    from transformers import TrainerCallback

    texts, states, batches = [], [], []

    def reward(completions, answer, **kwargs):
        texts.extend(completion[0]["content"] for completion in completions)
        states.append(random_states())
        return tiny.right_or_digits(completions, answer)

    class Watch(TrainerCallback):
        def on_substep_end(self, *args, **kwargs):
            states.append(random_states())

        on_step_begin = on_optimizer_step = on_step_end = on_log = on_train_end = on_substep_end

    given = trainer(output, reward=[reward], callbacks=[Watch()], **options)
    loss = given.compute_loss

    def compute_loss(model, inputs, *args, **kwargs):
        batches.append({name: digest(value.tolist()) for name, value in inputs.items()})
        return loss(model, inputs, *args, **kwargs)

    given.compute_loss = compute_loss
    given.train()
    weights = torch.cat([parameter.detach().flatten() for parameter in given.model.parameters()])
    logs = [{k: v for k, v in log.items() if k not in TIMES} for log in given.state.log_history]
    return {
        "texts": texts,
        "states": states,
        "batches": batches,
        "logs": logs,
        "weights": digest(weights.tolist()),
        "end": random_states(),
        "keys": [list(log) for log in given.state.log_history],
    }
