"""What a generation made, counted on ms-swift's own Python lists: no device is waited for."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

# The label of a token that the loss leaves out.
_IGNORED = -100


class Lengths(NamedTuple):
    """Tokens of one sample."""

    prompt: int
    completion: int
    environment: int
    trained: int


class Discarded(NamedTuple):
    """`n` samples that this process generated and nobody trains on, with their completion tokens."""

    reason: str
    n: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Rollout:
    """The samples that this process trains on, micro-batch after micro-batch.

    `first` is the index of the first one among those of all processes, `sizes` are those of the
    micro-batches.
    """

    lengths: list[Lengths]
    truncated: list[bool]
    groups: list[int]
    first: int
    sizes: list[int]

    def column(self, name: str) -> list[int]:
        """One number for each sample."""
        return [getattr(each, name) for each in self.lengths]


def read_batch(chunks: Sequence[Sequence[Any]], trainer: Any) -> Rollout:
    """The counts of the encoded samples of each micro-batch.

    ms-swift puts the samples of its processes behind each other, as many of each. Processes of one
    sequence-parallel group train on the same ones, those of the whole group. A scheduler that makes
    several samples of one trajectory gives each process what it gives: then places mean nothing,
    and a group is what has the same prompt.
    """
    samples = [sample for chunk in chunks for sample in chunk]
    lengths = [read_lengths(sample) for sample in samples]
    truncated = [bool(sample.is_truncated) for sample in samples]
    if trainer.overlong_filter:
        lengths = [
            each._replace(trained=0) if cut else each
            for each, cut in zip(lengths, truncated, strict=True)
        ]
    if trainer.dynamic_num_samples:
        first = 0
        groups = [int(sample.prompt_id.rpartition("_")[2]) for sample in samples]
    else:
        parallel = trainer.template.sequence_parallel_size
        first = trainer.accelerator.process_index // parallel * len(samples)
        size = trainer.num_generations
        groups = [place // size for place in range(first, first + len(samples))]
    return Rollout(lengths, truncated, groups, first, [len(chunk) for chunk in chunks])


def read_lengths(sample: Any) -> Lengths:
    """Tokens of one encoded sample: prompt, then what the model wrote and what it was answered.

    A scheduler's first turn may begin with tokens of the template, which the model was given: there
    the prompt ends where the first trained token is. Raises TypeError for tensors: to read one may
    wait for a device.
    """
    labels = sample.encoded["labels"]
    if type(labels) is not list:
        raise TypeError(f"the encoded labels are a {type(labels).__name__}, not a list")
    total = len(labels)
    trained = total - labels.count(_IGNORED)
    turns, masks = _nested(sample.response_token_ids), _nested(sample.response_loss_mask)
    completion = _written(turns, masks) if turns else trained
    if len(turns) == 1 and not masks:
        prompt = total - len(turns[0])
    else:
        prompt = next((at for at, label in enumerate(labels) if label != _IGNORED), total)
    return Lengths(prompt, completion, total - prompt - completion, trained)


def written(sample: Any) -> int:
    """Completion tokens of a sample that is not encoded."""
    return _written(_nested(sample.response_token_ids), _nested(sample.response_loss_mask))


def _written(turns: list[list[int]], masks: list[list[int]]) -> int:
    """Tokens of the model: those of its turns that no mask says came from elsewhere."""
    return sum(map(len, turns)) - sum(mask.count(0) for mask in masks)


def _nested(turns: Sequence[Any]) -> list[Any]:
    """One list for each turn; a single turn may come as it is."""
    return [turns] if turns and isinstance(turns[0], int) else list(turns or ())


def not_needed(
    generations: Sequence[Sequence[Any]],
    valid: Sequence[Sequence[bool]],
    *,
    process: int,
    size: int,
) -> list[Discarded]:
    """What dynamic sampling drops of this process's own generations, by reason.

    Args:
        generations: the samples of this process, generation by generation.
        valid: of each generation that was judged: whether each sample of all processes has a group
            whose rewards differ.
        process: index of this process.
        size: samples that the trainer needs, of all processes. It takes the first valid ones, or the
            first generation as it is where they are too few.
    """
    lost: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    enough = sum(sum(each) for each in valid) >= size
    taken = 0
    for number, samples in enumerate(generations):
        judged = valid[number] if number < len(valid) else None
        first = process * len(samples)
        for at, sample in enumerate(samples, start=first):
            if judged is None or judged[at]:
                reason = "surplus"
                kept = judged is not None and enough and taken + sum(judged[:at]) < size
            else:
                reason, kept = "zero_advantage", False
            if not (kept if enough else number == 0):
                lost[reason][0] += 1
                lost[reason][1] += written(sample)
        taken += sum(judged or ())
    return [Discarded(reason, n, tokens) for reason, (n, tokens) in sorted(lost.items())]
