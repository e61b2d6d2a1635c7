"""A model, a tokenizer and a data set that are made on the spot: nothing is fetched from anywhere.

The model is a Qwen3 of 90,000 random weights over bytes. It can't add, but it can learn to write
digits, which is enough for a training with gradients that are not zero.
"""

from __future__ import annotations

import random
import re
from typing import TYPE_CHECKING, Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

if TYPE_CHECKING:
    from datasets import Dataset

PAD, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"

CHAT_TEMPLATE = (
    "{%- for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{%- endif %}"
)


def tokenizer() -> PreTrainedTokenizerFast:
    """One token a byte: a vocabulary of 256 symbols and three special tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {symbol: index for index, symbol in enumerate(alphabet)}
    bytes_only = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    bytes_only.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    bytes_only.decoder = decoders.ByteLevel()
    bytes_only.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token in (PAD, START, END)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=bytes_only,
        eos_token=END,
        pad_token=PAD,
        model_max_length=2048,
        padding_side="left",
        model_input_names=["input_ids", "attention_mask"],
        chat_template=CHAT_TEMPLATE,
    )


def model(words: PreTrainedTokenizerFast, *, hidden: int = 64, layers: int = 2) -> Qwen3ForCausalLM:
    """Random weights, the same at each call."""
    torch.manual_seed(0)
    return Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=len(words),
            hidden_size=hidden,
            intermediate_size=2 * hidden,
            num_hidden_layers=layers,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=hidden // 4,
            max_position_embeddings=2048,
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=words.eos_token_id,
            pad_token_id=words.pad_token_id,
        )
    )


def sums(rows: int = 64) -> Dataset:
    """Sums of two digits, as chat prompts with their answers."""
    from datasets import Dataset

    draw = random.Random(0)
    pairs = [(draw.randint(0, 9), draw.randint(0, 9)) for _ in range(rows)]
    return Dataset.from_list(
        [
            {"prompt": [{"role": "user", "content": f"{a}+{b}="}], "answer": str(a + b)}
            for a, b in pairs
        ]
    )


def right_or_digits(
    completions: list[list[dict[str, str]]], answer: list[str], **_: Any
) -> list[float]:
    """1 for the right sum, plus the share of digits.

    The first part can be verified and a random model hardly ever earns it. The second is dense: it
    keeps the advantages of a group apart, else every gradient would be zero.
    """
    return [
        _score(completion[0]["content"], right)
        for completion, right in zip(completions, answer, strict=True)
    ]


def _score(text: str, right: str) -> float:
    number = re.search(r"-?\d+", text)
    solved = number is not None and number.group() == right
    return float(solved) + sum(symbol.isdigit() for symbol in text) / max(1, len(text))
