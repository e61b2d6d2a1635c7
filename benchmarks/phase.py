"""One phase of ours against the same span of the bare SDK, of logfire, and of TRL's own profiling.

AReaL's tracer is not among them: its module can't be imported without Ray, Hydra, torch and the trainers
of its package.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Iterator
from statistics import median
from typing import Any

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import set_span_in_context

import otel_grpo
from benchmarks.measure import in_turns, python, python_with_trl, ratio, stay_on_one_core
from benchmarks.table import Row

SPANS = 100  # of one window
REPEATS = 40

# What a phase of ours has by itself, and three more: eight, as many as the others get.
GIVEN: dict[str, Any] = {"prompts": 8, "tokens": 1472, "temperature": 0.7}
ATTRIBUTES: dict[str, Any] = {
    "rl.run.id": "0192f3a4b1c2d3e4",
    "rl.role": "driver",
    "rl.rank": 0,
    "rl.loop.iteration": 12,
    "rl.phase": "generation",
    **GIVEN,
}

Loop = Callable[[int], None]


class NullExporter(SpanExporter):
    def export(self, spans: Any) -> SpanExportResult:
        return SpanExportResult.SUCCESS


def rows(**_: Any) -> Iterator[Row]:
    """Spans inside one that is open, as they are in a training."""
    stay_on_one_core()
    with (
        tempfile.TemporaryDirectory() as folder,
        otel_grpo.start_run(folder, trainer="benchmark") as run,
        run.iteration() as it,
    ):
        loops = {"bare": bare(_bare_provider()), "ours": ours(it)}
        logfire = _logfire()
        if logfire is not None:
            loops["logfire"] = logfire
        costs = in_turns(loops, n=SPANS, repeats=REPEATS)
    us = {name: median(values) / 1000 for name, values in costs.items()}
    yield _against("bare SDK, batch processor, null exporter", costs["ours"], costs["bare"], 1.3)
    if logfire is None:
        yield Row("one phase / logfire span", "logfire is not installed here", "<= 0.25 x")
    else:
        yield _against("logfire span", costs["ours"], costs["logfire"], 0.25)
    yield Row(
        "  the training thread's time, in microseconds",
        ", ".join(f"{name} {value:.1f}" for name, value in us.items()),
    )
    yield _against_trl()
    bare_all, ours_all = _whole_bare(), _whole_ours()
    yield Row(
        "  all threads, ours with encoded and written files",
        f"ours {ours_all:.1f}, bare {bare_all:.1f} (writes nothing) us of CPU a span",
    )


def _against(what: str, ours: list[float], theirs: list[float], goal: float) -> Row:
    value = ratio(ours, theirs)
    return Row(f"one phase / {what}", f"{value:.3f} x", f"<= {goal} x", value <= goal)


def _against_trl() -> Row:
    """No goal: a timer that keeps nothing is what the least would cost."""
    what = "  in TRL's environment, against its own profiling context, which reports to nobody"
    executable = python_with_trl()
    if executable is None:
        return Row(what, "TRL is not installed here")
    us = json.loads(python("-m", "benchmarks.trl_phase", executable=executable).splitlines()[-1])
    return Row(what, f"ours {us['ours']:.1f}, TRL's {us['trl']:.1f} us of the training thread")


def _bare_provider() -> TracerProvider:
    provider = TracerProvider(
        resource=Resource({"service.name": "benchmark"}), shutdown_on_exit=False
    )
    provider.add_span_processor(BatchSpanProcessor(NullExporter()))
    return provider


def bare(provider: TracerProvider) -> Loop:
    tracer = provider.get_tracer("benchmark")
    inside = set_span_in_context(tracer.start_span("rl.loop"))

    def loop(n: int) -> None:
        for _ in range(n):
            with tracer.start_as_current_span("rl.sample", inside, attributes=ATTRIBUTES):
                pass

    return loop


def ours(it: otel_grpo.Iteration) -> Loop:
    def loop(n: int) -> None:
        for _ in range(n):
            with it.phase("generation", attributes=GIVEN):
                pass

    return loop


def _logfire() -> Loop | None:
    try:
        import logfire
    except ImportError:
        return None
    logfire.configure(send_to_logfire=False, console=False, inspect_arguments=False, metrics=False)
    attributes: dict[str, Any] = {k.replace(".", "_"): v for k, v in ATTRIBUTES.items()}

    def loop(n: int) -> None:
        for _ in range(n):
            with logfire.span("rl.sample", **attributes):
                pass

    return loop


def _whole_bare() -> float:
    """Microseconds of CPU per span, all threads, until everything is exported."""
    before = time.process_time_ns()
    provider = _bare_provider()
    loop = bare(provider)
    for _ in range(REPEATS):
        loop(SPANS)
    provider.shutdown()
    return (time.process_time_ns() - before) / (REPEATS * SPANS) / 1000


def _whole_ours() -> float:
    """The same until everything is in the files, records and summary included."""
    with tempfile.TemporaryDirectory() as folder:
        before = time.process_time_ns()
        with otel_grpo.start_run(folder, trainer="benchmark") as run:
            for _ in range(REPEATS):
                with run.iteration() as it:
                    ours(it)(SPANS)
        return (time.process_time_ns() - before) / (REPEATS * SPANS) / 1000
