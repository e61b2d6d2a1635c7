"""Recording rules and alerts by the real promtool."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import yaml

from tests.live.boards import RULES, rules
from tools.stack.build import binary

CASES = RULES.with_name("rules.test.yml")
ALERTS = [rule["alert"] for rule in rules() if "alert" in rule]


def promtool(*words: str, folder: Path = RULES.parent) -> subprocess.CompletedProcess[str]:
    command = [str(binary("promtool")), *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def outcomes(alert: str) -> list[bool]:
    """Of its cases: whether it fires."""
    return [
        bool(case["exp_alerts"])
        for test in yaml.safe_load(CASES.read_text())["tests"]
        for case in test["alert_rule_test"]
        if case["alertname"] == alert
    ]


def test_rules_are_as_their_cases_say() -> None:
    """All of `rules.test.yml`."""
    judged = promtool("test", "rules", "rules.test.yml")
    assert judged.returncode == 0, judged.stdout + judged.stderr


@pytest.mark.parametrize("alert", ALERTS)
def test_an_alert_has_a_case_that_fires_and_one_that_does_not(alert: str) -> None:
    """So neither an alert that never fires nor one that always does would pass."""
    assert set(outcomes(alert)) == {True, False}


def fails(alert: str, expr: str, folder: Path) -> bool:
    """Whether a case of `alert` does not hold with another expression in its place."""
    tree = yaml.safe_load(RULES.read_text())
    for group in tree["groups"]:
        for rule in group["rules"]:
            if rule.get("alert") == alert:
                rule["expr"] = expr
    cases = yaml.safe_load(CASES.read_text())
    cases["tests"] = [
        {
            **{key: value for key, value in test.items() if key != "promql_expr_test"},
            "alert_rule_test": [c for c in test["alert_rule_test"] if c["alertname"] == alert],
        }
        for test in cases["tests"]
    ]
    cases["tests"] = [test for test in cases["tests"] if test["alert_rule_test"]]
    (folder / "rules.yml").write_text(yaml.safe_dump(tree))
    (folder / "rules.test.yml").write_text(yaml.safe_dump(cases))
    judged = promtool("test", "rules", "rules.test.yml", folder=folder)
    return judged.returncode != 0 and f"alertname: {alert}" in judged.stdout + judged.stderr


@pytest.mark.parametrize("alert", ALERTS)
def test_a_case_fails_where_its_alert_is_wrong(alert: str, tmp_path: Path) -> None:
    """One that never fires, and one that always does."""
    assert fails(alert, "vector(0) > 1", tmp_path)
    assert fails(alert, "vector(1)", tmp_path)


def test_an_alert_says_how_bad_it_is_and_of_whom() -> None:
    """A severity that there is, and a summary that names the run or the collector."""
    for rule in rules():
        if "alert" in rule:
            assert rule["labels"]["severity"] in {"warning", "critical"}
            summary = rule["annotations"]["summary"]
            assert "{{ $labels.rl_run_id }}" in summary or "{{ $labels.job }}" in summary
