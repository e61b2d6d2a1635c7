"""Small trainings, spies that count apart from the plugin, and the files read back."""

from __future__ import annotations

import json
import math
import random
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np


def trainer(output, *, rows=8, reward=None, callbacks=(), seed=0, model=None, kind=None, **options):
    """A GRPOTrainer of the demo's tiny model, with short completions."""
    import tiny
    import torch
    from trl import GRPOConfig, GRPOTrainer

    words = tiny.tokenizer()
    defaults = {
        "per_device_train_batch_size": 8,
        "num_generations": 4,
        "max_completion_length": 8,
        "learning_rate": 1e-3,
        "logging_steps": 1,
        "save_strategy": "no",
    }
    fixed = {"report_to": [], "use_cpu": True, "bf16": False, "disable_tqdm": True, "seed": seed}
    evaluation = options.pop("eval_dataset", None)
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002 (the state that a training moves)
    torch.manual_seed(seed)
    return (kind or GRPOTrainer)(
        model=tiny.model(words) if model is None else model(words),
        processing_class=words,
        reward_funcs=[tiny.right_or_digits] if reward is None else reward,
        train_dataset=tiny.sums(rows),
        eval_dataset=evaluation,
        callbacks=list(callbacks),
        args=GRPOConfig(output_dir=str(output), **{**defaults, **fixed, **options}),
    )


def overflow_in_step(given, step):
    """The loss of one step of the trainer becomes infinite, and its gradients with it."""
    loss = given.compute_loss

    def overflowing(*args, **kwargs):
        value = loss(*args, **kwargs)
        return value * math.inf if given.state.global_step == step else value

    given.compute_loss = overflowing


class Spy:
    """Counts of a training from the trainer's own inputs and outputs, by wrapping one instance.

    Nothing of the plugin is used: what the model was given and wrote, and the masks of the loss.
    """

    def __init__(self, trainer):
        self.prompt_tokens = []  # of each train-mode generation
        self.completion_tokens = []
        self.micro_steps = []  # loss-mask tokens of each training step
        self.logs = []
        self._watch(trainer)

    def _watch(self, trainer):
        import torch

        one = [trainer.processing_class.eos_token_id]  # what TRL 1.13 and older stop at
        stops = torch.tensor(getattr(trainer, "eos_token_ids", one))
        generate, compute_loss, log = trainer.model.generate, trainer.compute_loss, trainer.log

        def spy_generate(*args, **kwargs):
            output = generate(*args, **kwargs)
            # `generate` runs in eval mode; whose it is stands in the trainer's control flow.
            if not self.evaluating:
                self.prompt_tokens.append(int(kwargs["attention_mask"].sum()))
                ends = torch.isin(output[:, kwargs["input_ids"].shape[1] :], stops).int()
                # A token counts as long as none before it has ended the sample.
                self.completion_tokens.append(int((ends.cumsum(dim=1) - ends == 0).sum()))
            return output

        def spy_loss(model, inputs, *args, **kwargs):
            if model.training:
                self.micro_steps.append(int(inputs["completion_mask"].sum()))
            return compute_loss(model, inputs, *args, **kwargs)

        def spy_log(logs, *args, **kwargs):
            result = log(logs, *args, **kwargs)
            self.logs.append(dict(logs))
            return result

        self.evaluating = 0
        evaluate = trainer.evaluate

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


class Files:
    """What a run directory holds."""

    def __init__(self, directory):
        self.path = Path(directory)
        self.summary = json.loads((self.path / "summary.json").read_text())
        lines = (self.path / "metrics_raw.jsonl").read_text().splitlines()
        self.records = [json.loads(line) for line in lines]
        flat = self.path / "metrics.jsonl"  # none before the first log call
        self.flat = [json.loads(line) for line in flat.open()] if flat.exists() else []
        self.run = json.loads((self.path / "run.json").read_text())

    def of(self, kind, attempt=None):
        last = self.run["attempts"][-1]["attempt"] if attempt is None else attempt
        return [r for r in self.records if r["kind"] == kind and r["attempt"] == last]

    def phases(self, window):
        """(phase, phase of the parent) -> number, of one `rollout` record."""
        rows = window["attributes"]["intervals"]
        names = {row[0]: row[2] for row in rows}
        return Counter((row[2], names.get(row[1])) for row in rows)

    def spans(self):
        found = []
        for file in sorted((self.path / "spans").iterdir()):
            for line in file.open():
                for resource in json.loads(line)["resourceSpans"]:
                    for scope in resource["scopeSpans"]:
                        found += scope["spans"]
        return found

    def by_name(self):
        spans = defaultdict(list)
        for span in self.spans():
            spans[span["name"]].append(span)
        return spans


def audited(directory):
    """The files, after the independent audit has passed over them."""
    from otel_grpo.audit import audit

    report = audit(Path(directory))
    assert report.exit_status == 0, [str(finding) for finding in report.findings]
    return Files(directory)
