"""What a generation made, counted on ms-swift's own Python lists: no device is waited for."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
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


Columns = dict[str, list[int] | None]


def first_of(n: int, trainer: Any) -> int:
    """Index of the first of `n` samples that this process trains on, among those of all processes.

    ms-swift puts the samples of its processes behind each other, as many of each. Processes of one
    sequence-parallel group train on the same ones, those of the whole group. Where a scheduler makes
    several samples of one trajectory each process has what it gets: places mean nothing there.
    """
    if trainer.dynamic_num_samples:
        return 0
    return int(trainer.accelerator.process_index // trainer.template.sequence_parallel_size * n)


def read_batch(
    samples: Sequence[Any], *, first: int, group_size: int | None, drops_truncated: bool
) -> tuple[Columns, list[bool]]:
    """Columns of a record of encoded samples, and whether each was cut off.

    Not on the thread that trains.

    Args:
        samples: in the order in which they are trained on.
        first: index of the first one among those of all processes.
        group_size: completions of a prompt; None: a group is what has the same prompt.
        drops_truncated: the loss leaves truncated samples out: nothing of them is trained.
    """
    lengths = [read_lengths(sample) for sample in samples]
    truncated = [bool(sample.is_truncated) for sample in samples]
    trained = [each.trained for each in lengths]
    if drops_truncated:
        trained = [0 if cut else n for n, cut in zip(trained, truncated, strict=True)]
    if group_size is None:
        groups = [int(sample.prompt_id.rpartition("_")[2]) for sample in samples]
    else:
        groups = [place // group_size for place in range(first, first + len(samples))]
    return {
        "prompt_lengths": [each.prompt for each in lengths],
        "completion_lengths": [each.completion for each in lengths],
        "environment_lengths": [each.environment for each in lengths],
        "trained_lengths": trained,
        "group_ids": groups,
    }, truncated


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
