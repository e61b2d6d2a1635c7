"""What panels show of growth and of quantiles, within the bounds that can be worked out."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

import pytest

from otel_grpo.metrics.catalogue import SECONDS, TOKENS, VERSIONS
from tests.live.boards import NAMES, Question
from tests.live.files import Files, Of, nearest_rank, one, over
from tests.live.panels import Viewer, of

RUN, FLEET, HEALTH = NAMES


def growth_bound(viewer: Viewer, series: str, at: float) -> float:
    """By which factor `increase` may exceed what was counted.

    It stretches the growth between the first and the last of n samples to both edges of the window,
    by no more than 1.1 of the mean distance of samples on each side, which is 1 / (n - 1) of it.
    """
    count = viewer.prometheus.value(f"min(count_over_time({series}[30m]))", at=at)
    assert count is not None
    assert count >= 2
    return 1 + 2.2 / (count - 1)


GROWN: list[tuple[Question, str, Of]] = [
    (
        of(RUN, "Publications"),
        "rl_sync_publications_total",
        lambda f: one(f.sum("publications")),
    ),
    (
        of(FLEET, "Busy time by rank"),
        'rl_rank_phase_time_seconds_total{rl_rank="0", %s}',
        lambda f: {(phase, "0"): s for (phase,), s in over(f.by_phase("busy"), 1e9).items()},
    ),
    (
        of(HEALTH, "Records written"),
        'rl_telemetry_records_total{rl_telemetry_sink="metrics_raw", %s}',
        lambda f: {
            ("written", "metrics_raw"): f.summary["observed"]["sinks"]["metrics_raw"]["written"]
        },
    ),
]


@pytest.mark.parametrize(
    ("question", "metric", "expected"), GROWN, ids=[str(question) for question, _, _ in GROWN]
)
def test_growth_is_shown_within_the_bound(
    question: Question, metric: str, expected: Of, viewer: Viewer, files: dict[str, Files]
) -> None:
    """Never less than the files say, and no more than extrapolation may add."""
    for name, f in files.items():
        run = f'rl_run_id="{f.run_id}"'
        series = metric % run if "%s" in metric else f"{metric}{{{run}}}"
        bound = growth_bound(viewer, series, f.ended)
        shown = viewer.shown(question, f.run_id, f.ended)
        for labels, right in expected(f).items():
            assert right * (1 - 1e-9) <= shown[labels] <= right * bound, (name, labels)


def test_a_share_is_within_the_bounds_of_both_its_sides(
    viewer: Viewer, files: dict[str, Files]
) -> None:
    """A counter begins at the start of its run, a histogram with its first value."""
    question = of(FLEET, "Unattributed share")
    for f in files.values():
        run = f'rl_run_id="{f.run_id}"'
        above = growth_bound(viewer, f"rl_unattributed_time_seconds_total{{{run}}}", f.ended)
        below = growth_bound(viewer, f"rl_loop_duration_seconds_sum{{{run}}}", f.ended)
        right = f.sum("time.unattributed_ns") / f.wall_ns
        (shown,) = viewer.shown(question, f.run_id, f.ended).values()
        assert right / below <= shown <= right * above


def bucket(boundaries: Sequence[float], value: float) -> tuple[float, float]:
    """The edges of the bucket of a histogram that a value is in; the upper one is inside."""
    place = bisect_left(boundaries, value)
    return (boundaries[place - 1] if place else 0, boundaries[place])


def _walls(f: Files) -> dict[tuple[str, ...], list[float]]:
    return {(): [window["metrics"]["time.wall_ns"] / 1e9 for window in f.windows]}


def _busy(f: Files) -> dict[tuple[str, ...], list[float]]:
    return {
        phase: [
            window["metrics"][name] / 1e9
            for window in f.windows
            if (name := f"phase.{phase[0]}.busy_ns") in window["metrics"]
        ]
        for phase in f.by_phase("busy")
    }


def _lengths(f: Files) -> dict[tuple[str, ...], list[float]]:
    return {
        ("input",): [float(n) for n in f.column("prompt_lengths")],
        ("output",): [float(n) for n in f.column("completion_lengths")],
    }


def _calls(f: Files) -> dict[tuple[str, ...], list[float]]:
    return {key: [ns / 1e9 for ns in durations] for key, durations in f.calls().items()}


QUANTILES = [
    (of(RUN, "Duration of an iteration"), 0.5, SECONDS, _walls),
    (of(RUN, "Duration of an iteration", "B"), 0.95, SECONDS, _walls),
    (of(RUN, "Busy time of a phase in an iteration"), 0.5, SECONDS, _busy),
    (of(RUN, "Lengths"), 0.5, TOKENS, _lengths),
    (of(RUN, "Lengths", "B"), 0.95, TOKENS, _lengths),
    (
        of(RUN, "Policy lag", "B"),
        0.95,
        VERSIONS,
        lambda f: {(): [float(n) for n in f.column("policy_lag")]},
    ),
    (of(FLEET, "Duration of calls"), 0.95, SECONDS, _calls),
]


@pytest.mark.parametrize(
    ("question", "q", "boundaries", "values"), QUANTILES, ids=[str(q[0]) for q in QUANTILES]
)
def test_a_quantile_is_in_the_bucket_of_the_right_value(
    question, q, boundaries, values, viewer: Viewer, files: dict[str, Files]
) -> None:
    """The value that the files have at that rank is in the bucket that is shown."""
    seen = 0
    for name, f in files.items():
        shown = viewer.shown(question, f.run_id, f.ended)
        for labels, of_this in values(f).items():
            if of_this:
                low, high = bucket(boundaries, nearest_rank(of_this, q))
                assert low <= shown.get(labels, 0) <= high, (name, labels)
                seen += 1
    assert seen


def test_a_heat_map_has_every_completion_in_its_bucket(
    viewer: Viewer, files: dict[str, Files]
) -> None:
    """Cumulative counts by upper edge, within the bound of what grows."""
    question = of(RUN, "Length of completions")
    for f in files.values():
        labels = f'rl_run_id="{f.run_id}", gen_ai_token_type="output"'
        bound = growth_bound(viewer, f"rl_sample_length_bucket{{{labels}}}", f.ended)
        shown = viewer.shown(question, f.run_id, f.ended)
        lengths = f.column("completion_lengths")
        for edge in TOKENS:
            right = sum(length <= edge for length in lengths)
            assert right * (1 - 1e-9) <= shown.get((f"{edge:.0f}",), 0) <= right * bound
