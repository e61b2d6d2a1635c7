"""The records of a run as typed structs: the file contract of schema ``otel-grpo/1``.

Everything else about the files (JSON Schema, reader, audit) follows from these types. Integers are
nanoseconds, tokens, bytes or counts; floats stand only in derived ``metrics``. A field that is
``UNSET`` was not known and is absent in the file: never 0, never a guess.
"""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

SCHEMA = "otel-grpo/1"

# Flags of an interval row.
ERROR = 1
OPEN_AT_END = 2
FOREIGN = 4
OWN_LOG = 8
CONTINUED = 16
DEVICE_OUTSTANDING = 32
FUSED_OPTIMIZER = 64
NOT_DEVICE_SYNCED = 128

# span id, parent span id, phase, start ns, end ns (None: open at the window's end), lane, flags
IntervalRow = tuple[str, str | None, str, int, int | None, int, int]
# The phases that are not hidden, sorted; nanoseconds.
SegmentRow = tuple[list[str], int]
RolloutId = str | int
# rollout id, first index, number of samples: consecutive samples as one run
SampleRun = tuple[RolloutId, int, int]
# rollout id, first index, number of samples, visits of each, tokens under the loss mask of one pass
# over them all (None: no longer known)
RevisitRow = tuple[RolloutId, int, int, int, int | None]
# reason, samples, completion tokens (None: not known)
DiscardRow = tuple[str, int, int | None]

UpdateStatus = Literal["applied", "skipped", "failed", "unconfirmed"]
WindowStatus = Literal["complete", "partial", "aborted"]
PublicationKind = Literal["in_place", "collective", "checkpoint", "ipc", "unknown"]
RunStatus = Literal["running", "completed", "failed", "interrupted"]
DeviceSource = Literal["nvml", "torch"]
Number = int | float | None


class Window(msgspec.Struct, frozen=True):
    """One iteration: the half-open interval ``[start_ns, end_ns)`` on one lane."""

    start_ns: int
    end_ns: int
    status: WindowStatus
    lane: int


class Update(msgspec.Struct, frozen=True):
    """One attempted optimizer step; ``step`` is the number of updates applied once it is over."""

    step: int
    start_ns: int
    end_ns: int
    samples: int
    nominal: int | None
    status: UpdateStatus
    reason: str | None = None
    ranks: list[int] = []


class Publication(msgspec.Struct, frozen=True):
    """New weights handed to the generator; ``completed_ns`` is null while nobody confirmed it."""

    kind: PublicationKind
    version: int
    started_ns: int
    completed_ns: int | None
    in_window: bool
    bytes: int | None = None
    snapshot: dict[str, int | None] = {}


class Memory(msgspec.Struct, frozen=True, omit_defaults=True):
    """Readings of memory as columns of equal length, in bytes; null where a reading lacks a value.

    ``device`` is an index into the inventory of ``run.json``; ``device_source`` says who told
    ``device_used`` and ``device_total``. ``peak_resets`` counts the readings in
    which a peak of the allocator was lower than in the one before: somebody reset it.
    """

    instant: list[int]
    rank: list[int]
    host: list[str]
    pid: list[int]
    device: list[int | None] | UnsetType = UNSET
    allocator_allocated: list[int | None] | UnsetType = UNSET
    allocator_reserved: list[int | None] | UnsetType = UNSET
    allocator_peak_allocated: list[int | None] | UnsetType = UNSET
    allocator_peak_reserved: list[int | None] | UnsetType = UNSET
    device_used: list[int | None] | UnsetType = UNSET
    device_total: list[int | None] | UnsetType = UNSET
    device_source: list[DeviceSource | None] | UnsetType = UNSET
    process_rss: list[int | None] | UnsetType = UNSET
    host_used: list[int | None] | UnsetType = UNSET
    host_total: list[int | None] | UnsetType = UNSET
    peak_resets: int = 0


