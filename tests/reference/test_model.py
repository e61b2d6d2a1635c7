"""The policy workers' own arithmetic is that of the model that generates."""

from __future__ import annotations

import subprocess
import sys

from training import ROOT

CHILD = """
import tiny, torch
from ray_grpo.batch import Sample
from ray_grpo.model import log_probs, views

model = tiny.model(tiny.tokenizer()).eval()
weights = dict(sorted(model.named_parameters()))
shapes = {name: tuple(weight.shape) for name, weight in weights.items()}
flat = torch.cat([weight.detach().flatten() for weight in weights.values()])
flat += 0.05 * torch.randn(flat.shape, generator=torch.Generator().manual_seed(1))
with torch.no_grad():
    for name, values in views(flat, shapes).items():
        weights[name].copy_(values)
prompts = [list(range(5, 15)), [7, 8, 9]]
completions = [list(range(30, 50)), [4, 5, 6, 1, 2]]
samples = [Sample(0, p, c, "", False, 0) for p, c in zip(prompts, completions)]
for sample, ours in zip(samples, log_probs(flat, shapes, samples)):
    ids = torch.tensor([sample.prompt + sample.completion])
    rows = torch.log_softmax(model(ids).logits[0, len(sample.prompt) - 1 : -1], dim=-1)
    theirs = rows.gather(1, torch.tensor(sample.completion)[:, None])[:, 0]
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)
print("same")
"""


def test_log_probabilities_are_those_of_transformers():
    """Of weights that are not near zero, for rows of unequal length."""
    child = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", CHILD],
        cwd=ROOT / "demo",
        capture_output=True,
        text=True,
        check=False,
    )
    assert child.stdout == "same\n", child.stderr
