"""ms-swift on Megatron and on Ray: hooks around trainers that call their methods in the same order.

The order is that of the released code, which tests/swift/test_contract_elsewhere.py reads.
"""

from __future__ import annotations

import importlib.metadata
import json
import sys
from types import ModuleType, SimpleNamespace

import pytest

from otel_grpo.audit import audit
from otel_grpo.instrumentation import base
from otel_grpo.instrumentation.ms_swift import contract, megatron, ray_driver


class Refused(Exception):
    """Of a worker."""


def made(rows, *, encoded):
    """Samples with four tokens of prompt and two of the model."""
    return [
        SimpleNamespace(
            response_token_ids=[[7, 8]],
            response_loss_mask=[],
            encoded={"labels": [-100] * 4 + [7, 8]} if encoded else None,
            is_truncated=False,
            row=row,
        )
        for row in rows
    ]


class Engine:
    def wake_up(self, tags=None):
        pass


class Optimizer:
    skips = frozenset()

    def __init__(self):
        self.calls = 0

    def step(self):
        self.calls += 1
        return self.calls not in self.skips, 1.0, None


def megatron_module(mixin):
    """A module with the trainer, whose functions it calls by name as the released one does."""
    module = ModuleType(contract.MEGATRON)

    def collate_to_grpo_micro_batch(samples, template):
        return {}, SimpleNamespace()

    module.collate_to_grpo_micro_batch = collate_to_grpo_micro_batch

    class MegatronGRPOTrainer:
        steps_per_generation, num_generations, beta, vllm_mode = 2, 2, 0.1, "colocate"
        overlong_filter = False

        def __init__(self, iterations):
            self.iterations = iterations
            self.engine = SimpleNamespace(engine=Engine())
            self._step, self._last_loaded_step = 0, -1

        def train(self, train_dataset, val_dataset):
            self.optimizer = Optimizer()
            for _ in range(self.iterations):
                self.train_step(iter(range(100)))
                self.on_log({})
            self.evaluate(iter(range(100)))
            self.save_checkpoint()

        def train_step(self, train_data_iterator):
            self._replace_data_iterator(train_data_iterator)
            update_successful, grad_norm, _ = self.optimizer.step()
            return {}, grad_norm, update_successful

        def _replace_data_iterator(self, data_iterator):
            if self._step % self.steps_per_generation == 0:
                self._build_rollout_buffer(data_iterator)
            self._step += 1

        def _build_rollout_buffer(self, data_iterator):
            return self._generate_and_score_completions([next(data_iterator) for _ in range(2)])

        def _generate_and_score_completions(self, inputs):
            samples = self._generate_completions(self.resample_encode_failed_inputs(inputs))
            rewards = self._score_completions(samples)
            for at in range(0, len(samples), 2):
                module.collate_to_grpo_micro_batch(samples[at : at + 2], None)
                self._maybe_compute_logps({})
            self._compute_advantages(samples, rewards)
            return samples

        def resample_encode_failed_inputs(self, inputs):
            return inputs

        def _generate_completions(self, samples):
            if self._step != self._last_loaded_step:
                self.engine.engine.wake_up(tags=["weights"])
                self._move_model_to_vllm()
                self._last_loaded_step = self._step
            self._rollout(samples)
            mixin.sleep_vllm_engine(self.engine.engine, 1)
            return made([*samples, *samples], encoded=True)

        def _move_model_to_vllm(self):
            pass

        def _rollout(self, samples):
            pass

        def _rollout_requests(self, requests, request_config):
            pass

        def _score_completions(self, samples):
            return [0.0] * len(samples)

        def _maybe_compute_logps(self, batch):
            self.compute_per_token_logps()
            self.compute_per_token_logps()

        def compute_per_token_logps(self):
            pass

        def _compute_teacher_logps(self):
            pass

        def _collate_teacher_opsd_batch(self, sample_slice, template):
            pass

        def _compute_advantages(self, samples, rewards_per_func):
            pass

        def on_log(self, logs):
            pass

        def evaluate(self, val_data_iterator):
            self._build_rollout_buffer(val_data_iterator)

        def save_checkpoint(self):
            pass

    module.MegatronGRPOTrainer = MegatronGRPOTrainer
    return module


