"""The hooks fit the ms-swift that is installed: a release that moves one of them fails here first."""

from __future__ import annotations

import importlib.metadata
import inspect
import re
import sys

import pytest

from otel_grpo.instrumentation.ms_swift import contract


@pytest.fixture
def grpo(swift):
    return swift.GRPOTrainer


def order(source, *patterns):
    """Whether the patterns occur in the source in this order."""
    return re.search(".*".join(map(re.escape, patterns)), source, re.DOTALL) is not None


def places():
    import transformers

    modules = [sys.modules[name] for name in (contract.MODULE, contract.MIXIN, contract.UTILS)]
    return *modules, transformers.TrainerCallback


def test_every_hook_fits(swift):
    """Methods, functions that were imported by name, their parameters, callbacks."""
    assert contract.mismatch(*places()) is None


def test_a_drifted_method_is_named(grpo, monkeypatch):
    """Gone, or with other parameters."""
    monkeypatch.setattr(grpo, "_prepare_batch_inputs", lambda self, rollouts: None)
    monkeypatch.delattr(sys.modules[contract.MIXIN], "sleep_vllm_engine")
    reason = contract.mismatch(*places())
    assert "GRPOTrainer._prepare_batch_inputs takes ('self', 'rollouts')" in reason
    assert "sleep_vllm_engine is gone" in reason


def test_uninstrument_restores_every_attribute(swift, grpo):
    """Attributes that were inherited are gone again, the others are the same objects."""
    from otel_grpo import instrumentation

    owners = [*places()[:3], *grpo.__mro__]
    before = [dict(vars(owner)) for owner in owners]
    instrumentation.instrument()
    instrumentation.instrument()
    patched = {n for n, value in vars(grpo).items() if value is not before[3].get(n)}
    assert patched == {expected.name for expected in contract.METHODS}
    assert [dict(vars(owner)) for owner in owners[4:]] == before[4:]
    instrumentation.uninstrument()
    assert [dict(vars(owner)) for owner in owners] == before


def test_the_entry_point_loads(swift):
    """`opentelemetry-instrument` finds the adapter, for the release that is installed."""
    (point,) = importlib.metadata.entry_points(group="opentelemetry_instrumentor", name="ms-swift")
    instrumentor = point.load()()
    assert instrumentor.instrumentation_dependencies() == ("ms-swift >=4.6,<4.7",)
    instrumentor.instrument()
    try:
        assert hasattr(swift.GRPOTrainer.train, "__wrapped__")
    finally:
        instrumentor.uninstrument()


# --- what the hooks rely on inside the trainer's methods ------------------------------------------


def test_a_rollout_goes_from_stage_to_stage(grpo):
    """Generation, rewards, advantages, log; each by the method that is hooked."""
    assert order(
        inspect.getsource(grpo._generate_and_score_completions),
        "self._rollout_samples(inputs)",
        "self._score_completions(samples)",
        "self._prepare_batch_inputs(samples)",
        "self._postprocess_batch(samples, batch_encoded_inputs)",
        "self._log_rollout(samples)",
        "return batch_encoded_inputs",
    )
    assert order(
        inspect.getsource(grpo._rollout_samples),
        "self.resample_encode_failed_inputs(inputs)",
        "self._generate_completions(samples)",
    )
    assert "self._compute_rewards_per_func(samples)" in inspect.getsource(grpo._score_completions)


def test_a_generation_is_sliced_in_order(grpo):
    """The slice of a step is its number modulo the slices; nothing is shuffled."""
    assert order(
        inspect.getsource(grpo._prepare_inputs),
        "self.args.steps_per_generation * self.template.sequence_parallel_size",
        "num_rollout_samples * self.num_iterations",
        "self._step % generate_every == 0 or self._buffered_inputs is None",
        "self._buffered_inputs = micro_batches",
        "self._buffered_inputs[self._step % num_rollout_samples]",
    )


def test_the_old_policy_is_asked_before_the_reference(grpo):
    """What a batch has already tells which forward pass comes next."""
    assert order(
        inspect.getsource(grpo._prepare_batch_inputs),
        "gas_chunks = self.split_by_mini_batches(samples)",
        "s.encoded = encoded_inputs",
        "grpo_batch.old_per_token_logps = (",
        "self.beta == 0.0",
        "self.ref_model,",
        "grpo_batch.ref_per_token_logps = ref_per_token_logps",
        "self._compute_teacher_logps(",
        "ga_batch_encoded_inputs.append(batch_encoded_inputs)",
    )


