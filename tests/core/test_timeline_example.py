"""Windows whose figures are worked out by hand: the definition's own example, then one rule each."""

from __future__ import annotations

import pytest

from otel_grpo.core.timeline import PhaseTimes, Span, Timeline, overlap, partition, self_time

LANE = 1


def spans_of(*rows: str) -> list[Span]:
    """Spans from rows `id phase start end [lane] [< parent]`; an end `-` is open."""
    spans = []
    for row in rows:
        fields, _, parent = row.partition("<")
        name, phase, start, end, *lane = fields.split()
        spans.append(
            Span(
                name,
                parent.strip() or None,
                phase,
                int(start),
                None if end == "-" else int(end),
                int(lane[0]) if lane else LANE,
            )
        )
    return spans


def account(*rows: str, start: int = 0, end: int = 100) -> Timeline:
    return partition(spans_of(*rows), start, end, LANE)


WORKED = (
    "g generation 0 40",
    "r reward 30 40 < g",
    "a adv_pipeline 40 60",
    "old logprob_old 42 55 2 < a",
    "ref logprob_ref 45 58 3 < a",
    "p policy_train 60 90",
    "l log 70 75 < p",
    "e evaluation 90 95",
    "bg log 60 100 4",
)


def test_worked_example_totals() -> None:
    """The window's own figures."""
    window = account(*WORKED)
    assert window.wall_ns == 100
    assert window.log_ns == 5
    assert window.logical_ns == 95
    assert window.work_ns == 90
    assert window.unattributed_ns == 5
    assert window.log_background_ns == 40
    assert window.overlapped_ns == 0


def test_worked_example_segments() -> None:
    """Who was at work, alone and together."""
    assert account(*WORKED).segments == {
        ("generation",): 30,
        ("reward",): 10,
        ("adv_pipeline",): 4,
        ("adv_pipeline", "logprob_old"): 3,
        ("adv_pipeline", "logprob_old", "logprob_ref"): 10,
        ("adv_pipeline", "logprob_ref"): 3,
        ("policy_train",): 25,
        ("log",): 5,
        ("evaluation",): 5,
        (): 5,
    }


def test_worked_example_phases() -> None:
    """Each field of each phase."""
    phases = account(*WORKED).phases
    assert phases == {
        "generation": PhaseTimes(40, 40, 40, 40, 30, 40, 1),
        "reward": PhaseTimes(10, 10, 0, 10, 10, 10, 1),
        "adv_pipeline": PhaseTimes(20, 20, 20, 20, 4, 20, 1),
        "logprob_old": PhaseTimes(13, 13, 0, 3, 0, 13, 1),
        "logprob_ref": PhaseTimes(13, 13, 0, 3, 0, 13, 1),
        "policy_train": PhaseTimes(30, 25, 25, 25, 25, 30, 1),
        "evaluation": PhaseTimes(5, 5, 5, 5, 5, 5, 1),
        "log": PhaseTimes(5, None, 0, None, 5, 5, 1),
    }


def test_worked_example_overlaps() -> None:
    """Time in which two families are both active: a child is of its parent's family."""
    spans = spans_of(*WORKED)

    def both(p: str, q: str) -> int:
        return overlap(spans, 0, 100, LANE, p, q)

    assert both("logprob_old", "logprob_ref") == 10
    assert both("generation", "reward") == 10
    assert both("adv_pipeline", "logprob_old") == 13
    assert both("adv_pipeline", "policy_train") == 0


def test_worked_example_self_time() -> None:
    """Only children on the span's own lane shorten its own time."""
    spans = {s.id: s for s in spans_of(*WORKED)}
    own = {name: self_time(span, spans.values()) for name, span in spans.items()}
    assert own == {
        "g": 30,
        "r": 10,
        "a": 20,
        "old": 13,
        "ref": 13,
        "p": 25,
        "l": 5,
        "e": 5,
        "bg": 40,
    }


def test_nothing_happened() -> None:
    """A window without spans is all unattributed, and work all the same."""
    window = account()
    assert (window.wall_ns, window.work_ns, window.unattributed_ns) == (100, 100, 100)
    assert window.segments == {(): 100}
    assert window.phases == {}


def test_empty_window() -> None:
    """A window without length has no time to explain."""
    window = account("g generation 0 10", start=5, end=5)
    assert (window.wall_ns, window.logical_ns, window.work_ns, window.unattributed_ns) == (0,) * 4
    assert window.segments == {}


def test_overlapping_logs_count_once() -> None:
    """Two log spans that overlap, and a third inside both, are 20 ns of logging and not 35."""
    window = account(
        "p policy_train 0 100",
        "l1 log 10 25 < p",
        "l2 log 20 30 < p",
        "l3 log 15 25 < l1",
    )
    assert window.log_ns == 20
    assert window.logical_ns == 80
    assert window.work_ns == 80
    assert window.phases["policy_train"].logical_ns == 80
    assert window.phases["policy_train"].busy_ns == 100
    assert window.phases["log"] == PhaseTimes(20, None, 0, None, 20, 35, 3)


