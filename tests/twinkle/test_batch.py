"""Which samples a training call is made of, by hand."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from otel_grpo.instrumentation.twinkle.batch import Batch, features_of

IGNORED = -100


def feature(prompt, completion, *, mask=None):
    """Labels lie one to the left of their tokens."""
    labels = [IGNORED] * (len(prompt) - 1) + list(completion) + [IGNORED]
    for position in mask or ():
        labels[len(prompt) - 1 + position] = IGNORED
    return {"input_ids": [*prompt, *completion], "labels": labels}


def responses(*features, tokens=2, stop="stop"):
    sequences = [
        SimpleNamespace(new_input_feature=each, tokens=[0] * tokens, stop_reason=stop)
        for each in features
    ]
    return [SimpleNamespace(sequences=[each]) for each in sequences]


def test_lengths_of_a_dict_of_the_scripts():
    """Prompt, what was written, and what a tool wrote between."""
    batch = Batch(1)
    numbers, columns = batch.take([feature([1, 2, 3], [7, 8]), feature([4], [7, 8, 9], mask=[1])])
    assert numbers == range(2)
    assert columns == {
        "prompt_lengths": [3, 1],
        "completion_lengths": [2, 2],
        "trained_lengths": [2, 2],
        "environment_lengths": [0, 1],
    }


def test_lengths_of_a_sample_that_is_not_trained():
    """Nothing under the mask: only a sampler knows where its prompt ends."""
    masked = feature([1, 2, 3], [7, 8], mask=[0, 1])
    assert Batch(1).take([masked])[1] == {}
    batch = Batch(1)
    batch.sampled(responses(masked, stop="length"))
    assert batch.take([masked])[1] == {
        "prompt_lengths": [3],
        "completion_lengths": [2],
        "trained_lengths": [0],
        "truncated": [True],
    }


def test_groups_follow_what_was_sampled():
    """In whatever order the samples are trained on."""
    made = [feature([p], [7, 8]) for p in (1, 1, 2, 2)]
    batch = Batch(1)
    batch.sampled(responses(*made))
    batch.group_size = 2
    assert batch.take([made[3], made[0]])[1]["groups"] == [1, 0]
    assert batch.take([made[2], made[1]])[1]["groups"] == [1, 0]
    assert (batch.generated, batch.unused, batch.unused_tokens) == (4, 0, 0)


def test_what_is_not_trained_is_unused():
    """Its number, and the tokens that were written for nothing."""
    made = [feature([1], [7, 8]) for _ in range(3)]
    batch = Batch(1)
    batch.sampled(responses(*made))
    batch.take(made[:1])
    assert (batch.generated, batch.unused, batch.unused_tokens) == (3, 2, 4)


def test_a_group_of_two_prompts_ends_the_telling():
    """For the rest of the batch, too."""
    batch = Batch(1)
    batch.group_size = 2
    _, columns = batch.take([feature([1], [7]), feature([2], [7])])
    assert "groups" not in columns
    assert "groups" not in batch.take([feature([3], [7]), feature([3], [7])])[1]


@pytest.mark.parametrize(
    ("inputs", "found"),
    [
        ([{"a": 1}], [{"a": 1}]),
        ({"a": 1}, [{"a": 1}]),
        ({"input_ids": SimpleNamespace(ndim=2)}, None),
        (lambda: [{"a": 1}], None),
        ([object()], None),
    ],
    ids=["list", "one", "collated", "lazy", "objects"],
)
def test_what_the_driver_has(inputs, found):
    """A lazy result is not called: that would wait for it."""
    assert features_of(inputs) == found
