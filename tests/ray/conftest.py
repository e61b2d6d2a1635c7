"""One Ray for all tests, whose workers belong to one run; what its files say of an actor."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from otel_grpo.records.model import Call, Joined, WorkerLine, WorkerMemory

# The actors, and what the tests share; Ray's workers get it by their environment.
sys.path[:0] = [str(Path(__file__).parent)]

from ray_support import HERE, INIT, until  # noqa: E402

for _name in ("RUN_DIR", "RUN_ID", "DISABLED", "ROLE", "DOES"):
    os.environ.pop(f"OTEL_GRPO_{_name}", None)
os.environ["OTEL_GRPO_STRICT"] = "true"  # in the workers too
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
os.environ["RAY_AUTH_MODE"] = "disabled"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Ray warns of what is its own to mend."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings("ignore"))


class Observed:
    """A run whose workers Ray starts."""

    def __init__(self, run: Any) -> None:
        self.run = run

    def lines(self, actor: Any) -> list[WorkerLine]:
        """What an actor has written, its first line first; [] where it has no file."""
        for file in (self.run.path / "workers").iterdir():
            lines = self.read(file)
            if lines and getattr(lines[0], "actor_id", None) == actor._actor_id.hex():
                return lines
        return []

    def read(self, file: Path) -> list[WorkerLine]:
        """The lines of a file, all of which are whole."""
        raw = file.read_bytes()
        assert raw.endswith(b"\n") or not raw, f"{file} has a torn line"
        return [msgspec.json.decode(line, type=WorkerLine) for line in raw.splitlines()]

    def calls(self, actor: Any, n: int, method: str | None = None) -> list[Call]:
        """So many calls of an actor, or of one of its methods, once they are in its file."""

        def found() -> list[Call]:
            calls = [line for line in self.lines(actor) if isinstance(line, Call)]
            return [call for call in calls if method in (None, call.method)]

        until(lambda: len(found()) >= n)
        return found()

    def memory(self, actor: Any, n: int) -> list[WorkerMemory]:
        """So many readings of an actor."""
        until(lambda: sum(isinstance(line, WorkerMemory) for line in self.lines(actor)) >= n)
        return [line for line in self.lines(actor) if isinstance(line, WorkerMemory)]

    def joined(self, actor: Any) -> Joined:
        until(lambda: self.lines(actor))
        first = self.lines(actor)[0]
        assert isinstance(first, Joined)
        return first

    def spans(self, actor: Any, n: int, name: str | None = None) -> list[dict[str, Any]]:
        """So many spans of an actor, or of those with a name, in the order in which they ended."""
        joined = self.joined(actor)
        file = self.run.path / "spans" / f"{joined.name}-{joined.pid}.jsonl"

        def found() -> list[dict[str, Any]]:
            return [
                span
                for line in (file.read_bytes().splitlines() if file.exists() else [])
                for resource in json.loads(line)["resourceSpans"]
                for scope in resource["scopeSpans"]
                for span in scope["spans"]
                if name in (None, span["name"])
            ]

        until(lambda: len(found()) >= n)
        return found()


def their_hook() -> Callable[[], None]:
    """A hook of the trainer's script; it goes to the workers by value, they can't import this file."""

    def hook() -> None:
        import os

        os.environ["THEIR_HOOK"] = "ran"

    return hook


@pytest.fixture(scope="session")
def observed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Observed]:
    """Ray is started once; the trainer has an environment and a hook of its own."""
    import ray

    import otel_grpo
    import otel_grpo.ray

    path = tmp_path_factory.mktemp("ray") / "run"
    with otel_grpo.start_run(path, trainer="test") as run:
        env = {
            "env_vars": {"PYTHONPATH": str(HERE), "THEIRS": "1"},
            "worker_process_setup_hook": their_hook(),
        }
        ray.init(**INIT, log_to_driver=False, runtime_env=otel_grpo.ray.runtime_env(run, env))
        yield Observed(run)
        ray.shutdown()


@pytest.fixture
def start(observed: Observed) -> Iterator[Callable[..., Any]]:
    """Actors that end with the test."""
    import ray

    started = []

    def make(actor_class: Any, **options: Any) -> Any:
        remote = actor_class
        if not hasattr(actor_class, "remote"):
            remote = ray.remote(num_cpus=0, **options)(actor_class)
        started.append(remote.remote())
        return started[-1]

    yield make
    for actor in started:
        ray.kill(actor)


@pytest.fixture(scope="session")
def shared(observed: Observed) -> Callable[[Any], Any]:
    """One actor of a class for all tests that leave it as it is."""
    import ray

    actors: dict[Any, Any] = {}

    def of(actor_class: Any) -> Any:
        if actor_class not in actors:
            actors[actor_class] = ray.remote(num_cpus=0)(actor_class).remote()
        return actors[actor_class]

    return of
