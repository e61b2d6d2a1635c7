"""The trace of a run holds its intervals, to the nanosecond, each where it belongs."""

from __future__ import annotations

import tracemalloc

import msgspec
import pytest

from otel_grpo.records.model import (
    SCHEMA,
    Attempt,
    Call,
    ClockOffset,
    ClockPair,
    Device,
    Hardware,
    Joined,
    Memory,
    Observed,
    OpenPhase,
    OpenWindow,
    Process,
    Publication,
    PublicationCompleted,
    Ranks,
    RolloutAttributes,
    RolloutRecord,
    RunFile,
    RunTime,
    Trainer,
    Update,
    Window,
    WindowOpened,
    World,
)
from otel_grpo.records.reader import BadLine
from otel_grpo.report.perfetto import draw
from otel_grpo.testing import FakeClock, recorded_run

ORIGIN = 1_796_036_080_531_406_838
RUN = "by-hand"
OURS = ClockPair("boot-a", ORIGIN, 7_000)
DRIVER = f"{RUN} > driver 0, node-a, pid 10"


class ByHand:
    """The files of a run, written line by line; instants count from `ORIGIN`."""

    def __init__(self, path):
        self.path = path
        for name in ("workers", "spans"):
            (path / name).mkdir(parents=True)
        self.records, self.workers, self.attempts = [], {}, []

    def attempt(self, number=1, processes=(), devices=()):
        world = World(1 + len(processes), [Device(each, "cuda", "node-a") for each in devices])
        trainer = Trainer("loop")
        self.attempts.append(
            Attempt(number, ORIGIN, "node-a", 10, OURS, trainer, world, processes=list(processes))
        )

    def window(self, iteration, start, end, intervals=(), attempt=1, metrics=None, **fields):
        rows = [
            (name, parent, phase, ORIGIN + a, None if b is None else ORIGIN + b, lane, flags)
            for name, parent, phase, a, b, lane, flags in intervals
        ]
        window = Window(ORIGIN + start, ORIGIN + end, "complete", 0)
        self.records.append(
            RolloutRecord(
                scope="iteration",
                run_id=RUN,
                attempt=attempt,
                seq=len(self.records),
                prev=None,
                time_unix_ns=ORIGIN + end,
                stage="generation",
                iteration=iteration,
                optimizer_step=1,
                metrics=metrics or {},
                attributes=RolloutAttributes(window, rows, [], Ranks(1, 1), **fields),
                observed=Observed(),
            )
        )

    def say(self, file, kind, *values, attempt=1, **fields):
        self.workers.setdefault(file, []).append(kind(RUN, attempt, *values, **fields))

    def write(self):
        if not self.attempts:
            self.attempt()
        run = RunFile(SCHEMA, RUN, self.attempts)
        (self.path / "run.json").write_bytes(msgspec.json.encode(run))
        encode = msgspec.json.Encoder().encode_lines
        (self.path / "metrics_raw.jsonl").write_bytes(encode(self.records))
        for name, lines in self.workers.items():
            (self.path / "workers" / name).write_bytes(encode(lines))
        return self.path


@pytest.fixture
def run(tmp_path):
    return ByHand(tmp_path / "run")


def joined(name, boot, rank=None, pid=20, perf=9_000, unix=ORIGIN):
    host = "node-a" if boot == "boot-a" else "node-b"
    return ("worker", name, rank, None, host, pid, ClockPair(boot, unix, perf), unix)


# ------------------------------------------------------------------------- what a real run leaves


