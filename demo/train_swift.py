"""A GRPO training by the command of ms-swift: three iterations, 8 prompts x 8 completions.

It writes the model and the data set, then becomes `swift rlhf`; further arguments are passed on.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent


def prepare(folder: Path) -> None:
    """The model in `folder/model`, the data set in `folder/sums.jsonl`; nothing is fetched."""
    import tiny

    words = tiny.tokenizer()
    tiny.model(words).save_pretrained(folder / "model")
    words.save_pretrained(folder / "model")
    with (folder / "sums.jsonl").open("w", encoding="utf-8") as file:
        for row in tiny.sums():
            line = {"messages": row["prompt"], "answer": row["answer"]}
            file.write(json.dumps(line) + "\n")


def arguments(folder: Path, output: Path) -> list[str]:
    """What `swift rlhf` is told; a later argument of the same name takes the place of one here."""
    options = {
        "rlhf_type": "grpo",
        "model": folder / "model",
        "model_type": "qwen3",
        "template": "qwen3",
        "check_model": "false",
        "use_hf": "true",
        "tuner_type": "full",
        "torch_dtype": "float32",
        "gradient_checkpointing": "false",
        "dataset": folder / "sums.jsonl",
        "dataset_num_proc": 1,
        "dataloader_num_workers": 0,
        "load_from_cache_file": "false",
        "external_plugins": HERE / "swift_plugin.py",
        "reward_funcs": "right_or_digits",
        "use_vllm": "false",
        "num_generations": 8,
        "per_device_train_batch_size": 64,
        "gradient_accumulation_steps": 1,
        "max_completion_length": 32,
        "max_steps": 3,
        "learning_rate": 1e-3,
        "warmup_ratio": 0,
        "beta": 0,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "output_dir": output,
    }
    return [word for name, value in options.items() for word in (f"--{name}", str(value))]


def main() -> None:
    """Prepare, then be replaced by the command."""
    folder = Path(tempfile.mkdtemp(prefix="swift-demo-"))
    prepare(folder)
    # The trainer prints the model and all of its options otherwise.
    quiet = {"LOG_LEVEL": "ERROR", "PYTHONWARNINGS": "ignore", "HF_HUB_OFFLINE": "1"}
    command = str(Path(sys.executable).with_name("swift"))
    words = [*arguments(folder, Path("runs/swift-output")), *sys.argv[1:]]
    os.execve(command, [command, "rlhf", *words], {**quiet, **os.environ})


if __name__ == "__main__":
    main()