@pytest.fixture
def run_dir(tmp_path, monkeypatch):
    """Where the run is; the gate is open."""
    monkeypatch.setattr(base, "unsupported_version", lambda *_: None)
    monkeypatch.setattr(importlib.metadata, "version", lambda package: "4.6.0")
    monkeypatch.setenv("OTEL_GRPO_RUN_DIR", str(tmp_path / "run"))
    monkeypatch.setenv("OTEL_GRPO_STRICT", "true")
    return tmp_path / "run"


def windows(run_dir):
    """The `rollout` records and the summary, audited."""
    report = audit(run_dir)
    assert report.exit_status == 0, [str(finding) for finding in report.findings]
    lines = (run_dir / "metrics_raw.jsonl").read_text().splitlines()
    found = [each for each in map(json.loads, lines) if each["kind"] == "rollout"]
    return found, json.loads((run_dir / "summary.json").read_text())


def order(window):
    rows = [row for row in window["attributes"]["intervals"] if row[1] is None and not row[6] & 8]
    return [row[2] for row in sorted(rows, key=lambda row: row[3])]


@pytest.fixture
def on_megatron(run_dir, monkeypatch):
    """The trainer's class, patched."""
    mixin = ModuleType(contract.MEGATRON_MIXIN)

    def sleep_vllm_engine(engine, sleep_level):
        pass

    mixin.sleep_vllm_engine = sleep_vllm_engine
    monkeypatch.setitem(sys.modules, contract.MEGATRON_MIXIN, mixin)
    mpu = SimpleNamespace(get_data_parallel_rank=lambda: 1)
    monkeypatch.setitem(sys.modules, "megatron.core", SimpleNamespace(mpu=mpu))
    module = megatron_module(mixin)
    hooks = megatron.Hooks()
    hooks.apply(module)
    yield module.MegatronGRPOTrainer
    hooks.remove()


def test_megatron(on_megatron, run_dir):
    """Two generations of four samples, each for two steps; the evaluation pushes the last update."""
    on_megatron(4).train(None, None)
    (first, second), summary = windows(run_dir)
    generate = ["generation", "engine_sleep", "reward", "adv_pipeline"]
    step = ["policy_train", "optimizer", "log"]
    push = ["data", "data", "engine_wake", "weight_sync"]
    assert order(first) == [*push, *generate, *step, *step, *push]
    assert order(second) == [*generate, *step, *step, "evaluation", "checkpoint"]
    inside = [row[2] for row in first["attributes"]["intervals"] if row[2].startswith("logprob")]
    assert inside == ["logprob_ref", "logprob_old"] * 2
    assert first["attributes"]["samples"] == [[1, 4, 4]]  # behind those of data-parallel rank 0
    assert first["attributes"]["visit_counts"] == [1] * 4
    assert first["attributes"]["group_ids"] == [2, 2, 3, 3]
    assert summary["tokens"]["prompt"] == 2 * 4 * 4
    assert summary["tokens"]["completion"] == 2 * 4 * 2
    assert summary["updates"]["applied"] == 4
    assert (summary["publications"], summary["publications_pending"]) == (2, 0)
    # The evaluation's own generation and forward passes are the evaluation.
    assert second["metrics"]["samples.generated"] == 4


def test_megatron_skips_an_update(on_megatron, run_dir, monkeypatch):
    """The optimizer says that it changed nothing; the trainer counts the iteration all the same."""
    monkeypatch.setattr(Optimizer, "skips", {2})
    on_megatron(2).train(None, None)
    _, summary = windows(run_dir)
    assert (summary["updates"]["applied"], summary["updates"]["skipped"]) == (1, 1)


