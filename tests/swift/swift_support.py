"""Small trainings by ms-swift's own pipeline, and a spy that counts apart from the plugin."""

from __future__ import annotations

import random
from unittest import mock

import numpy as np

SMALL = {
    "per_device_train_batch_size": 8,
    "num_generations": 4,
    "max_completion_length": 8,
    "max_steps": 2,
    "disable_tqdm": "true",
    "use_cpu": "true",
    "add_version": "false",
}


def command(folder, output, **options):
    """The arguments of `swift rlhf` for one small training."""
    import train_swift

    words = {**SMALL, **options}
    more = [word for name, value in words.items() for word in (f"--{name}", *_words(value))]
    return [*train_swift.arguments(folder, output), *more]


def _words(value):
    return [str(each) for each in value] if isinstance(value, list) else [str(value)]


def train(folder, output, *, watch=None, seed=0, **options):
    """One training in this process; `watch` gets the trainer before it begins."""
    import torch
    from swift.pipelines import rlhf_main
    from swift.pipelines.train.sft import SwiftSft

    begin = SwiftSft.train

    def watched(self, trainer):
        if watch is not None:
            watch(trainer)
        return begin(self, trainer)

    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002 (the state that a training moves)
    torch.manual_seed(seed)
    with mock.patch.object(SwiftSft, "train", watched):
        return rlhf_main(command(folder, output, **options))


class Spy:
    """Counts of a training from the trainer's own inputs and outputs, by wrapping one instance.

    Nothing of the plugin is used: what the model was given and wrote, and the masks of the loss.
    """

    def __init__(self):
        self.prompt_tokens = []  # of each train-mode call of the model's `generate`
        self.completion_tokens = []
        self.micro_steps = []  # loss-mask tokens of each training step
        self.logs = []
        self.trainer = None
        self.evaluating = 0

    def __call__(self, trainer):
        import torch

        self.trainer = trainer
        generate, compute_loss, log = trainer.model.generate, trainer.compute_loss, trainer.log
        evaluate = trainer.evaluate

        def spy_generate(*args, **kwargs):
            output = generate(*args, **kwargs)
            if not self.evaluating:
                ids = getattr(output, "sequences", output)
                config = kwargs.get("generation_config")
                stops = torch.tensor(config.eos_token_id).flatten()
                self.prompt_tokens.append(int(kwargs["attention_mask"].sum()))
                ends = torch.isin(ids[:, kwargs["input_ids"].shape[1] :], stops).int()
                # A token counts as long as none before it has ended the sample.
                self.completion_tokens.append(int((ends.cumsum(dim=1) - ends == 0).sum()))
            return output

        def spy_loss(model, inputs, *args, **kwargs):
            if model.training:
                batch = inputs["grpo_batch"]
                mask = batch.completion_mask
                if trainer.overlong_filter:
                    mask = mask & ~batch.truncated_mask.unsqueeze(-1)
                self.micro_steps.append(int(mask.sum()))
            return compute_loss(model, inputs, *args, **kwargs)

        def spy_log(logs, *args, **kwargs):
            result = log(logs, *args, **kwargs)
            self.logs.append(dict(logs))
            return result

        def spy_evaluate(*args, **kwargs):
            self.evaluating += 1
            try:
                return evaluate(*args, **kwargs)
            finally:
                self.evaluating -= 1

        trainer.model.generate = spy_generate
        trainer.compute_loss = spy_loss
        trainer.log = spy_log
        trainer.evaluate = spy_evaluate
