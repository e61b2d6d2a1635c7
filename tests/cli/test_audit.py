"""`audit` as a command: exit status, several runs, output for people and for scripts."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import otel_grpo


def change_a_digit(path: Path) -> None:
    """Of the tokens of the first window: 38 becomes 39."""
    file = path / "metrics_raw.jsonl"
    content = file.read_bytes()
    assert b'"tokens.total":38' in content
    file.write_bytes(content.replace(b'"tokens.total":38', b'"tokens.total":39', 1))


def test_a_right_run_passes(real: Path, call: Any) -> None:
    """Exit status 0, and the number of fields that were computed again."""
    result = call("audit", real)
    assert result.exit_code == 0
    assert re.search(
        r"^audit PASSED: \d{3,} fields recomputed, 7 lines", result.stdout, re.MULTILINE
    )


def test_a_changed_digit_fails(real: Path, call: Any) -> None:
    """Exit status 1; the line, the field and both values are named."""
    change_a_digit(real)
    result = call("audit", real)
    assert result.exit_code == 1
    assert re.search(
        r"metrics_raw\.jsonl:\d: .*tokens\.total stored 39, recomputed 38", result.stdout
    )


def test_lines_that_are_gone_are_said(call: Any, tmp_path: Path) -> None:
    """No number rests on these files, so the verdict is the same; but nothing is lost silently."""
    path = tmp_path / "run"
    with otel_grpo.start_run(path, trainer="loop") as run, run.iteration():
        run.log_scalars({"loss": 1.0})
    assert "warning" not in call("audit", path).stdout
    for name in ("spans", "workers", "metrics"):
        folder = path / name
        file = next(folder.iterdir()) if folder.is_dir() else path / "metrics.jsonl"
        lines = file.read_bytes().splitlines(keepends=True)
        file.write_bytes(b"".join(lines[:-1]))
        result = call("audit", path)
        assert result.exit_code == 0
        assert re.search(
            rf"^warning: {name}: \d+ were written, \d+ are", result.stdout, re.MULTILINE
        )


def test_the_exit_status_of_several_runs_is_the_worst(
    real: Path, call: Any, tmp_path: Path
) -> None:
    """Each of them is judged, whatever the one before said."""
    assert call("audit", real, real).exit_code == 0
    result = call("audit", tmp_path / "nothing", real)
    assert result.exit_code == 2
    assert "audit PASSED" in result.stdout
    change_a_digit(real)
    assert call("audit", real, tmp_path / "nothing").exit_code == 2


def test_json_has_the_same_shape_for_one_run_and_for_several(real: Path, call: Any) -> None:
    one = json.loads(call("audit", real, "--json").stdout)
    two = json.loads(call("audit", real, real, "--json").stdout)
    assert set(one) == set(two) == {"exit_status", "reports"}
    assert (one["exit_status"], len(one["reports"]), len(two["reports"])) == (0, 1, 2)
    [report] = one["reports"]
    assert report["run_dir"] == str(real)
    assert report["fields_checked"] > 100
    assert report["records"] == {"train": 3, "rollout": 3, "run": 1}


def test_json_has_the_findings(real: Path, call: Any) -> None:
    change_a_digit(real)
    result = call("audit", real, "--json")
    assert result.exit_code == 1
    shown = json.loads(result.stdout)
    assert shown["exit_status"] == 1
    findings = [each for each in shown["reports"][0]["findings"] if "tokens.total" in each["field"]]
    assert (findings[0]["stored"], findings[0]["recomputed"]) == (39, 38)


def test_a_floor_of_the_coverage_is_the_user_s(real: Path, call: Any) -> None:
    """Share of the windows' time that phases must explain."""
    assert call("audit", real, "--min-coverage", "0").exit_code == 0
    result = call("audit", real, "--min-coverage", "1")
    assert result.exit_code == 1
    assert "unattributed" in result.stdout


def test_names_from_the_files_are_escaped(real: Path, call: Any) -> None:
    """A name that was changed to hold an escape sequence is shown, not obeyed."""
    file = real / "metrics_raw.jsonl"
    content = file.read_bytes()
    file.write_bytes(content.replace(b'"tokens.total"', b'"tok\\u001b[31mens.total"', 1))
    result = call("audit", real)
    assert result.exit_code == 1
    assert "\x1b" not in result.stdout
