"""What a run does about its job's other processes, of which a test decides when they speak."""

from __future__ import annotations

import itertools
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from otel_grpo import testing
from otel_grpo.records import reader
from otel_grpo.records.merge import Gathered
from otel_grpo.records.model import Contribution, Ranks, RolloutAttributes, Update, Window
from otel_grpo.records.worker_dir import own_worker_dir
from otel_grpo.tracing import handover, starting


class Peers:
    """Ranks of a job that speak when the test says so."""

    spmd = True

    def __init__(self, world):
        self.world = world
        self.whole = set()
        self.contributions = {}
        self.taken = []

    def start(self, release):
        self.release = release

    def ready(self, iteration, start_ns, end_ns, now_ns):
        return iteration in self.whole

    def take(self, iteration, start_ns, end_ns):
        self.taken.append(iteration)
        here = self.contributions.get(iteration, {})
        missing = [rank for rank in range(1, self.world) if rank not in here]
        ranks = Ranks(self.world, self.world - len(missing), missing)
        return Gathered(spmd=True, ranks=ranks, contributions=here)

    def hurry(self): ...
    def stop(self): ...


class Job:
    """This process's place in it."""

    launch = "key"

    def __init__(self, rank, world, peers=None, path=None):
        self.rank = rank
        self.world = world
        self._peers = peers
        self._path = path

    def peers(self, *_):
        return self._peers

    def directory(self, *_):
        return own_worker_dir(self._path, "told-late")


@pytest.fixture
def peers():
    return Peers(2)


def start(path, peers, **options):
    return starting.start(path, trainer="loop", job=Job(0, peers.world, peers), **options)


