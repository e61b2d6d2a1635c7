"""The hooks fit the TRL that is installed: a release that moves one of them fails here first."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from support import trainer

from otel_grpo.instrumentation.hf.hooks import copies
from otel_grpo.instrumentation.trl import contract


@pytest.fixture
def grpo(trl):
    return trl.GRPOTrainer


def order(source: str, *patterns: str) -> bool:
    """Whether the patterns occur in the source in this order."""
    return re.search(".*".join(map(re.escape, patterns)), source, re.DOTALL) is not None


def test_every_hook_fits(trl):
    """Methods, their parameters, profiling contexts, callbacks."""
    import sys

    import transformers

    module, profiling = sys.modules[contract.MODULE], sys.modules[contract.PROFILING]
    assert contract.mismatch(module, profiling, transformers.TrainerCallback) is None


def test_a_drifted_method_is_named(trl, monkeypatch):
    """Gone, or with other parameters."""
    import sys

    import transformers

    module, profiling = sys.modules[contract.MODULE], sys.modules[contract.PROFILING]
    monkeypatch.setattr(module.GRPOTrainer, "_generate", lambda self, requests: None)
    monkeypatch.delattr(module, "shuffle_sequence_dict")
    reason = contract.mismatch(module, profiling, transformers.TrainerCallback)
    assert (
        "GRPOTrainer._generate takes ('self', 'requests'), expected ('self', 'prompts')" in reason
    )
    assert "shuffle_sequence_dict is gone" in reason


def test_a_release_outside_the_gate_is_not_patched(trl, monkeypatch, caplog):
    """One message says what is installed and what is supported."""
    import importlib.metadata

    from otel_grpo import instrumentation

    before = dict(vars(trl.GRPOTrainer))
    monkeypatch.setattr(importlib.metadata, "version", lambda package: "1.17.0")
    instrumentation.instrument()
    instrumentation.uninstrument()
    (record,) = caplog.records
    assert "trl 1.17.0 is installed and >=1.0,<1.17 is supported" in record.getMessage()
    assert dict(vars(trl.GRPOTrainer)) == before


def test_uninstrument_restores_every_attribute(trl):
    """Attributes that were inherited are gone again, the others are the same objects."""
    import sys

    from otel_grpo import instrumentation

    module, profiling = sys.modules[contract.MODULE], sys.modules[contract.PROFILING]
    places = [module.GRPOTrainer, profiling.ProfilingContext, module, *trl.GRPOTrainer.__mro__[1:]]
    before = [dict(vars(place)) for place in places]
    for _ in range(2):
        instrumentation.instrument()
        instrumentation.instrument()
        patched = {
            name
            for name, value in vars(trl.GRPOTrainer).items()
            if value is not before[0].get(name)
        }
        assert patched == {expected.name for expected in contract.METHODS}
        assert [dict(vars(place)) for place in places[3:]] == before[3:]
        instrumentation.uninstrument()
        assert [dict(vars(place)) for place in places] == before


def test_patched_methods_look_like_the_originals(observed, trl):
    """Name, documentation and signature are those of the trainer's method."""
    from transformers import Trainer

    method = trl.GRPOTrainer.train
    assert method.__name__ == "train"
    assert method.__doc__ == Trainer.train.__doc__
    assert inspect.signature(method) == inspect.signature(Trainer.train)
    assert inspect.unwrap(method) is Trainer.train


# --- what the hooks rely on inside the trainer's methods ------------------------------------------


def test_generation_comes_before_rewards(grpo):
    """`adv_pipeline` lies between the two and after them."""
    source = inspect.getsource(grpo._generate_and_score_completions)
    assert order(source, "self._generate(prompts)", "self._calculate_rewards(", "advantages =")
    # The old policy's pass before the reference's, and each of them once or not at all.
    assert order(
        source,
        "args.gradient_accumulation_steps % generate_every != 0",
        "old_per_token_logps, _, _ = self._get_per_token_logps_and_entropies(",
        "if self.beta != 0.0:",
        "self.ref_model,",
    )
    assert source.count("self._get_per_token_logps_and_entropies(") == 3


def test_generation_returns_ids_and_mask_first(grpo):
    """Prompt ids, completion ids, tool mask: by position, whatever follows."""
    assert "return prompt_ids, completion_ids, tool_mask," in inspect.getsource(grpo._generate)