@pytest.fixture
def on_ray(run_dir, monkeypatch):
    """The driver's module, patched."""

    class WorkerGroup:
        fails_at = None

        def __init__(self):
            self.steps = 0

        def execute(self, method_name, *args):
            self.steps += method_name == "train_step"
            if self.steps == self.fails_at:
                raise Refused
            return []

    class CheckpointEngineManager:
        def sync_weights(self):
            self.sleep_rollout()
            self.wake_up_rollout()

        def wake_up_rollout(self):
            pass

        def sleep_rollout(self):
            pass

    class GRPOTrainer:
        num_generations = 2

        def train(self):
            self.tg, self.weights = WorkerGroup(), CheckpointEngineManager()
            return self._train_loop(self.tg, 4, 0)

        def _train_loop(self, tg, train_iters, iteration):
            while iteration < train_iters:
                self.weights.sync_weights()
                samples = made(self._resample_failed_prompts(range(5)), encoded=False)
                samples = self._postprocess_rollout(samples, self._generate(samples))
                rewards = self.score_completions(samples)
                self._maybe_log_completions(samples)
                for at in (0, 2):
                    self.encode_rollout_batch(samples[at : at + 2])
                    tg.execute("compute_logps")
                    tg.execute("compute_ref_logps")
                for _ in range(2):
                    self.compute_advantages(rewards)
                    tg.execute("train_step")
                    iteration += 1
            return iteration

        def _resample_failed_prompts(self, prompts):
            return prompts

        def _generate(self, samples):
            return samples

        def _postprocess_rollout(self, samples, outputs):
            return outputs

        def score_completions(self, samples):
            return []

        def _dynamic_sampling(self, samples, rewards_per_func):
            pass

        def encode_rollout_batch(self, samples):
            for sample in samples:
                sample.encoded = {"labels": [-100] * 4 + [7, 8]}
            return samples

        def compute_advantages(self, rewards_per_func):
            pass

        def _maybe_log_completions(self, rollout_with_outputs):
            pass

    module = SimpleNamespace(GRPOTrainer=GRPOTrainer, WorkerGroup=WorkerGroup)
    weights = SimpleNamespace(CheckpointEngineManager=CheckpointEngineManager)
    monkeypatch.setitem(sys.modules, contract.RAY_GROUP, module)
    monkeypatch.setitem(sys.modules, contract.RAY_WEIGHTS, weights)
    hooks = ray_driver.Hooks()
    hooks.apply(module)
    yield module
    hooks.remove()


def test_the_driver_on_ray(on_ray, run_dir):
    """Two rollouts of five samples, of which two steps train on two each; one is left over."""
    assert on_ray.GRPOTrainer().train() == 4
    (first, second), summary = windows(run_dir)
    rollout = ["data", "generation", "reward", "log", "adv_pipeline"]
    step = ["policy_train", "optimizer"]
    assert order(first)[1:] == [*rollout, *step, "adv_pipeline", *step, "weight_sync"]
    assert order(second) == [*rollout, *step, "adv_pipeline", *step]
    assert summary["samples"]["generated"] == 10
    assert summary["samples"]["consumed"] == summary["samples"]["visits"] == 8
    assert summary["samples"]["discarded"] == {"remainder": 2}
    assert summary["tokens"]["completion"] == 16
    assert summary["updates"]["applied"] == 4
    assert (summary["publications"], summary["publications_pending"]) == (1, 1)
    assert first["metrics"]["phase.logprob_ref.calls"] == 2


def test_a_worker_of_the_driver_fails(on_ray, run_dir):
    """The exception is the worker's; the update is failed, and the window aborted."""
    on_ray.WorkerGroup.fails_at = 2
    with pytest.raises(Refused):
        on_ray.GRPOTrainer().train()
    (window,), summary = windows(run_dir)
    assert window["attributes"]["window"]["status"] == "aborted"
    assert summary["updates"]["applied"] == summary["updates"]["failed"] == 1
    assert summary["status"] == "failed"
