"""How a rank finds the run directory that rank 0 writes: by what its launcher told them both."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from itertools import count
from pathlib import Path

from otel_grpo.records.model import Attempt
from otel_grpo.records.reader import BadInput, read_run_file, read_summary
from otel_grpo.records.worker_dir import WorkerDir, join_run_dir, own_worker_dir

#: Set afresh by `otel-grpo run`, for all processes below it; or by the user, for all nodes.
LAUNCH = "OTEL_GRPO_LAUNCH"
#: How a value begins that `otel-grpo run` drew: on each node another one.
DRAWN = "drawn-"
# What is the same in all processes of one start of a job, and another one when it starts again.
_VARIABLES = (
    LAUNCH,
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_RESTART_COUNT",
    "MASTER_ADDR",
    "MASTER_PORT",
    "SLURM_JOB_ID",
    "SLURM_STEP_ID",
    "SLURM_RESTART_COUNT",
)
# Rank 0 may have started so much earlier; clocks of nodes differ, too. Nanoseconds.
_EARLIER_NS = 120 * 10**9
_LOOKS, _PAUSE_S = 300, 0.2
# A rank of a short training may be through with it before rank 0 has its directory.
_LAST_LOOKS = 8
#: Where a run is that nobody gave a place.
RUNS = Path("runs")
# So many of the newest directories in it are looked at.
_NEWEST = 20

# This process's trainings before: the next one is another attempt, which rank 0 may not have begun.
_joined: set[WorkerDir] = set()

logger = logging.getLogger("otel_grpo")


def launch_key(environ: Mapping[str, str]) -> str | None:
    """16 hex digits that all processes of one start of a job share; None where nothing tells."""
    told = "".join(
        f"{name}={environ[name]}\n"
        for name in _VARIABLES
        if environ.get(name) and not (name == LAUNCH and _is_of_one_node(environ))
    )
    return hashlib.sha256(told.encode()).hexdigest()[:16] if told else None


def _is_of_one_node(environ: Mapping[str, str]) -> bool:
    """Whether the launch was named on this node alone, while others have ranks of the job, too."""
    drawn = environ[LAUNCH].startswith(DRAWN)
    return drawn and environ.get("WORLD_SIZE") != environ.get("LOCAL_WORLD_SIZE")


def find(asked: Path | None, key: str, started_ns: int, runs: Path = RUNS) -> WorkerDir | None:
    """The run directory of this start, if rank 0 has made it; `started_ns` is this process's."""
    for path in _candidates(asked, runs):
        try:
            run = read_run_file(path)
        except BadInput:
            continue
        for attempt in reversed(run.attempts):
            recent = attempt.started_unix_ns >= started_ns - _EARLIER_NS
            if attempt.launch != key or not recent or _was_over(path, attempt, started_ns):
                continue
            found = join_run_dir(path, run.run_id, attempt.attempt)
            if found not in _joined:
                return found
    return None


def directory_of_rank(
    rank: int,
    asked: Path | None,
    started_ns: int,
    *,
    wait: Callable[[float], bool],
    environ: Mapping[str, str] = os.environ,
    runs: Path = RUNS,
) -> WorkerDir:
    """Where a rank above 0 writes: the run's directory, or after a minute one of its own.

    Args:
        rank: of this process.
        asked: the run directory that the user named; rank 0 may have taken a sibling of it.
        started_ns: of this process, Unix nanoseconds.
        wait: sleeps so many seconds; True at once if the process ends: then there are few looks more.
        environ: the environment.
        runs: where rank 0 makes a directory if none was asked for.

    Raises `RunDirError` where not even the own directory can be made.
    """
    key = launch_key(environ)
    looks = _LOOKS
    while key is not None and looks:
        found = find(asked, key, started_ns, runs)
        if found is not None:
            _joined.add(found)
            return found
        looks -= 1
        if wait(_PAUSE_S):
            looks = min(looks, _LAST_LOOKS)
            time.sleep(_PAUSE_S)
    base = asked or runs / f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{key or 'unknown'}"
    run_id = environ.get("OTEL_GRPO_RUN_ID") or unknown_run(key)
    own = own_worker_dir(base.with_name(f"{base.name}-rank{rank}"), run_id)
    logger.warning(
        "otel-grpo: rank %d did not find the run directory of rank 0: it is recorded in %s; copy its "
        "workers/ and spans/ into that directory, then `otel-grpo finish` counts it in",
        rank,
        own.path,
    )
    return own


def unknown_run(key: str | None) -> str:
    """What lines name as their run where only the launch is known."""
    return f"launch:{key or 'none'}"


def _candidates(asked: Path | None, runs: Path) -> Iterator[Path]:
    if asked is None:
        with contextlib.suppress(OSError):
            # Their names begin with the time.
            yield from sorted(runs.iterdir(), reverse=True)[:_NEWEST]
        return
    yield asked
    for n in count(2):
        sibling = asked.with_name(f"{asked.name}-{n}")
        if not sibling.exists():
            return
        yield sibling


def _was_over(path: Path, attempt: Attempt, started_ns: int) -> bool:
    """Whether the attempt had ended when this process started: one of the same job, started before."""
    try:
        summary = read_summary(path)
    except BadInput:
        return False  # it begins
    if summary.attempt != attempt.attempt:
        return summary.attempt > attempt.attempt
    ended = summary.status != "running" or _is_gone(attempt)
    return ended and summary.ended_unix_ns < started_ns


def _is_gone(attempt: Attempt) -> bool:
    if attempt.host != os.uname().nodename:
        return False
    try:
        os.kill(attempt.pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return False
