"""The driver's side: Ray starts its worker processes such that they know of the run."""

from __future__ import annotations

import copy
import functools
import os
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from otel_grpo.ranks.job import WorkerPeers
from otel_grpo.ray.variables import to_hand_over
from otel_grpo.tracing import lifecycle
from otel_grpo.tracing.carrier import traceparent
from otel_grpo.tracing.guard import logger
from otel_grpo.tracing.output import Output
from otel_grpo.tracing.run import Run

_HOOK = "worker_process_setup_hook"
# Where a job was submitted: its own environment, with which Ray merges that of `ray.init`.
_JOB = "RAY_JOB_CONFIG_JSON_ENV_VAR"


def runtime_env(run: Run, env: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """A `runtime_env` for `ray.init`: timed calls in its worker processes belong to `run`.

    Args:
        run: whose files they write to; where it isn't live, `env` is all that is given back.
        env: the user's own. It is copied; its set-up hook, a name or a callable, runs as it would.
    """
    merged: Any = {} if env is None else copy.copy(env)  # Ray has a class of its own for them
    if run.live and run.path is not None:
        try:
            _read_workers(run)
            merged[_HOOK] = _hook(_belongs(run), merged.get(_HOOK))
        except Exception as error:
            run.guard.fault("ray.runtime_env", error)
    return merged  # type: ignore[no-any-return]


def _read_workers(run: Run) -> None:
    """Their lines go into the run's records, from now on."""
    output = run.output
    if run.peers is None and isinstance(output, Output) and output.path is not None:
        known = output.known
        peers = WorkerPeers(
            output.path, output.run_id, known, output.roles, run.clock, run.guard.fault
        )
        run.read_peers(peers)


def _belongs(run: Run) -> dict[str, Any]:
    """What a worker has to know; of plain types, so that it can be read by another version."""
    resource = run._tracers.light.resource.attributes
    return {
        "run_dir": str(run.path),
        "run_id": run.run_id,
        "attempt": run.output.attempt,
        "resource": {key: value for key, value in resource.items() if key.startswith("rl.")},
        "run_span": traceparent(run.run_span.get_span_context()),
        # A user's own provider sends for the driver alone: workers send where the variables say.
        "otlp": to_hand_over(os.environ),
    }


def _hook(belongs: dict[str, Any], theirs: Any) -> Callable[[], None]:
    """What a worker process runs before all else: our mark, then the user's own hook.

    A function inside a function goes to the workers by value: where this package is missing it says
    so, and the worker works.
    """

    def otel_grpo_worker() -> None:
        try:
            from otel_grpo.ray.process import offer

            offer(belongs)
        except Exception as error:
            import sys

            print(f"otel-grpo: this worker is not observed: {error!r}", file=sys.stderr)  # noqa: T201
        if isinstance(theirs, str):
            from importlib import import_module

            module, _, name = theirs.rpartition(".")
            getattr(import_module(module), name)()
        elif theirs is not None:
            theirs()

    return otel_grpo_worker


# --- trainers that call ray.init themselves

_theirs: Callable[..., Any] | None = None


def instrument() -> None:
    """From now on `ray.init` starts workers that belong to the current run.

    Start the run before: a worker process learns at its start where it belongs.
    """
    global _theirs
    import ray

    if _theirs is None:
        _theirs = ray.init
        ray.init = observed(_theirs)


def uninstrument() -> None:
    """`ray.init` is as it was. Workers that run already stay observed."""
    global _theirs
    if _theirs is not None:
        import ray

        ray.init, _theirs = _theirs, None


def observed(theirs: Callable[..., Any]) -> Callable[..., Any]:
    """`ray.init`, whose workers belong to the run that is current when it is called."""

    @functools.wraps(theirs)
    def init(*args: Any, **kwargs: Any) -> Any:
        try:
            kwargs = _with_environment(args, kwargs)
        except Exception as error:
            logger.warning("otel-grpo: Ray's workers are not observed: %r", error)
        return theirs(*args, **kwargs)

    return init


def _with_environment(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    import ray

    run = lifecycle.current_run()
    why_not = _why_not(run, args, kwargs)
    if why_not is not None:
        logger.warning("otel-grpo: Ray's workers are not observed: %s", why_not)
    if ray.is_initialized() or run is None or why_not is not None:
        return kwargs
    # Ray replaces the environment of a job's configuration by the one that it is given.
    job = getattr(kwargs.get("job_config"), "runtime_env", None)
    return {**kwargs, "runtime_env": runtime_env(run, kwargs.get("runtime_env") or job)}


def _why_not(run: Run | None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    if run is None:
        return "no run was started before ray.init"
    address = kwargs.get("address", args[0] if args else None) or os.environ.get("RAY_ADDRESS")
    if "://" in str(address):
        return "this is a client of a Ray cluster"
    job = msgspec.json.decode(os.environ.get(_JOB) or "{}").get("runtime_env") or {}
    if _HOOK in job:
        # Ray takes no second one beside it.
        return f"the submitted job has a {_HOOK}: call otel_grpo.ray.runtime_env in the driver"
    return None
