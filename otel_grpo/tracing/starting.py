"""Starting a run: its directory, its attempt, its tracers. Whatever fails here, the training starts."""

from __future__ import annotations

import hashlib
import os
import re
import socket
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from otel_grpo import semconv
from otel_grpo.core.clock import Clock, boot_id
from otel_grpo.records import rundir
from otel_grpo.records.files import errno_name
from otel_grpo.records.model import Attempt, ClockPair, Device, Joined, Trainer, World
from otel_grpo.tracing import given, sanitize
from otel_grpo.tracing.guard import Guard, is_true, logger
from otel_grpo.tracing.light import LightSpans
from otel_grpo.tracing.output import Output
from otel_grpo.tracing.processor import AccountProcessor
from otel_grpo.tracing.provider import Tracers, resource
from otel_grpo.tracing.rank_output import RankOutput
from otel_grpo.tracing.run import Run
from otel_grpo.tracing.sampler import INTERVAL_S, Readings, Sampler

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

    from otel_grpo.records.inventory import DeviceRoles
    from otel_grpo.records.rundir import RunDir
    from otel_grpo.records.worker_dir import WorkerDir
    from otel_grpo.tracing.live import Live
    from otel_grpo.tracing.peers import Job


#: Milliseconds between two looks at memory and devices; 0: only when the training asks.
INTERVAL = "OTEL_GRPO_SAMPLE_INTERVAL"


def start(
    run_dir: str | os.PathLike[str] | None = None,
    *,
    trainer: str,
    algorithm: str | None = None,
    trainer_version: str | None = None,
    adapter_version: str | None = None,
    config: Any = None,
    run_id: str | None = None,
    devices: Sequence[Device] = (),
    roles: DeviceRoles | None = None,
    readings: Readings | None = None,
    role: str = "driver",
    base: Mapping[str, int] | None = None,
    tracer_provider: TracerProvider | None = None,
    clock: Clock | None = None,
    guard: Guard | None = None,
    lockstep: bool = False,
    job: Job | None = None,
    live: Live | None = None,
) -> Run:
    """Start a run (see `otel_grpo.start_run`). Never raises: a run that can't start is not live.

    With a `job` this process is one of its ranks; in `lockstep` whoever asks for a reading waits;
    `live` gets what the files get.
    """
    guard = guard or Guard()
    run = Run(guard)
    if is_true(os.environ.get("OTEL_GRPO_DISABLED")):
        return run
    try:
        rank = 0 if job is None else job.rank
        role = re.sub(r"[^A-Za-z0-9._-]+", "_", sanitize.label(role))
        run.clock = clock or Clock.read()
        if readings is not None:
            run.sampler = Sampler(
                readings,
                run.clock,
                guard,
                run.opened_samples,
                interval_s=0 if lockstep else _interval_s(guard),
                lockstep=lockstep,
            )
        attempt = _attempt(
            run.clock,
            trainer=Trainer(
                sanitize.label(trainer),
                *(
                    None if text is None else sanitize.label(text)
                    for text in (trainer_version, adapter_version, algorithm)
                ),
            ),
            devices=devices,
            config=config,
            base=_base(guard, base or {}),
            job=job,
        )
        asked = run_dir or os.environ.get("OTEL_GRPO_RUN_DIR") or None
        place = None if asked is None else Path(asked)
        output: Output | RankOutput
        if job is not None and rank:
            output = _rank_output(run, job, place, attempt, roles, role, live)
        else:
            output = _output(run, place, run_id, attempt, roles, role, live)
        about = {
            semconv.RL_SYSTEM: attempt.trainer.name,
            semconv.RL_SYSTEM_VERSION: attempt.trainer.version,
            semconv.RL_ALGORITHM: attempt.trainer.algorithm,
            semconv.RUN_ID: output.run_id or None,
            semconv.ATTEMPT: output.attempt or None,
            semconv.ROLE: role,
            semconv.RANK: rank,
            semconv.RL_WORLD_SIZE: attempt.world.size,
        }
        light = LightSpans(run.account, run.clock, resource(about), output.span, run._attributes)
        processor = AccountProcessor(run.account, guard, output.span)
        tracers = Tracers(light, processor, tracer_provider)
        started_ns = attempt.started_unix_ns
        run.begin(
            output,
            tracers,
            started_ns,
            role,
            rank,
            alone=job is None,
            view=live,
            devices=attempt.world.devices,
        )
        if job is not None and isinstance(output, Output) and output.path is not None:
            peers = job.peers(
                output.path,
                output.run_id,
                msgspec.structs.replace(attempt, attempt=output.attempt),
                roles,
                run.clock,
                guard.fault,
            )
            run.read_peers(peers)
    except Exception as error:
        run.live = False
        guard.fault("run.start", error)
    return run


