"""A GRPO training with TRL, as anybody would write it: three iterations, 8 prompts x 8 completions."""

from __future__ import annotations

import argparse
import os
import warnings

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # everything is made by `tiny`
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")

import tiny
from trl import GRPOConfig, GRPOTrainer

# TRL 1.16 still uses names that transformers has renamed.
warnings.filterwarnings("ignore", category=FutureWarning, module="transformers")

PROMPTS = 8
COMPLETIONS = 8


def main() -> None:
    """Train for a few iterations and leave no checkpoint."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output-dir", default="runs/trl-output")
    parser.add_argument("--iterations", type=int, default=3)
    parser.add_argument("--max-tokens", type=int, default=32, help="longest completion")
    options = parser.parse_args()

    words = tiny.tokenizer()
    trainer = GRPOTrainer(
        model=tiny.model(words),
        processing_class=words,
        reward_funcs=[tiny.right_or_digits],
        train_dataset=tiny.sums(),
        args=GRPOConfig(
            output_dir=options.output_dir,
            per_device_train_batch_size=PROMPTS * COMPLETIONS,
            num_generations=COMPLETIONS,
            max_completion_length=options.max_tokens,
            max_steps=options.iterations,
            learning_rate=1e-3,
            logging_steps=1,
            save_strategy="no",
            report_to=[],
            seed=0,
            use_cpu=True,
            bf16=False,
            activation_checkpointing=False,
            disable_tqdm=True,
        ),
    )
    trainer.train()


if __name__ == "__main__":
    main()
