"""An actor that seems to be on another machine, whose clocks are 11.56 s ahead."""

from __future__ import annotations

from pathlib import Path

import ray
from actors import Timed

import otel_grpo.ray
from otel_grpo.records import reader
from otel_grpo.records.clocks import WorkerClock
from otel_grpo.records.model import ClockOffset, ClockPair
from otel_grpo.records.reader import Whole
from tests.job.clock_shim.clocks import Clocks, compiled

AHEAD = 11_560_000_000


def test_its_calls_are_placed_by_what_was_measured(observed, start, tmp_path: Path) -> None:
    """Its clock is measured because it is on another machine, and is right to the bound."""
    clocks = Clocks(tmp_path / "clocks", AHEAD, AHEAD, boot="elsewhere")
    environment = clocks.environment(compiled(tmp_path))
    actor = start(Timed, runtime_env={"env_vars": environment})
    run = observed.run
    otel_grpo.ray.measure_clocks(run, [actor], timeout_s=240)  # it starts on a busy machine
    sent = run.clock.now()
    ray.get(actor.step.remote(1))
    back = run.clock.now()
    (call,) = observed.calls(actor, 1)

    joined = observed.joined(actor)
    assert joined.clock.boot_id == "elsewhere"
    run.output.writer.flush()
    lines = [each.value for _, each in reader.read_workers(run.path) if isinstance(each, Whole)]
    (line,) = (x for x in lines if isinstance(x, ClockOffset) and x.name == joined.name)
    clock = WorkerClock(joined.clock, ClockPair(None, run.clock.unix_ns, run.clock.perf_ns))
    clock.measured(line)
    for told in (call.start_ns, call.end_ns):
        truth = run.clock.at(clocks.truth(joined.clock, told))
        assert sent <= truth <= back
        placed = clock.place(told)
        assert placed is not None
        assert placed.bound_ns == line.bound_ns
        assert abs(placed.instant_ns - truth) <= line.bound_ns
