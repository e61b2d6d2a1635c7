"""The metrics of a run as OTLP requests, counted again from its files.

One request of a process for each window, with the instant of the window's record, and before them one
of zeros: a back end sees a counter grow only where it saw it before.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import msgspec
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.resource.v1.resource_pb2 import Resource

from otel_grpo import semconv
from otel_grpo.records.late import Attempts
from otel_grpo.records.model import (
    SCHEMA,
    Attempt,
    Call,
    Contribution,
    Joined,
    PublicationCompleted,
    RolloutRecord,
    RunFile,
    WorkerLine,
    WorkerMemory,
)
from otel_grpo.records.reader import Torn, read_records, read_typed, read_worker_heads
from otel_grpo.records.spans import Attribute, read_spans
from otel_grpo.replay.counted import Counted
from otel_grpo.replay.spans import resource_of

_decode = msgspec.json.Decoder(WorkerLine).decode


class Metrics(NamedTuple):
    """A request, and which of the run's it is, in words."""

    request: ExportMetricsServiceRequest
    what: str


class _Step(NamedTuple):
    counted: Counted
    who: str
    when: str
    at_ns: int

    def taken(self) -> Metrics:
        what = f"{self.who}, {self.when}" if self.who else self.when
        return Metrics(self.counted.collect(self.at_ns), what)


_Steps = Callable[[], Iterator[_Step]]


def metric_requests(run_dir: Path, run: RunFile) -> Iterator[Metrics]:
    """All of a run, process by process. Raises `reader.BadInput`."""
    records = run_dir / "metrics_raw.jsonl"
    if not records.exists() or not records.stat().st_size:
        return
    attempts, late = Attempts(run), _late_publications(run_dir, run)
    for attempt in run.attempts:
        recorded: dict[int, int] = {}  # iteration -> when its record was made
        resource = _resource(run_dir, run, attempt)
        steps = partial(_of_records, records, attempt, resource, late[attempt.attempt], recorded)
        yield from _with_zeros(steps)
        for path in sorted((run_dir / "workers").glob("*.jsonl")):
            yield from _with_zeros(partial(_of_other, path, run, attempt, attempts, recorded))


def _with_zeros(steps: _Steps) -> Iterator[Metrics]:
    """Counts twice: only the last values name all series, those of labels that come up later, too."""
    for last in deque(steps(), maxlen=1):
        zeros = last.counted.zeros(last.counted.collect(last.at_ns))
        yield Metrics(zeros, f"{last.who}, zeros" if last.who else "zeros")
        for step in steps():
            yield step.taken()


def _of_records(
    path: Path,
    attempt: Attempt,
    resource: Resource,
    late: list[PublicationCompleted],
    recorded: dict[int, int],
) -> Iterator[_Step]:
    """Of the process that wrote the records, and of the job."""
    counted = Counted(resource, attempt.started_unix_ns, attempt.world.devices, job=True)
    waiting = sorted(late, key=lambda each: each.completed_ns)
    rest_ns: int | None = None  # of what was counted since the last step
    for line in read_records(path):
        if isinstance(line, Torn) or line.value.attempt != attempt.attempt:
            continue
        record = line.value
        while waiting and waiting[0].completed_ns <= record.time_unix_ns:
            counted.add(waiting.pop(0))
        counted.add(record)
        rest_ns = record.time_unix_ns
        if isinstance(record, RolloutRecord):
            if record.iteration is not None:
                recorded[record.iteration] = rest_ns
            yield _Step(counted, "", f"iteration {record.iteration}", rest_ns)
            rest_ns = None
    for notice in waiting:
        counted.add(notice)
        rest_ns = max(rest_ns or 0, notice.completed_ns)
    if rest_ns is not None:
        yield _Step(counted, "", "end", rest_ns)


def _of_other(
    path: Path, run: RunFile, attempt: Attempt, attempts: Attempts, recorded: dict[int, int]
) -> Iterator[_Step]:
    """Of another process, window by window: by the records' instants where it tells of windows."""
    counted: Counted | None = None
    windows = sorted((at_ns, iteration) for iteration, at_ns in recorded.items())
    who, at, rest_ns = "", 0, None
    for line in read_typed(path, _decode, lambda line: (SCHEMA, line.attempt)):
        if isinstance(line, Torn):
            continue
        value = line.value
        if attempts.of(value.run_id, value.attempt) != attempt.attempt:
            continue
        if isinstance(value, Joined):
            resource = _resource(path.parents[1], run, attempt, value, path.name)
            devices = [device for device, _ in value.devices]
            counted = Counted(resource, value.started_unix_ns, devices, job=False)
            who, at = value.name, bisect_right(windows, (value.started_unix_ns, 0))
        elif counted is None:
            continue
        elif isinstance(value, Contribution):
            counted.add(value)
            known = recorded.get(value.iteration)
            if known is not None:
                yield _Step(counted, who, f"iteration {value.iteration}", known)
        elif isinstance(value, Call | WorkerMemory):
            instant = value.end_ns if isinstance(value, Call) else max(value.memory.instant)
            after = bisect_right(windows, (instant, 0))
            if after > at and rest_ns is not None:
                at_ns, iteration = windows[after - 1]
                yield _Step(counted, who, f"iteration {iteration}", at_ns)
            at, rest_ns = max(at, after), instant
            counted.add(value)
    if counted is not None and rest_ns is not None:
        yield _Step(counted, who, "end", rest_ns)


def _late_publications(run_dir: Path, run: RunFile) -> dict[int, list[PublicationCompleted]]:
    """Confirmed after the records of their windows, by attempt."""
    attempts, found = Attempts(run), defaultdict[int, list[PublicationCompleted]](list)
    for _, line in read_worker_heads(run_dir):
        if not isinstance(line, Torn) and isinstance(line.value, PublicationCompleted):
            attempt = attempts.of(line.value.run_id, line.value.attempt)
            if attempt is not None:
                found[attempt].append(line.value)
    return found


def _resource(
    run_dir: Path, run: RunFile, attempt: Attempt, joined: Joined | None = None, name: str = ""
) -> Resource:
    """That of the process's spans: the same series go on. Without spans what the files tell of it."""
    pattern = name if joined is not None else f"*-0-{attempt.pid}.jsonl"
    for path in sorted((run_dir / "spans").glob(pattern)):
        for line in read_spans(path):
            if not isinstance(line, Torn) and line.value.attempt in {0, attempt.attempt}:
                for each in line.value.resource_spans:
                    return resource_of(each.resource.attributes)
    who = f"{run.run_id}-{attempt.attempt}-{joined.name if joined is not None else 0}"
    known: dict[str, str | None] = {
        semconv.SERVICE_NAME: "otel-grpo",
        semconv.SERVICE_INSTANCE_ID: who,
        semconv.RUN_ID: run.run_id,
        semconv.RL_SYSTEM: attempt.trainer.name,
        semconv.RL_SYSTEM_VERSION: attempt.trainer.version,
        semconv.RL_ALGORITHM: attempt.trainer.algorithm,
        semconv.ROLE: None if joined is None else joined.role,
    }
    return resource_of(
        Attribute(key, {"stringValue": value}) for key, value in known.items() if value is not None
    )
