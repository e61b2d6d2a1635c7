"""Which phase is below which: threads, tasks, generators, phases handed from one to another."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

import otel_grpo
from otel_grpo.testing import FakeClock, RecordedRun, recorded_run


def rows_of(recorded: RecordedRun) -> dict[str, tuple[str | None, int]]:
    """Phase -> (phase of its parent, lane) in the only window; each phase occurs once."""
    (record,) = recorded.rollouts
    intervals = record.attributes.intervals
    phase_of = {row[0]: row[2] for row in intervals}
    assert len({row[2] for row in intervals}) == len(intervals)
    return {row[2]: (None if row[1] is None else phase_of[row[1]], row[5]) for row in intervals}


def test_blocks_nest(clock: FakeClock) -> None:
    """A block inside a block is its child, on the same lane; the next one is its sibling."""
    with recorded_run(clock=clock) as recorded, recorded.run.iteration() as it:
        with it.phase("generation"):
            clock.advance(1)
            with it.phase("reward"):
                clock.advance(1)
                with otel_grpo.phase("judge"):  # far from the loop
                    clock.advance(1)
        with it.phase("policy_train"):
            clock.advance(1)
    rows = rows_of(recorded)
    lane = recorded.rollouts[0].attributes.window.lane
    assert rows == {
        "generation": (None, lane),
        "reward": ("generation", lane),
        "judge": ("reward", lane),
        "policy_train": (None, lane),
    }


def test_thread_pool_without_context(clock: FakeClock) -> None:
    """A bare worker thread knows no parent: its phase is a root of the window, on its own lane."""
    with recorded_run(clock=clock) as recorded, recorded.run.iteration() as it:

        def reference() -> None:
            with it.phase("logprob_ref"):
                clock.advance(1)

        with it.phase("adv_pipeline"), ThreadPoolExecutor(1) as pool:
            pool.submit(reference).result()
    rows = rows_of(recorded)
    assert rows["logprob_ref"][0] is None
    assert rows["logprob_ref"][1] != rows["adv_pipeline"][1]
    assert recorded.rollouts[0].metrics["time.overlapped_ns"] == 10**9


def test_thread_pool_with_context(clock: FakeClock) -> None:
    """A copied context carries the parent; the lane is the thread's."""
    with recorded_run(clock=clock) as recorded, recorded.run.iteration() as it:

        def reference() -> None:
            with it.phase("logprob_ref"):
                clock.advance(1)

        with it.phase("adv_pipeline"), ThreadPoolExecutor(1) as pool:
            pool.submit(contextvars.copy_context().run, reference).result()
    rows = rows_of(recorded)
    assert rows["logprob_ref"][0] == "adv_pipeline"
    assert rows["logprob_ref"][1] != rows["adv_pipeline"][1]
    assert recorded.rollouts[0].metrics["phase.adv_pipeline.top_ns"] == 10**9


def test_thread_with_explicit_parent(clock: FakeClock) -> None:
    """`parent=` tells a thread what it works for."""
    with recorded_run(clock=clock) as recorded, recorded.run.iteration() as it:
        with it.phase("adv_pipeline") as above:

            def reference() -> None:
                with it.phase("logprob_ref", parent=above), it.phase("embed"):
                    clock.advance(1)

            thread = threading.Thread(target=reference)
            thread.start()
            thread.join()
    rows = rows_of(recorded)
    assert rows["logprob_ref"][0] == "adv_pipeline"
    assert rows["embed"] == ("logprob_ref", rows["logprob_ref"][1])


def test_asyncio_tasks(clock: FakeClock) -> None:
    """Each gathered task is a lane of its own below the phase that gathers; they overlap freely."""

    async def reward(it: otel_grpo.Iteration, name: str, barrier: asyncio.Event) -> None:
        with it.phase(name):
            await barrier.wait()
            with it.phase(f"{name}_inner"):
                await asyncio.sleep(0)
                clock.advance(1)

    async def gather(it: otel_grpo.Iteration) -> None:
        barrier = asyncio.Event()
        with it.phase("reward"):
            tasks = asyncio.gather(reward(it, "a", barrier), reward(it, "b", barrier))
            await asyncio.sleep(0)  # both are open now
            barrier.set()
            await tasks
            with it.phase("after"):
                clock.advance(1)

    with recorded_run(clock=clock) as recorded, recorded.run.iteration() as it:
        asyncio.run(gather(it))
    rows = rows_of(recorded)
    parents = {name: parent for name, (parent, _) in rows.items()}
    assert parents == {
        "reward": None, "a": "reward", "b": "reward",
        "a_inner": "a", "b_inner": "b", "after": "reward",
    }  # fmt: skip
    assert len({rows[name][1] for name in ("reward", "a", "b")}) == 3
    assert rows["a_inner"][1] == rows["a"][1]
    assert rows["b_inner"][1] == rows["b"][1]
    assert rows["after"][1] == rows["reward"][1]


class EmptyLoop(asyncio.SelectorEventLoop):
    """One that counts what it has of its own, which is nothing."""

    def __len__(self) -> int:
        return 0


def test_task_of_a_loop_that_is_false(clock: FakeClock) -> None:
    """A loop runs whatever its truth value: its task is a lane apart from the thread's."""
    loop = EmptyLoop()

    async def reward(it: otel_grpo.Iteration) -> None:
        with it.phase("reward"):
            clock.advance(5)

    with recorded_run(clock=clock) as recorded, recorded.run.iteration() as it:
        loop.run_until_complete(reward(it))
    loop.close()
    _, lane = rows_of(recorded)["reward"]
    assert lane != recorded.rollouts[0].attributes.window.lane


