"""A run directory as a process sees it that does not write the records: it adds files of its own."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import NamedTuple

from otel_grpo.records.files import errno_name
from otel_grpo.records.reader import BadInput, read_run_file
from otel_grpo.records.rundir import RunDirError

_FOLDERS = ("spans", "workers")


class WorkerDir(NamedTuple):
    """Where the process writes, and what its lines name.

    Attributes:
        path: absolute; `workers/` and `spans/` are there.
        run_id: of the run.
        attempt: 0 where it is not known.
    """

    path: Path
    run_id: str
    attempt: int


def join_run_dir(path: Path | str, run_id: str, attempt: int) -> WorkerDir:
    """Join an attempt of a run in its directory. Raises `RunDirError` if it is not there."""
    path = Path(os.path.abspath(path))  # noqa: PTH100 - as `open_run_dir` takes it
    try:
        run = read_run_file(path)
    except BadInput as bad:
        raise RunDirError(errno.ENOENT, f"cannot join a run: {bad.why}", str(path)) from bad
    if run.run_id != run_id:
        why = f"cannot join a run: it is the directory of run {run.run_id}"
        raise RunDirError(errno.ENOENT, why, str(path))
    return _with_folders(path, run_id, attempt)


def own_worker_dir(path: Path | str, run_id: str) -> WorkerDir:
    """A directory for the files of one process whose run's directory was not found.

    When they are copied into that directory, `otel-grpo finish` takes them in. Raises `RunDirError`.
    """
    return _with_folders(Path(os.path.abspath(path)), run_id, 0)  # noqa: PTH100


def _with_folders(path: Path, run_id: str, attempt: int) -> WorkerDir:
    try:
        for name in _FOLDERS:
            (path / name).mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        why = f"cannot make a directory: {error.strerror} ({errno_name(error)})"
        raise RunDirError(error.errno, why, str(path)) from error
    return WorkerDir(path, run_id, attempt)
