"""The part of the page that tells of workers, ranks, devices and clocks."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator

from otel_grpo.cli.job import DEVICE_COLUMNS, Spread, ranges
from otel_grpo.cli.page import Block, Heading, Line, Table
from otel_grpo.cli.text import count, gib, milliseconds, name, rate, seconds, visible
from otel_grpo.cli.view import View, ordered
from otel_grpo.records.model import Process

# Ranks of a window that are named one by one.
_NAMED = 3


def processes(view: View) -> Iterator[Block]:
    """The other processes by role, and how their clocks compare."""
    others = [process for process in view.run_file.attempts[-1].processes if process.rank]
    if not others:
        return
    hosts = len({process.host for process in others})
    yield Heading(
        f"Other processes: {len(others)} on {count(hosts, 'host')}; what is said of them is "
        "by their own clocks"
    )
    for role, of_role in itertools.groupby(sorted(others, key=lambda p: p.role), lambda p: p.role):
        on = Counter(process.host for process in of_role)
        said = ", ".join(f"{n} on {visible(host)}" for host, n in sorted(on.items()))
        yield Line(name(role), said)
    if view.job.errors:
        errors = sorted(view.job.errors.items())
        yield Line("own errors", ", ".join(f"{name(place)} {n}" for place, n in errors))
    yield from _clocks(view)


def _clocks(view: View) -> Iterator[Block]:
    clocks = view.job.clocks(view.run_file.attempts[-1])
    known = [each for each in clocks if each.bound_ns is not None]
    for each in known:
        yield Line(
            "clock",
            f"{_called(each.process)} on {visible(each.process.host)}: its calls and readings are "
            f"placed in windows to +-{milliseconds(each.bound_ns or 0)} ms "
            f"({count(each.measurements, 'measurement')})",
        )
    unknown = [each.process for each in clocks if each.bound_ns is None]
    if unknown:
        names = ", ".join(_called(process) for process in unknown)
        yield Line(
            "clock",
            f"not known of {names}: in no window, and compared with nothing; "
            "`otel_grpo.ray.measure_clocks` measures it",
        )


def workers(view: View) -> Iterator[Block]:
    """Timed methods: each worker's sum, over workers."""
    spreads = view.job.workers(view.summary.workers if view.summary else None)
    if spreads:
        yield Heading("Worker methods: seconds of each worker's sum, over workers")
        yield _table(view, "method", spreads, calls=True)


def ranks(view: View) -> Iterator[Block]:
    """Phases of the ranks of an SPMD trainer: each rank's sum, over ranks."""
    spreads = {each.name: each for each in view.job.phases()}
    if spreads:
        windows = count(view.job.whole_windows, "window")
        yield Heading(f"Phases by rank: seconds busy in the {windows} of every rank, over ranks")
        yield _table(view, "phase", [spreads[phase] for phase in ordered(spreads)], calls=False)


def _table(view: View, what: str, spreads: list[Spread], *, calls: bool) -> Table:
    columns = [what, *(["calls"] * calls), "min", "median", "max", "max/median", "slowest"]
    return Table(
        columns,
        [
            [
                name(each.name),
                *([str(each.calls)] * calls),
                seconds(each.min_ns),
                seconds(each.median_ns),
                seconds(each.max_ns),
                rate(each.ratio),
                "-" if each.slowest is None else _rank(view, each.slowest),
            ]
            for each in spreads
        ],
        left=frozenset({0, len(columns) - 1}),
    )


def devices(view: View) -> Iterator[Block]:
    """Memory of each device that was read."""
    found, inventory = view.job.devices, view.run_file.attempts[-1].world.devices
    if not found:
        return
    yield Heading("Memory of each device: GiB, the largest reading; allocator of one rank")
    yield Table(
        ["device", "host", "used", "total", "peak allocated", "peak reserved"],
        [
            [
                name(inventory[index].id) if index < len(inventory) else str(index),
                name(inventory[index].host) if index < len(inventory) else "-",
                *(gib(figures.get(column)) for column in DEVICE_COLUMNS),
            ]
            for index, figures in sorted(found.items())
        ],
        left=frozenset({0, 1}),
    )


def missing(view: View) -> Iterator[Block]:
    """The ranks that each window lacks, windows that lack the same ones together."""
    if not view.job.missing:
        return
    n = len(view.job.missing)
    yield Heading(f"Ranks missing: {count(n, 'window')} of {len(view.latest)}")
    for absent, windows in itertools.groupby(view.job.missing, lambda each: each[1]):
        iterations = [iteration for iteration, _ in windows if iteration is not None]
        said = ranges(absent)
        if len(absent) <= _NAMED:
            said = ", ".join(_rank(view, rank) for rank in absent)
        yield Line(f"iteration {ranges(iterations)}", said)
    yield Line(
        "",
        "`otel-grpo finish` adds what these wrote later. Files of a directory that was not shared "
        "are copied into workers/ and spans/ of this one before.",
    )


def _rank(view: View, number: int) -> str:
    for process in view.run_file.attempts[-1].processes:
        if process.rank == number and process.name is not None:
            return f"{number} ({name(process.name)})"
    return "0 (driver)" if not number and not view.job.spmd else str(number)


def _called(process: Process) -> str:
    return name(process.name) if process.name else f"{name(process.role)} {process.rank}"
