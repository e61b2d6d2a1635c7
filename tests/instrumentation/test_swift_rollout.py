"""Counts of ms-swift's samples, on plain objects."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from otel_grpo.instrumentation.ms_swift.rollout import (
    Discarded,
    Lengths,
    first_of,
    not_needed,
    read_batch,
    read_lengths,
)


def sample(labels=(), turns=(), masks=(), *, prompt_id="prompt_0", truncated=False):
    return SimpleNamespace(
        encoded={"labels": list(labels)},
        response_token_ids=list(turns),
        response_loss_mask=list(masks),
        prompt_id=prompt_id,
        is_truncated=truncated,
    )


def trainer(*, process=0, parallel=1, dynamic=False):
    return SimpleNamespace(
        accelerator=SimpleNamespace(process_index=process),
        template=SimpleNamespace(sequence_parallel_size=parallel),
        dynamic_num_samples=dynamic,
    )


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        # Three tokens of prompt, two of the model.
        (sample([-100] * 3 + [5, 6], [[5, 6]]), Lengths(3, 2, 0, 2)),
        # The same as a flat list, with a part that the loss leaves out.
        (sample([-100] * 4 + [6], [5, 6]), Lengths(3, 2, 0, 1)),
        # Two turns: a template's prefix before each, two tokens of a tool between them.
        (
            sample(
                [-100] * 4 + [5, 6] + [-100] * 3 + [7],
                [[1, 5, 6], [1, 7]],
                [[0, 1, 1], [0, 1]],
            ),
            Lengths(4, 3, 3, 3),
        ),
        # No ids: what is trained is what the model wrote.
        (sample([-100] * 2 + [8, 9]), Lengths(2, 2, 0, 2)),
    ],
)
def test_lengths(given, expected):
    """Prompt, completion, environment and trained tokens of one sample."""
    assert read_lengths(given) == expected


def test_a_tensor_is_not_read():
    """To read one may wait for a device."""
    given = sample()
    given.encoded["labels"] = object()
    with pytest.raises(TypeError):
        read_lengths(given)


def made(n):
    return [sample([-100, 5], [[5]]) for _ in range(n)]


def test_places_of_a_process():
    """The second process's samples follow the first's; a group may lie across both."""
    assert first_of(3, trainer(process=1)) == 3
    columns, _ = read_batch(made(3), first=3, group_size=2, drops_truncated=False)
    assert columns["group_ids"] == [1, 2, 2]


def test_places_of_a_sequence_parallel_group():
    """Both processes of a group name the same samples: those of the whole group."""
    assert [first_of(4, trainer(process=p, parallel=2)) for p in range(4)] == [0, 0, 4, 4]


def test_samples_of_one_trajectory_are_grouped_by_their_prompt():
    """Their places mean nothing."""
    assert first_of(3, trainer(process=1, dynamic=True)) == 0
    samples = [sample([5], [[5]], prompt_id=f"prompt_{n}") for n in (3, 3, 7)]
    columns, _ = read_batch(samples, first=0, group_size=None, drops_truncated=False)
    assert columns["group_ids"] == [3, 3, 7]


def test_overlong_samples_train_nothing():
    """Of a truncated sample no token is in the loss."""
    samples = [sample([-100, 5], [[5]], truncated=cut) for cut in (True, False)]
    columns, truncated = read_batch(samples, first=0, group_size=2, drops_truncated=True)
    assert columns["trained_lengths"] == [0, 1]
    assert columns["completion_lengths"] == [1, 1]
    assert truncated == [True, False]


def generation(*lengths):
    return [sample(turns=[[1] * length]) for length in lengths]


def test_dynamic_sampling_of_two_processes():
    """Four are needed; of the second generation one is left over."""
    valid = [[True, True, False, False], [False, True, True, True]]
    ours = [generation(10, 20), generation(1, 2)]
    theirs = [generation(30, 40), generation(3, 4)]
    # Taken in order: the first two, then the second generation's samples 1 and 2.
    assert not_needed(ours, valid, process=0, size=4) == [Discarded("zero_advantage", 1, 1)]
    assert not_needed(theirs, valid, process=1, size=4) == [
        Discarded("surplus", 1, 4),
        Discarded("zero_advantage", 2, 70),
    ]


def test_too_few_valid_samples():
    """The first generation is taken as it is; what was made since is lost, judged or not."""
    made = [generation(10, 20), generation(1, 2), generation(3, 4)]
    assert not_needed(made, [[True, False], [False, False]], process=0, size=2) == [
        Discarded("surplus", 2, 7),
        Discarded("zero_advantage", 2, 3),
    ]
