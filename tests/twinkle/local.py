"""A loop over Twinkle in one process, the same work without a clock of its own; the files read back."""

from __future__ import annotations

import hashlib
import json
import random
from collections import Counter
from pathlib import Path

import numpy as np


class Script:
    """What a user's script has: a policy, a template, and samples of fixed texts.

    Nothing is generated: the tests are of what is done with samples. `generate` lets the policy make
    a token, for those of windows.
    """

    def __init__(self, model_id, *, optimizer="AdamW", accumulate=1, **options):
        import torch
        import twinkle
        from twinkle.model import TransformersModel
        from twinkle.processor import InputProcessor
        from twinkle.template import Template

        twinkle.initialize(mode="local", nproc_per_node=1, lazy_collect=False)
        self.model = TransformersModel(
            model_id=model_id,
            mixed_precision="no",
            torch_dtype=torch.float32,
            grad_scaler_config={"device": "cpu"},
            **options,
        )
        self.model.set_optimizer(optimizer, lr=1e-3)
        self.model.set_loss("GRPOLoss", epsilon=0.2)
        self.model.set_processor(InputProcessor)
        self.model.set_template("Template", model_id=model_id)
        self.template = Template(model_id=model_id, max_length=400)
        self.accumulate = accumulate
        self.draw = random.Random(0)

    def samples(self, prompts=2, completions=2, tokens=4):
        """Features as a script makes them, of prompts that are all different."""
        made = []
        for prompt in range(prompts):
            messages = [{"role": "user", "content": f"{prompt}+{self.draw.randint(10, 99)}="}]
            feature = self.template.encode({"messages": messages}, add_generation_prompt=True)
            made += [
                self.template.concat_input_feature(
                    dict(feature), [self.draw.randrange(256) for _ in range(tokens + i)]
                )
                for i in range(completions)
            ]
        return made

    def generate(self):
        import torch

        policy = self.model.strategy.unwrap_model(self.model.model)
        policy.generate(input_ids=torch.tensor([[1, 2]]), max_new_tokens=1, do_sample=False)

    def train(self, features, *, step=True):
        n = len(features)
        more = {"gradient_accumulation_steps": self.accumulate}
        self.model.forward_backward(
            inputs=features, advantages=[(-1.0) ** i for i in range(n)], **more
        )
        if step:
            self.model.clip_grad_and_step(**more)

    def weights(self):
        import torch

        policy = self.model.strategy.unwrap_model(self.model.model)
        flat = torch.cat([parameter.detach().flatten() for parameter in policy.parameters()])
        return hashlib.sha256(flat.numpy().tobytes()).hexdigest()


def random_states():
    """Of Python, numpy and torch."""
    import torch

    states = (random.getstate(), np.random.get_state(), torch.get_rng_state().tolist())  # noqa: NPY002
    return hashlib.sha256(repr(states).encode()).hexdigest()


class Files:
    """What a run directory holds, after the independent audit has passed over it."""

    def __init__(self, directory):
        from otel_grpo.audit import audit

        self.path = Path(directory)
        report = audit(self.path)
        assert report.exit_status == 0, [str(finding) for finding in report.findings]
        self.summary = json.loads((self.path / "summary.json").read_text())
        lines = (self.path / "metrics_raw.jsonl").read_text().splitlines()
        self.records = [json.loads(line) for line in lines]
        flat = self.path / "metrics.jsonl"
        self.flat = [json.loads(line) for line in flat.open()] if flat.exists() else []

    def of(self, kind):
        return [record for record in self.records if record["kind"] == kind]

    def windows(self):
        return [record["attributes"]["window"]["status"] for record in self.of("rollout")]

    def updates(self):
        """Status of each update, by window."""
        windows = [record["attributes"].get("updates", []) for record in self.of("rollout")]
        return [[update["status"] for update in updates] for updates in windows]

    def phases(self, window):
        """(phase, phase of the parent) -> number, of one `rollout` record."""
        rows = window["attributes"]["intervals"]
        names = {row[0]: row[2] for row in rows}
        return Counter((row[2], names.get(row[1])) for row in rows)

    def worker_lines(self, kind):
        """(name of the worker, line) of each line of that kind."""
        found = []
        for file in sorted((self.path / "workers").iterdir()):
            lines = [json.loads(line) for line in file.open()]
            found += [(file.stem, line) for line in lines if line["kind"] == kind]
        return found

    def spans(self):
        return [
            span
            for file in sorted((self.path / "spans").iterdir())
            for line in file.open()
            for resource in json.loads(line)["resourceSpans"]
            for scope in resource["scopeSpans"]
            for span in scope["spans"]
        ]
