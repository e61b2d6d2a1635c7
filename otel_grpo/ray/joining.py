"""The files of a worker process of Ray, and what it is called in them."""

from __future__ import annotations

import functools
import os
import re
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import ray

from otel_grpo import devices, otlp, semconv
from otel_grpo.core.clock import Clock, boot_id
from otel_grpo.ray.variables import lent
from otel_grpo.records.model import ClockPair, Device, Joined
from otel_grpo.records.rundir import RunDirError
from otel_grpo.records.worker_dir import WorkerDir, join_run_dir, own_worker_dir
from otel_grpo.tracing import sanitize
from otel_grpo.tracing.carrier import span_context
from otel_grpo.tracing.guard import Guard, logger
from otel_grpo.tracing.provider import resource
from otel_grpo.tracing.worker import Worker
from otel_grpo.tracing.worker_output import WorkerOutput

if TYPE_CHECKING:
    import threading

# What a user says of an actor by its own `runtime_env`, where he can't call `join` in it.
ROLE = "OTEL_GRPO_ROLE"
DOES = "OTEL_GRPO_DOES"


def worker(
    belongs: Mapping[str, Any], guard: Guard, role: str | None, does: Sequence[str]
) -> Worker:
    """This process as a worker of the run that `belongs` names, started."""
    actor_id = _actor_id()
    own_id = actor_id or str(ray.get_runtime_context().get_worker_id())
    role = plain(os.environ.get(ROLE) or role or _class_of(actor_id))
    does = tuple(filter(None, os.environ.get(DOES, "").split(","))) or does
    clock = Clock.read()
    identity = _Identity(role, name_of(role, own_id), actor_id, does, clock)
    inventory = functools.cache(functools.partial(_inventory, does, guard))
    reader = functools.cache(functools.partial(_reader, inventory, guard))

    def readings() -> list[devices.Reading]:
        # Not before the first call that wants one: the actor has its device by then.
        return reader()()

    spans = not _has_own_tracing()
    with lent(belongs.get("otlp", {})):
        live = otlp.live(guard, spans=spans)
    output = WorkerOutput(
        functools.partial(_find, belongs, identity.name),
        functools.partial(identity.joined, clock.now(), inventory),
        name=identity.name,
        clock=clock,
        guard=guard,
        self_ns=lambda: made.self_ns,
        live=live,
    )
    made = Worker(
        output,
        clock,
        guard,
        name=identity.name,
        resource=resource({**belongs["resource"], semconv.ROLE: role, semconv.RANK: None}),
        attributes={semconv.RUN_ID: belongs["run_id"], semconv.ROLE: role},
        run_span=span_context(belongs["run_span"]),
        spans=spans,
        readings=readings,
        live=live,
    )
    made.start()
    return made


def _reader(inventory: Callable[[], list[Device]], guard: Guard) -> devices.Reader:
    return devices.Reader(0, devices=inventory(), on_error=guard.fault)


class _Identity(NamedTuple):
    """What the first line says of the process."""

    role: str
    name: str
    actor_id: str | None
    does: Sequence[str]
    clock: Clock

    def joined(
        self, started_ns: int, inventory: Callable[[], list[Device]], run_id: str, attempt: int
    ) -> Joined:
        return Joined(
            run_id=run_id,
            attempt=attempt,
            role=self.role,
            name=self.name,
            rank=None,
            world=None,
            host=socket.gethostname(),
            pid=os.getpid(),
            clock=ClockPair(boot_id(), self.clock.unix_ns, self.clock.perf_ns),
            started_unix_ns=started_ns,
            devices=[(device, list(self.does)) for device in inventory()],
            actor_id=self.actor_id,
        )


def _inventory(does: Sequence[str], guard: Guard) -> list[Device]:
    """Its devices; a process without an accelerator is one if it trains or generates."""
    found = devices.inventory(on_error=guard.fault)
    idle = bool(does) and not {"train", "generate"} & set(does)
    return [device for device in found if not (idle and device.kind == "cpu")]


def _find(belongs: Mapping[str, Any], name: str, ending: threading.Event) -> WorkerDir:
    path, run_id, attempt = Path(belongs["run_dir"]), belongs["run_id"], belongs["attempt"]
    try:
        return join_run_dir(path, run_id, attempt)
    except RunDirError as error:
        # Here, too, one directory may be another run's.
        own = path.with_name(f"{path.name}-{name}")
        logger.warning(
            "otel-grpo: %s on %s: what this worker writes is in %s. Copy its files into the"
            " driver's directory, then run: otel-grpo finish",
            error,
            socket.gethostname(),
            own,
        )
        return own_worker_dir(own, run_id)._replace(attempt=attempt)


# --- what it is called


def _actor_id() -> str | None:
    return ray.get_runtime_context().get_actor_id()  # type: ignore[no-any-return]


def _class_of(actor_id: str | None) -> str:
    """The name of the actor's class; of a process that runs tasks, that it does so."""
    if actor_id is None:
        return "task"
    actors = getattr(ray.get_runtime_context().worker, "actors", None) or {}
    return next((type(actor).__name__ for actor in actors.values()), "actor")


def name_of(role: str, own_id: str) -> str:
    """Of a worker with that id, its actor's if it is one: the same on both sides, and only once."""
    return f"{plain(role)}-{own_id[:8]}"


def plain(text: str) -> str:
    """For a file's name."""
    return re.sub(r"[^A-Za-z0-9._-]+", "_", sanitize.label(text))


def _has_own_tracing() -> bool:
    """Whether Ray makes a span of each call itself: a second one would say the same."""
    helper = sys.modules.get("ray.util.tracing.tracing_helper")
    if helper is None or not helper._is_tracing_enabled():
        return False
    logger.warning(
        "otel-grpo: Ray's own tracing makes spans of the calls, so we make none; their durations"
        " are in the files as ever"
    )
    return True
