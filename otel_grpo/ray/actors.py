"""What the driver does with the actors themselves: names for them, and their clocks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from otel_grpo.core.clock import boot_id
from otel_grpo.ranks.job import WorkerPeers
from otel_grpo.ray.joining import name_of
from otel_grpo.records.model import ClockOffset

if TYPE_CHECKING:
    from otel_grpo.tracing.run import Run

# Of so many round trips the shortest one counts: it waited least, so it bounds best.
_ROUND_TRIPS = 9


def watch(run: Run, actors: Iterable[Any], *, role: str | None = None) -> list[str]:
    """Count these actors as workers of the run before they are heard of; gives their names.

    One that never writes a line is then missing by its name in every window.

    Args:
        run: the driver's.
        actors: handles.
        role: as their `join` says it; default: the name of their class.
    """
    names = []
    for actor in actors:
        try:
            described = actor._ray_actor_creation_function_descriptor
            said = role or described.class_name.rpartition(".")[2]
            names.append(name_of(said, actor._actor_id.hex()))
        except Exception as error:
            run.guard.fault("ray.watch", error)
    if isinstance(run.peers, WorkerPeers):
        run.peers.watch(names)
    return names


def measure_clocks(
    run: Run, actors: Iterable[Any], *, always: bool = False, timeout_s: float = 30.0
) -> None:
    """Measure the clocks of actors on other machines, by round trips, and keep them in the files.

    Its calls stand in an actor's queue like any other, so call it while the actors are idle, and
    again now and then in a long run: clocks drift, and between two measurements the offset is drawn
    as a line.

    Args:
        run: the driver's.
        actors: handles. One that has not joined the run is left out.
        always: also those on this machine, whose clocks are known exactly.
        timeout_s: for all of an actor's answers; what does not answer is left out and counted.
    """
    if not run.live:
        return
    for actor in actors:
        try:
            _measure(run, actor, always=always, timeout_s=timeout_s)
        except Exception as error:
            run.guard.fault("ray.clock", error)


def _measure(run: Run, actor: Any, *, always: bool, timeout_s: float) -> None:
    import ray

    best: ClockOffset | None = None
    ask = _asks()
    for _ in range(_ROUND_TRIPS):
        sent = run.clock.now()
        told = ray.get(actor.__ray_call__.remote(ask), timeout=timeout_s)
        back = run.clock.now()
        if told is None:
            return  # it is not observed
        name, boot, theirs = told
        if boot == boot_id() and not always:
            return
        middle, bound = (sent + back) // 2, (back - sent + 1) // 2
        if best is None or bound < best.bound_ns:
            best = ClockOffset(run.run_id, run.output.attempt, name, theirs - middle, bound, middle)
    if best is not None:
        run.output.worker(best)


def _asks() -> Callable[[Any], tuple[str, str | None, int] | None]:
    """What an actor is asked: its name, its machine's boot, its clock. It goes there by value."""

    def ask(actor: Any) -> tuple[str, str | None, int] | None:
        try:
            from otel_grpo.core.clock import boot_id
            from otel_grpo.tracing import dormant
        except Exception:
            return None
        worker = dormant.current()
        return None if worker is None else (worker.name, boot_id(), worker.clock.now())

    return ask
