"""``otel-grpo export``: a run for programs that draw it."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

import click

from otel_grpo.cli.problem import Problem

_DEFAULT = "trace.pftrace.gz"
_VIEWER = "https://ui.perfetto.dev"
# A browser's tab holds about 2 GB, and a trace takes two to four times its size there.
_LARGE = 500_000_000
_CHUNK = 1 << 16


def _range(context: click.Context, parameter: click.Parameter, value: str | None) -> range | None:
    if value is None:
        return None
    found = re.fullmatch(r"(\d+)(?:-(\d+))?", value)
    first, last = (int(found[1]), int(found[2] or found[1])) if found else (1, 0)
    if first > last:
        raise click.BadParameter(f"{value!r} is no range of iterations; say 7 or 10-20")
    return range(first, last + 1)


@click.command()
@click.argument("run_dir", type=click.Path(path_type=Path))
@click.option(
    "--perfetto", is_flag=True, required=True, help=f"A trace for the Perfetto viewer, {_VIEWER}."
)
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help=f"Default: {_DEFAULT} in RUN_DIR. Compressed if its name ends in .gz.",
)
@click.option(
    "--iterations", callback=_range, metavar="FIRST-LAST", help="Only these; default: all."
)
@click.option("--json", "as_json", is_flag=True, help="For scripts: one JSON object.")
def export(
    run_dir: Path,
    perfetto: bool,
    output: Path | None,
    iterations: range | None,
    as_json: bool,
) -> None:
    """Write the run in RUN_DIR, also one that goes on, as a trace that a viewer opens.

    Rows by process and thread: iterations, phases, updates, publications, calls of workers, memory,
    tokens. The viewer runs in the browser and sends the file nowhere.
    """
    from otel_grpo.cli.load import check_directory, clear_errors
    from otel_grpo.cli.text import count, visible
    from otel_grpo.report.perfetto import draw

    check_directory(run_dir)
    path = output or run_dir / _DEFAULT
    size = 0

    with _replaced(path) as file, _packed(file, path.suffix == ".gz") as write, clear_errors():

        def counted(packet: bytes) -> None:
            nonlocal size
            size += len(packet)
            write(packet)

        drawn = draw(run_dir, counted, iterations)
        windows = sum(drawn.windows)
        if iterations is not None and not windows:
            what = f"no iteration {iterations.start}-{iterations.stop - 1} in this run"
            raise Problem(what, where=str(run_dir), mend="`otel-grpo show` lists them")
    packed = path.stat().st_size
    if as_json:
        whole = {
            "path": str(path),
            "bytes": packed,
            "unpacked_bytes": size,
            "windows": drawn.windows[0],
            "windows_without_record": drawn.windows[1],
            "slices": drawn.slices,
            "instants": drawn.instants,
            "counter_samples": drawn.samples,
            "by_own_clock": drawn.apart,
        }
        click.echo(json.dumps(whole, indent=1))
        return
    click.echo(
        f"{visible(str(path))}: {count(windows, 'iteration')}, {count(drawn.slices, 'slice')}, "
        f"{count(drawn.samples, 'counter value')}; {_size(size)}, {_size(packed)} on disk. "
        f"Open it at {_VIEWER}; nothing is sent."
    )
    if drawn.windows[1]:
        click.echo(
            f"  {count(drawn.windows[1], 'iteration')} without a record: drawn to the last instant"
        )
    if drawn.apart:
        names = ", ".join(visible(name) for name in drawn.apart)
        click.echo(f"  by their own clock, which was compared with no other: {names}")
    if size > _LARGE:
        click.echo(
            "  large for a browser: take a part (--iterations), or let Perfetto's own "
            "`trace_processor --httpd FILE` hold it"
        )


def _size(size: int) -> str:
    return f"{size / 1e6:.1f} MB" if size >= 10**6 else f"{size / 1e3:.1f} kB"


@contextlib.contextmanager
def _replaced(path: Path) -> Iterator[BinaryIO]:
    """A draft that takes the place of the file once it is whole, owner-only."""
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise _not_writable(path, error) from error
    try:
        with os.fdopen(fd, "wb") as file:
            yield file
        draft.replace(path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            draft.unlink()
        if isinstance(error, OSError):
            raise _not_writable(path, error) from error
        raise


@contextlib.contextmanager
def _packed(file: BinaryIO, compressed: bool) -> Iterator[Callable[[bytes], object]]:
    if not compressed:
        yield file.write
        return
    # Without a name and a date: the same run gives the same bytes.
    with (
        gzip.GzipFile("", "wb", 5, file, mtime=0) as packed,
        io.BufferedWriter(packed, _CHUNK) as buffered,
    ):
        yield buffered.write


def _not_writable(path: Path, error: OSError) -> Problem:
    mend = "say where with -o FILE"
    return Problem(f"can't be written ({error.strerror})", where=str(path), mend=mend)
