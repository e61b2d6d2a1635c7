"""The page for people: nothing is cut, whatever the width; nothing in a name is obeyed."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from otel_grpo.cli import page, text
from otel_grpo.cli.page import Formula, Heading, Line, Table, plain

ANSI = re.compile(r"\x1b\[[0-9;]*m")
NUMBERS = [str(10**12 + number) for number in range(6)]
BLOCKS = [
    Heading("A heading [red]in brackets[/red]"),
    Line("short", "one two three"),
    Line("longer", "four"),
    Formula("what it is", "1 tokens * 1e9 / (2 ns * 3 devices)", "166666666.667 token/s/device"),
    Table(["iter", *NUMBERS], [["1", *NUMBERS], ["[bold]2", *NUMBERS]]),
]


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("width", [1, 10, 20, 40, 79, 80, 200])
def test_plain_text_keeps_every_number_at_every_width(width: int) -> None:
    """Each number of a row is there once for each row and once as a heading."""
    shown = plain(BLOCKS, width)
    for number in NUMBERS:
        assert len(re.findall(rf"\b{number}\b", shown)) == 3
    assert "[bold]2" in shown


@pytest.mark.parametrize("width", [10, 20, 40, 80, 200])
def test_a_terminal_keeps_every_number_at_every_width(
    monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    """The same with colours and rules; brackets are no markup."""
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    terminal = Terminal()
    page.write(BLOCKS, terminal)
    assert ANSI.search(terminal.getvalue())
    shown = ANSI.sub("", terminal.getvalue())
    for number in NUMBERS:
        assert len(re.findall(rf"\b{number}\b", shown)) == 3
    assert "[bold]2" in shown
    assert "[red]inbrackets[/red]" in "".join(shown.split())
    assert "…" not in shown


def test_lines_that_follow_each_other_have_one_column_of_text() -> None:
    assert plain(BLOCKS[1:3]) == "  short   one two three\n  longer  four\n"


def test_a_long_line_goes_on_below_its_text() -> None:
    assert plain([Line("label", "one two three")], 16) == "  label  one two\n         three\n"


def test_a_formula_is_broken_before_its_result_only() -> None:
    formula = Formula("what", "1 / 2", "0.5")
    assert plain([formula], 80) == "  what\n  1 / 2 = 0.5\n"
    assert plain([formula], 10) == "  what\n  1 / 2\n  = 0.5\n"


def test_columns_of_wide_characters_stay_in_line() -> None:
    """A name of four double-width characters is as wide as eight others."""
    table = Table(["name", "n"], [["報酬関数", "1"], ["abcdefgh", "2"]])
    assert plain([table]) == "  name      n\n  報酬関数  1\n  abcdefgh  2\n"


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("a b", "a b"),
        ("\x1b[2J", "\\x1b[2J"),
        ("a\nb\tc", "a\\nb\\tc"),
        ("\u202egnp", "\\u202egnp"),
        ("\u2028", "\\u2028"),
        ("\ud800", "\\ud800"),
        ("報酬 é 🙂", "報酬 é 🙂"),
    ],
)
def test_what_a_terminal_would_obey_is_shown(written: str, shown: str) -> None:
    assert text.visible(written) == shown


def test_an_endless_name_has_its_middle_left_out() -> None:
    shown = text.name("a" * 10**6 + "z")
    assert len(shown) <= 60
    assert shown.startswith("aaa")
    assert shown.endswith("aaz")


@pytest.mark.parametrize(
    ("ns", "shown"),
    [
        (0, "0.000"),
        (1, "0.000"),
        (499_999, "0.000"),
        (500_001, "0.001"),
        (81_659_000_000, "81.659"),
        (-1_500_000_000, "-1.500"),
        (2**63 * 10**9, f"{2**63}.000"),
        (None, "-"),
    ],
)
def test_seconds_are_rounded_from_the_integer(ns: int | None, shown: str) -> None:
    """No float between: the seconds of a huge run keep their last digit."""
    assert text.seconds(ns) == shown


def test_on_a_real_terminal_the_page_has_colours(reference: Any) -> None:
    """Through a pseudo terminal, as a user sees it; every rate is whole."""
    path = reference.write()
    leader, follower = pty.openpty()
    environment = os.environ | {"TERM": "xterm-256color", "COLUMNS": "50"}
    environment.pop("NO_COLOR", None)
    with subprocess.Popen(
        [sys.executable, "-m", "otel_grpo.cli", "show", str(path)],
        stdout=follower,
        cwd=Path(__file__).parents[2],
        env=environment,
    ) as process:
        os.close(follower)
        output = b""
        while block := _read(leader):
            output += block
    os.close(leader)
    assert process.returncode == 0
    shown = ANSI.sub("", output.decode())
    assert "\x1b[1m" in output.decode()
    for rate in ("116.367", "154.461", "153.885", "138.921"):
        assert rate in shown


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 1 << 16)
    except OSError:  # what a closed terminal answers
        return b""
