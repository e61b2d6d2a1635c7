"""Every query of the dashboards against the real Prometheus, and what it shows against the files."""

from __future__ import annotations

import json
import re
import time
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace

import pytest

from otel_grpo.metrics.catalogue import SECONDS, TOKENS, VERSIONS
from tests.live.boards import NAMES, LabelValues, Question, board, panels_of, rules, variables
from tests.live.conftest import Demo
from tests.live.files import Files, Of, nearest_rank, one, over
from tests.live.panels import ALL, Series, Viewer, of
from tools.stack.ask import get, wait_for
from tools.stack.stack import Stack

STARTED = time.time()


@pytest.fixture(scope="module")
def runs(demos: dict[str, Demo], staged: dict[str, Demo]) -> dict[str, Demo]:
    """Real trainings, and the one that has what they lack."""
    return {**demos, "staged": staged["staged"]}


@pytest.fixture(scope="module")
def viewer(stack: Stack, runs: dict[str, Demo]) -> Viewer:
    return Viewer(stack.prometheus, STARTED, time.time())


@pytest.fixture(scope="module")
def files(runs: dict[str, Demo]) -> dict[str, Files]:
    return {name: Files(run.path) for name, run in runs.items()}


def has_data(viewer: Viewer, question: Question, runs: dict[str, Demo]) -> bool:
    return any(values for run in runs.values() for _, values in viewer.ask(question, run.run_id))


# --------------------------------------------------------------------------------- nothing is dead


@pytest.mark.parametrize("question", ALL, ids=str)
def test_a_query_returns_data(question: Question, viewer: Viewer, runs: dict[str, Demo]) -> None:
    """A number that is finite, of one of the runs: there is no panel that is left out."""
    assert has_data(viewer, question, runs), viewer.fill(question.expr, "RUN")


@pytest.mark.parametrize(
    "variable", [v for name in NAMES for v in variables(name, board(name))], ids=str
)
def test_a_variable_has_values(
    variable: LabelValues, viewer: Viewer, runs: dict[str, Demo]
) -> None:
    """What one may choose from is there, the runs themselves among it."""
    for run in runs.values():
        series = viewer.fill(variable.series, run.run_id)
        found = viewer.prometheus.label_values(variable.label, match=series)
        assert found
        assert run.run_id in found or variable.label != "rl_run_id"


@pytest.mark.parametrize("record", [rule["record"] for rule in rules() if "record" in rule])
def test_a_recording_rule_records(record: str, viewer: Viewer, staged: dict[str, Demo]) -> None:
    """The rules that Prometheus itself evaluated as it was given them."""
    series = f'{record}{{rl_run_id="{staged["staged"].run_id}"}}'
    assert viewer.prometheus.query(f"last_over_time({series}[10m])")


def test_a_metric_of_another_name_is_noticed(viewer: Viewer, runs: dict[str, Demo]) -> None:
    """The control: each name of ours is changed, in each query that has it."""
    for question in ALL:
        renamed = replace(question, expr=question.expr.replace("rl_", "grpo_"))
        if "(rl_" in question.expr:
            assert not has_data(viewer, renamed, runs), question


# -------------------------------------------------------------------------------- exact, all of it

RUN, FLEET, HEALTH = NAMES


def _share(what: str) -> Of:
    return lambda files: one(files.sum(what) / files.wall_ns)


def _phases(what: str) -> Of:
    return lambda files: over(files.by_phase(what), 1e9)


def _per_iteration(what: str) -> Of:
    return lambda files: one(files.seconds(what) / len(files.windows))


def _scalar(name: str) -> Of:
    return lambda files: files.scalar(name)


def _end_to_end(files: Files) -> Series:
    return one(files.throughput().get(("end_to_end",), 0))


def _tokens(files: Files, per: int = 1) -> Series:
    return {
        ("input",): files.sum("tokens.prompt") / per,
        ("output",): files.sum("tokens.completion") / per,
    }


def _lag(files: Files) -> Series:
    lags = files.column("policy_lag")
    return one(sum(lags) / len(lags)) if lags else {}


def _of_last(files: Files) -> Series:
    names = {"end_to_end": "device", "generation": "generation", "train": "train"}
    last = files.windows[-1]["metrics"]
    ratios = {kind: last.get(f"throughput.{name}") for kind, name in names.items()}
    return {(kind,): ratio for kind, ratio in ratios.items() if ratio}


