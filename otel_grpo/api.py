"""Starting a run: devices are found and wired to it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from otel_grpo.ranks.identity import identity
from otel_grpo.ranks.job import Ranks
from otel_grpo.tracing import given, lifecycle, starting
from otel_grpo.tracing.guard import Guard
from otel_grpo.tracing.iteration import Iteration
from otel_grpo.tracing.phase import Phase
from otel_grpo.tracing.run import Run

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping, Sequence

    from opentelemetry.metrics import MeterProvider
    from opentelemetry.sdk.trace import TracerProvider

    from otel_grpo.records.model import Device
    from otel_grpo.tracing.live import Live
    from otel_grpo.tracing.window import Reading


def start_run(
    run_dir: str | os.PathLike[str] | None = None,
    *,
    trainer: str,
    algorithm: str | None = None,
    trainer_version: str | None = None,
    adapter_version: str | None = None,
    config: Any = None,
    run_id: str | None = None,
    devices: Sequence[Device] | None = None,
    device_roles: Sequence[Sequence[str]] | None = None,
    readings: Callable[[], Sequence[Reading]] | None = None,
    role: str | None = None,
    rank: int | None = None,
    world_size: int | None = None,
    base: Mapping[str, int] | None = None,
    tracer_provider: TracerProvider | None = None,
    meter_provider: MeterProvider | None = None,
) -> Run:
    """Start to observe a training run; use it as a context manager, or call `finish`.

    Spans and metrics are sent by OTLP, too, where the standard variables of OpenTelemetry name a
    receiver (docs/live.md).

    Never raises, whatever the disk or the environment says: a run that can't be recorded trains as
    it would without us, and says once what is lost.

    Args:
        run_dir: where the files go; default: ``OTEL_GRPO_RUN_DIR``, else ``runs/<utc time>-<id>``. A
            directory that was used before gets the next attempt of its run.
        trainer: name of the trainer or of your loop.
        algorithm: ``grpo``, ``dapo``, ``rloo`` ...
        trainer_version: of the trainer's package.
        adapter_version: of what calls this function.
        config: anything that can be encoded as JSON; only its SHA-256 is kept.
        run_id: default: ``OTEL_GRPO_RUN_ID``, else the directory's, else a new one.
        devices: the physical devices of the job, trainers and generators together; default: those
            that this process uses.
        device_roles: for each device, what it does: ``train``, ``generate``, ``reward``; default:
            train and generate.
        readings: gives memory readings; default: those of this process, its devices and its host.
        role: of this process; default: ``driver`` for the one that makes the records, else
            ``trainer``.
        rank: of this process in an SPMD job, where every rank runs the same loop and starts a run of
            its own: rank 0 makes the records of all. Default: as the process group of
            ``torch.distributed`` says, if there is one; the environment is not asked.
        world_size: number of ranks; goes with `rank`.
        base: counts restored from a checkpoint: ``optimizer_step``, ``tokens``.
        tracer_provider: put our spans into this provider, and make them OpenTelemetry's current
            spans. Default: a private provider that touches no global state.
        meter_provider: give this provider the metrics (docs/metrics.md). Default: a private one,
            where OTLP is on.
    """
    from otel_grpo import devices as found
    from otel_grpo.records.inventory import Inventory

    guard = Guard()
    own_rank, world = _place(guard, rank, world_size)
    try:
        used = found.inventory(on_error=guard.fault) if devices is None else list(devices)
    except Exception as error:  # a broken driver is no reason not to train
        guard.fault("devices.inventory", error)
        used = []
    job = Inventory((), None)  # trainers and generators that share a device name it twice
    try:
        roles = [list(names) for names in device_roles or ()]
        roles += [["train", "generate"] for _ in used[len(roles) :]]
        job.add(zip(used, roles, strict=False))
    except (AttributeError, TypeError) as error:  # no devices, or no lists of names
        guard.misuse("devices", f"devices and device_roles: {error}")
    return starting.start(
        run_dir,
        trainer=trainer,
        algorithm=algorithm,
        trainer_version=trainer_version,
        adapter_version=adapter_version,
        config=config,
        run_id=run_id,
        devices=job.devices,
        roles=job.roles,
        role=role or ("trainer" if own_rank else "driver"),
        base=base,
        tracer_provider=tracer_provider,
        readings=readings or found.Reader(own_rank, devices=job.devices, on_error=guard.fault),
        guard=guard,
        job=Ranks(own_rank, world) if world > 1 else None,
        live=_live(guard, tracer_provider, meter_provider),
    )


def _live(
    guard: Guard, tracer_provider: TracerProvider | None, meter_provider: MeterProvider | None
) -> Live | None:
    """What sends spans and metrics; a provider of the user's sends what it is given itself."""
    from otel_grpo import otlp

    try:
        return otlp.live(guard, spans=tracer_provider is None, meter_provider=meter_provider)
    except Exception as error:
        guard.fault("live", error)
        return None


def _place(guard: Guard, rank: Any, world_size: Any) -> tuple[int, int]:
    """Rank and number of ranks: as the user says where that makes sense, else as torch does."""
    if rank is None and world_size is None:
        return identity()
    try:
        own, world = given.natural(rank, "rank"), given.natural(world_size, "world_size")
        if own < world:
            return own, world
        raise ValueError(f"there is no rank {own} of {world}")
    except ValueError as error:
        guard.misuse("rank", f"rank and world_size: {error}")
        return identity()


def current_run() -> Run | None:
    """The run that this process observes now, if any."""
    return lifecycle.current_run()


def iteration() -> Iteration:
    """An iteration of the current run, as `Run.iteration`: for loops whose run an adapter starts.

    Without a run it does nothing.
    """
    run = lifecycle.current_run()
    return Iteration(_NO_RUN if run is None else run)


def phase(name: str, *, attributes: Mapping[str, Any] | None = None) -> Phase:
    """A phase of the current run's open iteration, for code that is far from the loop.

    Without a run it does nothing.
    """
    run = lifecycle.current_run()
    return Phase(_NO_RUN if run is None else run, name, attributes)


_NO_RUN = starting.dormant()