def test_log_inside_two_nested_phases_counts_once() -> None:
    """The log is deducted from each phase around it, and from the window once."""
    window = account("g generation 0 60", "r reward 10 50 < g", "l log 20 30 < r")
    assert window.log_ns == 10
    assert window.logical_ns == 90
    assert window.phases["generation"].logical_ns == 50
    assert window.phases["reward"].logical_ns == 30
    assert window.phases["generation"].exposed_ns == 50
    assert window.phases["reward"].exposed_ns == 30
    assert window.phases["generation"].top_ns == 50
    assert window.unattributed_ns == 40


def test_log_that_its_child_hides_is_still_log() -> None:
    """Whatever runs inside a log is logging in the stack, though the segments name it."""
    window = account("l log 0 10", "d data 2 6 < l", end=10)
    assert window.log_ns == 10
    assert window.segments == {("log",): 6, ("data",): 4}
    assert window.phases["data"] == PhaseTimes(4, 0, 0, 0, 4, 4, 1)
    assert window.overlapped_ns == 0


def test_log_elsewhere_is_left_out_with_its_links() -> None:
    """Background logging is measured, then gone: what is below it has no parent any more."""
    window = account(
        "p policy_train 0 50",
        "bg1 log 10 30 2 < p",
        "bg2 log 20 60 3",
        "c data 40 60 2 < bg1",
    )
    assert window.log_background_ns == 50
    assert (window.log_ns, window.logical_ns, window.work_ns) == (0, 100, 100)
    assert window.segments == {
        ("policy_train",): 40,
        ("data", "policy_train"): 10,
        ("data",): 10,
        (): 40,
    }
    assert window.phases["data"].top_ns == 10
    assert window.phases["policy_train"].exposed_ns == 40
    assert window.overlapped_ns == 10
    assert "log" not in window.phases


def test_phase_waits_for_another_lane() -> None:
    """A parent that waits is not hidden, its child is exposed, and the stack names the parent."""
    window = account("w reward 0 100", "f judge 20 70 2 < w")
    assert window.segments == {("reward",): 50, ("judge", "reward"): 50}
    assert window.phases["reward"] == PhaseTimes(100, 100, 100, 100, 50, 100, 1)
    assert window.phases["judge"] == PhaseTimes(50, 50, 0, 50, 0, 50, 1)
    assert window.overlapped_ns == 0


def test_phases_side_by_side() -> None:
    """Two families at once: nobody is exposed, the stack calls it overlapped."""
    window = account("g generation 0 60 2", "p policy_train 40 90")
    assert window.segments == {
        ("generation",): 40,
        ("generation", "policy_train"): 20,
        ("policy_train",): 30,
        (): 10,
    }
    assert window.overlapped_ns == 20
    assert window.phases["generation"] == PhaseTimes(60, 60, 40, 40, 40, 60, 1)
    assert window.phases["policy_train"] == PhaseTimes(50, 50, 30, 30, 30, 50, 1)


def test_same_phase_on_two_lanes() -> None:
    """Two spans of one phase are busy once; only the sum counts both."""
    window = account("g1 generation 0 60", "g2 generation 40 80 2")
    assert window.segments == {("generation",): 80, (): 20}
    assert window.phases["generation"] == PhaseTimes(80, 80, 80, 80, 80, 100, 2)
    assert window.overlapped_ns == 0


def test_child_outlives_its_parent() -> None:
    """A late child on another lane stays in its parent's family after the parent ended."""
    window = account("a adv_pipeline 0 40", "o logprob_old 30 70 2 < a", "p policy_train 60 100")
    assert window.segments == {
        ("adv_pipeline",): 30,
        ("adv_pipeline", "logprob_old"): 10,
        ("logprob_old",): 20,
        ("logprob_old", "policy_train"): 10,
        ("policy_train",): 30,
    }
    assert window.phases["adv_pipeline"] == PhaseTimes(40, 40, 60, 60, 30, 40, 1)
    assert window.phases["logprob_old"] == PhaseTimes(40, 40, 0, 30, 20, 40, 1)
    assert window.overlapped_ns == 10
    spans = spans_of("a adv_pipeline 0 40", "o logprob_old 30 70 2 < a", "p policy_train 60 100")
    assert overlap(spans, 0, 100, LANE, "adv_pipeline", "policy_train") == 10


def test_grandchild_goes_on_alone() -> None:
    """Only a direct child hides: with the child over, the grandparent shows beside the grandchild."""
    window = account(
        "g generation 0 50", "r reward 10 20 < g", "j judge 10 40 < r", start=0, end=50
    )
    assert window.segments == {
        ("generation",): 20,
        ("judge",): 10,
        ("generation", "judge"): 20,
    }
    assert window.phases["generation"].exposed_ns == 50
    assert window.phases["reward"].exposed_ns == 10
    assert window.phases["judge"].exposed_ns == 10