def test_slices_are_the_intervals_of_the_records(tmp_path, picture):
    """Every row of every record, by its span id, nested below its parent where the lane is the same."""
    clock = FakeClock(ORIGIN)
    with recorded_run(tmp_path / "run", clock=clock, run_id=RUN) as recorded:
        for number in range(2):
            with recorded.run.iteration() as it:
                with it.phase("generation"):
                    clock.advance(ns=101)
                    with it.phase("reward"):
                        clock.advance(ns=13)
                    with it.phase("reward"):
                        clock.advance(ns=17)
                samples = it.consumed(number, prompt_lengths=[3], completion_lengths=[5])
                with it.phase("policy_train"):
                    clock.advance(ns=1)
                    it.trained(samples)
                with it.update(samples):
                    clock.advance(ns=7)
                clock.advance(ns=1_000)
    found = picture(recorded.path)
    rows = {
        (row[0], row[2], row[3], row[4])
        for record in recorded.rollouts
        for row in record.attributes.intervals
    }
    slices = {
        (s.args["span id"], s.name, s.start_ns, s.end_ns): s
        for s in found.slices
        if "span id" in s.args
    }
    assert len(rows) == 10
    assert slices.keys() == rows
    assert {s.depth for s in found.named("generation")} == {0}
    assert {s.depth for s in found.named("reward")} == {1}
    windows = [(s.name, s.start_ns, s.end_ns) for s in found.on("iterations")]
    assert windows == [
        ("iteration 1", ORIGIN, ORIGIN + 1_139),
        ("iteration 2", ORIGIN + 1_139, ORIGIN + 2_278),
    ]
    updates = [(s.start_ns - ORIGIN, s.end_ns - ORIGIN) for s in found.on("updates")]
    assert updates == [(132, 139), (1_271, 1_278)]
    (total,) = [values for name, values in found.samples.items() if name.endswith("tokens.total")]
    assert total == [(ORIGIN, 8), (ORIGIN + 1_139, 8)]


# ------------------------------------------------------------------------------- phases by hand


def test_a_phase_that_spans_windows_is_one_slice(run, picture):
    """Open at the end of the first record, ended in the second; what crosses it has another row."""
    run.window(1, 0, 100, [
        ("a", None, "generation", 10, None, 3, 2),
        ("b", "a", "reward", 20, 30, 3, 0),
        ("c", None, "policy_train", 0, 90, 0, 0),
    ])  # fmt: skip
    run.window(2, 100, 200, [
        ("a", None, "generation", 10, 150, 3, 16),
        ("d", None, "reward", 140, 160, 3, 1),
    ])  # fmt: skip
    found = picture(run.write())
    lines = {s.name + s.args["span id"]: s for s in found.slices if "span id" in s.args}
    assert {
        name: (
            s.track.removeprefix(DRIVER + " > "),
            s.start_ns - ORIGIN,
            s.end_ns - ORIGIN,
            s.depth,
        )
        for name, s in lines.items()
    } == {
        "generationa": ("lane 3", 10, 150, 0),
        "rewardb": ("lane 3", 20, 30, 1),
        "rewardd": ("lane 3 (2)", 140, 160, 0),
        "policy_trainc": ("lane 0 (the loop)", 0, 90, 0),
    }
    assert lines["rewardd"].args["flags"] == "error"
    assert lines["rewardb"].args["parent"] == "a"


def test_many_lanes_share_the_rows_of_the_rest(run, picture):
    """100 tasks one after the other: 8 lanes have rows of their own, the others one together."""
    rows = [(f"s{n}", None, "reward", 10 * n, 10 * n + 5, n, 0) for n in range(100)]
    run.window(1, 0, 1_000, rows)
    found = picture(run.write())
    assert len({s.track for s in found.named("reward")}) == 9
    assert len(found.on("further lanes")) == 92


# ------------------------------------------------------------------- updates, publications, numbers


def test_a_publication_reaches_to_its_completion(run, picture):
    """In its record, or in a notice that came after it; one that nobody confirmed is a mark."""

    def publication(version, done):
        at = None if done is None else ORIGIN + done
        return Publication("collective", version, ORIGIN + 50, at, done is not None, bytes=9)

    run.window(
        1, 0, 100, publications=[publication(v, d) for v, d in ((1, 80), (2, None), (3, None))]
    )
    run.say("driver-0-10.jsonl", PublicationCompleted, 1, 2, ORIGIN + 450)
    found = picture(run.write())
    slices = [s for s in found.slices if "publications" in s.track]
    assert {(s.name, s.start_ns - ORIGIN, s.end_ns - ORIGIN) for s in slices} == {
        ("publication 1", 50, 80),
        ("publication 2", 50, 450),
    }
    assert [s.args["bytes"] for s in slices] == [9, 9]
    (mark,) = found.instants
    assert mark[1:3] == ("publication 3, not confirmed", ORIGIN + 50)


