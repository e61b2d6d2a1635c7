"""Real trainings with DeepSpeed on this CPU: its engine steps, and the update is what the engine says."""

from __future__ import annotations

import time

import pytest
from loop_model import Loop
from support import audited, overflow_in_step, trainer
from test_counts import check, train
from test_release import compare

SLEEP_NS = 30_000_000


def zero(stage, **more):
    """DeepSpeed's own configuration."""
    return {
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": "auto",
        "gradient_clipping": "auto",
        "zero_optimization": {"stage": stage},
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        **more,
    }


@pytest.fixture(autouse=True)
def one_process(trl, monkeypatch):
    """As a launcher starts one, without the kernel that DeepSpeed would compile for minutes."""
    import deepspeed
    from accelerate.state import AcceleratorState

    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    ranks = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
    for name, value in {"DS_ACCELERATOR": "cpu", **place, **ranks}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setitem(deepspeed.ops.__compatible_ops__, "deepspeed_shm_comm", False)
    AcceleratorState._reset_state(reset_partial_state=True)
    yield
    AcceleratorState._reset_state(reset_partial_state=True)


def engine_steps(monkeypatch, action):
    """Do it inside the engine's step, before the weights change."""
    import deepspeed

    step = deepspeed.DeepSpeedEngine._take_model_step

    def stepping(engine, *args, **kwargs):
        action(engine)
        return step(engine, *args, **kwargs)

    monkeypatch.setattr(deepspeed.DeepSpeedEngine, "_take_model_step", stepping)


def test_the_reference_shape(tmp_path, monkeypatch):
    """With ZeRO-1: every count, the tokens as spied, and losses, norms and weights as without us."""
    compare(tmp_path, monkeypatch, deepspeed=zero(1))


def test_counts_are_those_of_the_loop(observed, tmp_path):
    """With ZeRO-2, accumulation, slices and reuse."""
    loop = Loop(rows=16, batch=4, accumulation=2, slices=4, reuse=2, max_steps=6)
    spy = train(loop, tmp_path, deepspeed=zero(2))
    check(loop, spy, audited(observed))


def test_the_engines_step_is_the_optimizers_time(observed, tmp_path, monkeypatch):
    """It starts where `policy_train` ends, although both lie in one training step."""
    engine_steps(monkeypatch, lambda engine: time.sleep(SLEEP_NS / 1e9))
    options = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "max_steps": 2}
    trainer(tmp_path, rows=16, deepspeed=zero(0), **options).train()
    files = audited(observed)
    for window in files.of("rollout"):
        phases = [(row[2], row[3], row[4]) for row in window["attributes"]["intervals"]]
        trained = [each for each in phases if each[0] == "policy_train"]
        (step,) = (each for each in phases if each[0] == "optimizer")
        assert len(trained) == 2
        assert step[1] == trained[1][2]
        assert step[2] - step[1] >= SLEEP_NS


def test_an_overflow_is_a_skipped_update(observed, tmp_path):
    """The engine says so; the trainer counts the step, and nothing is published."""
    settings = zero(1, bf16={"enabled": True, "check_grad_overflow": True})
    given = trainer(tmp_path, max_steps=3, bf16=True, deepspeed=settings)
    overflow_in_step(given, 1)
    given.train()
    assert given.state.global_step == 3
    files = audited(observed)
    updates = [w["attributes"]["updates"][0] for w in files.of("rollout")]
    assert [(u["status"], u["reason"]) for u in updates] == [
        ("applied", None),
        ("skipped", "overflow"),
        ("applied", None),
    ]
    publications = [w["attributes"].get("publications", []) for w in files.of("rollout")]
    assert [[p["version"] for p in each] for each in publications] == [[1], [], [2]]


def test_an_error_in_the_engines_step_is_a_failed_update(observed, tmp_path, monkeypatch):
    """It passes unchanged; the samples that were trained on are visits."""
    error = ArithmeticError("theirs")

    def fail(engine):
        if engine.global_steps == 1:
            raise error

    engine_steps(monkeypatch, fail)
    with pytest.raises(ArithmeticError) as raised:
        trainer(tmp_path, max_steps=3, deepspeed=zero(0)).train()
    assert raised.value is error
    files = audited(observed)
    first, second = files.of("rollout")
    assert [u["status"] for u in first["attributes"]["updates"]] == ["applied"]
    (failed,) = second["attributes"]["updates"]
    assert (failed["status"], failed["samples"]) == ("failed", 8)
    assert second["metrics"]["samples.visits"] == 8
    assert second["attributes"]["window"]["status"] == "aborted"