EXACT: list[tuple[Question, Of]] = [
    (of(RUN, "Iterations"), lambda f: one(len(f.windows))),
    (of(RUN, "Time of an iteration"), _per_iteration("time.wall_ns")),
    (of(RUN, "Tokens per second and device"), _end_to_end),
    (of(RUN, "Tokens"), lambda f: one(f.sum("tokens.total"))),
    (of(RUN, "Updates applied"), lambda f: one(f.sum("updates.applied"))),
    (of(RUN, "Version"), Files.version),
    # The windows cover the whole run, so that what grew in them is all that there was.
    (
        of(RUN, "Time of an iteration by phase"),
        lambda f: over(f.by_phase("top"), 1e9 * len(f.windows)),
    ),
    (of(RUN, "Time of an iteration by phase", "B"), _per_iteration("time.overlapped_ns")),
    (of(RUN, "Time of an iteration by phase", "C"), _per_iteration("time.log_ns")),
    (of(RUN, "Time of an iteration by phase", "D"), _per_iteration("time.unattributed_ns")),
    (of(RUN, "Time of an iteration by phase", "E"), _per_iteration("time.wall_ns")),
    (of(RUN, "Share of the wall time"), lambda f: over(f.by_phase("top"), f.wall_ns)),
    (of(RUN, "Share of the wall time", "B"), _share("time.overlapped_ns")),
    (of(RUN, "Share of the wall time", "C"), _share("time.log_ns")),
    (of(RUN, "Share of the wall time", "D"), _share("time.unattributed_ns")),
    (of(RUN, "Busy, exposed, logical"), _phases("busy")),
    (of(RUN, "Busy, exposed, logical", "B"), _phases("exposed")),
    (of(RUN, "Busy, exposed, logical", "C"), _phases("logical")),
    (of(RUN, "Throughput by kind"), Files.throughput),
    (of(RUN, "Throughput by kind, whole run"), Files.throughput),
    (of(RUN, "Devices"), Files.devices),
    (of(RUN, "Tokens of an iteration"), lambda f: _tokens(f, len(f.windows))),
    (of(RUN, "Samples"), lambda f: one(f.sum("samples.consumed"))),
    (of(RUN, "Samples", "B"), lambda f: one(f.sum("samples.visits"))),
    (of(RUN, "Samples", "C"), lambda f: f.by("samples.discarded.")),
    (of(RUN, "Updates by status"), Files.by_status),
    (of(RUN, "Iterations by status"), Files.windows_by_status),
    (of(RUN, "Policy lag"), _lag),
    (of(RUN, "Version of the weights"), Files.version),
    (of(RUN, "Loss"), _scalar("loss")),
    (of(RUN, "Reward"), _scalar("reward")),
    (of(RUN, "Reward", "B"), _scalar("reward_std")),
    (of(RUN, "Gradient norm"), _scalar("grad_norm")),
    (of(RUN, "KL, entropy"), _scalar("kl")),
    (of(RUN, "KL, entropy", "B"), _scalar("entropy")),
    (of(RUN, "Learning rate"), _scalar("learning_rate")),
    (of(RUN, "Values that were not finite"), Files.nonfinite),
    (of(FLEET, "Runs"), lambda f: one(len(f.windows))),
    (of(FLEET, "Runs", "B"), _per_iteration("time.wall_ns")),
    (of(FLEET, "Runs", "C"), lambda f: one(f.sum("tokens.total"))),
    (of(FLEET, "Runs", "D"), _end_to_end),
    (of(FLEET, "Runs", "E"), lambda f: one(f.sum("updates.attempted"))),
    (of(FLEET, "Runs", "F"), _share("time.unattributed_ns")),
    (of(FLEET, "Time of an iteration"), _per_iteration("time.wall_ns")),
    (of(FLEET, "Tokens per second and device"), _end_to_end),
]


@pytest.mark.parametrize(("question", "expected"), EXACT, ids=[str(q) for q, _ in EXACT])
def test_what_is_shown_is_what_the_files_say(
    question: Question, expected: Of, viewer: Viewer, files: dict[str, Files]
) -> None:
    """Of every run; to the integer, and to the last bits where it is a quotient of totals."""
    # The series of what grows begin within a few milliseconds, and are stretched by as much.
    rel = 1e-4 if "$window" in question.expr else 1e-9
    shown = {name: viewer.shown(question, f.run_id, f.ended) for name, f in files.items()}
    right = {name: expected(f) for name, f in files.items()}
    for name in files:
        assert shown[name] == pytest.approx(right[name], rel=rel), name
    assert any(right.values())