def test_updates_say_how_they_ended(run, picture):
    """The status, the reason and the ranks."""
    run.window(1, 0, 100, updates=[
        Update(1, ORIGIN + 1, ORIGIN + 2, 8, 8, "applied"),
        Update(1, ORIGIN + 5, ORIGIN + 9, 4, 8, "failed", "OutOfMemoryError", [3, 5]),
    ])  # fmt: skip
    applied, failed = picture(run.write()).on("updates")
    assert (applied.name, failed.name) == ("update", "update failed")
    assert failed.args == {
        "optimizer step": 1,
        "samples": 4,
        "nominal samples": 8,
        "status": "failed",
        "reason": "OutOfMemoryError",
        "ranks": "3, 5",
    }


def test_readings_stand_at_their_instants(run, picture):
    """Memory by rank, device and host, what the driver said of a device, in their units."""
    run.attempt(devices=["GPU-x"])
    memory = Memory(
        instant=[ORIGIN + 5, ORIGIN + 6],
        rank=[0, 4],
        host=["node-a", "node-b"],
        pid=[10, 20],
        device=[0, None],
        device_used=[123, None],
        process_rss=[77, 88],
        allocator_allocated=[None, 3],
    )
    hardware = Hardware(instant=[ORIGIN + 7], device=[0], power_mw=[250_000])
    run.window(1, 0, 100, memory=memory, hardware=hardware, metrics={"throughput.device": 0.5})
    found = picture(run.write())
    assert {name.removeprefix(DRIVER + " > "): v for name, v in found.samples.items()} == {
        "in each window > throughput.device": [(ORIGIN, 0.5)],
        "device GPU-x > device_used": [(ORIGIN + 5, 123)],
        "device GPU-x > power_mw": [(ORIGIN + 7, 250_000)],
        "memory of rank 0 > process_rss": [(ORIGIN + 5, 77)],
        "memory of rank 4 > process_rss": [(ORIGIN + 6, 88)],
        "memory of rank 4 > allocator_allocated": [(ORIGIN + 6, 3)],
    }
    assert found.units[DRIVER + " > device GPU-x > device_used"] == 3  # bytes, by the schema
    assert found.units[DRIVER + " > device GPU-x > power_mw"] == "mW"


# ------------------------------------------------------------------------------- other processes


def test_calls_of_workers_are_placed_by_their_clocks(run, picture):
    """Exactly on one machine; by the measured offset, with its bound, on another; else apart."""
    clock = ClockPair(None, 0, 0)
    run.attempt(processes=[Process(1, "w", "node-a", 20, clock, "near"),
                           Process(2, "w", "node-b", 21, clock, "far"),
                           Process(3, "w", "node-b", 22, clock, "lost")])  # fmt: skip
    run.window(1, 0, 1_000)
    # 2,000 ns later by the shared monotonic clock, 2,500 by the wall clock: theirs is 500 ahead.
    run.say("w-1.jsonl", Joined, *joined("near", "boot-a", unix=ORIGIN + 2_500, perf=9_000))
    run.say("w-1.jsonl", Call, "compute", ORIGIN + 600, ORIGIN + 650)
    run.say("w-2.jsonl", Joined, *joined("far", "boot-b", pid=21))
    run.say("w-2.jsonl", Call, "inner", ORIGIN + 10_020, ORIGIN + 10_030, error=True)
    run.say("w-2.jsonl", Call, "outer", ORIGIN + 10_010, ORIGIN + 10_040)
    run.say("w-3.jsonl", Joined, *joined("lost", "boot-c", pid=22))
    run.say("w-3.jsonl", Call, "compute", ORIGIN + 5, ORIGIN + 9)
    run.say("driver-0-10.jsonl", ClockOffset, "far", 10_000, 33, ORIGIN)
    found = picture(run.write())
    near, far, lost = (f"{RUN} > {name} > calls" for name in (
        "1 near, node-a, pid 20", "2 far, node-b, pid 21", "3 lost, node-b, pid 22, BY ITS OWN CLOCK"
    ))  # fmt: skip
    calls = [s for s in found.slices if "calls" in s.track]
    assert sorted((s.track, s.name, s.start_ns - ORIGIN, s.end_ns - ORIGIN, s.depth) for s in calls) == [
        (near, "compute", 100, 150, 0),
        (far, "inner", 20, 30, 1),
        (far, "outer", 10, 40, 0),
        (lost, "compute", 5, 9, 0),
    ]  # fmt: skip
    about = {s.name: s.args for s in calls if s.track == far}
    assert about["inner"] == {"clock bound ns": 33, "error": True}
    assert draw(run.path, lambda _: None).apart == ["lost"]