def test_a_generation_is_shuffled_once_and_sliced(grpo):
    """The order of the samples is the shuffle's, the slice of a step its number modulo the parts."""
    source = inspect.getsource(grpo._prepare_inputs)
    assert order(
        source,
        "self._step % generate_every == 0 or self._buffered_inputs is None",
        "self._generate_and_score_completions(",
        "shuffle_sequence_dict(generation_batch)",
        "split_tensor_dict(generation_batch, self.args.steps_per_generation)",
        "self._buffered_inputs[self._step % self.args.steps_per_generation]",
    )


def test_a_step_counts_itself_when_it_is_over(grpo):
    """While a step runs, `_step` is the number of steps before it."""
    assert order(inspect.getsource(grpo.training_step), "super().training_step(", "self._step += 1")


def test_an_update_follows_its_last_step(grpo):
    """Clip, step, event; the trainer logs, evaluates and saves after it; data is fetched before."""
    from transformers import Trainer

    source = inspect.getsource(Trainer._run_epoch)
    assert order(
        source,
        "self.get_batch_samples(",
        "_set_sync_gradients(do_sync_step)",
        "self.training_step(",
        "if do_sync_step:",
        "self._clip_grad_norm(",
        "self.optimizer.step()",
        "on_optimizer_step(",
        "self.state.global_step += 1",
        "self._maybe_log_save_evaluate(",
    )
    source = inspect.getsource(Trainer._maybe_log_save_evaluate)
    assert order(source, ".item()", "self.log(", "self._evaluate(", "self._save_checkpoint(")
    assert order(
        inspect.getsource(Trainer._finalize_training), "self.log(metrics)", "on_train_end("
    )


def test_what_a_session_reads_of_a_trainer_is_there(trl, tmp_path):
    """Attributes that no signature tells of."""
    given = trainer(tmp_path)
    assert given.accelerator.num_processes == 1
    assert given.accelerator.sync_gradients is True
    assert given.accelerator.optimizer_step_was_skipped is False
    assert (given._step, given.num_iterations, given.beta, given.num_generations) == (0, 1, 0.0, 4)
    assert given.environment_factories is None
    assert given.ref_model is None
    assert given.mask_truncated_completions is False
    assert given.reward_func_names == ["right_or_digits"]
    assert contract.unsupported_training(given) is None


def with_a_vllm_that_has_moved(given, patch):
    given.use_vllm = True
    patch.setattr(contract, "VLLM", "trl.moved")


def with_deepspeed(given, patch):
    given.is_deepspeed_enabled = True


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (with_a_vllm_that_has_moved, "it generates with vLLM, and trl.moved is gone"),
        (with_deepspeed, "DeepSpeed"),
    ],
)
def test_other_kinds_of_training_run_unobserved(
    observed, tmp_path, monkeypatch, caplog, kind, reason
):
    """One warning names what is supported; the trainer's methods run as they are."""
    given = trainer(tmp_path)
    kind(given, monkeypatch)
    monkeypatch.setattr("transformers.Trainer.train", lambda self: "trained")
    assert given.train() == "trained"
    (record,) = caplog.records
    assert reason in record.getMessage()
    supported = "GRPOTrainer of trl >=1.0,<1.17 that generates with transformers"
    assert supported in record.getMessage()
    assert not observed.exists()


@pytest.mark.parametrize(
    ("world", "processes", "told"),
    [
        ("2", 1, "WORLD_SIZE is 2"),
        ("2", 2, None),
        ("1", 1, None),
        ("many", 1, None),
        (None, 1, None),
    ],
)
def test_copies_are_told_from_ranks(monkeypatch, world, processes, told):
    """A launcher that speaks of several processes, and a trainer that knows of one."""
    if world is None:
        monkeypatch.delenv("WORLD_SIZE", raising=False)
    else:
        monkeypatch.setenv("WORLD_SIZE", world)
    given = SimpleNamespace(accelerator=SimpleNamespace(num_processes=processes))
    assert copies(given) == told


def test_nothing_heavy_is_imported_to_wait_for_a_trainer(tmp_path):
    """`instrument()` in a process without a trainer imports neither it nor torch."""
    import subprocess
    import sys

    script = (
        "import sys, otel_grpo; otel_grpo.instrument();"
        "print([m for m in ('torch', 'trl', 'transformers') if m in sys.modules])"
    )
    root = Path(__file__).parents[2]
    out = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=root, check=True
    )
    assert out.stdout.strip() == "[]"
