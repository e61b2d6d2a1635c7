"""A script as trainers write it: it starts Ray itself, and just ends."""

from __future__ import annotations

import os
import subprocess
import sys

import msgspec
from ray_support import HERE, INIT

from otel_grpo.audit import audit
from otel_grpo.records import reader
from otel_grpo.records.model import Call, Joined, Ranks, RolloutRecord, WorkerLine

SCRIPT = """
import sys
import ray, otel_grpo, otel_grpo.ray
from actors import Timed

otel_grpo.ray.instrument()
with otel_grpo.start_run(sys.argv[1], trainer="test") as run:
    # Ray's own tracing, and a hook that the workers import.
    env = {"worker_process_setup_hook": "theirs.hook"}
    ray.init(**INIT, runtime_env=env, _tracing_startup_hook="theirs:start_tracing")
    actor = ray.remote(Timed).remote()
    with run.iteration() as it, it.phase("policy_train"):
        assert ray.get(actor.step.remote(1)) == 2
        assert ray.get(actor.carried.remote(1, _otel=run.carrier())) == 1
        assert ray.get(actor.two.remote()) == [1, 2]
    print(ray.get(actor.__ray_call__.remote(lambda self: __import__("os").environ["THEIR_HOOK"])))
    # Nobody calls ray.shutdown.
"""
THEIRS = """
import os

def hook():
    os.environ["THEIR_HOOK"] = "by name"

def start_tracing():
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider
    trace.set_tracer_provider(TracerProvider())
"""


def test_script_of_a_trainer(tmp_path) -> None:
    """The record has the workers' calls, their files are whole, and Ray's spans have no doubles."""
    (tmp_path / "theirs.py").write_text(THEIRS)
    path = tmp_path / "run"
    done = subprocess.run(
        [sys.executable, "-c", f"INIT = {INIT!r}\n{SCRIPT}", path],
        env={**os.environ, "PYTHONPATH": f"{HERE}:{tmp_path}"},
        capture_output=True,
        check=False,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    assert "by name" in done.stdout
    files = {file.name.partition("-")[0]: file for file in (path / "workers").iterdir()}
    assert set(files) == {"driver", "Timed"}
    joined, *calls = (
        msgspec.json.decode(line, type=WorkerLine)
        for line in files["Timed"].read_bytes().splitlines()
    )
    assert isinstance(joined, Joined)
    calls = [call for call in calls if isinstance(call, Call)]
    # The driver's record has them under the number of their worker.
    (record,) = (
        line.value
        for line in reader.read_records(path)
        if isinstance(line, reader.Whole) and isinstance(line.value, RolloutRecord)
    )
    assert record.attributes.workers == {
        call.method: {"1": [call.end_ns - call.start_ns]} for call in calls
    }
    assert [call.method for call in calls] == ["step", "carried", "two"]
    assert record.attributes.ranks == Ranks(2, 2, [])
    (process,) = reader.read_run_file(path).attempts[0].processes
    assert (process.rank, process.name, process.pid) == (1, joined.name, joined.pid)
    assert reader.read_summary(path).status == "completed"
    assert audit(path).exit_status == 0
    # Ray makes a span of each call itself; that we make none is said once.
    assert list((path / "spans").glob("Timed-*")) == []
    assert done.stderr.count("Ray's own tracing makes spans") == 1
