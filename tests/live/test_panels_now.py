"""What panels show of an instant: what is open, devices, and the traces that they lead to."""

from __future__ import annotations

import json
import re

import pytest

from tests.live.boards import NAMES, board, panels_of
from tests.live.conftest import Demo
from tests.live.files import Files
from tests.live.panels import ALL, Series, Viewer, of
from tools.stack.ask import get
from tools.stack.stack import Stack

RUN, FLEET, _ = NAMES


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
                viewer.fill(question.expr, f.run_id), start=viewer.start, end=viewer.at
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
