"""A driver whose actors end as it is told, and which writes down what it counted itself.

Nothing of the plugin is used for that: each line is a name, the machine's monotonic clock, and what
happened.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from typing import Any

import ray
from ray.exceptions import RayActorError

import otel_grpo
import otel_grpo.ray
from otel_grpo.ranks import collector
from otel_grpo.tracing import handover, run as runs

TOLD = -1  # a file of its own: Ray prints, too


def tell(what: str, *values: Any) -> None:
    line = json.dumps([what, time.perf_counter_ns(), *values]) + "\n"
    os.write(TOLD, line.encode())


class Member:
    """What an actor of either role does beside its work."""

    def pid(self) -> int:
        return os.getpid()

    @otel_grpo.timed
    def hold(self) -> None:
        time.sleep(60)

    @otel_grpo.timed
    def leave(self, seconds: float) -> None:
        time.sleep(seconds)
        os._exit(7)


class SoakPolicy(Member):
    """Is a part of the run as soon as it is there."""

    def __init__(self) -> None:
        otel_grpo.ray.join("SoakPolicy", ["train"])

    @otel_grpo.timed(memory=True, carrier=True)
    def work(self, value: int, seconds: float) -> int:
        time.sleep(seconds)
        return value + 1


class SoakRoller(Member):
    """Is one from its first call on."""

    @otel_grpo.timed("generate", memory=True, carrier=True)
    def work(self, value: int, seconds: float) -> int:
        time.sleep(seconds)
        return value + 1


class Driver:
    """Runs the windows of a plan: in each the actors work, and one of them may be ended."""

    def __init__(self, run: otel_grpo.Run, plan: dict[str, Any]) -> None:
        self.run = run
        self.plan = plan
        self.actors = [self.make(index) for index in range(len(plan["roles"]))]

    def make(self, index: int) -> Any:
        role = {"policy": SoakPolicy, "roller": SoakRoller}[self.plan["roles"][index]]
        actor = ray.remote(num_cpus=0)(role).remote()
        tell("made", index, actor._actor_id.hex())
        if self.plan["watch"]:
            otel_grpo.ray.watch(self.run, [actor])
            tell("watched", actor._actor_id.hex())
        return actor

    def train(self) -> None:
        for number, todo in enumerate(self.plan["windows"], 1):
            raised: RayActorError | None = None
            tell("open", number)
            try:
                with self.run.iteration() as it:
                    tell("opened", number)
                    with it.phase("generation"):
                        raised = self.work(number, todo)
                    if raised is not None and todo["inside"]:
                        self.actors[todo["victim"]] = self.make(todo["victim"])
                    tell("close", number)
                    if raised is not None and not todo["inside"]:
                        raise raised
            except RayActorError as caught:
                tell("raised", number, caught is raised)
                self.actors[todo["victim"]] = self.make(todo["victim"])
            tell("closed", number)
            time.sleep(todo["between"])

    def work(self, number: int, todo: dict[str, Any]) -> RayActorError | None:
        """All calls of a window; the first error that came of them, if one did."""
        victim, how = todo["victim"], todo["how"]
        if how is not None and not todo["in_call"]:
            self.end(number, victim, how)
        calls = [
            (
                index,
                "work",
                value,
                actor.work.remote(value, todo["seconds"], _otel=self.run.carrier()),
            )
            for value in range(todo["calls"])
            for index, actor in enumerate(self.actors)
        ]
        if how is not None and todo["in_call"]:
            calls.append((victim, "hold", 0, self.end_in_call(number, victim, how, todo["after"])))
        raised = None
        for index, method, value, ref in calls:
            actor_id = self.actors[index]._actor_id.hex()
            try:
                said: Any = ray.get(ref, timeout=60)
            except RayActorError as error:
                raised = raised or error
                said = "RayActorError"
            tell("call", number, actor_id, method, value, said)
        return raised

    def end_in_call(self, number: int, victim: int, how: str, seconds: float) -> Any:
        actor = self.actors[victim]
        if how == "exit":
            tell("killed", number, actor._actor_id.hex(), how)
            return actor.leave.remote(seconds)
        pid = ray.get(actor.pid.remote()) if how == "sigkill" else None
        ref = actor.hold.remote()
        time.sleep(seconds)
        self.end(number, victim, how, pid)
        return ref

    def end(self, number: int, victim: int, how: str, pid: int | None = None) -> None:
        actor = self.actors[victim]
        if how == "sigkill":
            pid = pid or ray.get(actor.pid.remote())
            tell("killed", number, actor._actor_id.hex(), how)
            os.kill(pid, signal.SIGKILL)
        else:
            tell("killed", number, actor._actor_id.hex(), how)
            ray.kill(actor)


def main(path: str, address: str, plan: dict[str, Any]) -> None:
    collector.INTERVAL_S = plan["look"]
    handover.DEADLINE_NS = int(plan["deadline"] * 1e9)
    runs.LAST_WORDS_S = plan["last_words"]
    with otel_grpo.start_run(path, trainer="soak") as run:
        env = otel_grpo.ray.runtime_env(run)
        ray.init(address=address, log_to_driver=False, runtime_env=env)
        tell("begun")
        driver = Driver(run, plan)
        driver.train()
        if plan["lets_go"]:
            driver.actors.clear()  # they end in order
    tell("finished")


if __name__ == "__main__":
    TOLD = os.open(sys.argv[4], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    main(sys.argv[1], sys.argv[2], json.loads(sys.argv[3]))
