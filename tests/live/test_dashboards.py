"""The dashboards as files: what Grafana would find in them, and that nothing in them is made up."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import dashboards.__main__ as generator
from otel_grpo.metrics.catalogue import CATALOGUE
from otel_grpo.metrics.promnames import name_of
from tests.live import checks
from tests.live.boards import NAMES, Board, board, panels_of, questions, rules, used

Change = Callable[[Board], None]


def test_the_files_are_what_the_code_makes(capsys: pytest.CaptureFixture[str]) -> None:
    """`--check` says nothing and succeeds."""
    assert generator.main(["--check"]) == 0
    assert capsys.readouterr().out == ""


def test_a_stale_file_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whether it was changed by hand or is missing; writing makes it good."""
    monkeypatch.setattr(generator, "HERE", tmp_path)
    assert generator.main([]) == 0
    (tmp_path / "run.json").write_text((tmp_path / "run.json").read_text().replace("3h", "4h"))
    (tmp_path / "fleet.json").unlink()
    assert generator.main(["--check"]) == 1
    words = capsys.readouterr().out
    assert [name in words for name in ("run.json", "fleet.json", "health.json")] == [
        True,
        True,
        False,
    ]
    assert generator.main([]) == 0
    assert generator.main(["--check"]) == 0


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("check", checks.CHECKS, ids=lambda check: check.__name__)
def test_a_dashboard_is_right(name: str, check: Callable[[Board], Any]) -> None:
    """By each of the checks."""
    assert list(check(board(name))) == []


def test_every_dashboard_has_its_own_address() -> None:
    """And the tag by which the others link to it."""
    uids = [board(name)["uid"] for name in NAMES]
    assert uids == ["otel-grpo-run", "otel-grpo-fleet", "otel-grpo-health"]
    assert {tuple(board(name)["tags"]) for name in NAMES} == {("otel-grpo",)}


def test_every_metric_of_the_catalogue_is_seen() -> None:
    """A number that is collected and shown nowhere is not looked after."""
    text = "\n".join(question.expr for name in NAMES for question in questions(name, board(name)))
    assert [name_of(metric) for metric in CATALOGUE if name_of(metric) not in text] == []


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule.get("alert") or rule["record"])
def test_a_rule_uses_what_there_is(rule: dict[str, Any]) -> None:
    """Its metrics and labels are known."""
    assert list(checks.names_of(rule["expr"].replace("\n", " "))) == []


def test_links_lead_to_both_back_ends_by_the_id_of_a_trace() -> None:
    """The value of the field is the query, of Jaeger and of Tempo."""
    for panel in panels_of(board("run")):
        if panel["title"].startswith("Iterations in "):
            (override,) = panel["fieldConfig"]["overrides"]
            assert override["matcher"]["options"] == "traceID"
            (links,) = [p["value"] for p in override["properties"] if p["id"] == "links"]
            assert [used(link["url"]) for link in links] == [{"tempo"}, {"jaeger"}]
            assert all("${__value.raw}" in link["url"] for link in links)
            assert all(link["url"].startswith("/explore?schemaVersion=1&") for link in links)


# ------------------------------------------------------------------------------- negative controls


def panel_of(of: Board, title: str) -> dict[str, Any]:
    return next(panel for panel in panels_of(of) if panel["title"] == title)


def in_target(before: str, after: str, title: str = "Tokens") -> Change:
    def change(of: Board) -> None:
        target = panel_of(of, title)["targets"][0]
        key = "expr" if "expr" in target else "query"
        assert before in target[key]
        target[key] = target[key].replace(before, after)

    return change


def without(key: str) -> Change:
    return lambda of: panel_of(of, "Loss").pop(key)


def no_unit(of: Board) -> None:
    del panel_of(of, "Loss")["fieldConfig"]["defaults"]["unit"]


def same_title(of: Board) -> None:
    panel_of(of, "Loss")["title"] = "Reward"


def misspelt_field(of: Board) -> None:
    panel_of(of, "Loss")["descriptionn"] = "."


def misspelt_option(of: Board) -> None:
    panel_of(of, "Loss")["options"]["legnd"] = {}


def misspelt_style(of: Board) -> None:
    panel_of(of, "Loss")["fieldConfig"]["defaults"]["custom"]["drawstyle"] = "line"


def misspelt_query(of: Board) -> None:
    panel_of(of, "Loss")["targets"][0]["exprr"] = "up"


def variable_nobody_uses(of: Board) -> None:
    of["templating"]["list"].append({"name": "rank", "type": "custom", "query": "1,2"})


def one_over_the_other(of: Board) -> None:
    panel_of(of, "Loss")["gridPos"]["x"] += 1


def off_the_grid(of: Board) -> None:
    panel_of(of, "Of devices")["gridPos"]["w"] += 1


def same_id(of: Board) -> None:
    panel_of(of, "Loss")["id"] = 1


def with_inputs(of: Board) -> None:
    of["__inputs"] = []


def older_schema(of: Board) -> None:
    of["schemaVersion"] = 36


def source_by_name(of: Board) -> None:
    panel_of(of, "Loss")["targets"][0]["datasource"]["uid"] = "otel-grpo-prometheus"


def angular(of: Board) -> None:
    panel_of(of, "Loss")["type"] = "graph"


def link_that_is_cut(of: Board) -> None:
    of["links"][-1]["url"] = of["links"][-1]["url"].replace("rl.run.id%20%3D", "rl.run.id%20")


def empty(of: Board) -> None:
    panel_of(of, "Loss")["targets"] = []


TEMPO = "Iterations in Tempo"
CHANGES: list[tuple[str, Change]] = [
    ("names", in_target("rl_tokens_total", "rl_token_total")),
    ("names", in_target("rl_run_id", "run_id")),
    ("names", in_target("by (rl_role)", "by (role)", "Devices")),
    ("promql", in_target("(", "((")),
    ("promql", in_target("sum (", "total (")),
    ("traceql", in_target("{", "{{", TEMPO)),
    ("traceql", in_target("&&", "&", TEMPO)),
    ("traceql", link_that_is_cut),
    ("variables_used", in_target("$run", "$runs")),
    ("variables_used", variable_nobody_uses),
    ("windows", in_target("$__range", "1m")),
    ("described", without("description")),
    ("described", without("title")),
    ("described", same_title),
    ("described", no_unit),
    ("described", empty),
    ("unknown_keys", misspelt_field),
    ("unknown_keys", misspelt_option),
    ("unknown_keys", misspelt_style),
    ("unknown_keys", misspelt_query),
    ("grid", one_over_the_other),
    ("grid", off_the_grid),
    ("grid", same_id),
    ("importable", with_inputs),
    ("importable", older_schema),
    ("importable", source_by_name),
    ("importable", angular),
]


@pytest.mark.parametrize(("check", "change"), CHANGES)
def test_a_check_finds_what_is_wrong(check: str, change: Change) -> None:
    """Each is made wrong in a copy, and that check says so."""
    changed = copy.deepcopy(board("run"))
    change(changed)
    assert list(getattr(checks, check)(changed)) != []
