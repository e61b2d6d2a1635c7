"""Every query of the dashboards against the real Prometheus, and exact values against the files."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from tests.live.boards import NAMES, LabelValues, Question, board, rules, variables
from tests.live.conftest import Demo
from tests.live.files import Files, Of, one, over
from tests.live.panels import ALL, Series, Viewer, of
from tools.stack.ask import wait_for


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
