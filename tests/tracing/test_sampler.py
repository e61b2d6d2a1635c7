"""Readings beside the training: when they are made, and what a driver that hangs costs."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from otel_grpo.testing import FakeClock, recorded_run
from otel_grpo.tracing import sampler as sampling
from otel_grpo.tracing.starting import INTERVAL
from tests.tracing.test_samples import Reading


class Driver:
    """Gives readings 1, 2, 3 ...; hangs from the given one on until it is let go."""

    def __init__(self, hangs_from: int = 10**9) -> None:
        self.asked = 0
        self.hangs_from = hangs_from
        self.hanging, self.go_on = threading.Event(), threading.Event()
        self.threads: set[str] = set()

    def __call__(self) -> list[Reading]:
        self.asked += 1
        number = self.asked
        self.threads.add(threading.current_thread().name)
        if number >= self.hangs_from:
            self.hanging.set()
            assert self.go_on.wait(60)
        return [Reading(process_rss=number)]


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "HANG_S", 0.2)
    monkeypatch.setenv(INTERVAL, "0")


@pytest.fixture
def hung() -> Iterator[Driver]:
    driver = Driver(hangs_from=1)
    yield driver
    driver.go_on.set()


def until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


def test_the_training_reads_nothing_itself() -> None:
    """The reading is made on the sampler's thread, and the record waits for it."""
    driver = Driver()
    with recorded_run(readings=driver, lockstep=False) as recorded:
        with recorded.run.iteration() as it:
            it.memory()
    (record,) = recorded.rollouts
    assert driver.threads == {"otel-grpo-sampler"}
    # Both requests may have been answered by one reading.
    assert record.attributes.memory.process_rss in ([1, 2], [1])
    assert not [t for t in threading.enumerate() if t.name == "otel-grpo-sampler"]


def test_a_driver_that_hangs_holds_up_neither_training_nor_writer_nor_exit(hung: Driver) -> None:
    """Windows are recorded without readings, each that is missed is counted by its place."""
    begun = time.monotonic()
    with recorded_run(readings=hung, lockstep=False, strict=False) as recorded:
        for number in range(50):
            with recorded.run.iteration() as it:
                it.memory()
                assert hung.hanging.wait(30)
                it.publication(number + 1).completed()
    assert time.monotonic() - begun < 50 * sampling.HANG_S
    assert len(recorded.rollouts) == 50
    assert recorded.summary.status == "completed"
    assert recorded.run.guard.errors == {"memory.late": 150}
    assert hung.asked == 1
    for record in recorded.rollouts:
        assert not record.attributes.memory
        assert record.attributes.publications[0].snapshot.keys() == {"version"}


def test_readings_go_on_when_the_driver_comes_back(hung: Driver) -> None:
    """What was asked meanwhile stays absent; what is asked afterwards is there."""
    with recorded_run(readings=hung, lockstep=False, strict=False) as recorded:
        with recorded.run.iteration():
            pass
        until(lambda: recorded.run.guard.errors["memory.late"] == 1)
        hung.go_on.set()
        until(lambda: recorded.run.sampler._reading_since is None)
        with recorded.run.iteration():
            pass
    first, second = recorded.rollouts
    assert not first.attributes.memory
    assert second.attributes.memory.process_rss == [2]


def test_what_nobody_asked_for_shows_peaks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two points memory went up and down again: the record has the top and no more."""
    monkeypatch.setenv(INTERVAL, "1")
    values = iter([5, 6, 99, 6])
    driver = Driver()

    def readings() -> list[Reading]:
        driver()
        return [Reading(host_used=next(values, 7))]

    with recorded_run(readings=readings, lockstep=False) as recorded:
        with recorded.run.iteration():
            until(lambda: driver.asked >= 20)
    (record,) = recorded.rollouts
    assert record.metrics["memory.host.used.max_bytes"] == 99
    # The top, the one at the window's end, and no row of the others.
    assert record.attributes.memory.host_used == [99, 7]


def test_the_interval_of_the_environment(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Milliseconds; what makes no sense is told once and the default holds."""
    for told, seconds in (("", 1), ("250", 0.25), ("0", 0), ("soon", 1), ("-3", 1)):
        monkeypatch.setenv(INTERVAL, told)
        with recorded_run(readings=list, lockstep=False, strict=False) as recorded:
            assert recorded.run.sampler._interval_s == seconds
            wrong = told in {"soon", "-3"}
            assert recorded.run.guard.errors["api.sample_interval"] == wrong
            assert (INTERVAL in caplog.text) == wrong
            caplog.clear()


def test_a_thread_that_dies_of_its_readings_goes_on(clock: FakeClock) -> None:
    """SystemExit ends threads without a word: not this one."""
    outcomes = iter([SystemExit("driver"), None, None])

    def readings() -> list[Reading]:
        outcome = next(outcomes)
        if outcome is not None:
            raise outcome
        return [Reading(process_rss=3)]

    with recorded_run(clock=clock, readings=readings, strict=False) as recorded:
        with recorded.run.iteration() as it:
            it.memory()
            it.memory()
    assert recorded.run.guard.errors == {"memory": 1}
    assert recorded.rollouts[0].attributes.memory.process_rss == [3, 3]


def test_a_process_that_hangs_in_its_driver_ends(tmp_path: Path) -> None:
    """The interpreter leaves although a reading never returns."""
    script = (
        "import sys, threading, otel_grpo\n"
        "run = otel_grpo.start_run(sys.argv[1], trainer='loop', devices=[],\n"
        "                          readings=threading.Event().wait)\n"
        "with run.iteration():\n"
        "    pass\n"
        "print('trained')\n"
    )
    child = subprocess.run(
        [sys.executable, "-c", script, tmp_path / "run"],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert child.stdout == "trained\n"
    assert '"memory.late": 1' in (tmp_path / "run/summary.json").read_text()


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_has_no_sampler() -> None:
    """A call of the API there asks nobody and waits for nobody."""
    with recorded_run(readings=Driver(), lockstep=False) as recorded:
        child = os.fork()
        if child == 0:
            recorded.run.memory()
            os._exit(len([t for t in threading.enumerate() if "sampler" in t.name]))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
