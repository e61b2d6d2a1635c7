"""The table of the reference change names tests that are there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_sentence_has_tests_that_are_there():
    """R1 to R16, each with two tests at least, by their own names."""
    text = (ROOT / "docs" / "reference-change.md").read_text()
    rows = re.findall(r"^\| (R\d+) \|(.*)$", text, re.MULTILINE)
    assert [name for name, _ in rows] == [f"R{number}" for number in range(1, 17)]
    for name, row in rows:
        assert len(re.findall(r"::test_", row)) >= 2, name
    for file, test in re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", text):
        assert f"def {test}(" in (ROOT / file).read_text(), f"{file}::{test}"