def test_lane_numbers_are_used_once(clock: FakeClock) -> None:
    """Threads and tasks that come one after the other never share a lane."""
    with recorded_run(clock=clock) as recorded, recorded.run.iteration() as it:

        def work(name: str) -> None:
            with it.phase(name):
                clock.advance(1)

        async def task(name: str) -> None:
            work(name)

        for number in range(5):
            thread = threading.Thread(target=work, args=(f"thread {number}",))
            thread.start()
            thread.join()
            asyncio.run(task(f"task {number}"))
    lanes = [lane for _, lane in rows_of(recorded).values()]
    assert len(set(lanes)) == len(lanes) == 10
    assert recorded.rollouts[0].attributes.window.lane not in lanes


def test_phase_over_a_yield(clock: FakeClock) -> None:
    """A block held over a generator's yield times the consumer too, and leaves no wrong parent."""
    with recorded_run(clock=clock) as recorded, recorded.run.iteration() as it:

        def batches() -> Iterator[int]:
            with it.phase("data"):
                yield 1
                clock.advance(1)

        for _ in batches():
            with it.phase("policy_train"):
                clock.advance(1)
        with it.phase("optimizer"):
            clock.advance(1)
    parents = {name: parent for name, (parent, _) in rows_of(recorded).items()}
    assert parents == {"data": None, "policy_train": "data", "optimizer": None}


def test_interleaved_generators(clock: FakeClock) -> None:
    """Two generators that hold a phase each and end in the order they began leave nothing open."""
    with recorded_run(clock=clock) as recorded, recorded.run.iteration() as it:

        def hold(name: str) -> Generator[None, None, None]:
            with it.phase(name):
                yield
                clock.advance(1)

        first, second = hold("first"), hold("second")
        next(first)
        next(second)
        first.close()
        second.close()
        with it.phase("later"):
            clock.advance(1)
        assert not first.gi_running
    rows = rows_of(recorded)
    assert rows["later"][0] is None


def test_abandoned_generator_in_another_thread(clock: FakeClock) -> None:
    """A generator whose phase ends in another thread than it began in is whole."""
    with recorded_run(clock=clock) as recorded, recorded.run.iteration() as it:

        def hold() -> Generator[None, None, None]:
            with it.phase("data"):
                yield

        generator = hold()
        next(generator)
        clock.advance(1)
        thread = threading.Thread(target=generator.close)
        thread.start()
        thread.join()
        clock.advance(1)
    assert recorded.rollouts[0].metrics["phase.data.busy_ns"] == 10**9


def test_started_here_stopped_there(clock: FakeClock, lanes: list) -> None:
    """A phase belongs to the lane that started it, whoever stops it; the starter's later phases are
    not its children once it is over.
    """
    with recorded_run(clock=clock) as recorded, recorded.run.iteration() as it:
        wait = it.phase("rollout_wait").start()
        clock.advance(2)
        lanes[0](wait.stop)
        with it.phase("policy_train"):
            clock.advance(1)
        remote = lanes[1](it.phase("reward").start)
        clock.advance(1)
        remote.stop()
        over = lanes[1](it.phase("logprob_ref").start)
        clock.advance(1)
        over.stop()
    rows = rows_of(recorded)
    own = recorded.rollouts[0].attributes.window.lane
    assert rows["rollout_wait"] == (None, own)
    assert rows["policy_train"] == (None, own)
    assert rows["reward"][1] != own
    assert rows["logprob_ref"][0] is None
    assert recorded.rollouts[0].metrics["phase.rollout_wait.busy_ns"] == 2 * 10**9


@pytest.mark.parametrize("shared", [False, True])
def test_overlapping_on_one_lane(clock: FakeClock, shared: bool) -> None:
    """Phases that are stopped in the order they were started, not nested, leave no parent behind."""
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider

    options = {"tracer_provider": TracerProvider(shutdown_on_exit=False)} if shared else {}
    before = trace.get_current_span()
    with recorded_run(clock=clock, **options) as recorded, recorded.run.iteration() as it:
        for _ in range(3):
            a = it.phase("a").start()
            b = it.phase("b").start()
            clock.advance(1)
            a.stop()
            b.stop()
        with it.phase("later"):
            clock.advance(1)
    assert trace.get_current_span() is before
    (record,) = recorded.rollouts
    parent_of = {row[2]: row[1] for row in record.attributes.intervals}
    assert parent_of["later"] is None
    assert parent_of["a"] is None


def test_phases_of_an_earlier_run_are_no_parents(clock: FakeClock) -> None:
    """What was left open in one run has nothing to do with the next."""
    with recorded_run(clock=clock) as first, first.run.iteration() as it:
        it.phase("left_open").start()

    @otel_grpo.timed
    def work() -> None:
        clock.advance(1)

    with recorded_run(clock=clock) as second, second.run.iteration() as it:
        with it.phase("generation"):
            clock.advance(1)
        work()
    (row,) = second.rollouts[0].attributes.intervals
    assert row[1] is None
    (call,) = [span for span in second.spans if span["name"] == "rl.worker.work"]
    (loop,) = [span for span in second.spans if span["name"] == "rl.loop"]
    assert (call["traceId"], call["parentSpanId"]) == (loop["traceId"], loop["spanId"])
