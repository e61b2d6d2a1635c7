"""A small training loop without torch, for tests that end its process; run as a script.

`serve` forks one child per request, so that a hundred ends cost no hundred starts of Python.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import otel_grpo
from otel_grpo import api, devices  # noqa: F401 - loaded once, not in each fork
from otel_grpo.records.model import Device

SAMPLES = 8


def iteration(run: otel_grpo.Run, number: int, seconds: float = 0.001) -> None:
    """One window: 8 samples, one update, published in place."""
    with run.iteration() as it:
        with it.phase("generation"):
            time.sleep(seconds)
            with it.phase("reward"):
                pass
        samples = it.consumed(
            number,
            prompt_lengths=[3] * SAMPLES,
            completion_lengths=list(range(SAMPLES)),
            trained_lengths=[1] * SAMPLES,
            groups=[0] * SAMPLES,
        )
        with it.phase("policy_train"):
            time.sleep(seconds)
            it.trained(samples)
        with it.update(samples, nominal=SAMPLES):
            pass
        run.log_scalars({"loss": 1 / (number + 1)}, step=number)
        it.publication(number + 1, kind="in_place").completed()


def start(run_dir: str, **options: Any) -> otel_grpo.Run:
    device = Device("cpu:host:1", "cpu", "host")
    return otel_grpo.start_run(
        run_dir, trainer="loop", algorithm="grpo", devices=[device], readings=list, **options
    )


def train(run: otel_grpo.Run, run_dir: str, windows: int = 10**9, first: int = 0) -> None:
    """Trains, and writes one dot into a file of its own after each iteration."""
    dots = os.open(f"{run_dir}.dots", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for number in range(first, first + windows):
        iteration(run, number)
        os.write(dots, b".")


def loop(run_dir: str, windows: int = 10**9) -> None:
    with start(run_dir) as run:
        train(run, run_dir, windows)


# --- ends: each is called in a child of its own ----------------------------------------------------


def later(seconds: float, act: Callable[[], object]) -> None:
    """Does something to the process from outside its training thread."""
    timer = threading.Timer(seconds, act)
    timer.daemon = True
    timer.start()


def kill_with(number: int, delay: float) -> None:
    later(delay, lambda: os.kill(os.getpid(), number))


def ended_by(act: Callable[[float], object], run_dir: str, delay: float) -> None:
    """Trains until `act`: that long after the run has started, or, below zero, after its start began."""
    if delay < 0:
        act(-delay)
    with start(run_dir) as run:
        if delay >= 0:
            act(delay)
        train(run, run_dir)


def by_interrupt(run_dir: str, delay: float) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        ended_by(partial(kill_with, signal.SIGINT), run_dir, delay)
    except KeyboardInterrupt:
        sys.exit(130)


def by_interrupt_without_a_block(run_dir: str, delay: float) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    run = start(run_dir)
    kill_with(signal.SIGINT, delay)
    train(run, run_dir)


def by_handled_sigterm(run_dir: str, delay: float) -> None:
    def leave(*_: Any) -> None:
        sys.exit(143)

    signal.signal(signal.SIGTERM, leave)
    ended_by(partial(kill_with, signal.SIGTERM), run_dir, delay)


def by_sigterm(run_dir: str, delay: float) -> None:
    ended_by(partial(kill_with, signal.SIGTERM), run_dir, delay)


def by_os_exit(run_dir: str, delay: float) -> None:
    ended_by(lambda seconds: later(seconds, lambda: os._exit(7)), run_dir, delay)


def by_sigkill(run_dir: str, delay: float) -> None:
    ended_by(partial(kill_with, signal.SIGKILL), run_dir, delay)


def killed_after_three(run_dir: str, delay: float) -> None:
    """SIGKILL when three windows are in the file and a fourth is open."""
    run = start(run_dir)
    train(run, run_dir, 3)
    run.open_iteration()
    run.output.writer.flush()
    os.kill(os.getpid(), signal.SIGKILL)


def by_exit_in_the_loop(run_dir: str, delay: float) -> None:
    """No with-block: the exit of the process finishes the run."""
    run = start(run_dir)
    it = run.open_iteration()
    it.phase("generation").start()
    train_until = time.monotonic() + delay
    while time.monotonic() < train_until:
        time.sleep(0.001)
    sys.exit(3)


def by_uncaught(run_dir: str, delay: float) -> None:
    run = start(run_dir)
    iteration(run, 0)
    run.open_iteration()
    raise RuntimeError("of the user")


def by_end_of_the_script(run_dir: str, delay: float) -> None:
    train(start(run_dir), run_dir, 3)


def double_interrupt(run_dir: str, delay: float) -> None:
    """An impatient user: two interrupts, the second while the run is being finished."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    run = start(run_dir)
    real = run.output.writer.flush

    def slow(*args: Any) -> bool:
        run.output.writer.flush = real  # type: ignore[method-assign]
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(1)
        return real(*args)

    run.output.writer.flush = slow  # type: ignore[method-assign]
    try:
        with run:
            train(run, run_dir, 3)
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(1)
    except KeyboardInterrupt:
        sys.exit(130)


def _child_of_multiprocessing(run_dir: str) -> None:
    train(start(run_dir), run_dir, 3)


def _failing_child(run_dir: str) -> None:
    train(start(run_dir), run_dir, 1)
    raise RuntimeError("of the user")