def test_the_last_iteration_alone(viewer: Viewer, files: dict[str, Files]) -> None:
    """The ratios of the last record, whose series bear the labels of the process, too."""
    question = of(RUN, "Last iteration alone")
    for f in files.values():
        expr = viewer.fill(question.expr, f.run_id)
        found = viewer.prometheus.query(expr, at=f.ended)
        shown = {(each.labels["rl_throughput_kind"],): each.value for each in found}
        assert shown == pytest.approx(_of_last(f), rel=1e-12)


@pytest.mark.parametrize("panel", ["Time of an iteration by phase", "Share of the wall time"])
def test_the_stack_reaches_the_wall(panel: str, viewer: Viewer, files: dict[str, Files]) -> None:
    """Phases, overlapped, log and unattributed time are the whole, in every run."""
    for f in files.values():
        parts = [viewer.shown(of(RUN, panel, ref), f.run_id, f.ended) for ref in "ABCD"]
        whole = 1 if panel.startswith("Share") else f.wall_ns / 1e9 / len(f.windows)
        assert sum(sum(part.values()) for part in parts) == pytest.approx(whole, rel=1e-4)


def test_a_window_that_is_missing_would_be_seen(viewer: Viewer, files: dict[str, Files]) -> None:
    """The control: without its last record no total of the files is that of the panel."""
    f = Files(files["staged"].path)
    f.windows.pop()
    question = of(RUN, "Tokens")
    assert viewer.shown(question, f.run_id, f.ended) != one(f.sum("tokens.total"))


def test_what_was_lost_is_shown_to_the_record(viewer: Viewer, files: dict[str, Files]) -> None:
    """Drops of all processes and sinks, as the processes themselves counted them at their end."""
    question = of(HEALTH, "Records lost")
    for f in files.values():
        shown = wait_for(
            lambda f=f: viewer.shown(question, f.run_id, time.time()),  # type: ignore[misc]
            lambda shown, f=f: shown == f.lost(),  # type: ignore[misc]
            within_s=5,
        )
        assert shown == f.lost()
    assert files["staged"].lost()["dropped", "otlp_spans"] > 3000


def test_time_of_workers(viewer: Viewer, files: dict[str, Files]) -> None:
    """The calls of each method, summed over the workers' own files; Ray kills its actors, so what
    came after their last export is missing.
    """
    question = of(FLEET, "Time of workers by method")
    for name in ("colocated", "async"):
        f = files[name]
        shown: dict[str, float] = {}
        for (*_, method), seconds in viewer.shown(question, f.run_id, time.time()).items():
            shown[method] = shown.get(method, 0) + seconds
        right = over(f.called(), 1e9)
        assert shown
        for method, seconds in shown.items():
            assert 0 < seconds <= right[method,] * (1 + 1e-9)


# --------------------------------------------------------------------------------- within a bound


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


# ------------------------------------------------------------------------------------ what is open


def test_a_wait_that_seems_to_hang_is_seen_while_it_lasts(
    viewer: Viewer, runs: dict[str, Demo], files: dict[str, Files]
) -> None:
    """The phase is open in the middle of it, and its age there is the time since it began."""
    f = files["staged"]
    waits = [
        (int(span["startTimeUnixNano"]) / 1e9, int(span["endTimeUnixNano"]) / 1e9)
        for span in runs["staged"].spans()
        if span["name"] == "rl.wait"
    ]
    longest = max(waits, key=lambda wait: wait[1] - wait[0])
    middle = sum(longest) / 2
    begun = min(start for start, end in waits if start < middle < end)  # of any rank
    assert viewer.shown(of(RUN, "Open phases"), f.run_id, middle) == {("rollout_wait",): 1}
    age = viewer.shown(of(RUN, "Age of what is open"), f.run_id, middle)
    assert set(age) == {("rollout_wait",)}
    # A value is exported each half second, and stands for the instant at which it was asked for.
    assert middle - begun - 2 <= age["rollout_wait",] <= middle - begun + 0.01
    iteration = viewer.shown(of(RUN, "Age of what is open", "B"), f.run_id, middle)
    assert age["rollout_wait",] <= iteration[()] <= age["rollout_wait",] + 1