def test_spans_over_both_edges() -> None:
    """Spans are cut at the edges; one that began before the window is no call of it."""
    window = account("g generation 0 30", "r reward 10 - < g", start=20, end=60)
    assert window.wall_ns == 40
    assert window.segments == {("reward",): 40}
    assert window.phases["generation"] == PhaseTimes(10, 10, 40, 40, 0, 10, 0)
    assert window.phases["reward"] == PhaseTimes(40, 40, 0, 40, 40, 40, 0)


def test_open_span_ends_with_the_window() -> None:
    """What is open at the end lasts to the end; what touches the window only, counts nothing."""
    window = account(
        "g generation 0 20",
        "p policy_train 50 -",
        "e evaluation 60 70",
        "z reward 30 30",
        start=20,
        end=60,
    )
    assert window.segments == {("policy_train",): 10, (): 30}
    assert window.phases == {"policy_train": PhaseTimes(10, 10, 10, 10, 10, 10, 1)}


def test_parent_that_is_not_in_the_record_is_none() -> None:
    """A link to a span of another window is no link."""
    window = account("r reward 0 40 < gone")
    assert window.phases == {"reward": PhaseTimes(40, 40, 40, 40, 40, 40, 1)}


def test_family_goes_on_below_an_empty_span() -> None:
    """A span without length is no time of its own, and a link of the chain all the same."""
    window = account("g generation 0 100", "r reward 20 20 < g", "j judge 20 60 2 < r")
    assert window.segments == {("generation",): 60, ("generation", "judge"): 40}
    # the generation has no active child of its own, so it is innermost beside the judge
    assert window.phases == {
        "generation": PhaseTimes(100, 100, 100, 100, 60, 100, 1),
        "judge": PhaseTimes(40, 40, 0, 0, 0, 40, 1),
    }
    window = account("g generation 0 20", "r reward 20 20 < g", "j judge 20 60 2 < r", end=60)
    assert window.phases == {
        "generation": PhaseTimes(20, 20, 60, 60, 20, 20, 1),
        "reward": PhaseTimes(0, 0, 0, 40, 0, 0, 0),
        "judge": PhaseTimes(40, 40, 0, 40, 40, 40, 1),
    }


def test_evaluation_owns_what_is_below_it() -> None:
    """Generation and reward of an evaluation are evaluation; its logging stays logging."""
    window = account(
        "e evaluation 0 80",
        "g generation 5 50 < e",
        "r reward 30 50 < g",
        "l log 60 70 < e",
        "d data 62 66 < l",
        "t generation 80 100",
    )
    assert window.segments == {("evaluation",): 74, ("log",): 6, ("generation",): 20}
    assert set(window.phases) == {"evaluation", "log", "generation"}
    assert window.phases["evaluation"] == PhaseTimes(80, 70, 70, 70, 74, 149, 4)
    assert window.phases["generation"] == PhaseTimes(20, 20, 20, 20, 20, 20, 1)
    assert (window.log_ns, window.logical_ns, window.work_ns) == (10, 90, 20)


def test_work_leaves_out_checkpoint_and_evaluation_of_the_own_lane() -> None:
    """A checkpoint that another lane writes beside the training costs no work."""
    window = account(
        "c1 checkpoint 10 30",
        "l log 20 40",
        "c2 checkpoint 50 90 2",
        "e evaluation 50 70 3",
        "g generation 60 65 < e",
    )
    assert window.log_ns == 20
    assert window.logical_ns == 80
    # 10..40 on the window's lane, and the evaluation's generation, which runs there too
    assert window.work_ns == 100 - 30 - 5


def test_dates_are_exact() -> None:
    """Nanoseconds since 1970 need more bits than a float has."""
    epoch = 1_767_225_600_000_000_001
    spans = [Span("g", None, "generation", epoch + 1, epoch + 2, LANE)]
    window = partition(spans, epoch, epoch + 3, LANE)
    assert window.segments == {("generation",): 1, (): 2}


def test_self_time_with_children_that_overlap_and_overhang() -> None:
    """Children count once where they overlap, and only inside their parent."""
    spans = spans_of(
        "p policy_train 10 50",
        "a reward 5 20 < p",
        "b reward 15 25 < p",
        "c reward 45 70 < p",
        "d reward 30 35 2 < p",
        "e reward 16 18 < a",
    )
    assert self_time(spans[0], spans) == 40 - 15 - 5


def test_self_time_and_open_spans() -> None:
    """An open child covers its parent to the end; an open span has no length yet."""
    parent, child = spans_of("p policy_train 10 50", "c reward 40 - < p")
    assert self_time(parent, [parent, child]) == 30
    with pytest.raises(ValueError, match="open"):
        self_time(child, [parent, child])
