"""The worked example of the definition, through the real API, on real threads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from otel_grpo.testing import FakeClock, recorded_run

if TYPE_CHECKING:
    from collections.abc import Sequence

    from otel_grpo.tracing.phase import Phase

# instant -> what happens then: (start or stop, name, lane), lane 0 is the window's own
SCRIPT: Sequence[tuple[int, Sequence[tuple[str, str, int]]]] = (
    (0, [("start", "generation", 0)]),
    (30, [("start", "reward", 0)]),
    (40, [("stop", "reward", 0), ("stop", "generation", 0), ("start", "adv_pipeline", 0)]),
    (42, [("start", "logprob_old", 1)]),
    (45, [("start", "logprob_ref", 2)]),
    (55, [("stop", "logprob_old", 1)]),
    (58, [("stop", "logprob_ref", 2)]),
    (60, [("stop", "adv_pipeline", 0), ("start", "policy_train", 0), ("start", "log", 3)]),
    (70, [("start", "log", 0)]),
    (75, [("stop", "log", 0)]),
    (90, [("stop", "policy_train", 0), ("start", "evaluation", 0)]),
    (95, [("stop", "evaluation", 0)]),
    (100, [("stop", "log", 3)]),
)


def test_worked_example(clock: FakeClock, lanes: list) -> None:
    """Every figure of section 3, field by field."""
    begun = clock.now()
    own = [lambda work, *a, **k: work(*a, **k), *lanes]
    open_phases: dict[tuple[str, int], Phase] = {}
    with recorded_run(clock=clock) as recorded, recorded.run.iteration() as it:
        for instant, steps in SCRIPT:
            clock.advance(ns=begun + instant - clock.now())
            for what, name, lane in steps:
                if what == "start":
                    # A new thread has no context of its own: it is told its parent.
                    below = open_phases.get(("adv_pipeline", 0)) if lane in (1, 2) else None
                    phase = it.phase(name, parent=below)
                    open_phases[name, lane] = own[lane](phase.start)
                else:
                    own[lane](open_phases.pop((name, lane)).stop)
    (record,) = recorded.rollouts
    metrics, window = record.metrics, record.attributes.window
    assert (window.start_ns, window.end_ns) == (begun, begun + 100)
    assert {name: value for name, value in metrics.items() if name.startswith("time.")} == {
        "time.wall_ns": 100,
        "time.log_ns": 5,
        "time.logical_ns": 95,
        "time.work_ns": 90,
        "time.overlapped_ns": 0,
        "time.unattributed_ns": 5,
        "time.log_background_ns": 40,
    }
    assert [(names, ns) for names, ns in record.attributes.segments] == [
        ([], 5),
        (["adv_pipeline"], 4),
        (["adv_pipeline", "logprob_old"], 3),
        (["adv_pipeline", "logprob_old", "logprob_ref"], 10),
        (["adv_pipeline", "logprob_ref"], 3),
        (["evaluation"], 5),
        (["generation"], 30),
        (["log"], 5),
        (["policy_train"], 25),
        (["reward"], 10),
    ]
    figures = {
        # phase: busy, logical, top, exposed, self_exposed, sum, calls
        "generation": (40, 40, 40, 40, 30, 40, 1),
        "reward": (10, 10, 0, 10, 10, 10, 1),
        "adv_pipeline": (20, 20, 20, 20, 4, 20, 1),
        "logprob_old": (13, 13, 0, 3, 0, 13, 1),
        "logprob_ref": (13, 13, 0, 3, 0, 13, 1),
        "policy_train": (30, 25, 25, 25, 25, 30, 1),
        "evaluation": (5, 5, 5, 5, 5, 5, 1),
    }
    names = ("busy_ns", "logical_ns", "top_ns", "exposed_ns", "self_exposed_ns", "sum_ns", "calls")
    expected = {
        f"phase.{phase}.{name}": value
        for phase, values in figures.items()
        for name, value in zip(names, values, strict=True)
    }
    expected |= {
        "phase.log.busy_ns": 5,
        "phase.log.top_ns": 0,
        "phase.log.self_exposed_ns": 5,
        "phase.log.sum_ns": 5,
        "phase.log.calls": 1,
    }
    assert {name: value for name, value in metrics.items() if name.startswith("phase.")} == expected
    lane_of = {row[2]: row[5] for row in record.attributes.intervals if row[2] != "log"}
    own_lane = {lane_of[name] for name in figures if not name.startswith("logprob")}
    assert own_lane == {window.lane}
    assert len({window.lane, lane_of["logprob_old"], lane_of["logprob_ref"]}) == 3