def failing_in_multiprocessing(run_dir: str, method: str) -> None:
    child = multiprocessing.get_context(method).Process(target=_failing_child, args=(run_dir,))
    child.start()
    child.join(60)
    assert child.exitcode == 1


def in_multiprocessing(run_dir: str, method: str) -> None:
    child = multiprocessing.get_context(method).Process(
        target=_child_of_multiprocessing, args=(run_dir,)
    )
    child.start()
    child.join(60)
    assert child.exitcode == 0


def fork_while_open(run_dir: str, method: str) -> None:
    """Children of an open run, made while other threads are inside our locks."""
    run = start(run_dir)
    stop = threading.Event()

    def contend() -> None:
        while not stop.is_set():
            with run._lock, run.account._lock, run.guard._lock:
                pass
            run.output.writer.counts()

    threads = [threading.Thread(target=contend) for _ in range(2)]
    for thread in threads:
        thread.start()
    with run:
        for number in range(4):
            iteration(run, number)
            with run.iteration() as it, it.phase("data"):
                report = Path(f"{run_dir}.child{number}")
                if method == "fork":
                    child = os.fork()
                    if child == 0:
                        _in_the_child(run, it, report)
                        os._exit(0)
                    assert os.waitpid(child, 0)[1] == 0
                elif method == "fork, normal exit":
                    child = os.fork()
                    if child == 0:
                        stop.set()
                        _in_the_child(run, it, report)
                        sys.exit(0)  # through every block of the parent, and atexit
                    assert os.waitpid(child, 0)[1] == 0
                else:
                    process = multiprocessing.get_context("fork").Process(
                        target=_in_the_child, args=(run, it, report)
                    )
                    process.start()
                    process.join(60)
                    assert process.exitcode == 0
        stop.set()


def _in_the_child(run: otel_grpo.Run, it: otel_grpo.Iteration, report: Path) -> None:
    assert otel_grpo.current_run() is None
    iteration(run, 1000)
    with run.iteration() as own, own.phase("reward"), otel_grpo.phase("judge"):
        own.consumed("child", prompt_lengths=[1])
    with it.phase("reward"), it.update():
        it.generated("child", 1)
    it.publication(9).completed()
    run.log_scalars({"child": 1})
    run.memory()
    it.close()
    run.finish()
    mine = otel_grpo.start_run(f"{report}.run", trainer="child", devices=[], readings=list)
    with mine, mine.iteration() as own, own.phase("generation") as phase:
        ids = phase.span.get_span_context() if phase.span else None
        report.write_text(json.dumps([ids.span_id, ids.trace_id] if ids else None))


def full_disk(run_dir: str, delay: float) -> None:
    """The file system takes no more in the middle of the training."""
    import resource

    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    run = start(run_dir)
    with run:
        train(run, run_dir, 5)
        run.output.writer.flush()
        limit = (Path(run_dir) / "metrics_raw.jsonl").stat().st_size + 4000
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
        train(run, run_dir, 20, first=5)
    Path(f"{run_dir}.trained").touch()


def hanging_disk(run_dir: str, delay: float) -> None:
    """Writes never come back, like those of a dead network file system."""
    run = start(run_dir)
    with run:
        train(run, run_dir, 2)
        run.output.writer.flush()
        real = os.write

        def write(fd: int, data: Any) -> int:
            if threading.current_thread().name.startswith("otel-grpo"):
                time.sleep(1000)
            return real(fd, data)

        os.write = write
        begun = time.monotonic()
        train(run, run_dir, 5, first=2)
        Path(f"{run_dir}.trained").write_text(str(time.monotonic() - begun))


def unwritable(run_dir: str, below: str) -> None:
    """The directory can't be made: below a regular file, or in /proc."""
    Path(f"{run_dir}.file").write_text("a file")
    run = start(below.replace("FILE", f"{run_dir}.file"))
    with run:
        for number in range(3):
            iteration(run, number)
    Path(f"{run_dir}.trained").touch()


def removed(run_dir: str, delay: float) -> None:
    """Somebody removes the run directory while the run goes on."""
    import shutil

    with start(run_dir) as run:
        train(run, run_dir, 2)
        run.output.writer.flush()
        while Path(run_dir).exists():  # a summary may be written while it is emptied
            shutil.rmtree(run_dir, ignore_errors=True)
        train(run, run_dir, 3, first=2)
    Path(f"{run_dir}.trained").touch()


def in_use(run_dir: str, delay: float) -> None:
    """Another process records into the same directory."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        with start(run_dir) as run:
            iteration(run, 0)
            os.write(write, b"x")
            time.sleep(1)
        os._exit(0)
    os.read(read, 1)
    loop(run_dir, 3)
    assert os.waitpid(child, 0)[1] == 0
    Path(f"{run_dir}.trained").touch()


def serve() -> None:
    for line in sys.stdin:
        request = json.loads(line)
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            random.seed()
            error = os.open(f"{request['dir']}.stderr", os.O_WRONLY | os.O_CREAT, 0o600)
            os.dup2(error, 2)
            act(request["end"], request["dir"], request["argument"])
            sys.exit(0)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def act(end: str, run_dir: str, argument: Any) -> None:
    globals()[end](run_dir, argument)


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve()
    else:
        act(sys.argv[1], sys.argv[2], json.loads(sys.argv[3]))
