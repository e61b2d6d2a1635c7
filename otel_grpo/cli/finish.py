"""``otel-grpo finish``: the summary of a run, from its files alone."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from otel_grpo.cli.problem import Problem

if TYPE_CHECKING:
    from otel_grpo.records.model import Summary


@click.command()
@click.argument("run_dir", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="For scripts: one JSON object.")
def finish(run_dir: Path, as_json: bool) -> None:
    """Make the summary of the run in RUN_DIR from its files alone.

    For a run that was killed, and for numbers of other ranks that came late. Writes summary.json
    and nothing else. A run that still goes on is left alone.
    """
    import msgspec

    from otel_grpo.cli.absent import find_absent
    from otel_grpo.cli.load import check_directory, clear_errors
    from otel_grpo.cli.text import count, visible
    from otel_grpo.records.summary import encode_summary

    check_directory(run_dir)
    path = run_dir / "summary.json"
    with _alone(run_dir), clear_errors():
        before = path.read_bytes() if path.exists() else None
        summary = _summarize(run_dir)
        after = encode_summary(summary)
        if before != after:
            _replace(path, after)
    said = {None: "written", after: "was complete already"}.get(before, "rewritten")
    absent = find_absent(run_dir) if summary.ranks.incomplete_windows else []
    if as_json:
        what = {"path": str(path), "changed": before != after}
        lacking = [each.to_dict() for each in absent]
        whole = what | {"absent": lacking, "summary": msgspec.to_builtins(summary)}
        click.echo(json.dumps(whole, indent=1))
        return
    windows = summary.windows
    records = ", ".join(f"{n} {kind}" for kind, n in summary.records.items())
    late = summary.ranks.late
    click.echo(
        f"{visible(str(path))}: {said}; run {visible(summary.run_id)}, attempt {summary.attempt}, "
        f"{summary.status}: {count(windows.complete + windows.partial, 'window')} and "
        f"{windows.aborted} aborted; records: {records}"
        + (f"; {count(late, 'contribution')} of other ranks counted in" if late else "")
    )
    for each in absent:
        click.echo(f"  still missing: {visible(str(each))}")
    if any(each.file is None for each in absent):
        click.echo(
            "  a directory that was not shared: copy the files of its workers/ and spans/ into "
            f"those of {visible(str(run_dir))} and finish again"
        )


def _summarize(run_dir: Path) -> Summary:
    from otel_grpo.records.reader import BadInput
    from otel_grpo.records.replay import summarize

    try:
        return summarize(run_dir)
    except BadInput:
        raise
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        # Well-formed lines, but not ones that we wrote: columns of unequal length, say.
        what = f"its records hold what can't be added up ({type(error).__name__}: {error})"
        mend = "`otel-grpo audit` says which line"
        raise Problem(what, where=str(run_dir), mend=mend) from error


@contextlib.contextmanager
def _alone(run_dir: Path) -> Iterator[None]:
    """Holds the directory, so that no process of the run writes its summary at the same time."""
    from otel_grpo.records.rundir import MARKER

    try:
        lock = os.open(run_dir / MARKER, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise _not_writable(run_dir, error) from error
    try:
        if _is_held(lock):
            raise Problem(
                "the run still goes on and makes its own summary",
                where=str(run_dir),
                mend="wait for its end, or `otel-grpo show` what there is",
            )
        yield
    finally:
        os.close(lock)


def _is_held(lock: int) -> bool:
    """Takes the lock; True where another process has it."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        # A file system without locks: both write the file as a whole, and the last one stays.
        return False
    return False


def _replace(path: Path, content: bytes) -> None:
    from otel_grpo.records.files import atomic_write

    try:
        atomic_write(path, content)
    except OSError as error:
        raise _not_writable(path, error) from error


def _not_writable(path: Path, error: OSError) -> Problem:
    return Problem(
        f"can't be written ({error.strerror})",
        where=str(path),
        mend="make it writable, or finish a copy of the run",
    )