class Hardware(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the driver said of devices, as columns of equal length; null where it did not say.

    ``device`` is an index into the inventory of ``run.json``. The first row of each device is the
    last reading before the window, where there is one: so the energy of windows that follow one
    another adds up.
    """

    instant: list[int]
    device: list[int]
    utilization: list[int | None] | UnsetType = UNSET  # percent
    power_mw: list[int | None] | UnsetType = UNSET
    energy_mj: list[int | None] | UnsetType = UNSET  # a counter
    temperature_c: list[int | None] | UnsetType = UNSET


class Ranks(msgspec.Struct, frozen=True):
    expected: int
    received: int
    missing: list[int] = []


class RolloutAttributes(msgspec.Struct, frozen=True, omit_defaults=True):
    """The raw evidence of one window. Columns of samples have one entry per consumed sample."""

    window: Window
    intervals: list[IntervalRow]
    segments: list[SegmentRow]
    ranks: Ranks
    devices: list[tuple[int, list[str]]] | UnsetType = UNSET
    samples: list[SampleRun] | UnsetType = UNSET
    prompt_lengths: list[int] | UnsetType = UNSET
    completion_lengths: list[int] | UnsetType = UNSET
    trained_lengths: list[int] | UnsetType = UNSET
    environment_lengths: list[int] | UnsetType = UNSET
    group_ids: list[int] | UnsetType = UNSET
    visit_counts: list[int] | UnsetType = UNSET
    policy_lag: list[int] | UnsetType = UNSET
    truncated: list[int] | UnsetType = UNSET
    generated: list[SampleRun] | UnsetType = UNSET
    discarded: list[DiscardRow] = []
    revisited: list[RevisitRow] = []
    pending: int | UnsetType = UNSET
    padding: int | UnsetType = UNSET
    updates: list[Update] = []
    publications: list[Publication] = []
    memory: Memory | UnsetType = UNSET
    hardware: Hardware | UnsetType = UNSET
    workers: dict[str, dict[str, list[int]]] = {}
    per_rank: dict[str, dict[str, int]] = {}
    nonfinite: list[str] = []
    foreign_spans: int = 0


class TrainAttributes(msgspec.Struct, frozen=True, omit_defaults=True):
    """The raw evidence of one attempted update.

    ``intervals`` are the training and optimizer spans since the previous update; ``scalars`` the
    trainer's own values under the trainer's own names, ``covers`` the steps that they speak of.
    """

    interval: tuple[int, int]
    intervals: list[IntervalRow]
    n: int
    status: UpdateStatus
    samples: list[SampleRun] = []
    trained: int | UnsetType = UNSET
    reason: str | None = None
    covers: list[int] = []
    scalars: dict[str, Number] = {}


class SinkCounts(msgspec.Struct):
    """created = written + dropped + pending + unconfirmed.

    ``unconfirmed``: sent without an answer, and given up; absent in files.
    """

    created: int = 0
    written: int = 0
    dropped: int = 0
    pending: int = 0
    reasons: dict[str, int] = {}
    unconfirmed: int | UnsetType = UNSET


class Observed(msgspec.Struct, omit_defaults=True):
    """Readings about the observer itself, which nothing else can derive."""

    process_ns: int | UnsetType = UNSET
    self_ns: int = 0
    errors: dict[str, int] = {}
    sinks: dict[str, SinkCounts] = {}
    time_unix_ns: int | UnsetType = UNSET


class _Header(msgspec.Struct, kw_only=True):
    """What every record has. ``seq`` and ``prev`` chain the lines of one file."""

    schema: str = SCHEMA
    scope: str
    run_id: str
    attempt: int
    seq: int
    prev: str | None
    time_unix_ns: int
    stage: str
    iteration: int | None
    optimizer_step: int | None
    trace_id: str | None = None
    span_id: str | None = None
    metrics: dict[str, Number]


class TrainRecord(_Header, kw_only=True, tag_field="kind", tag="train"):
    """One attempted update."""

    attributes: TrainAttributes
    observed: Observed


class RolloutRecord(_Header, kw_only=True, tag_field="kind", tag="rollout"):
    """One window."""

    attributes: RolloutAttributes
    observed: Observed


# --- the totals: what the `run` record and summary.json hold ---------------------------------------


class Trainer(msgspec.Struct, frozen=True):
    name: str
    version: str | None = None
    adapter_version: str | None = None
    algorithm: str | None = None


class Device(msgspec.Struct, frozen=True, omit_defaults=True):
    """A physical device; ``id`` is its UUID, else ``host:index``, else ``cpu:host:pid``."""

    id: str
    kind: str
    host: str
    name: str | None = None
    total_bytes: int | None = None


class World(msgspec.Struct, frozen=True):
    size: int
    devices: list[Device] = []


class RunTime(msgspec.Struct, frozen=True):
    """wall = startup + windows + between + shutdown, exactly."""

    wall_ns: int
    startup_ns: int
    windows_ns: int
    between_ns: int
    shutdown_ns: int
    log_ns: int
    logical_ns: int
    work_ns: int
    overlapped_ns: int
    unattributed_ns: int


class WindowCounts(msgspec.Struct, frozen=True):
    complete: int
    partial: int
    aborted: int


class RankCounts(msgspec.Struct, frozen=True):
    """``late``: contributions that are in the totals, though in no record: `otel-grpo finish` adds
    them.
    """

    expected: int
    complete_windows: int
    incomplete_windows: int
    late: int = 0


class Totals(msgspec.Struct, frozen=True, kw_only=True):
    """The totals of one attempt, derived from its lines. Absent: not known in any window."""

    status: RunStatus
    started_unix_ns: int
    ended_unix_ns: int
    trainer: Trainer
    world: World
    time: RunTime
    windows: WindowCounts
    phases: dict[str, dict[str, int]] = {}
    workers: dict[str, dict[str, int | float]] = {}
    groups: int | UnsetType = UNSET
    samples: dict[str, int | dict[str, int]] = {}
    tokens: dict[str, int] = {}
    updates: dict[str, int] = {}
    publications: int = 0
    publications_pending: int = 0
    length: dict[str, dict[str, int | float]] = {}
    memory: dict[str, dict[str, int | float]] = {}
    energy_mj: int | UnsetType = UNSET
    policy_lag: dict[str, int | float] = {}
    nonfinite: int = 0
    throughput: dict[str, float | str] = {}
    ranks: RankCounts
    base: dict[str, int] = {}


class RunAttributes(Totals, frozen=True, kw_only=True):
    """The evidence of the `run` record: the summary without ``head``, ``records``, ``observed``."""


class RunRecord(_Header, kw_only=True, tag_field="kind", tag="run"):
    """The end of one attempt."""

    attributes: RunAttributes
    observed: Observed


Record = TrainRecord | RolloutRecord | RunRecord


class OpenPhase(msgspec.Struct, frozen=True):
    phase: str
    start_ns: int
    lane: int


class OpenWindow(msgspec.Struct, frozen=True):
    """What is going on at the instant of a running summary."""

    iteration: int
    start_ns: int
    phases: list[OpenPhase] = []


class AttemptSummary(Totals, frozen=True, kw_only=True):
    """The totals of an earlier attempt."""

    attempt: int
    records: dict[str, int]


class Summary(Totals, frozen=True, kw_only=True):
    """``summary.json``. ``head`` is the hash of the last line of ``metrics_raw.jsonl``."""

    schema: str = SCHEMA
    run_id: str
    attempt: int
    attempts: list[AttemptSummary] = []
    records: dict[str, int]
    head: str | None
    open: OpenWindow | None = None
    observed: Observed


# --- run.json, workers/ ---------------------------------------------------------------------------


class ClockPair(msgspec.Struct, frozen=True):
    """One reading of both clocks: instants are ``unix_ns + (perf_counter_ns - perf_ns)``."""

    boot_id: str | None
    unix_ns: int
    perf_ns: int


class Process(msgspec.Struct, frozen=True):
    """A process of the job: a rank of an SPMD trainer, or a worker that a driver calls.

    ``rank`` is what the records call it: the rank in the process group, or for workers their place
    in this list. The process that writes the records is 0.
    """

    rank: int
    role: str
    host: str
    pid: int
    clock: ClockPair
    name: str | None = None


class Attempt(msgspec.Struct, frozen=True):
    attempt: int
    started_unix_ns: int
    host: str
    pid: int
    clock: ClockPair
    trainer: Trainer
    world: World
    config_fingerprint: str | None = None
    base: dict[str, int] = {}
    launch: str | None = None
    processes: list[Process] = []


class RunFile(msgspec.Struct, frozen=True):
    """``run.json``: what is constant, one entry per attempt."""

    schema: str
    run_id: str
    attempts: list[Attempt]


class _WorkerLine(msgspec.Struct, frozen=True, tag_field="kind"):
    """What every line of ``workers/`` has."""

    run_id: str
    attempt: int


class WindowOpened(_WorkerLine, frozen=True, tag="window_opened"):
    """A line of ``workers/``: the driver opened a window. Without its record it counts as aborted."""

    iteration: int
    start_ns: int


class PublicationCompleted(_WorkerLine, frozen=True, tag="publication_completed"):
    """A line of ``workers/``: a publication was confirmed after its window's record was written."""

    iteration: int
    version: int
    completed_ns: int


class Joined(_WorkerLine, frozen=True, tag="joined", omit_defaults=True):
    """The first line of a process's file in ``workers/``.

    ``rank`` is its rank in the process group of an SPMD trainer; null for a worker, which the driver
    numbers. ``name`` is unique in the job, such as ``policy-3``.
    """

    role: str
    name: str
    rank: int | None
    world: int | None
    host: str
    pid: int
    clock: ClockPair
    started_unix_ns: int
    devices: list[tuple[Device, list[str]]] = []
    actor_id: str | None = None


class Contribution(_WorkerLine, frozen=True, tag="contribution", omit_defaults=True):
    """What one rank counted and read in one window.

    ``attributes`` as in a `rollout` record, of this rank alone, without intervals and segments, whose
    place is taken by ``busy_ns`` of each phase; ``device`` of its memory points into the devices of
    its `joined` line. ``update_samples`` and ``update_trained`` are, for each of its updates, the
    visits that went into it and their tokens under the loss mask (null: not known).
    """

    rank: int
    iteration: int
    attributes: RolloutAttributes
    busy_ns: dict[str, int] = {}
    update_samples: list[list[SampleRun]] = []
    update_trained: list[int | None] = []


class Call(_WorkerLine, frozen=True, tag="call", omit_defaults=True):
    """One call of a timed method of a worker, by the worker's clock; it belongs to the window in
    which it ended.
    """

    method: str
    start_ns: int
    end_ns: int
    error: bool = False


class WorkerMemory(_WorkerLine, frozen=True, tag="memory"):
    """Readings of memory of a worker; ``device`` points into the devices of its `joined` line."""

    memory: Memory


class ClockOffset(_WorkerLine, frozen=True, tag="clock"):
    """The clock of another process against the driver's: theirs minus ours at ``measured_ns`` of
    ours, right to ``bound_ns``.
    """

    name: str
    offset_ns: int
    bound_ns: int
    measured_ns: int


class Left(_WorkerLine, frozen=True, tag="left"):
    """The last line of a process that ended in order."""

    status: RunStatus
    ended_unix_ns: int
    observed: Observed


WorkerLine = (
    WindowOpened
    | PublicationCompleted
    | Joined
    | Contribution
    | Call
    | WorkerMemory
    | ClockOffset
    | Left
)
