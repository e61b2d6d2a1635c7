"""A GRPO training with Twinkle, as anybody would write it: three iterations, 8 prompts x 8 completions.

The model that is trained generates itself, so nothing has to be added to the script: an iteration
starts where it generates after it was trained.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import tempfile
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # everything is made by `tiny`

import tiny
import torch
import twinkle
from twinkle.advantage import GRPOAdvantage
from twinkle.model import TransformersModel
from twinkle.processor import InputProcessor
from twinkle.template import Template
from twinkle.utils.platforms.gpu import GPU

PROMPTS = 8
COMPLETIONS = 8


def main() -> None:
    """Train for a few iterations and leave no checkpoint."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--iterations", type=int, default=3)
    parser.add_argument("--max-tokens", type=int, default=32, help="longest completion")
    parser.add_argument("--report", type=Path, help="where to write what the script counted")
    options = parser.parse_args()

    on_the_cpu()
    with tempfile.TemporaryDirectory() as folder:
        words = tiny.tokenizer()
        tiny.model(words).save_pretrained(folder)
        words.save_pretrained(folder)
        history = train(folder, options.iterations, options.max_tokens)
    if options.report:
        options.report.write_text(json.dumps(history))


def on_the_cpu() -> None:
    """Twinkle 0.5 has no platform for CPUs: where there is no GPU it asks for one all the same."""
    GPU.get_local_device = staticmethod(lambda *_, **__: "cpu")
    GPU.device_backend = staticmethod(lambda *_, **__: "gloo")


def train(model_id: str, iterations: int, max_tokens: int) -> list[dict[str, Any]]:
    """The loop; gives what each iteration made."""
    twinkle.initialize(mode="local", nproc_per_node=1, lazy_collect=False)
    model = TransformersModel(
        model_id=model_id, mixed_precision="no", torch_dtype=torch.float32, strategy="accelerate"
    )
    model.set_optimizer("AdamW", lr=1e-3)
    model.set_lr_scheduler("ConstantLR", factor=1.0)
    model.set_loss("GRPOLoss", epsilon=0.2)
    model.set_processor(InputProcessor)
    model.set_template("Template", model_id=model_id)
    template = Template(model_id=model_id, max_length=400)
    advantage = GRPOAdvantage()
    draw = random.Random(0)
    history = []
    for number in range(1, iterations + 1):
        sums = [(draw.randint(0, 9), draw.randint(0, 9)) for _ in range(PROMPTS)]
        pairs = [pair for pair in sums for _ in range(COMPLETIONS)]
        features = [encode(template, a, b) for a, b in pairs]
        completions, logps = generate(model, template, features, max_tokens)
        texts = [template.tokenizer.decode(ids, skip_special_tokens=True) for ids in completions]
        rewards = tiny.right_or_digits(
            [[{"content": text}] for text in texts], [str(a + b) for a, b in pairs]
        )
        model.forward_backward(
            inputs=[
                template.concat_input_feature(feature, ids)
                for feature, ids in zip(features, completions, strict=True)
            ],
            old_logps=logps,
            advantages=advantage(rewards, num_generations=COMPLETIONS, scale="group").tolist(),
        )
        model.clip_grad_and_step()
        metric = model.calculate_metric(is_training=True)
        reward = sum(rewards) / len(rewards)
        history.append({
            "prompt_tokens": sum(len(feature["input_ids"]) for feature in features),
            "completion_tokens": sum(map(len, completions)),
            "reward": reward,
            "loss": metric["loss"],
            "grad_norm": metric["grad_norm"],
        })  # fmt: skip
        print(
            f"iteration {number}: loss {metric['loss']}, gradient {metric['grad_norm']}, "
            f"reward {reward:.3f}"
        )
    return history


def encode(template: Template, a: int, b: int) -> dict[str, Any]:
    """A sum as a prompt."""
    messages = [{"role": "user", "content": f"{a}+{b}="}]
    return dict(template.encode({"messages": messages}, add_generation_prompt=True))


def generate(
    model: TransformersModel, template: Template, features: list[dict[str, Any]], max_tokens: int
) -> tuple[list[list[int]], list[list[float]]]:
    """A completion of each prompt, up to and with the token that ends it, and its log-probabilities."""
    words = template.tokenizer
    prompts = [torch.as_tensor(feature["input_ids"]).tolist() for feature in features]
    width = max(map(len, prompts))
    policy = model.strategy.unwrap_model(model.model)
    policy.eval()
    with torch.no_grad():
        output = policy.generate(
            input_ids=torch.tensor([[words.pad_token_id] * (width - len(p)) + p for p in prompts]),
            attention_mask=torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts]),
            max_new_tokens=max_tokens,
            do_sample=True,
            pad_token_id=words.pad_token_id,
            return_dict_in_generate=True,
            output_logits=True,
        )
    policy.train()
    written = output.sequences[:, width:]
    logps = torch.stack(output.logits, 1).log_softmax(-1).gather(-1, written[..., None])[..., 0]
    completions = []
    for row in written.tolist():
        end = row.index(words.eos_token_id) + 1 if words.eos_token_id in row else len(row)
        completions.append(row[:end])
    return completions, [
        row[: len(ids)] for row, ids in zip(logps.tolist(), completions, strict=True)
    ]


if __name__ == "__main__":
    main()
