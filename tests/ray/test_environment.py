"""What `ray.init` is given, beside what the trainer gives it."""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import ray
from ray.runtime_env import RuntimeEnv

import otel_grpo
import otel_grpo.ray
from otel_grpo.tracing import dormant

HOOK = "worker_process_setup_hook"


@pytest.fixture
def run(tmp_path):
    """A run of this process, which starts no Ray."""
    with otel_grpo.start_run(tmp_path / "run", trainer="test") as started:
        yield started


@pytest.fixture
def given(monkeypatch):
    """What a `ray.init` of a trainer was given; nothing is started."""
    calls: list[dict[str, Any]] = []

    def init(*args: Any, **kwargs: Any) -> str:
        calls.append({"args": args, **kwargs})
        return "context"

    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    otel_grpo.ray.instrument()
    yield calls
    otel_grpo.ray.uninstrument()
    assert ray.init is init


@pytest.fixture
def offered(monkeypatch):
    """Hooks that are called here mark no process."""
    starts: list[Any] = []
    monkeypatch.setattr(dormant, "offer", starts.append)
    return starts


@pytest.mark.parametrize("kind", [dict, RuntimeEnv])
def test_their_environment_is_kept(run, kind) -> None:
    """All that it says, and not a thing is changed in the trainer's own object."""
    theirs = kind(env_vars={"A": "1"}, working_dir="s3://x/y.zip")
    before = dict(theirs)
    merged = otel_grpo.ray.runtime_env(run, theirs)
    assert dict(theirs) == before
    assert type(merged) is kind
    assert {key: value for key, value in merged.items() if key != HOOK} == {
        key: value for key, value in before.items() if key != HOOK
    }
    assert callable(merged[HOOK])


def test_their_hook_runs_after_ours(run, offered, monkeypatch) -> None:
    """A callable, or the name of one; what it raises is theirs."""
    order: list[int] = []
    module = SimpleNamespace(hook=lambda: order.append(len(offered)))
    monkeypatch.setitem(sys.modules, "their_module", module)
    for theirs in (module.hook, "their_module.hook"):
        otel_grpo.ray.runtime_env(run, {HOOK: theirs})[HOOK]()
    assert order == [1, 2]

    def fails() -> None:
        raise KeyError("theirs")

    with pytest.raises(KeyError):
        otel_grpo.ray.runtime_env(run, {HOOK: fails})[HOOK]()


def test_without_a_live_run(tmp_path) -> None:
    """A run that is over, or records nothing, changes nothing."""
    with otel_grpo.start_run(tmp_path / "run", trainer="test") as run:
        pass
    assert otel_grpo.ray.runtime_env(run) == {}
    assert otel_grpo.ray.runtime_env(run, {"pip": ["x"]}) == {"pip": ["x"]}


def test_ray_init_of_a_trainer(run, given) -> None:
    """It is given an environment of ours, all else as the trainer gave it."""
    assert ray.init("auto", num_cpus=3) == "context"
    (call,) = given
    assert (call["args"], call["num_cpus"], list(call["runtime_env"])) == (("auto",), 3, [HOOK])


def test_environment_of_a_job_configuration(run, given) -> None:
    """Ray would drop it for ours: ours is made of it."""
    config = SimpleNamespace(runtime_env={"env_vars": {"A": "1"}})
    ray.init(job_config=config)
    ray.init(job_config=config, runtime_env={"env_vars": {"B": "2"}})
    assert [call["runtime_env"]["env_vars"] for call in given] == [{"A": "1"}, {"B": "2"}]
    assert all(call["job_config"] is config for call in given)


def test_what_is_left_alone(run, given, monkeypatch, caplog) -> None:
    """A running Ray, a client of another, a submitted job whose hook leaves no place for ours."""
    ray.init("ray://elsewhere:10001")
    monkeypatch.setenv("RAY_ADDRESS", "ray://elsewhere:10001")
    ray.init()
    monkeypatch.delenv("RAY_ADDRESS")
    job = {"runtime_env": {HOOK: "theirs.hook"}}
    monkeypatch.setenv("RAY_JOB_CONFIG_JSON_ENV_VAR", json.dumps(job))
    ray.init()
    monkeypatch.setenv("RAY_JOB_CONFIG_JSON_ENV_VAR", "{")  # whatever it is
    ray.init()
    monkeypatch.delenv("RAY_JOB_CONFIG_JSON_ENV_VAR")
    assert len(caplog.records) == 4
    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    ray.init(ignore_reinit_error=True)
    assert [call for call in given if "runtime_env" in call] == []
    assert len(given) == 5
    assert len(caplog.records) == 4


def test_ray_init_before_a_run(given, monkeypatch, caplog) -> None:
    """Its workers can't be told where they belong: that is said."""
    monkeypatch.setattr("otel_grpo.tracing.lifecycle._runs", [])
    ray.init(num_cpus=1)
    assert given == [{"args": (), "num_cpus": 1}]
    assert "no run was started before ray.init" in caplog.text
