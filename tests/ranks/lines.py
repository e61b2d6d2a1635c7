"""Lines that other processes write, with clocks whose offset is known."""

from __future__ import annotations

from otel_grpo.records.model import (
    Call,
    ClockPair,
    Contribution,
    Device,
    Joined,
    Left,
    Memory,
    Observed,
    Ranks,
    RolloutAttributes,
    Window,
    WorkerMemory,
)

RUN, ATTEMPT = "run", 3
OURS = ClockPair("boot", 1_000_000, 400_000)  # unix ns, perf ns of the driver
# The same machine, read 250 ns later by the monotonic clock and 350 by a wall clock that was set.
THEIRS = ClockPair("boot", 1_000_350, 400_250)
SHIFT = 100  # theirs minus ours


def joined(rank, name=None, run_id=RUN, attempt=ATTEMPT, clock=THEIRS, devices=()):
    return Joined(
        run_id,
        attempt,
        "trainer",
        name or f"trainer-{rank}",
        rank,
        None if rank is None else 4,
        "h",
        100 + (rank or 0),
        clock,
        5,
        [(Device(each, "cuda", "h"), ["train"]) for each in devices],
    )


def worker(name, **options):
    return joined(None, name, **options)


def contribution(rank, iteration, run_id=RUN, attempt=ATTEMPT, **fields):
    attributes = RolloutAttributes(
        Window(0, 1, "complete", 0),
        [],
        [],
        Ranks(1, 1),
        samples=[("r", 2 * rank, 2)],
        completion_lengths=[rank, iteration],
        visit_counts=[0, 0],
        **fields,
    )
    return Contribution(run_id, attempt, rank, iteration, attributes, {"generation": rank})


def call(start, end, method="step", **options):
    """A call by the driver's clock; its line has the worker's."""
    return Call(options.pop("run_id", RUN), ATTEMPT, method, start + SHIFT, end + SHIFT, **options)


def reading(*instants, device=None, peak_resets=0):
    n = len(instants)
    return WorkerMemory(
        RUN,
        ATTEMPT,
        Memory(
            [instant + SHIFT for instant in instants],
            [0] * n,
            ["h"] * n,
            [9] * n,
            device=[device] * n,
            process_rss=list(range(n)),
            peak_resets=peak_resets,
        ),
    )


def left():
    return Left(RUN, ATTEMPT, "completed", 9, Observed())