def test_dynamic_sampling_takes_the_first_valid_ones(grpo):
    """Judged by `compute_std`, filled up in order, cut at the batch size; else the first as it is."""
    assert order(
        inspect.getsource(grpo._dynamic_sampling),
        "origin_data = (samples, rewards_per_func)",
        "while resample_count < self.max_resample_times",
        "self.compute_std(samples, rewards_per_func)",
        "(rewards_std > 0)",
        "gather_object(samples)",
        "self._generate_completions(samples)",
        "self._compute_rewards_per_func(samples)",
        "valid_samples[:self.args.generation_batch_size][process_slice]",
        "samples, rewards_per_func = origin_data",
    )


def test_truncated_samples_leave_the_loss(grpo):
    """By the filter, whole."""
    assert order(
        inspect.getsource(grpo._compute_loss_and_metrics),
        "if self.overlong_filter and any(truncated_mask)",
        "completion_mask = completion_mask & (~truncated_mask)",
    )


def test_weights_are_pushed_inside_the_generation(grpo):
    """After the wait and the wake-up, before the rollout; the engine sleeps whatever happens."""
    source = inspect.getsource(grpo._fast_infer)
    assert order(
        source,
        "self._wait_queue()",
        "self.state.global_step != self._last_loaded_step or args.sleep_level == 2",
        "self.engine.engine.wake_up(**kwargs)",
        "self._move_model_to_vllm(skip_async_check=True)",
        "self.offload_context",
        "self.engine.engine.wake_up(**kwargs)",
        "self._queue.get_nowait()",
        "self.async_generate_rollout(all_inputs)",
        "self._infer_single_or_multi_turn(samples, self.request_config)",
        "finally:",
        "sleep_vllm_engine(self.engine.engine",
    )
    offload = inspect.getsource(grpo.offload_context)
    assert order(offload, "self.offload_model(", "self.offload_optimizer()", "yield", "finally:")
    assert order(offload, "self.load_model(model)", "self.load_optimizer()")


def test_a_rollout_beside_the_training_is_a_call_in_a_thread(grpo):
    """Of the method that is hooked on any thread."""
    source = inspect.getsource(grpo.async_generate_rollout)
    assert "self._infer_single_or_multi_turn(all_inputs" in source
    assert "self.executor.submit(infer_task)" in source


def test_profiling_does_nothing_after_an_exception(swift):
    """It logs behind a bare `yield`: an interval that ends in an exception is lost there."""
    source = inspect.getsource(inspect.unwrap(sys.modules[contract.UTILS].profiling_context))
    assert order(source, "yield", "wandb.log(profiling_metrics, commit=False)", "swanlab.log(")
    assert "finally" not in source


def test_rewards_are_called_one_by_one(swift):
    """What the wrappers answer for: is it a model, is it asynchronous, and a call."""
    module = sys.modules["swift.rl_core.grpo_algorithm"]
    assert order(
        inspect.getsource(module.compute_rewards_per_func),
        "_is_async_reward(func)",
        "isinstance(reward_func, nn.Module)",
        "reward_model_plugin(inputs=reward_rows",
        "reward_func(completions, **reward_kwargs)",
        "await asyncio.gather(*coros)",
    )
    call = inspect.getsource(swift.GRPOTrainer._compute_rewards_per_func)
    assert order(call, "score_completions(", "samples,", "reward_funcs=self.reward_funcs")


def test_the_trainers_own_file_is_written_in_on_log(swift):
    """By its callback, after ours has read the dict: the callback rounds the values in place."""
    from swift.trainers import patcher

    source = inspect.getsource(patcher.ProgressCallbackNew.on_log)
    assert order(source, "add_train_message(logs", "'logging.jsonl'", "append_to_jsonl")


def test_copies_of_sequence_parallel_ranks_are_the_groups_samples(grpo):
    """Each rank of a group trains on the samples of all of them, in the order of the ranks."""
    assert order(
        inspect.getsource(grpo.split_by_mini_batches),
        "if self.template.sequence_parallel_size == 1",
        "dist.all_gather_object(output, samples, group=sequence_parallel.sp_group)",
        "samples = [p for sublist in output for p in sublist]",
        "self.args.steps_per_generation * sequence_parallel.world_size",
    )
