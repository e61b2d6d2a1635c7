"""A process whose clocks a test sets, as a script: a worker of a run without Ray, or a rank.

It does what lines on its standard input say, and answers each with a line. A worker is what it would
be below Ray, of which it has only the names.
"""

from __future__ import annotations

import base64
import json
import marshal
import sys
import time
from types import FunctionType, ModuleType, SimpleNamespace
from typing import Any

import otel_grpo


@otel_grpo.timed(memory=True)
def step(seconds: float) -> None:
    time.sleep(seconds)


def works(belongs: dict[str, Any], own_id: str) -> None:
    """As an actor of that id, in the run that `belongs` names."""
    context = SimpleNamespace(
        get_actor_id=lambda: own_id, worker=None, get_worker_id=lambda: own_id
    )
    ray = ModuleType("ray")
    ray.get_runtime_context = lambda: context
    sys.modules["ray"] = ray

    from otel_grpo.ray import process
    from otel_grpo.tracing import dormant

    process.offer(belongs)
    process.join("policy", ["train"])
    answer(None)
    for line in sys.stdin:
        asked = json.loads(line)
        if isinstance(asked, str):  # a function, by value
            code = marshal.loads(base64.b64decode(asked))
            answer(FunctionType(code, {"__builtins__": __builtins__})(None))
        else:
            step(asked)
            # Also the reading that is taken beside the call is in the file.
            dormant.current()._output.writer.flush()
            answer(None)


def drives(path: str, rank: int) -> None:
    """As one of two ranks: windows of so many seconds with an update, one for each line."""
    with otel_grpo.start_run(
        path, trainer="test", devices=[], readings=list, rank=rank, world_size=2
    ) as run:
        answer(None)
        for line in sys.stdin:
            with run.iteration() as it:
                with it.phase("generation"):
                    answer(None)  # the clock is set
                    sys.stdin.readline()
                    time.sleep(json.loads(line))
                samples = it.consumed(
                    it.number, first=rank, prompt_lengths=[1 + rank], completion_lengths=[1]
                )
                with it.phase("policy_train"):
                    it.trained(samples)
                with it.update(nominal=1):
                    pass
                it.publication(it.number, kind="in_place").completed()
            answer(None)


def answer(value: Any) -> None:
    print(json.dumps(value), flush=True)


if __name__ == "__main__":
    {"worker": works, "rank": drives}[sys.argv[1]](*map(json.loads, sys.argv[2:]))