def spans_file(run, name, spans, attempt=1):
    """`spans`: id, parent, name, start, end, phase, iteration."""

    def one(span_id, parent, name, start, end, phase, iteration):
        attributes = [{"key": "rl.loop.iteration", "value": {"intValue": str(iteration)}}]
        if phase:
            attributes.append({"key": "rl.phase", "value": {"stringValue": phase}})
        return {
            "traceId": "1" * 32,
            "spanId": span_id,
            "parentSpanId": parent,
            "name": name,
            "startTimeUnixNano": str(ORIGIN + start),
            "endTimeUnixNano": str(ORIGIN + end),
            "attributes": attributes,
        }

    resource = {"attributes": [{"key": "rl.run.attempt", "value": {"intValue": str(attempt)}}]}
    lines = [
        {"resourceSpans": [{"resource": resource, "scopeSpans": [{"spans": [one(*span)]}]}]}
        for span in spans
    ]
    content = msgspec.json.Encoder().encode_lines(lines)
    (run.path / "spans" / name).write_bytes(content)


def test_ranks_show_their_phases(run, picture):
    """From their spans, in the order in which they ended; a sibling beside another has its own row."""
    run.attempt(processes=[Process(1, "trainer", "node-a", 20, OURS, "trainer-1")])
    run.window(1, 0, 1_000)
    run.say("trainer-1-20.jsonl", Joined, *joined("trainer-1", "boot-a", rank=1, perf=7_000))
    spans_file(run, "trainer-1-20.jsonl", [
        ("c", "b", "rl.reward", 20, 30, "reward", 1),
        ("d", "a", "rl.advantage", 25, 28, "adv_pipeline", 1),
        ("b", "a", "rl.sample", 10, 40, "generation", 1),
        ("a", "", "rl.loop", 0, 100, None, 1),
        ("r", "", "rl.run", 0, 5_000, None, 0),
    ])  # fmt: skip
    found = picture(run.write())
    group = f"{RUN} > trainer-1, node-a, pid 20"
    ours = [s for s in found.slices if s.track.startswith(group)]
    assert [(s.track.removeprefix(group + " > "), s.name, s.depth) for s in ours] == [
        ("iterations", "iteration 1", 0),
        ("phases", "generation", 0),
        ("phases", "reward", 1),
        ("phases (2)", "adv_pipeline", 0),
    ]
    assert [(s.start_ns - ORIGIN, s.end_ns - ORIGIN) for s in ours] == [
        (0, 100), (10, 40), (20, 30), (25, 28),
    ]  # fmt: skip


def test_an_instant_that_is_no_number_is_a_bad_line(run, picture):
    """The file and the line are named."""
    run.say("trainer-1-20.jsonl", Joined, *joined("trainer-1", "boot-a", rank=1))
    spans_file(run, "trainer-1-20.jsonl", [("b", "a", "rl.sample", 10, 40, "generation", 1)])
    path = run.path / "spans" / "trainer-1-20.jsonl"
    path.write_text(path.read_text().replace(str(ORIGIN + 10), "soon"))
    with pytest.raises(BadLine, match=r"trainer-1-20.jsonl:1: has an instant that is no number"):
        picture(run.write())


def test_what_ends_before_it_starts_has_no_length(run, picture):
    """The audit tells of such a row; the picture stays whole."""
    run.window(1, 0, 100, [("a", None, "data", 50, 40, 0, 0), ("b", None, "data", 60, 70, 0, 0)])
    found = picture(run.write()).named("data")
    assert [(s.start_ns - ORIGIN, s.end_ns - ORIGIN) for s in found] == [(50, 50), (60, 70)]


# ----------------------------------------------------------------------------- runs without an end