def test_nothing_is_open_when_a_run_has_ended(viewer: Viewer, files: dict[str, Files]) -> None:
    """The last word of every process."""
    for f in files.values():
        for question in (of(RUN, "Open phases"), of(RUN, "Age of what is open", "B")):
            assert viewer.shown(question, f.run_id, f.ended) == {}


# ------------------------------------------------------------------------------------ devices

RANKS = range(3)


def test_devices_are_shown_as_their_drivers_told(viewer: Viewer, files: dict[str, Files]) -> None:
    """GPUs of the made-up readings, in the units of the panels."""
    f = files["staged"]
    at = f.windows[10]["attributes"]["window"]["end_ns"] / 1e9 + 2
    right: dict[str, Series] = {
        "GPU at work": {("staged", f"GPU-staged-{r}"): 0.5 + r / 100 for r in RANKS},
        "GPU memory": {("staged", f"GPU-staged-{r}"): 5 / 80 for r in RANKS},
        "GPU power": {("staged", f"GPU-staged-{r}"): 400 + r / 1000 for r in RANKS},
        "GPU temperature": {("staged", f"GPU-staged-{r}"): 60 + r for r in RANKS},
    }
    for title, expected in right.items():
        shown = viewer.shown(of(FLEET, title), f.run_id, at)
        assert {(labels[-1],): value for labels, value in shown.items()} == pytest.approx(
            {(labels[-1],): value for labels, value in expected.items()}
        ), title


def test_energy_is_that_of_the_run(viewer: Viewer, files: dict[str, Files]) -> None:
    """100 J a second and device, and not what the drivers had counted before."""
    f = files["staged"]
    for joules in viewer.shown(of(FLEET, "GPU energy"), f.run_id, f.ended).values():
        assert joules <= 100 * (f.ended - f.summary["started_unix_ns"] / 1e9) * 1.1
        assert joules > 100 * f.wall_ns / 1e9 / 2


# ------------------------------------------------------------------------------------- traces


def test_exemplars_open_the_traces_of_iterations(viewer: Viewer, files: dict[str, Files]) -> None:
    """Each is the id of a window's trace, of that run; the query of every panel that shows them."""
    for question in (question for question in ALL if question.exemplars):
        seen = set()
        for f in files.values():
            found = viewer.prometheus.exemplars(
                viewer.fill(question.expr, f.run_id), start=STARTED, end=viewer.at
            )
            ids = {each["labels"]["trace_id"] for one in found for each in one["exemplars"]}
            assert ids <= f.trace_ids(), question
            seen |= ids
        assert seen, question


def test_jaeger_finds_the_iterations(stack: Stack, files: dict[str, Files]) -> None:
    """The search of the panel, by the API that Grafana uses: one trace for each window."""
    (panel,) = [p for p in panels_of(board(RUN)) if p["title"] == "Iterations in Jaeger"]
    (target,) = panel["targets"]
    assert target["tags"] == "rl.run.id=$run"
    for name in ("trl", "colocated", "async"):
        f = files[name]
        found = get(
            f"{stack.jaeger.url}/api/traces",
            service="otel-grpo",
            operation=target["operation"],
            tags=json.dumps({"rl.run.id": f.run_id}),
            limit=target["limit"],
        )
        assert {trace["traceID"] for trace in found["data"]} == f.trace_ids()


def test_the_search_of_tempo_names_what_spans_have(stack: Stack, runs: dict[str, Demo]) -> None:
    """Tempo itself is not here: each attribute of the query is on the spans that arrived for it."""
    (panel,) = [p for p in panels_of(board(RUN)) if p["title"] == "Iterations in Tempo"]
    query = panel["targets"][0]["query"]
    resources = set(re.findall(r"resource\.([\w.]+)", query))
    attributes = set(re.findall(r"span\.([\w.]+)", query))
    assert (len(resources), len(attributes)) == (1, 5)
    run = runs["colocated"]
    loops = [
        span
        for span in stack.kept_spans()
        if span["name"] == "rl.loop"
        and {"key": "rl.run.id", "value": {"stringValue": run.run_id}} in span["attributes"]
    ]
    assert len({span["spanId"] for span in loops}) == len(run.records())
    for span in loops:
        assert attributes <= {each["key"] for each in span["attributes"]}
        assert resources <= {each["key"] for each in span["resource"]["attributes"]}
