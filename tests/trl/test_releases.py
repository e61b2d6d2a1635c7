"""Every release that the adapter claims has what the hooks rely on, read from its source."""

from __future__ import annotations

import functools
import sys
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet
from packaging.version import Version
from parsed import Source, order, parameters

from otel_grpo.instrumentation.trl import contract

# `make` lays them beside the environment.
SOURCES = Path(sys.prefix, "sources")
RELEASES = sorted((path.name[4:] for path in SOURCES.glob("trl-*")), key=Version)
INHERITED = {"train", "get_batch_samples", "evaluate", "predict"}  # of transformers.Trainer


@functools.cache
def source(release, module):
    return Source(SOURCES / f"trl-{release}" / Path(*module.split(".")).with_suffix(".py"))


def trainer(release, method):
    return source(release, contract.MODULE).of(method, "GRPOTrainer")


def test_all_minor_releases_are_read():
    """From the oldest of the claimed ones to the one that the other tests train with."""
    from importlib.metadata import version

    assert [Version(release).minor for release in RELEASES] == list(range(17))
    assert (RELEASES[0], RELEASES[-1]) == ("1.0.0", version("trl"))
    assert all(SpecifierSet(contract.SUPPORTED).contains(release) for release in RELEASES)


@pytest.mark.parametrize("release", RELEASES)
def test_every_hook_fits(release):
    """Methods of the trainer, the profiler, vLLM's wrapper, and their parameters."""
    module, profiling, vllm = (
        source(release, name) for name in (contract.MODULE, contract.PROFILING, contract.VLLM)
    )
    assert INHERITED.isdisjoint(module.functions("GRPOTrainer"))
    own = [each for each in contract.METHODS if each.name not in INHERITED]
    for defined, hooked in (
        (module.functions("GRPOTrainer"), own),
        (profiling.functions("ProfilingContext"), contract.PROFILING_METHODS),
        (vllm.functions("VLLMGeneration"), contract.VLLM_METHODS),
    ):
        for name, wanted in hooked:
            assert parameters(defined[name])[: len(wanted)] == wanted, name
    assert module.imports(contract.SHUFFLE.name)
    shuffle = source(release, "trl.trainer.utils").functions()[contract.SHUFFLE.name]
    assert parameters(shuffle) == contract.SHUFFLE.parameters


@pytest.mark.parametrize("release", RELEASES)
def test_the_loop_is_in_the_same_order(release):
    """Generation, forwards, rewards, advantages; one shuffle, then slices by the step's number."""
    scored = trainer(release, "_generate_and_score_completions")
    assert order(
        scored,
        'mode = "train" if self.model.training else "eval"',
        "self._generate(prompts",
        "args.gradient_accumulation_steps % generate_every != 0",
        "self.use_vllm and self.vllm_importance_sampling_correction",
        "old_per_token_logps, ",
        "self._get_per_token_logps_and_entropies(",
        "if self.beta != 0.0:",
        "self.ref_model,",
        "self._calculate_rewards(",
        "advantages =",
    )
    assert scored.count("self._get_per_token_logps_and_entropies(") == 3
    assert order(
        trainer(release, "_prepare_inputs"),
        "self._step % generate_every == 0 or self._buffered_inputs is None",
        "self._generate_and_score_completions(",
        "shuffle_sequence_dict(generation_batch)",
        "split_tensor_dict(generation_batch, self.args.steps_per_generation)",
        "self._buffered_inputs[self._step % self.args.steps_per_generation]",
    )
    assert order(trainer(release, "training_step"), "super().training_step(", "self._step += 1")
    assert "profiling_context(self, reward_func_name)" in trainer(release, "_calculate_rewards")


@pytest.mark.parametrize("release", RELEASES)
def test_what_is_read_of_a_generation(release):
    """Its first three results, the ids that end a sample, and where environments are kept."""
    returned = trainer(release, "_generate").rpartition("return ")[2]
    assert "".join(returned.split()).lstrip("(").startswith("prompt_ids,completion_ids,tool_mask,")
    minor = Version(release).minor
    scored = trainer(release, "_generate_and_score_completions")
    if minor >= 14:
        ends = "[*self.eos_token_ids, self._tokenizer.pad_token_id]"
    elif minor >= 3:
        ends = "[self._tokenizer.eos_token_id, self._tokenizer.pad_token_id]"
    else:
        ends = "[self.eos_token_id, self.pad_token_id]"
    assert order(scored, f"eos_and_pad = {ends}", "ids[-1] not in eos_and_pad")
    made = trainer(release, "__init__")
    assert "self.environments = None" in made
    assert ("self.environment_factories = None" in made) == (minor >= 8)
