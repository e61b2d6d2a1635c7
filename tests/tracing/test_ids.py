"""Ids: no seed repeats them, and drawing them moves no random stream of the training."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
from collections.abc import Callable

import numpy as np
import pytest

from otel_grpo.testing import FakeClock, recorded_run
from otel_grpo.tracing.ids import UrandomIdGenerator

SEEDED = """
import random, sys, numpy
random.seed(42); numpy.random.seed(42)
from otel_grpo.tracing.ids import UrandomIdGenerator
ids = UrandomIdGenerator()
print(ids.generate_trace_id(), ids.generate_span_id())
"""


def test_seeded_processes_have_distinct_ids() -> None:
    """Eight ranks that seed alike draw sixteen different ids."""
    children = [
        subprocess.Popen([sys.executable, "-c", SEEDED], stdout=subprocess.PIPE, text=True)
        for _ in range(8)
    ]
    drawn = [word for child in children for word in child.communicate(timeout=60)[0].split()]
    assert len(drawn) == 16
    assert len(set(drawn)) == 16


def test_random_streams_stay_where_they_are(clock: FakeClock) -> None:
    """A whole run draws nothing from `random` or numpy's generator."""
    random.seed(42)
    np.random.seed(42)  # noqa: NPY002 - the stream that trainers seed
    before = random.getstate(), np.random.get_state()[1].tolist()  # noqa: NPY002
    with recorded_run(clock=clock) as recorded, recorded.run.iteration() as it:
        for number in range(50):
            with it.phase("generation"):
                it.generated(number, 1)
    assert len(recorded.spans) == 52
    assert random.getstate() == before[0]
    assert np.random.get_state()[1].tolist() == before[1]  # noqa: NPY002


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_fork_child_draws_new_ids() -> None:
    """The rest of a block that the parent drew is not used by its child."""
    ids = UrandomIdGenerator()
    ids.generate_span_id()  # a block is drawn, and shared by the fork
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        drawn = [ids.generate_span_id() for _ in range(100)]
        os.write(write, ",".join(map(str, drawn)).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        theirs = {int(word) for word in pipe.read().split(",")}
    os.waitpid(child, 0)
    assert len(theirs) == 100
    assert theirs.isdisjoint(ids.generate_span_id() for _ in range(1000))


def test_ids_are_in_range_and_unique_over_threads() -> None:
    """Never zero, 64 and 128 bits, and no two threads get the same one."""
    ids = UrandomIdGenerator()
    drawn: list[int] = []

    def draw() -> None:
        drawn.extend([ids.generate_span_id() for _ in range(3000)])

    threads = [threading.Thread(target=draw) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(drawn)) == 12_000
    assert all(0 < value < 2**64 for value in drawn)
    traces = [ids.generate_trace_id() for _ in range(1000)]
    assert len(set(traces)) == 1000
    assert all(2**64 <= value < 2**128 for value in traces)


def test_zero_is_no_id(monkeypatch: pytest.MonkeyPatch) -> None:
    """The invalid id 0 is skipped when the system draws it."""
    blocks: list[bytes] = [bytes(8 * 512), (5).to_bytes(8, sys.byteorder) * 512]
    urandom: Callable[[int], bytes] = lambda size: blocks.pop(0)  # noqa: E731
    monkeypatch.setattr("otel_grpo.tracing.ids.os.urandom", urandom)
    assert UrandomIdGenerator().generate_span_id() == 5
