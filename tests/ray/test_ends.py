"""However a worker ends, what it wrote stays whole."""

from __future__ import annotations

import threading
from pathlib import Path

import msgspec
import pytest
import ray
from actors import Timed
from plain_actors import Plain
from ray_support import HERE, until

import otel_grpo.ray
from otel_grpo.ray import joining
from otel_grpo.records.model import Call, Joined, Left, WorkerLine
from otel_grpo.records.worker_dir import WorkerDir


def gone(actor, pid: int) -> None:
    with pytest.raises(ray.exceptions.RayActorError):
        ray.get(actor.add.remote(1), timeout=30)
    until(lambda: not Path(f"/proc/{pid}").exists())


def test_orderly_end(observed) -> None:
    """An actor that nobody holds any more says that it left, and what became of its lines."""
    actor = ray.remote(num_cpus=0)(Timed).remote()
    ray.get([actor.step.remote(n) for n in range(3)])
    observed.calls(actor, 3)
    joined = observed.joined(actor)
    file = observed.run.path / "workers" / f"{joined.name}-{joined.pid}.jsonl"
    del actor
    until(lambda: b'"kind":"left"' in file.read_bytes())
    *_, last = [
        msgspec.json.decode(line, type=WorkerLine)
        for line in file.read_bytes().split(b"\n")
        if line
    ]
    assert isinstance(last, Left)
    assert last.status == "completed"
    workers, spans = last.observed.sinks["workers"], last.observed.sinks["spans"]
    # Of its own lines the last one is still to be written as it is made.
    assert (workers.created, workers.written, workers.dropped) == (5, 4, 0)
    assert (spans.created, spans.dropped) == (3, 0)
    assert last.observed.self_ns > 0
    assert last.observed.errors == {}


def test_ray_kill(observed) -> None:
    """No last line; every other one is whole."""
    actor = ray.remote(num_cpus=0)(Timed).remote()
    pid = ray.get(actor.pid.remote())
    refs = [actor.step.remote(n) for n in range(1_000)]
    observed.calls(actor, 1)
    ray.kill(actor)
    gone(actor, pid)
    first, *lines = observed.lines(actor)
    assert isinstance(first, Joined)
    assert {type(line) for line in lines} == {Call}
    assert 0 < len(lines) <= len(refs)


def test_os_exit(observed) -> None:
    """A process that ends in the middle of a call leaves the calls before it."""
    actor = ray.remote(num_cpus=0)(Timed).remote()
    pid = ray.get(actor.pid.remote())
    ray.get([actor.step.remote(n) for n in range(3)])
    observed.calls(actor, 3)
    with pytest.raises(ray.exceptions.RayActorError):
        ray.get(actor.vanishes.remote())
    gone(actor, pid)
    first, *lines = observed.lines(actor)
    assert isinstance(first, Joined)
    assert [line.method for line in lines] == ["step"] * 3


def test_without_our_package(observed, start, tmp_path) -> None:
    """Where it is missing the actor works as it would; its own log says why it is not observed."""
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\n"
        "class Hidden:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.partition('.')[0] == 'otel_grpo':\n"
        "            raise ModuleNotFoundError('hidden')\n"
        "sys.meta_path.insert(0, Hidden())\n"
    )
    timed = otel_grpo.ray.time_methods(Plain, ["add", "all", "fail"], carrier=True)
    hidden = {"env_vars": {"PYTHONPATH": f"{tmp_path}:{HERE}"}}
    actor = start(timed, runtime_env=hidden)
    assert ray.get(actor.add.remote(1, _otel={})) == 2
    assert ray.get(actor.all.remote(a=1, _otel={})) == ["a"]
    with pytest.raises(ray.exceptions.RayTaskError) as caught:
        ray.get(actor.fail.remote("text"))
    assert caught.value.cause.args == ("text", 7)
    variables = ray.get(actor.__ray_call__.remote(lambda self: dict(__import__("os").environ)))
    assert (variables["THEIR_HOOK"], variables["THEIRS"]) == ("ran", "1")
    assert observed.lines(actor) == []
    (name,) = otel_grpo.ray.watch(observed.run, [actor])
    assert name == f"Plain-{actor._actor_id.hex()[:8]}"
    otel_grpo.ray.measure_clocks(observed.run, [actor], always=True)  # it has none for us
    pid = ray.get(actor.pid.remote())
    logs = Path(ray._private.worker._global_node.get_session_dir_path(), "logs")
    (log,) = logs.glob(f"worker-*-{pid}.err")
    until(lambda: "this worker is not observed: ModuleNotFoundError('hidden')" in log.read_text())


def test_directory_that_is_not_shared(tmp_path, caplog) -> None:
    """On a machine without it, or where it is another run's, a worker has one of its own."""
    belongs = {"run_dir": str(tmp_path / "run"), "run_id": "r1", "attempt": 2}
    for _ in range(2):
        found = joining._find(belongs, "policy-1", threading.Event())
        assert found == WorkerDir(tmp_path / "run-policy-1", "r1", 2)
        assert {path.name for path in found.path.iterdir()} == {"spans", "workers"}
        with otel_grpo.start_run(tmp_path / "run", trainer="test", run_id="other"):
            pass
    assert [record.getMessage().count("run-policy-1") for record in caplog.records] == [1, 1]
    assert not list((tmp_path / "run" / "workers").glob("policy-1*"))
    found = joining._find({**belongs, "run_id": "other"}, "policy-1", threading.Event())
    assert found == WorkerDir(tmp_path / "run", "other", 2)
