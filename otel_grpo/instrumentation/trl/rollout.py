"""What one generation made, counted on the Python lists that TRL returns: no device is waited for."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

Columns = dict[str, list[int] | None]


def read_generation(output: Sequence[Any], trainer: Any, first: int) -> tuple[Columns, list[bool]]:
    """The counts of what `GRPOTrainer._generate` returned; not on the thread that trains.

    Only its first three items are looked at, by position: prompt ids, completion ids and the mask of
    the tokens that the model wrote; what follows them has changed from release to release.

    Args:
        output: what it returned.
        trainer: that returned it.
        first: index of its first sample among those of all processes.
    """
    prompt_ids, completion_ids, tool_mask = output
    return count(
        prompt_ids,
        completion_ids,
        tool_mask,
        stops=stops(trainer),
        group_size=trainer.num_generations,
        drops_truncated=trainer.mask_truncated_completions,
        first=first,
    )


def stops(trainer: Any) -> set[int]:
    """The ids that end a sample, wherever the installed release keeps them."""
    words = getattr(trainer, "_tokenizer", trainer)  # TRL 1.2 and older: the trainer's own
    ends = getattr(trainer, "eos_token_ids", None)  # 1.13 and older know of one
    return {*([words.eos_token_id] if ends is None else ends), words.pad_token_id}


def count(
    prompt_ids: Sequence[Sequence[int]],
    completion_ids: Sequence[Sequence[int]],
    tool_mask: Sequence[Sequence[int]] | None,
    *,
    stops: Collection[int],
    group_size: int,
    drops_truncated: bool,
    first: int = 0,
) -> tuple[Columns, list[bool]]:
    """Columns of a record, and whether each sample was cut off before it ended by itself.

    In the order of the samples before TRL shuffles them. `completion_lengths` are the tokens that the
    model wrote, `environment_lengths` those of tool results (None where there are no tools),
    `trained_lengths` those under the loss mask.

    Args:
        prompt_ids: of each sample.
        completion_ids: of each sample, tool results among them.
        tool_mask: 1 where the model wrote a token, of each sample.
        stops: the ids that end a sample, by TRL's own rule the last id.
        group_size: TRL groups over all its processes: a group may lie across two.
        drops_truncated: TRL takes truncated samples out of the loss: nothing of them is trained.
        first: index of the first sample among those of all processes.

    Raises TypeError for tensors, which a rollout function may return: to read one may wait for a
    device.
    """
    kinds = {*map(type, completion_ids), *map(type, tool_mask if tool_mask is not None else ())}
    if any(hasattr(kind, "requires_grad") for kind in kinds):
        raise TypeError("the generation returned tensors instead of lists of ids")
    written = list(map(len, completion_ids))
    environment = None
    if tool_mask is not None:
        whole, written = written, [int(sum(mask)) for mask in tool_mask]
        environment = [n - model for n, model in zip(whole, written, strict=True)]
    truncated = [ids[-1] not in stops for ids in completion_ids]
    trained = written
    if drops_truncated:
        trained = [0 if cut else n for n, cut in zip(written, truncated, strict=True)]
    groups = [position // group_size for position in range(first, first + len(prompt_ids))]
    return {
        "prompt_lengths": list(map(len, prompt_ids)),
        "completion_lengths": written,
        "environment_lengths": environment,
        "trained_lengths": trained,
        "group_ids": groups,
    }, truncated
