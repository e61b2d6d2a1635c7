"""All that a training leaves behind, and the random states on its way."""

from __future__ import annotations

from same_training import digest, random_states
from swift_support import train

# The trainer's own readings of clocks.
TIMES = {"step_time", "train_runtime", "train_samples_per_second", "train_steps_per_second"}
TIMES |= {"elapsed_time", "remaining_time", "train_speed(s/it)"}


def run(folder, output, **options):
    """Of one training: texts, batches, logs, weights, and the states of the generators."""
    import torch
    from swift.rewards import ORM, orms
    from transformers import TrainerCallback

    texts, states, batches, trainers = [], [], [], []

    class Watching(ORM):
        def __call__(self, completions, answer, **kwargs):
            import tiny

            texts.extend(completions)
            states.append(random_states())
            return tiny.right_or_digits([[{"content": each}] for each in completions], answer)

    class Watch(TrainerCallback):
        def on_substep_end(self, *args, **kwargs):
            states.append(random_states())

        on_step_begin = on_optimizer_step = on_step_end = on_log = on_train_end = on_substep_end

    def watch(trainer):
        trainers.append(trainer)
        trainer.add_callback(Watch())
        loss = trainer.compute_loss

        def compute_loss(model, inputs, *args, **kwargs):
            whole = {**inputs["model_inputs"], **vars(inputs["grpo_batch"])}
            tensors = {name: value for name, value in whole.items() if hasattr(value, "tolist")}
            batches.append({name: digest(value.tolist()) for name, value in tensors.items()})
            return loss(model, inputs, *args, **kwargs)

        trainer.compute_loss = compute_loss

    orms["watching"] = Watching
    try:
        train(folder, output, watch=watch, reward_funcs="watching", **options)
    finally:
        del orms["watching"]
    (trainer,) = trainers
    weights = torch.cat([parameter.detach().flatten() for parameter in trainer.model.parameters()])
    history = trainer.state.log_history
    return {
        "texts": texts,
        "states": states,
        "batches": batches,
        "logs": [{k: v for k, v in log.items() if k not in TIMES} for log in history],
        "weights": digest(weights.tolist()),
        "end": random_states(),
        "keys": [list(log) for log in history],
    }
