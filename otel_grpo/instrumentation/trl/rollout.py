"""What one generation made, counted on the Python lists that TRL returns: no device is waited for."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Rollout:
    """Lengths of the samples that one process generated, in their order (before TRL shuffles them).

    `first` is the index of the first one among those of all processes. `completion_lengths` are the tokens that the model wrote, `environment_lengths` those of tool
    results (None where there are no tools), `trained_lengths` those under the loss mask,
    `truncated` whether each sample was cut off before it ended by itself.
    """

    prompt_lengths: list[int]
    completion_lengths: list[int]
    environment_lengths: list[int] | None
    trained_lengths: list[int]
    truncated: list[bool]
    groups: list[int]
    first: int = 0

    def __len__(self) -> int:
        return len(self.prompt_lengths)


def read_generation(output: Sequence[Any], trainer: Any) -> Rollout:
    """The counts of what `GRPOTrainer._generate` returned.

    Only its first three items are looked at, by position: prompt ids, completion ids and the mask of
    the tokens that the model wrote; what follows them has changed from release to release.
    """
    prompt_ids, completion_ids, tool_mask = output[:3]
    stops = {*trainer.eos_token_ids, trainer._tokenizer.pad_token_id}
    return count(
        prompt_ids,
        completion_ids,
        tool_mask,
        stops=stops,
        group_size=trainer.num_generations,
        drops_truncated=trainer.mask_truncated_completions,
        process=trainer.accelerator.process_index,
    )


def count(
    prompt_ids: Sequence[Sequence[int]],
    completion_ids: Sequence[Sequence[int]],
    tool_mask: Sequence[Sequence[int]] | None,
    *,
    stops: Collection[int],
    group_size: int,
    drops_truncated: bool,
    process: int = 0,
) -> Rollout:
    """Counts of a generation; `stops` are the ids that end a sample, by TRL's own rule the last id.

    `process`: TRL puts the samples of its processes behind each other, as many of each, and groups them
    over all: a group may lie across two. `drops_truncated`: TRL takes truncated samples out of the loss, so nothing of them is trained.
    Raises TypeError for tensors, which a rollout function may return: to read one may wait for a
    device.
    """
    if any(hasattr(kind, "requires_grad") for kind in set(map(type, completion_ids))):
        raise TypeError("the generation returned tensors instead of lists of ids")
    written = list(map(len, completion_ids))
    environment = None
    if tool_mask is not None:
        whole, written = written, [int(sum(mask)) for mask in tool_mask]
        environment = [n - model for n, model in zip(whole, written, strict=True)]
    truncated = [ids[-1] not in stops for ids in completion_ids]
    trained = list(written)
    if drops_truncated:
        trained = [0 if cut else n for n, cut in zip(written, truncated, strict=True)]
    first = process * len(prompt_ids)
    return Rollout(
        first=first,
        prompt_lengths=list(map(len, prompt_ids)),
        completion_lengths=written,
        environment_lengths=environment,
        trained_lengths=trained,
        truncated=truncated,
        groups=[position // group_size for position in range(first, first + len(prompt_ids))],
    )
