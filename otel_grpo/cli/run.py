"""``otel-grpo run``: the user's command, observed from outside."""

from __future__ import annotations

import importlib.metadata
import os
import sys
from collections.abc import Mapping, MutableMapping, Sequence
from pathlib import Path

import click

from otel_grpo.cli import endpoint
from otel_grpo.cli.text import visible

RUN_DIR = "OTEL_GRPO_RUN_DIR"
RUN_ID = "OTEL_GRPO_RUN_ID"
LAUNCH = "OTEL_GRPO_LAUNCH"
# Where one of these is set, somebody starts this command once for each rank or node of a job: an id
# drawn here would tell them apart, and what they share are the launcher's own variables.
_OF_SEVERAL = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK")

# What shells answer, so that a script can't tell the command from the command under `run`.
NOT_EXECUTABLE = 126
NOT_FOUND = 127


@click.command(
    # The first word that is no option of ours starts the command: its options are its own.
    context_settings={"allow_interspersed_args": False},
    options_metavar="[--run-dir DIR] [--run-id ID] [--otlp URL]",
)
@click.option(
    "--run-dir",
    type=click.Path(file_okay=False, path_type=Path),
    help="Directory of the run's files; runs/<utc time>-<id> by default. One that a run has used "
    "before gets the next attempt of that run.",
)
@click.option("--run-id", help="Id of the run, the same for every process that takes part in it.")
@click.option(
    "--otlp",
    metavar="URL",
    help="Send spans and metrics to a collector, too, such as http://localhost:4318. Where "
    "OTEL_EXPORTER_OTLP_ENDPOINT is set, that one counts.",
)
@click.argument("command", metavar="-- CMD...", nargs=-1, type=click.UNPROCESSED, required=True)
def run(
    run_dir: Path | None, run_id: str | None, otlp: str | None, command: tuple[str, ...]
) -> None:
    """Observe the training that CMD starts.

    CMD takes the place of this process: signals reach it, and its exit status is the exit status
    (126: not executable, 127: not found). Nothing in it has to be changed: `otel-grpo run -- python
    train.py`.

    Of a job of many ranks there is one directory: `otel-grpo run -- torchrun --nproc-per-node 8
    train.py`, `srun otel-grpo run -- python train.py`. On several nodes --run-dir is a directory that
    all of them see.
    """
    environment = dict(os.environ)
    _name_the_run(environment, run_dir, run_id)
    _name_the_launch(environment)
    if otlp is not None:
        _send_to(environment, endpoint.checked(otlp))
    _put_on_path(environment)
    sys.exit(_become(command, environment))


def _name_the_run(
    environment: MutableMapping[str, str], run_dir: Path | None, run_id: str | None
) -> None:
    # Absolute: a process of the training may change its directory before its run starts.
    if run_dir is not None:
        environment[RUN_DIR] = str(run_dir.absolute())
    if run_id is not None:
        environment[RUN_ID] = run_id


def _name_the_launch(environment: MutableMapping[str, str]) -> None:
    """Tells the ranks of this start, which look for its directory, from those of another one."""
    if not any(environment.get(name) for name in (LAUNCH, *_OF_SEVERAL)):
        environment[LAUNCH] = f"drawn-{os.urandom(8).hex()}"


def _send_to(environment: MutableMapping[str, str], url: str) -> None:
    before = environment.get(endpoint.ENDPOINT, "").strip()
    if not before:
        environment[endpoint.ENDPOINT] = url
    elif before != url:
        click.echo(
            f"otel-grpo run: {endpoint.ENDPOINT} is set and counts; --otlp {visible(url)} does not",
            err=True,
        )


def _put_on_path(environment: MutableMapping[str, str]) -> None:
    """Makes each Python below load the hooks, and find this package where it isn't installed."""
    package = Path(__file__).resolve().parents[1]
    hooks = str(package / "instrumentation" / "auto")
    # An empty entry means the current directory: what the user has stays as it is.
    before = environment.get("PYTHONPATH", "")
    rest = before.split(os.pathsep) if before else []
    entries = [hooks, *(entry for entry in rest if entry != hooks)]
    home = str(package.parent)
    # At the end, and only from a source tree: what lies beside the package must not hide the
    # modules of the user.
    if not _installed() and home not in entries:
        entries.append(home)
    environment["PYTHONPATH"] = os.pathsep.join(entries)


def _installed() -> bool:
    try:
        importlib.metadata.distribution("otel-grpo")
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def _become(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Replaces this process by `command`; returns only with the exit status of a failure."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    try:
        os.execvpe(command[0], list(command), environment)  # noqa: S606  # the user's own words
    except FileNotFoundError:
        status, what = NOT_FOUND, "command not found; check its name and PATH"
    except PermissionError:
        status, what = NOT_EXECUTABLE, "not executable; start it by its interpreter"
    except OSError as error:
        status, what = NOT_EXECUTABLE, error.strerror or str(error)
    click.echo(f"otel-grpo run: {visible(command[0])}: {what}", err=True)
    return status
