"""The page that `show` writes: where the time of a run went, and the integers behind each ratio."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timezone

from msgspec import UNSET

from otel_grpo.cli import show_job
from otel_grpo.cli.page import Block, Formula, Heading, Line, Table
from otel_grpo.cli.text import count, gib, integer, milliseconds, name, rate, seconds, visible
from otel_grpo.cli.view import Iteration, Rate, View, ordered
from otel_grpo.records.model import AttemptSummary, Observed, SinkCounts, Summary
from otel_grpo.semconv import LOG

# Throughput -> what is counted over what.
_RATE_LABELS = {
    "device": "end to end: prompt and completion tokens, work time, all devices",
    "device_wall": "by wall time: the same tokens, wall time, all devices",
    "generation": "generation: completion tokens, its busy time, generating devices",
    "train": "training: visited tokens, busy time of policy_train, training devices",
}

# Quantity of the files -> what it is, whose it is.
_MEMORY_LABELS = {
    "allocator.allocated": "torch allocator, allocated",
    "allocator.reserved": "torch allocator, reserved",
    "allocator.peak_allocated": "torch allocator, peak allocated",
    "allocator.peak_reserved": "torch allocator, peak reserved",
    "device.used": "whole device, used",
    "process.rss": "process, resident",
    "host.used": "whole host, used",
}
_OWNERS = {"allocator": "rank", "device": "device", "process": "process", "host": "host"}


def page(view: View) -> Iterator[Block]:
    """All blocks of the page, from what it is to what is missing."""
    yield from _head(view)
    yield from _iterations(view)
    yield from _phases_of_iterations(view.latest)
    if view.summary is not None:
        yield from _totals(view, view.summary)
        yield from _rates(view)
        yield from _phase_totals(view.summary)
    else:
        yield from _rates(view)
    yield from show_job.processes(view)
    yield from show_job.ranks(view)
    yield from show_job.workers(view)
    if view.summary is not None:
        yield from _memory(view.summary)
    yield from show_job.devices(view)
    if view.summary is not None:
        yield from _records(view.summary)
    yield from show_job.missing(view)
    yield from _notes(view)


def _head(view: View) -> Iterator[Block]:
    run, attempt, summary = view.run_file, view.run_file.attempts[-1], view.summary
    status = summary.status if summary else "no summary"
    number = len(run.attempts)
    which = f", attempt {attempt.attempt} of {number}" if number > 1 else ""
    yield Heading(f"Run {name(run.run_id)}{which}: {status}")
    yield Line("directory", visible(view.run_dir))
    trainer = attempt.trainer
    told = [visible(" ".join(filter(None, (trainer.name, trainer.version))))]
    told += [f"algorithm {visible(trainer.algorithm)}"] if trainer.algorithm else []
    told += [f"adapter {visible(trainer.adapter_version)}"] if trainer.adapter_version else []
    yield Line("trainer", ", ".join(told))
    kinds = Counter((device.kind, device.name) for device in attempt.world.devices)
    devices = [
        f"{number} {visible(kind)}" + (f" ({visible(model)})" if model else "")
        for (kind, model), number in kinds.items()
    ]
    ranks = count(attempt.world.size, "rank")
    yield Line("devices", f"{', '.join(devices) or 'not known'}; {ranks}")
    yield Line("started", _utc(attempt.started_unix_ns))
    if summary is not None:
        label = "as of" if summary.status == "running" else "ended"
        yield Line(label, _utc(summary.ended_unix_ns))
        for earlier in summary.attempts:
            yield Line(f"attempt {earlier.attempt}", _earlier(earlier))
        if summary.open is not None:
            yield from _open(summary)


def _earlier(attempt: AttemptSummary) -> str:
    windows = attempt.windows
    tokens = attempt.tokens.get("total")
    said = f"{attempt.status}, {count(windows.complete + windows.partial, 'window')}"
    said += f" and {windows.aborted} aborted" if windows.aborted else ""
    return said + (f", {tokens} tokens" if tokens is not None else "")


def _open(summary: Summary) -> Iterator[Block]:
    window = summary.open
    if window is None:
        return
    # The instant of the summary, not that of this command: nobody has looked at the run since.
    instant = summary.observed.time_unix_ns
    at = summary.ended_unix_ns if instant is UNSET else instant
    phases = ", ".join(
        f"{name(phase.phase)} for {seconds(at - phase.start_ns)} s" for phase in window.phases
    )
    yield Line(
        "open window",
        f"iteration {window.iteration} for {seconds(at - window.start_ns)} s, in "
        f"{phases or 'no phase'}",
    )


def _iterations(view: View) -> Iterator[Block]:
    if not view.latest:
        yield Heading("Iterations: none recorded")
        return
    yield Heading("Iterations: seconds, tokens, rate in token/s/device")
    yield Table(
        ["iter", "status", "wall", "work", "log", "unattributed", "tokens", "rate"],
        [
            [
                integer(each.iteration),
                each.status,
                seconds(each.integer("time.wall_ns")),
                seconds(each.integer("time.work_ns")),
                seconds(each.integer("time.log_ns")),
                seconds(each.integer("time.unattributed_ns")),
                integer(each.integer("tokens.total")),
                rate(each.metrics.get("throughput.device")),
            ]
            for each in view.latest
        ],
        left=frozenset({1}),
    )


def _phases_of_iterations(iterations: Iterable[Iteration]) -> Iterator[Block]:
    rows = list(iterations)
    phases = ordered({phase for each in rows for phase in each.phases()} - {LOG})
    if not phases:
        return
    yield Heading("Phases of each iteration: seconds busy / exposed")
    yield Line(
        "",
        "Phases run inside and beside each other, so busy seconds are not summed. Exposed: time "
        "that nothing but the phase and what is below it explains.",
    )
    yield Table(
        ["iter", *map(name, phases)],
        [
            [
                integer(each.iteration),
                *(_busy_and_exposed(each, phase) for phase in phases),
            ]
            for each in rows
        ],
        left=frozenset(),
    )


def _busy_and_exposed(each: Iteration, phase: str) -> str:
    busy = each.integer(f"phase.{phase}.busy_ns")
    exposed = each.integer(f"phase.{phase}.exposed_ns")
    return "-" if busy is None else f"{seconds(busy)} / {seconds(exposed)}"


def _totals(view: View, summary: Summary) -> Iterator[Block]:
    windows, time = summary.windows, summary.time
    number = windows.complete + windows.partial + windows.aborted
    yield Heading(
        f"Totals of {count(number, 'window')}: {windows.complete} complete, {windows.partial} "
        f"partial, {windows.aborted} aborted"
    )
    yield Line(
        "wall",
        f"{seconds(time.wall_ns)} s = start-up {seconds(time.startup_ns)} + windows "
        f"{seconds(time.windows_ns)} + between {seconds(time.between_ns)} + shutdown "
        f"{seconds(time.shutdown_ns)}",
    )
    stack = [f"{name(phase)} {seconds(top)}" for phase, top in _stack(summary.phases)]
    stack += [
        f"overlapped {seconds(time.overlapped_ns)}",
        f"log {seconds(time.log_ns)}",
        f"unattributed {seconds(time.unattributed_ns)}",
    ]
    yield Line("windows", f"{seconds(time.windows_ns)} s = {' + '.join(stack)}")
    yield Line("work", f"{seconds(time.work_ns)} s without log, evaluation and checkpoint")
    process = summary.observed.process_ns
    if process is not UNSET:
        yield Line("process", f"{seconds(process)} s since its start")
    samples = {key: value for key, value in summary.samples.items() if isinstance(value, int)}
    groups = {} if summary.groups is UNSET else {"groups": summary.groups}
    yield from _counts("counts", groups)
    yield from _counts("samples", samples)
    discarded = summary.samples.get("discarded")
    if isinstance(discarded, dict):
        yield from _counts("discarded", discarded)
    yield from _counts("tokens", summary.tokens)
    yield from _counts("updates", summary.updates)
    published = f"{summary.publications}, pending {summary.publications_pending}"
    if view.job.versions is not None:
        low, high = view.job.versions
        published += f"; version {low}" + f" to {high}" * (high > low)
    yield Line("publications", published)
    for what, figures in summary.length.items():
        yield Line(f"{what}s", f"length {_figures(figures)}")
    if summary.policy_lag:
        yield Line("policy lag", _figures(summary.policy_lag))
    if summary.nonfinite:
        yield Line("not finite", f"{count(summary.nonfinite, 'value')} of the trainer's own")
    yield from _counts("restored", summary.base)


def _stack(phases: Mapping[str, Mapping[str, int]]) -> list[tuple[str, int]]:
    tops = ((phase, phases[phase].get("top_ns", 0)) for phase in ordered(phases) if phase != LOG)
    return [(phase, top) for phase, top in tops if top]


def _counts(label: str, counts: Mapping[str, int]) -> Iterator[Block]:
    if counts:
        yield Line(label, ", ".join(f"{name(key)} {value}" for key, value in counts.items()))


def _figures(figures: Mapping[str, int | float]) -> str:
    return ", ".join(
        f"{key} {value:.3f}" if isinstance(value, float) else f"{key} {value}"
        for key, value in figures.items()
    )


def _rates(view: View) -> Iterator[Block]:
    rates = view.rates()
    if not rates:
        return
    summary = view.summary
    yield Heading("Throughput: sums of the windows, never a mean of their rates")
    for each in rates:
        right = f"{rate(each.value)} token/s/device"
        stored = summary.throughput.get(each.name) if summary else None
        # While a run goes on its lines are ahead of its summary.
        if summary is not None and summary.status != "running" and stored != each.value:
            right += f", but summary.json has {stored}: see `otel-grpo audit`"
        yield Formula(_RATE_LABELS[each.name], _formula(each), right)


def _formula(each: Rate) -> str:
    if each.devices is None:
        return f"{each.tokens} tokens * 1e9 / {each.device_ns} ns of devices"
    devices = count(each.devices, "device")
    return f"{each.tokens} tokens * 1e9 / ({each.ns} ns * {devices})"


def _phase_totals(summary: Summary) -> Iterator[Block]:
    if not summary.phases:
        return
    yield Heading("Phases of all windows: seconds; busy is not summed over phases")
    yield Table(
        ["phase", "busy", "exposed", "top", "calls"],
        [
            [
                name(phase),
                seconds(figures.get("busy_ns")),
                seconds(figures.get("exposed_ns")),
                seconds(figures.get("top_ns")),
                integer(figures.get("calls")),
            ]
            for phase, figures in ((each, summary.phases[each]) for each in ordered(summary.phases))
        ],
    )


def _memory(summary: Summary) -> Iterator[Block]:
    if not summary.memory:
        return
    yield Heading("Memory: GiB, the largest reading of each owner, over owners")
    yield Table(
        ["memory", "of each", "min", "mean", "max", "sum"],
        [
            [
                _MEMORY_LABELS[quantity],
                _OWNERS[quantity.partition(".")[0]],
                *(
                    gib(summary.memory[quantity].get(f"{key}_bytes"))
                    for key in ("min", "mean", "max", "sum")
                ),
            ]
            for quantity in _MEMORY_LABELS
            if quantity in summary.memory
        ],
        left=frozenset({0, 1}),
    )
    if any(quantity.startswith("allocator.peak") for quantity in summary.memory):
        yield Line("", "Peaks are the allocator's since process start or the trainer's own reset.")


def _records(summary: Summary) -> Iterator[Block]:
    yield Heading("Records: " + ", ".join(f"{n} {kind}" for kind, n in summary.records.items()))
    yield from _sinks(summary.observed)
    if summary.status != "running":
        yield Line("own time", f"{milliseconds(summary.observed.self_ns)} ms, beside the log time")
    errors = summary.observed.errors
    yield Line(
        "own errors",
        ", ".join(f"{name(place)} {n}" for place, n in sorted(errors.items())) or "none",
    )


def _sinks(observed: Observed) -> Iterator[Block]:
    if not observed.sinks:
        return
    yield Table(
        ["sink", "created", "written", "dropped", "pending", "reasons"],
        [
            [
                name(sink),
                str(counts.created),
                str(counts.written),
                str(counts.dropped),
                str(counts.pending),
                ", ".join(f"{name(why)} {n}" for why, n in _reasons(counts).items()) or "-",
            ]
            for sink, counts in observed.sinks.items()
        ],
        left=frozenset({0, 5}),
    )


def _reasons(counts: SinkCounts) -> dict[str, int]:
    sent = {"unconfirmed": counts.unconfirmed} if counts.unconfirmed else {}
    return {**counts.reasons, **sent}


def _notes(view: View) -> Iterator[Block]:
    if view.notes:
        yield Heading("Missing")
        for note in view.notes:
            yield Line("-", visible(note))


def _utc(unix_ns: int) -> str:
    instant = datetime.fromtimestamp(unix_ns // 10**9, timezone.utc)
    return f"{instant:%Y-%m-%d %H:%M:%S} UTC"
