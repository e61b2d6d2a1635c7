"""Which samples a training call is made of: known by the feature dicts that the script passes on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

IGNORED = -100  # the label of a token that is not trained


class Sampled(NamedTuple):
    """What the sampler said of one completion."""

    position: int
    completion: int
    truncated: bool


class Lengths(NamedTuple):
    """Tokens of one sample, without padding."""

    prompt: int
    completion: int
    environment: int
    trained: int


class Batch:
    """The samples of one window: numbered as they come to be trained on.

    A sample is the dict object that the sampler returned, or that the script made; a later training
    call with the same object is another visit of it. The dicts are held for as long, so that none of
    them gives its identity to another one.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.group_size: int | None = None
        self.generated = 0
        self.unused_tokens = 0
        self.unused = 0
        self._sampled: dict[int, Sampled] = {}
        #: Numbers of the samples that were trained on, by the identity of their dicts.
        self.indices: dict[int, int] = {}
        self._held: list[Any] = []
        self._prompts: dict[int, Any] = {}

    def __len__(self) -> int:
        return len(self.indices)

    def sampled(self, responses: Sequence[Any]) -> int:
        """Take what a sampler returned; gives the number of completions."""
        before = self.generated
        for response in responses:
            for sequence in response.sequences:
                feature, tokens = sequence.new_input_feature, len(sequence.tokens)
                self._sampled[id(feature)] = Sampled(
                    self.generated, tokens, sequence.stop_reason == "length"
                )
                self._held.append(feature)
                self.generated += 1
                self.unused += 1
                self.unused_tokens += tokens
        return self.generated - before

    def take(self, features: Sequence[Any]) -> tuple[range, dict[str, list[Any]]]:
        """Number features that are new; gives the numbers, and the columns that are known of all."""
        first = len(self.indices)
        lengths = [self._lengths(feature) for feature in features]
        columns: dict[str, list[Any]] = {}
        known = [each for each in lengths if each is not None]
        if len(known) == len(features):
            columns["prompt_lengths"] = [each.prompt for each in known]
            columns["completion_lengths"] = [each.completion for each in known]
            columns["trained_lengths"] = [each.trained for each in known]
            if any(each.environment for each in known):
                columns["environment_lengths"] = [each.environment for each in known]
            groups = list(self._groups(features, known, first))
            if len(groups) == len(features):
                columns["groups"] = groups
        marks = [self._sampled.get(id(feature)) for feature in features]
        told = [mark for mark in marks if mark is not None]
        if len(told) == len(marks):
            columns["truncated"] = [mark.truncated for mark in told]
        for feature, mark in zip(features, marks, strict=True):
            self.indices[id(feature)] = len(self.indices)
            if mark is None:
                self._held.append(feature)
            else:
                self.unused -= 1
                self.unused_tokens -= mark.completion
        return range(first, len(self.indices)), columns

    def _lengths(self, feature: Any) -> Lengths | None:
        ids, labels = feature.get("input_ids"), feature.get("labels")
        if ids is None or labels is None or _on_device(ids) or _on_device(labels):
            return None
        trained = np.asarray(labels).ravel() != IGNORED
        total, n = len(trained), int(np.count_nonzero(trained))
        mark = self._sampled.get(id(feature))
        if mark is not None:
            return Lengths(total - mark.completion, mark.completion, 0, n)
        if not n:
            return None  # where its prompt ends is not to be seen
        # Labels lie one to the left of their tokens: the first one stands at the prompt's last.
        prompt = int(trained.argmax()) + 1
        return Lengths(prompt, n, total - prompt - n, n)

    def _groups(
        self, features: Sequence[Any], lengths: Sequence[Lengths], first: int
    ) -> Iterator[int]:
        """The groups of the advantage, by position; none where one holds different prompts."""
        if self.group_size is None:
            return
        for offset, (feature, length) in enumerate(zip(features, lengths, strict=True)):
            mark = self._sampled.get(id(feature))
            position = first + offset if mark is None else mark.position
            group = position // self.group_size
            ids = feature["input_ids"]
            if isinstance(ids, list):
                prompt = ids[: length.prompt]
            else:
                prompt = np.asarray(ids).ravel()[: length.prompt].tolist()
            if self._prompts.setdefault(group, prompt) != prompt:
                self.group_size = None
                return
            yield group


def features_of(inputs: Any) -> list[Any] | None:
    """The feature dicts of a training call; None where this process does not have them."""
    if isinstance(inputs, Mapping):
        if getattr(inputs.get("input_ids"), "ndim", 1) > 1:
            return None  # a batch that is collated already
        inputs = [inputs]
    if not isinstance(inputs, list) or not all(isinstance(each, Mapping) for each in inputs):
        return None
    return inputs


def _on_device(values: Any) -> bool:
    """To read a tensor of a device would wait for it."""
    device = getattr(values, "device", None)
    return device is not None and getattr(device, "type", "cpu") != "cpu"