def test_windows_are_handed_over_while_the_end_waits(
    tmp_path: Path, peers: Peers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end looks at the windows that wait while the readers' thread takes them away."""
    run = start(tmp_path / "run", peers)
    for _ in range(3):
        with run.iteration():
            pass
    main, ready = threading.current_thread(), peers.ready
    asked = []

    def slow(*window):
        if threading.current_thread() is main and peers.whole:
            other = threading.Thread(target=run._release_if_free)
            other.start()
            other.join()
            asked.append(window)
        return ready(*window)

    peers.ready = slow
    peers.hurry = lambda: peers.whole.update({1, 2, 3})
    run.finish()
    assert asked
    assert run.guard.errors == {}
    assert reader.read_summary(tmp_path / "run").records["rollout"] == 3


def test_a_window_costs_the_same_however_many_wait(tmp_path: Path, peers: Peers) -> None:
    """A rank that is silent for 30 s has the training look at no more windows at each end of one."""
    run = start(tmp_path / "run", peers)
    lines = 0

    def count(frame, event, argument):
        nonlocal lines
        if frame.f_code.co_filename != handover.__file__:
            return None
        lines += event == "line"
        return count

    costs = []
    for _ in range(3):
        for _ in range(100):
            with run.iteration():
                pass
        before = lines
        it = run.open_iteration()
        tracing = sys.gettrace()
        sys.settrace(count)
        it.close()
        sys.settrace(tracing)
        costs.append(lines - before)
    assert len(run.handover.windows) == 303
    peers.whole |= set(range(1, 304))
    run.finish()
    assert costs[0] == costs[1] == costs[2] > 0


class Output:
    """Where a handover hands over to."""

    def __init__(self):
        self.given = []

    def rollout(self, closed, *, held):
        self.given.append([draft.name for draft in closed.drafts])
        return True


def test_an_update_is_given_once() -> None:
    """Ctrl-C at any line of the giving of updates to their window: repeated, it gives none twice."""
    for at in itertools.count(1):
        output = Output()
        waiting = handover.Handover(output, holds=True)
        waiting.draft = SimpleNamespace(iteration=1, name="first")
        waiting.release_update()
        waiting.draft = SimpleNamespace(iteration=1, name="second")
        window = SimpleNamespace(iteration=1, start_ns=0, publications=[])
        waiting.windows.append(
            SimpleNamespace(window=window, end_ns=1, deadline_ns=None, waits=False, drafts=[])
        )
        interrupted = False
        try:
            sys.settrace(interrupt_at(at))
            waiting.release_windows(2, at_end=True)
        except KeyboardInterrupt:
            interrupted = True
        finally:
            sys.settrace(None)
        waiting.release_windows(2, at_end=True)
        assert output.given[-1] == ["first", "second"], at
        if not interrupted:
            return


def interrupt_at(at):
    """Raises at the n-th line of the handover."""
    lines = 0

    def trace(frame, event, argument):
        nonlocal lines
        if frame.f_code.co_filename != handover.__file__:
            return None
        lines += event == "line"
        if event == "line" and lines == at:
            sys.settrace(None)
            raise KeyboardInterrupt
        return trace

    return trace


def share(run, iteration, step):
    """What rank 1 says of a window with one applied update."""
    updates = [Update(step, 0, 1, 0, None, "applied", None, [])]
    attributes = RolloutAttributes(
        Window(0, 1, "complete", 0), [], [], Ranks(1, 1), updates=updates
    )
    return Contribution(run.run_id, 1, 1, iteration, attributes, {}, [[]], [None])


def test_scalars_speak_of_steps_in_the_account_of_the_job(tmp_path: Path, peers: Peers) -> None:
    """Rank 1 is missing in window 1, whose update is therefore none that was applied: steps 0, 1."""
    with testing.recorded_run(tmp_path / "run", job=Job(0, 2, peers)) as recorded:
        run = recorded.run
        peers.contributions = {2: {1: share(run, 2, 2)}}
        peers.whole = {1, 2}
        for _ in (1, 2):
            with run.iteration() as it, it.update():
                pass
        run.log_scalars({"loss": 0.5})
    first, second = recorded.trains
    assert (first.attributes.status, first.optimizer_step) == ("unconfirmed", 0)
    assert (second.attributes.status, second.optimizer_step) == ("applied", 1)
    assert second.attributes.covers == [0, 1]


def test_ranks_without_a_run_are_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    """A loop that starts its run on rank 0 alone: one warning, and the last line names `finish`."""
    peers = Peers(3)
    peers.whole = {1, 2}
    run = start(tmp_path / "run", peers)
    for _ in range(2):
        with run.iteration():
            pass
    run.finish()
    (warning,) = caplog.messages
    assert "iteration 1 is recorded without 2 of 3 ranks" in warning
    assert (
        "`otel-grpo finish` adds what ranks told too late in 2 windows" in capsys.readouterr().err
    )


def test_a_shared_provider_gets_the_run_id_once_it_is_known(tmp_path: Path) -> None:
    """A rank finds its run after its start; the windows after that say which it is."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    job = Job(1, 2, path=tmp_path / "own")
    with starting.start(None, trainer="loop", job=job, tracer_provider=provider) as run:
        run.output.flush()
        with run.iteration() as it, it.phase("generation"):
            pass
    spans = {span.name: span.attributes or {} for span in exporter.get_finished_spans()}
    assert {name: of.get("rl.run.id") for name, of in spans.items()} == {
        "rl.sample": "told-late",
        "rl.loop": "told-late",
    }


def test_what_was_restored_is_kept(tmp_path: Path, peers: Peers) -> None:
    """The trainer tells it on its own thread while the writer's learns of the job's processes."""
    run = start(tmp_path / "run", peers)
    writing = threading.Event()
    run.output.writer.call(writing.wait)
    run.resumed(optimizer_step=7)
    assert run.output.known.base == {}  # changed by one thread alone
    writing.set()
    run.finish()
    (attempt,) = reader.read_run_file(tmp_path / "run").attempts
    assert attempt.base == {"optimizer_step": 7}


def test_what_a_rank_without_a_directory_loses_is_counted(tmp_path: Path, peers: Peers) -> None:
    """Two windows, each with an update, and the run: five records."""
    (tmp_path / "file").touch()
    run = start(tmp_path / "file" / "run", peers)
    for _ in range(2):
        with run.iteration() as it, it.update():
            pass
    run.finish()
    lost = run.output.writer.counts()["metrics_raw"]
    assert (lost.created, lost.dropped) == (5, 5)