def _output(
    run: Run,
    asked: Path | None,
    run_id: str | None,
    attempt: Attempt,
    roles: DeviceRoles | None,
    role: str,
    live: Live | None,
) -> Output:
    """The files of the process that makes the records."""
    run_id = run_id or os.environ.get("OTEL_GRPO_RUN_ID") or None
    if run_id is not None:
        run_id = sanitize.label(run_id)
    directory, unwritable = _open_directory(asked, run_id)
    return Output(
        directory,
        unwritable,
        run_id=directory.run_id if directory is not None else run_id or os.urandom(8).hex(),
        attempt=msgspec.structs.replace(
            attempt, attempt=1 if directory is None else directory.attempt
        ),
        clock=run.clock,
        guard=run.guard,
        devices=roles,
        trained=run.ledger.trained,
        role=role,
        sources=run.sources(),
        live=live,
    )


def _rank_output(
    run: Run,
    job: Job,
    asked: Path | None,
    attempt: Attempt,
    roles: DeviceRoles | None,
    role: str,
    live: Live | None,
) -> RankOutput:
    """The files of a rank that adds its share."""
    does = dict(roles or ())

    def find(ending: threading.Event) -> WorkerDir:
        return job.directory(asked, attempt.started_unix_ns, ending.wait)

    def joined(run_id: str, number: int) -> Joined:
        return Joined(
            run_id,
            number,
            role=role,
            name=name,
            rank=job.rank,
            world=job.world,
            host=attempt.host,
            pid=attempt.pid,
            clock=attempt.clock,
            started_unix_ns=attempt.started_unix_ns,
            devices=[
                (device, does.get(index, [])) for index, device in enumerate(attempt.world.devices)
            ],
        )

    name = f"{role}-{job.rank}"
    return RankOutput(
        find,
        joined,
        name=name,
        clock=run.clock,
        guard=run.guard,
        rank=job.rank,
        trained=run.ledger.trained,
        sources=run.sources(),
        found=run.found,
        live=live,
    )


def _attempt(
    clock: Clock,
    *,
    trainer: Trainer,
    devices: Sequence[Device],
    config: Any,
    base: dict[str, int],
    job: Job | None,
) -> Attempt:
    """What is known of the attempt before it has a directory, which gives its number."""
    return Attempt(
        attempt=0,
        started_unix_ns=clock.now(),
        host=socket.gethostname(),
        pid=os.getpid(),
        clock=ClockPair(boot_id(), clock.unix_ns, clock.perf_ns),
        trainer=trainer,
        world=World(1 if job is None else job.world, list(devices)),
        config_fingerprint=fingerprint(config),
        base=base,
        launch=None if job is None else job.launch,
    )


def _interval_s(guard: Guard) -> float:
    told = os.environ.get(INTERVAL, "").strip()
    if not told:
        return INTERVAL_S
    try:
        return given.natural(int(told), INTERVAL) / 1000
    except ValueError as error:
        guard.misuse("sample_interval", f"{INTERVAL}: {error}")
        return INTERVAL_S


def _base(guard: Guard, base: Mapping[str, int]) -> dict[str, int]:
    try:
        return {sanitize.label(name): given.natural(n, name) for name, n in base.items()}
    except Exception as error:  # the run starts without it
        guard.misuse("base", f"base: {error}")
        return {}


def _open_directory(asked: Path | None, run_id: str | None) -> tuple[RunDir | None, str | None]:
    """The directory, or why there is none: then the run only counts what is lost."""
    try:
        directory = rundir.open_run_dir(asked, run_id)
    except rundir.RunDirError as error:
        logger.warning("otel-grpo: nothing is recorded (training goes on): %s", error)
        return None, errno_name(error)
    if directory.warning:
        logger.warning("otel-grpo: %s", directory.warning)
    return directory, None


def fingerprint(config: Any) -> str | None:
    """SHA-256 over a configuration, so that two runs can be told apart without recording it."""
    if config is None:
        return None
    try:
        data = msgspec.json.encode(config, order="sorted", enc_hook=_plain)
    except Exception:  # whatever a user's object raises
        return None
    return hashlib.sha256(data).hexdigest()


def _plain(value: Any) -> str:
    # Whatever it is tells configurations apart, but for a tensor, which is not read.
    return sanitize.label(value) if hasattr(type(value), "__array__") else str(value)


def dormant() -> Run:
    """A run that records nothing: every call is a no-op."""
    return Run(Guard())
