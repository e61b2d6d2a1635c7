"""A process that others call: each of its timed calls is a line and a span of its own.

All that a call costs its thread is two clocks and a place in the queue; line and span are made on
the writer's thread.
"""

from __future__ import annotations

import atexit
import threading
from collections.abc import Mapping, Sequence
from functools import partial
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, Status, StatusCode, TraceFlags

from otel_grpo import semconv
from otel_grpo._version import __version__
from otel_grpo.records.model import Call, WorkerMemory
from otel_grpo.tracing import carrier
from otel_grpo.tracing.evidence import memory_table
from otel_grpo.tracing.ids import GENERATOR
from otel_grpo.tracing.live import CLOSE_S, LiveSources
from otel_grpo.tracing.sampler import Readings, Sampler
from otel_grpo.tracing.samples import Samples

if TYPE_CHECKING:
    from opentelemetry.sdk.resources import Resource

    from otel_grpo.core.clock import Clock
    from otel_grpo.tracing.guard import Guard
    from otel_grpo.tracing.live import Live
    from otel_grpo.tracing.sampler import Request
    from otel_grpo.tracing.worker_output import WorkerOutput

_SCOPE = InstrumentationScope(semconv.SCOPE, __version__)
_SAMPLED = TraceFlags(TraceFlags.SAMPLED)
_FAILED = Status(StatusCode.ERROR)
_FINE = Status()


class Worker:
    """Takes the timed calls of this process, on whatever thread they end.

    Args:
        output: its files; they are opened by `start`.
        clock, guard: of the process.
        name: unique in the job.
        resource: of its spans.
        attributes: of each of its spans.
        run_span: of the driver; a call without a carrier is linked to it.
        spans: False where somebody else makes a span of each call.
        readings: of memory, for the calls that want one.
        live: gets what `output` gets; started and closed here.
    """

    def __init__(
        self,
        output: WorkerOutput,
        clock: Clock,
        guard: Guard,
        *,
        name: str,
        resource: Resource,
        attributes: Mapping[str, Any],
        run_span: SpanContext | None,
        spans: bool,
        readings: Readings,
        live: Live | None = None,
    ) -> None:
        self.name = name
        self.clock = clock
        self.guard = guard
        self.live = False
        self.self_ns = 0
        self._output = output
        self._resource = resource
        self._attributes = attributes
        self._links: Sequence[Link] = () if run_span is None else (Link(run_span),)
        self._spans = spans
        # Its thread is started by the first call that wants a reading.
        self._sampler = Sampler(readings, clock, guard, lambda: None, interval_s=0)
        self._samples = False
        self._starting = threading.RLock()
        self._live = live

    def start(self) -> None:
        self._output.start()
        if self._live is not None:
            self._live.start(self._resource, self._sources())
        self.live = True
        # Where the process is ended otherwise, its lines are in the file and no last one is.
        atexit.register(self.finish)

    def finish(self) -> None:
        if not self.live:
            return
        self.live = False
        try:
            self._output.left("completed", self.clock.now())
            if self._live is not None:
                self._live.hurry()
            flushed = self._output.flush()
            if self._samples:
                self._sampler.stop()
            if self._live is not None:
                self._live.close(CLOSE_S)
            self._output.close(flushed=flushed)
        except Exception as error:
            self.guard.fault("worker.finish", error)

    def _sources(self) -> LiveSources:
        return LiveSources(
            self.clock,
            open_window=lambda: None,
            self_ns=lambda: self.self_ns,
            files=self._output.writer.counts,
        )

    # --- on the thread of a call, when it ends

    def ended(
        self, method: str, start_ns: int, carried: Any, error: BaseException | None, *, memory: bool
    ) -> None:
        entered = perf_counter_ns()
        end_ns = self.clock.at(entered)
        kind = None if error is None else type(error).__qualname__
        self._output.worker(partial(self._call, method, start_ns, end_ns, carried, kind))
        if memory:
            self._ask()
        self.self_ns += perf_counter_ns() - entered

    def _ask(self) -> None:
        with self._starting:
            if not self._samples:
                self._sampler.start()
                self._samples = True
        samples = Samples()
        self._output.worker(partial(self._memory, samples, self._sampler.ask(samples)))

    # --- on the writer's thread

    def _call(
        self, method: str, start_ns: int, end_ns: int, carried: Any, error: str | None
    ) -> Call:
        if self._spans:
            self._output.span(self._span(method, start_ns, end_ns, carried, error))
        output = self._output
        call = Call(
            output.run_id, output.attempt, method, start_ns, end_ns, error=error is not None
        )
        if self._live is not None:
            self._live.made(call)
        return call

    def _span(
        self, method: str, start_ns: int, end_ns: int, carried: Any, error: str | None
    ) -> ReadableSpan:
        parent, iteration = carrier.parent_of(carried), carrier.iteration_of(carried)
        attributes = dict(self._attributes)
        if iteration is not None:
            attributes[semconv.ITERATION] = iteration
        if error is not None:
            attributes[semconv.ERROR_TYPE] = error
        trace_id = GENERATOR.generate_trace_id() if parent is None else parent.trace_id
        return ReadableSpan(
            semconv.SPAN_WORKER + method,
            SpanContext(trace_id, GENERATOR.generate_span_id(), False, _SAMPLED),
            parent=parent,
            resource=self._resource,
            attributes=attributes,
            links=self._links if parent is None else (),
            status=_FINE if error is None else _FAILED,
            start_time=start_ns,
            end_time=end_ns,
            instrumentation_scope=_SCOPE,
        )

    def _memory(self, samples: Samples, request: Request) -> WorkerMemory | None:
        self._sampler.wait([request])
        if not samples.memory():
            return None  # it failed, and was counted
        output = self._output
        return WorkerMemory(output.run_id, output.attempt, memory_table(samples))
