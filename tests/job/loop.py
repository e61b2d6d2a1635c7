"""One rank of a small SPMD training without torch; as a script it forks a child for each.

A rank writes what it counted itself into a file of its own, a line a window: nothing of the plugin
is used for that.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import random
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import otel_grpo
from otel_grpo import api, devices  # noqa: F401 - loaded once, not in each fork
from otel_grpo.ranks import collector
from otel_grpo.records.model import Device
from otel_grpo.tracing import handover, run as runs

ROLLOUT = "rollout"


class Overflow(Exception):
    """The user's own failure of an update."""


class Rank:
    """One process of a training; `events` happen at points like ``2.generation``.

    Options: `windows`, `samples` (of each window, of this rank; the last number holds on), `passes`
    over them, `updates` of a pass, `group` (samples of a group, over all ranks), `shard` (the place of
    its samples among those of all; tensor-parallel ranks share it), `pause` (seconds in a window).
    """

    def __init__(self, request: dict[str, Any]) -> None:
        self.dir: str | None = request["dir"]
        self.rank: int = request["rank"]
        self.world: int = request["world"]
        self.own: str = request["own"]
        self.training: int = request["training"]
        self.events: dict[str, str] = request.get("events", {})
        self.windows: int = request.get("windows", 3)
        self.samples: list[int] = request.get("samples", [4])
        self.passes: int = request.get("passes", 1)
        self.updates: int = request.get("updates", 1)
        self.group: int = request.get("group", 2)
        self.shard: int = request.get("shard", self.rank)
        self.pause: float = request.get("pause", 0.0)
        self.unconfirmed: list[int] = request.get("unconfirmed", [])
        runs.LAST_WORDS_S = request.get("last_words", runs.LAST_WORDS_S)
        collector.INTERVAL_S = request.get("look", collector.INTERVAL_S)
        handover.DEADLINE_NS = int(request.get("deadline", 30) * 1e9)

    def train(self) -> None:
        self.at("0.start")
        self.run = otel_grpo.start_run(
            self.dir,
            trainer="loop",
            rank=self.rank,
            world_size=self.world,
            devices=[Device(f"cpu:host:{self.rank}", "cpu", "host")],
            readings=list,
        )
        self.at("0.begin")
        begun = time.monotonic()
        with self.run:
            for number in range(1, self.windows + 1):
                self.window(number)
            self.tell("trained", time.monotonic() - begun)
            self.at("0.end")
        self.tell("finished", time.monotonic() - begun)

    def window(self, number: int) -> None:
        n = self.samples[min(number, len(self.samples)) - 1]
        # Tensor-parallel ranks hold the same samples, of the same lengths.
        draw = random.Random(f"{self.shard} {number}")
        first = self.shard * max(self.samples)
        rows = [
            {
                "id": [f"{ROLLOUT}{number}", first + i],
                "prompt": 3 + (first + i) // self.group,
                "completion": draw.randrange(1, 50),
                "environment": draw.randrange(3),
                "group": (first + i) // self.group,
                "visits": 0,
            }
            for i in range(n)
        ]
        for row in rows:
            row["trained"] = draw.randrange(row["completion"] + 1)
        done: list[str] = []
        with self.run.iteration() as it:
            with it.phase("generation"):
                time.sleep(self.pause)
                self.at(f"{number}.generation")
            it.generated(f"{ROLLOUT}{number}", n, first=first)
            samples = it.consumed(
                f"{ROLLOUT}{number}",
                first=first,
                prompt_lengths=[row["prompt"] for row in rows],
                completion_lengths=[row["completion"] for row in rows],
                environment_lengths=[row["environment"] for row in rows],
                trained_lengths=[row["trained"] for row in rows],
                groups=[row["group"] for row in rows],
                versions=number - 1,
            )
            for _ in range(self.passes):
                size = -(-max(self.samples) // self.updates)
                for k in range(self.updates):
                    part = slice(k * size, (k + 1) * size)
                    with it.phase("policy_train"):
                        it.trained(samples[part])
                        self.at(f"{number}.training")
                    for row in rows[part]:
                        row["visits"] += 1
                    done.append(self.update(it, number, size))
            self.run.log_scalars({"loss": 1 / number}, step=number)
            publication = it.publication(number, kind="in_place")
            if number not in self.unconfirmed:
                publication.completed()
        self.tell("window", {"iteration": number, "rows": rows, "updates": done})
        self.at(f"{number}.end")

    def update(self, it: otel_grpo.Iteration, number: int, nominal: int) -> str:
        status = "applied"
        with contextlib.suppress(Overflow), it.update(nominal=nominal) as update:
            status = self.at(f"{number}.update") or "applied"
            if status == "skipped":
                update.skip("overflow")
            elif status == "failed":
                raise Overflow
        return status

    def tell(self, what: str, value: Any) -> None:
        line = json.dumps([what, value]) + "\n"
        fd = os.open(f"{self.own}.told", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.write(fd, line.encode())
        os.close(fd)

    # --- events

    def at(self, point: str) -> Any:
        """What was asked for at this point: names of methods below, each with one word."""
        said = None
        for event in filter(None, self.events.get(point, "").split(";")):
            name, _, word = event.partition(" ")
            said = getattr(self, name)(word.format(self.training)) or said
        return said

    def skipped(self, _: str) -> str:
        return "skipped"

    def failed(self, _: str) -> str:
        return "failed"

    def sleep(self, seconds: str) -> None:
        time.sleep(float(seconds))

    def flush(self, _: str) -> None:
        """What was handed over is in the file: only what is asked of a kill is lost by it."""
        self.run.output.writer.flush()

    def kill(self, _: str) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def leave(self, code: str) -> None:
        os._exit(int(code))

    def touch(self, path: str) -> None:
        Path(path).touch()

    def wait(self, path: str) -> None:
        until(Path(path).exists)

    def joined(self, count: str) -> None:
        """Until so many ranks have their first line in the directory that this one is in."""
        path = self.path()
        until(
            lambda: (
                len([f for f in path.glob("workers/trainer-*") if f.stat().st_size]) >= int(count)
            )
        )

    def read(self, iteration: str) -> None:
        """Until rank 0 has made the record of a window."""
        raw = self.path() / "metrics_raw.jsonl"
        wanted = f'"iteration":{iteration},'.encode()
        until(
            lambda: (
                raw.exists()
                and any(
                    b'"kind":"rollout"' in line and wanted in line
                    for line in raw.read_bytes().splitlines()
                )
            )
        )

    def path(self) -> Path:
        until(lambda: self.run.path is not None)
        assert self.run.path is not None
        return self.run.path

    def chdir(self, path: str) -> None:
        os.chdir(path)

    def append(self, kind: str) -> None:
        """Lines that no rank would write, into this rank's own file."""
        self.flush("")
        (path,) = self.path().glob(f"workers/trainer-{self.rank}-*")
        lines = path.read_bytes().splitlines(keepends=True)
        last = json.loads(lines[1 if kind == "old" else -1])
        assert last["kind"] == "contribution"
        if kind == "foreign":
            last["run_id"] = "another"
        elif kind == "usurped":
            last["rank"] = self.rank + 1
        added = json.dumps(last).encode() + b"\n"
        fd = os.open(path, os.O_WRONLY | os.O_APPEND)
        os.write(fd, added[: len(added) // 2] if kind == "torn" else added)
        os.close(fd)

    def hang(self, _: str) -> None:
        """From now on writes of the plugin never come back, like those of a dead file system."""
        real = os.write

        def write(fd: int, data: Any) -> int:
            if threading.current_thread().name.startswith("otel-grpo"):
                time.sleep(1000)
            return real(fd, data)

        os.write = write

    def fork(self, method: str) -> None:
        """A child while a window is open, which does all that a rank does."""
        warnings.filterwarnings("ignore", ".*multi-threaded", DeprecationWarning)
        if method == "os":
            child = os.fork()
            if child == 0:
                self.in_a_child()
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
            return
        process = multiprocessing.get_context(method).Process(
            target=work_of_a_loader if method == "spawn" else self.in_a_child
        )
        process.start()
        process.join(60)
        assert process.exitcode == 0

    def in_a_child(self) -> None:
        assert otel_grpo.current_run() is None
        with self.run.iteration() as it, it.phase("child"):
            it.consumed("child", prompt_lengths=[1])
        self.run.memory()
        self.run.finish()
        assert [t for t in threading.enumerate() if t.name.startswith("otel-grpo")] == []

    def interrupt(self, seconds: str) -> None:
        """Ctrl-C after so many seconds."""
        signal.signal(signal.SIGINT, signal.default_int_handler)
        timer = threading.Timer(float(seconds), lambda: os.kill(os.getpid(), signal.SIGINT))
        timer.daemon = True
        timer.start()


def work_of_a_loader() -> None:
    """In a process that starts anew, as a worker of a data loader may."""
    assert otel_grpo.current_run() is None


def until(true: Callable[[], object], seconds: float = 30) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.005)


def serve(requests: Iterator[str]) -> None:
    """Starts ranks and waits for them, as it is asked."""
    for line in requests:
        request = json.loads(line)
        if "wait" in request:
            answer = os.waitstatus_to_exitcode(os.waitpid(request["wait"], 0)[1])
        else:
            answer = os.fork()
            if answer == 0:
                be(request)
        print(answer, flush=True)


def be(request: dict[str, Any]) -> None:
    os.environ["OTEL_GRPO_LAUNCH"] = request["launch"]
    os.chdir(request["folder"])
    error = os.open(f"{request['own']}.stderr", os.O_WRONLY | os.O_CREAT, 0o600)
    os.dup2(error, 2)
    for training in range(request.get("trainings", 1)):
        Rank({**request, "training": training + 1}).train()
    sys.exit(0)


if __name__ == "__main__":
    serve(iter(sys.stdin.readline, ""))