def test_an_open_window_is_drawn_to_the_last_instant(run, picture):
    """With the phases that ended in it, from their spans, and those that the last summary had open."""
    run.window(1, 0, 100, [("x", None, "data", 90, None, 7, 2)])
    run.say("driver-0-10.jsonl", WindowOpened, 1, ORIGIN)
    run.say("driver-0-10.jsonl", WindowOpened, 2, ORIGIN + 100)
    spans_file(run, "driver-0-10.jsonl", [
        ("e", "w", "rl.sample", 110, 300, "generation", 2),
        ("f", "v", "rl.sample", 10, 90, "generation", 1),
    ])  # fmt: skip
    path = run.write()
    phases = [
        OpenPhase("generation", ORIGIN + 110, 0),  # it ended after that summary
        OpenPhase("reward", ORIGIN + 120, 5),
    ]
    open_window = msgspec.to_builtins(OpenWindow(2, ORIGIN + 100, phases))
    summary = SUMMARY | {"open": open_window, "observed": {"time_unix_ns": ORIGIN + 250}}
    (path / "summary.json").write_bytes(msgspec.json.encode(summary))
    found = picture(path)
    assert [
        (s.track.removeprefix(DRIVER + " > "), s.name, s.start_ns - ORIGIN, s.end_ns - ORIGIN)
        for s in found.slices
    ] == [
        ("iterations", "iteration 1", 0, 100),
        ("lane 7", "data", 90, 300),
        ("iterations", "iteration 2", 100, 300),
        ("phases of windows without a record", "generation", 110, 300),
        ("lane 5", "reward", 120, 300),
    ]
    assert [s.args.get("open", False) for s in found.slices] == [False, True, True, False, True]


SUMMARY = {
    "schema": SCHEMA,
    "run_id": RUN,
    "attempt": 1,
    "status": "running",
    "started_unix_ns": ORIGIN,
    "ended_unix_ns": ORIGIN,
    "trainer": {"name": "loop"},
    "world": {"size": 1},
    "time": dict.fromkeys(RunTime.__struct_fields__, 0),
    "windows": {"complete": 0, "partial": 0, "aborted": 0},
    "ranks": {"expected": 1, "complete_windows": 0, "incomplete_windows": 0},
    "records": {},
    "head": None,
}  # fmt: skip


def test_a_run_without_any_record_shows_what_it_opened(run, picture):
    """Killed in its first window."""
    run.say("driver-0-10.jsonl", WindowOpened, 1, ORIGIN + 5)
    found = picture(run.write())
    assert [(s.name, s.args["status"]) for s in found.slices] == [("iteration 1", "no record")]


def test_each_attempt_is_a_group_of_its_own(run, picture):
    """The same process id, an iteration of the same number: nothing is mixed."""
    run.attempt(1)
    run.attempt(2)
    run.attempts[1] = msgspec.structs.replace(run.attempts[1], pid=11)
    run.window(1, 0, 10)
    run.window(1, 20, 30, attempt=2)
    found = picture(run.write())
    assert [s.track.split(" > ")[1] for s in found.slices] == [
        "driver 0, node-a, pid 10",
        "driver 0, node-a, pid 11",
    ]


def test_a_part_of_the_iterations(run, picture):
    """Those alone, and of the workers what ended in them."""
    run.attempt(processes=[Process(1, "w", "node-a", 20, OURS, "near")])
    for n in (1, 2, 3):
        run.window(n, 100 * n, 100 * n + 100, [(f"{n}", None, "data", 100 * n, 100 * n + 9, 0, 0)])
    run.say("w-1.jsonl", Joined, *joined("near", "boot-a", perf=7_000))
    for end in (199, 200, 299, 300):
        run.say("w-1.jsonl", Call, f"m{end}", ORIGIN + end - 5, ORIGIN + end)
    found = picture(run.write(), range(2, 3))
    assert sorted(s.name for s in found.slices) == ["data", "iteration 2", "m200", "m299"]


def test_memory_does_not_grow_with_the_run(run):
    """Three times as many windows, calls and spans take less than a tenth more."""
    run.attempt(processes=[Process(1, "w", "node-a", 20, OURS, "near")])
    run.say("w-1.jsonl", Joined, *joined("near", "boot-a", perf=7_000))
    peaks, n = [], 0
    for windows in (5, 15, 15):  # the first time imports and caches are counted, too
        while n < windows:
            rows = [(f"{n}.{k}", None, "reward", 1000 * n + k, 1000 * n + k + 1, 0, 0)
                    for k in range(100)]  # fmt: skip
            run.window(n, 1000 * n, 1000 * n + 1000, rows)
            n += 1
        path = run.write()
        tracemalloc.start()
        draw(path, lambda _: None)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[2] < 1.1 * peaks[0]
