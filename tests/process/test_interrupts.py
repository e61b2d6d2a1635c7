"""Ctrl-C at every single point of our code at which Python may raise it."""

from __future__ import annotations

import dis
import functools
import random
import sys
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

import otel_grpo
from otel_grpo import audit
from otel_grpo.records import reader
from otel_grpo.records.replay import summarize
from otel_grpo.tracing import lifecycle

pytestmark = pytest.mark.skipif(
    sys.version_info[:2] == (3, 12),
    reason="Python 3.12 traces the opcodes of some frames only: the points can't be counted",
)

PACKAGE = str(Path(otel_grpo.__file__).parent)


@functools.cache
def points(code: CodeType) -> frozenset[int]:
    """Offsets of the instructions before which the interpreter looks for signals: at the start of
    a function, after a call, after a jump backwards.
    """
    offsets, looks = set(), False
    for instruction in dis.get_instructions(code):
        if looks:
            offsets.add(instruction.offset)
        name = instruction.opname
        calls = name.startswith("CALL") and "INTRINSIC" not in name
        looks = name == "RESUME" or calls or "JUMP_BACKWARD" in name
    return frozenset(offsets)


class Interrupter:
    """Raises KeyboardInterrupt at the n-th such point that this thread passes in the package."""

    def __init__(self, at: int | None) -> None:
        self.points = 0
        self.where = ""
        self.swallowed = False  # by Python: nobody hears of an exception while a generator is freed
        self._at = at

    def __call__(self, frame: FrameType, event: str, argument: Any) -> Any:
        code = frame.f_code
        if not code.co_filename.startswith(PACKAGE):
            return None
        frame.f_trace_opcodes = True
        if event == "opcode" and frame.f_lasti in points(code):
            self.points += 1
            if self.points == self._at:
                self.where = f"{code.co_filename}:{frame.f_lineno}"
                sys.settrace(None)
                raise KeyboardInterrupt
        return self

    def unraisable(self, told: Any) -> None:
        self.swallowed = self.swallowed or told.exc_type is KeyboardInterrupt


def train(run: otel_grpo.Run) -> None:
    """Two windows with everything that a report can be."""
    for number in range(2):
        with run.iteration() as it:
            with it.phase("generation", attributes={"a": 1}):
                it.generated(number, 2)
            samples = it.consumed(
                number, prompt_lengths=[1, 2], completion_lengths=[3, 4], groups=[0, 0],
                versions=number, trained_lengths=[3, 4],
            )  # fmt: skip
            with it.phase("policy_train"):
                it.trained(samples)
            with it.update(samples, nominal=2):
                pass
            it.discarded("stale", 1)
            run.log_scalars({"loss": 0.5}, step=number)
            it.publication(number + 1).completed()


def interrupted(path: Path, at: int | None, body: Callable[[otel_grpo.Run], None]) -> Interrupter:
    """A run whose training is interrupted at that point of ours."""
    interrupter = Interrupter(at)
    run = otel_grpo.start_run(path, trainer="loop", devices=[], readings=list)
    hook, sys.unraisablehook = sys.unraisablehook, interrupter.unraisable
    try:
        with run:
            try:
                sys.settrace(interrupter)
                body(run)
            finally:
                sys.settrace(None)
    except KeyboardInterrupt:
        pass
    finally:
        sys.unraisablehook = hook
    return interrupter


def check(path: Path, where: str, *, interrupt: bool) -> None:
    """The run ended in order, nothing is lost, and the audit agrees with every number."""
    summary = reader.read_summary(path)
    assert summary.status == ("interrupted" if interrupt else "completed"), where
    for name, sink in summary.observed.sinks.items():
        assert sink.created == sink.written, (where, name)
        assert sink.dropped == sink.pending == 0, (where, name)
    assert summary.observed.errors == {}, where
    again = summarize(path)
    assert (again.tokens, again.updates, again.samples) == (
        summary.tokens, summary.updates, summary.samples
    ), where  # fmt: skip
    report = audit.audit(path)
    assert report.findings == [], f"{where}\n{audit.render(report)}"


def sweep(tmp_path: Path, body: Callable[[otel_grpo.Run], None], step: int, first: int) -> None:
    total = interrupted(tmp_path / "whole", None, body).points
    check(tmp_path / "whole", "", interrupt=False)
    assert total > 200
    for at in range(first, total + 1, step):
        path = tmp_path / str(at)
        done = interrupted(path, at, body)
        reached = bool(done.where) and not done.swallowed
        check(path, f"{at}: {done.where}", interrupt=reached)


def end_interrupted(path: Path, at: int | None) -> Interrupter:
    """A run that is being finished after an exception when Ctrl-C comes; the exit finishes it."""
    interrupter = Interrupter(at)
    run = otel_grpo.start_run(path, trainer="loop", devices=[], readings=list)
    train(run)
    it = run.open_iteration()
    it.phase("generation").start()
    try:
        sys.settrace(interrupter)
        run.finish(error=RuntimeError())
    except KeyboardInterrupt:
        pass
    finally:
        sys.settrace(None)
    lifecycle._finish_all()
    return interrupter


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_interrupt_in_the_end(tmp_path: Path) -> None:
    """One in fifteen of the points of `finish`: the process's exit does the rest, once."""
    total = end_interrupted(tmp_path / "whole", None).points
    assert total > 100
    for at in range(random.randrange(1, 16), total + 1, 15):
        path = tmp_path / str(at)
        where = f"{at}: {end_interrupted(path, at).where}"
        summary = reader.read_summary(path)
        # Before the first statement the run does not know yet why it ends.
        assert summary.status == "failed" or at < 5, where
        assert summary.records == {"train": 2, "rollout": 3, "run": 1}, where
        assert summary.windows.aborted == 1, where
        report = audit.audit(path)
        assert report.findings == [], f"{where}\n{audit.render(report)}"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_interrupt_at_some_points(tmp_path: Path) -> None:
    """A random one in thirty of the points of two windows; `soak` takes all of them."""
    sweep(tmp_path, train, 30, random.randrange(1, 31))


@pytest.mark.soak
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_interrupt_at_every_point(tmp_path: Path) -> None:
    """Every point of two windows."""
    sweep(tmp_path, train, 1, 1)
