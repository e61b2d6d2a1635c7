"""What the hooks of Megatron, Ray and vLLM rely on, read from the source: it can't be imported here."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from parsed import Source, order, parameters

from otel_grpo.instrumentation.ms_swift import contract, megatron, ray_driver


@pytest.fixture
def source(swift):
    root = Path(sys.modules["swift"].__file__).parents[1]
    return lambda name: Source(root.joinpath(*name.split(".")).with_suffix(".py"))


BASES = {
    contract.MEGATRON: (
        ("swift.megatron.trainers.grpo_trainer", "MegatronGRPOTrainer"),
        ("swift.megatron.trainers.rollout_mixin", "MegatronRolloutMixin"),
        ("swift.megatron.trainers.rlhf_mixin", "MegatronRLHFTrainer"),
        ("swift.megatron.trainers.base", "BaseMegatronTrainer"),
    ),
    contract.RAY: (
        ("swift.ray.megatron.grpo_trainer", "GRPOTrainer"),
        ("swift.ray.megatron.base_trainer", "BaseRayTrainer"),
    ),
}


@pytest.mark.parametrize(
    ("module", "expected"),
    [(contract.MEGATRON, megatron.METHODS), (contract.RAY, ray_driver.METHODS)],
)
def test_every_method_is_there(source, module, expected):
    """In the class or one of its bases, with the parameters that the hook relies on."""
    defined = {}
    for name, owner in BASES[module]:
        for method, node in source(name).functions(owner).items():
            defined.setdefault(method, node)
    for method, wanted in expected:
        assert parameters(defined[method])[: len(wanted)] == wanted, method


def test_functions_that_are_called_by_name(source):
    """Where the hooks replace them."""
    assert source(contract.MEGATRON).imports("collate_to_grpo_micro_batch")
    assert source(contract.MEGATRON_MIXIN).imports("sleep_vllm_engine")
    execute = source(contract.RAY_GROUP).functions("WorkerGroup")["execute"]
    assert parameters(execute)[:2] == ray_driver.EXECUTE.parameters
    manager = source(contract.RAY_WEIGHTS).functions("CheckpointEngineManager")
    for each in (ray_driver.SYNC, ray_driver.WAKE, ray_driver.SLEEP):
        assert parameters(manager[each.name])[:1] == each.parameters


def test_a_step_on_megatron(source):
    """Data (and with it the rollout), forward and backward, the optimizer, and what it says."""
    trainer = source("swift.megatron.trainers.base")
    assert order(
        trainer.of("train_step", "BaseMegatronTrainer"),
        "self._replace_data_iterator(train_data_iterator)",
        "forward_backward_func(",
        "update_successful, grad_norm, _ = self.optimizer.step()",
        "return metrics, grad_norm, update_successful",
    )
    assert order(
        trainer.of("run_train_step", "BaseMegatronTrainer"),
        "self.train_step(train_data_iterator)",
        "state.iteration += 1",
        "self.on_log(",
        "self.evaluate(",
        "self.save_checkpoint()",
    )
    assert order(
        source(contract.MEGATRON_MIXIN).of("_replace_data_iterator", "MegatronRolloutMixin"),
        "self._step % self.steps_per_generation == 0",
        "self._build_rollout_buffer(data_iterator)",
        "self._buffered_inputs[self._step % self.steps_per_generation]",
        "self._step += 1",
    )


def test_a_rollout_on_megatron(source):
    """Generation, rewards, micro-batches with their forward passes, advantages."""
    trainer = source(contract.MEGATRON)
    assert order(
        trainer.of("_generate_and_score_completions", "MegatronGRPOTrainer"),
        "self.resample_encode_failed_inputs(inputs)",
        "self._generate_completions(samples)",
        "self._score_completions(samples)",
        "gather_object(samples, group=rollout_group)",
        "s.encoded = encode_sample(s, template)",
        "collate_to_grpo_micro_batch(",
        "self._maybe_compute_logps(data",
        "self._compute_advantages(samples, rewards_per_func",
    )
    forwards = trainer.of("_maybe_compute_logps", "MegatronGRPOTrainer")
    assert order(
        forwards,
        "if self.beta != 0.0",
        "self.compute_per_token_logps(",
        "ref_model",
        "self._compute_teacher_logps(",
        "self.compute_per_token_logps(",
        "self.unwrapped_models[0]",
    )
    assert forwards.count("self.compute_per_token_logps(") == 2
    assert order(
        source(contract.MEGATRON_MIXIN).of("_generate_completions", "MegatronRolloutMixin"),
        "self.engine.engine.wake_up(**kwargs)",
        "self._move_model_to_vllm()",
        "self._rollout_requests(requests, request_config)",
        "self._rollout(samples)",
        "sleep_vllm_engine(self.engine.engine",
    )


def test_the_loop_of_the_driver_on_ray(source):
    """Push, generate, score, forwards for each chunk, then a step for each; the rest is dropped."""
    trainer = source(contract.RAY)
    assert order(
        trainer.of("_train_loop", "GRPOTrainer"),
        "while iteration < train_iters",
        "ckpt.sync_weights(",
        "self._resample_failed_prompts(prompt_batch)",
        "self._generate(rollout_batch)",
        "self._postprocess_rollout(rollout_batch, completions)",
        "self.score_completions(rollout_with_outputs)",
        "self._dynamic_sampling(rollout_with_outputs",
        "self._maybe_log_completions(",
        "chunk_size = n_samples // spg",
        "self.encode_rollout_batch(chunk_rollout)",
        "tg.compute_logps(dispatch)",
        "tg.compute_ref_logps(dispatch)",
        "for step_idx in range(spg)",
        "self.compute_advantages(chunk_rewards_pf",
        "tg.train_step(",
        "iteration = extract_iteration(results)",
    )
    group = source(contract.RAY_GROUP)
    assert "return wg.execute(" in group.of("_make_bound", "WorkerGroup")
    assert "ray.get(futures)" in group.of("execute", "WorkerGroup")
    assert "tg.offload_to_cpu()" in "".join(source("swift.ray.megatron.base_trainer").lines)
