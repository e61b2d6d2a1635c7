"""A page of headings, lines and tables, written for a terminal or as plain text.

Nothing is ever cut: a table that is too wide goes on below, with its first column repeated, and a
line that is too long goes on in the next.
"""

from __future__ import annotations

import itertools
import sys
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TextIO

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table as RichTable
from rich.text import Text

PLAIN_WIDTH = 80
_GAP = 2
_INDENT = 2
_BOUNDLESS = 10**6


@dataclass(frozen=True)
class Heading:
    text: str


@dataclass(frozen=True)
class Line:
    """A label and what is said under it; further lines of it are indented."""

    label: str
    text: str


@dataclass(frozen=True)
class Formula:
    """What a ratio means, and below it the integers that it is made of and what comes out."""

    label: str
    left: str
    right: str


@dataclass(frozen=True)
class Table:
    """Cells as text; the first column names the row, the others are numbers unless said."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    left: frozenset[int] = field(default_factory=lambda: frozenset({0}))


Block = Heading | Line | Formula | Table


def write(blocks: Iterable[Block], file: TextIO | None = None) -> None:
    """Writes the page: with colours and rules on a terminal, else as plain text."""
    file = file or sys.stdout
    if file.isatty():
        console = Console(file=file, highlight=False)
        file.write(_decorated(blocks, console))
    else:
        file.write(plain(blocks))


def plain(blocks: Iterable[Block], width: int = PLAIN_WIDTH) -> str:
    """The page as text without any control sequence."""
    lines: list[str] = []
    for _, group in itertools.groupby(blocks, type):
        same = list(group)
        labels = _label_width(same)
        for block in same:
            if isinstance(block, Heading):
                lines += [""] * bool(lines) + textwrap.wrap(block.text, width)
            elif isinstance(block, Table):
                lines += _plain_table(block, width)
            else:
                lines += _wrapped(block, labels, width)
    return "".join(f"{line.rstrip()}\n" for line in lines)


def _label_width(blocks: Iterable[Block]) -> int:
    """Lines that follow each other have their texts in one column."""
    return max((cell_len(block.label) for block in blocks if isinstance(block, Line)), default=0)


def _wrapped(block: Line | Formula, labels: int, width: int) -> list[str]:
    if isinstance(block, Formula):
        return [" " * _INDENT + block.label, *_formula(block, width)]
    label = f"{'':{_INDENT}}{block.label:{labels}}"
    return textwrap.wrap(
        block.text,
        width,
        initial_indent=label + " " * bool(labels) * _GAP,
        subsequent_indent=" " * (_INDENT + labels + bool(labels) * _GAP),
        break_long_words=False,
        break_on_hyphens=False,
    ) or [label]


def _formula(formula: Formula, width: int) -> list[str]:
    indent = " " * _INDENT
    whole = f"{indent}{formula.left} = {formula.right}"
    if cell_len(whole) <= width:
        return [whole]
    return [f"{indent}{formula.left}", f"{indent}= {formula.right}"]


def _plain_table(table: Table, width: int) -> list[str]:
    lines: list[str] = []
    widths = _widths(table)
    for group in _groups(widths, width - _INDENT):
        if lines:
            lines.append("")
        for row in (table.columns, *table.rows):
            cells = [_cell(row[i], widths[i], i in table.left) for i in group]
            lines.append(" " * _INDENT + (" " * _GAP).join(cells))
    return lines


def _widths(table: Table) -> list[int]:
    return [
        max(cell_len(row[i]) for row in (table.columns, *table.rows))
        for i in range(len(table.columns))
    ]


def _groups(widths: Sequence[int], available: int) -> list[list[int]]:
    """The columns that stand side by side: as many as fit, at least one beside the first."""
    groups = [[0]]
    used = widths[0]
    for index, width in enumerate(widths[1:], start=1):
        if used + _GAP + width > available and len(groups[-1]) > 1:
            groups.append([0])
            used = widths[0]
        groups[-1].append(index)
        used += _GAP + width
    return groups


def _cell(text: str, width: int, left: bool) -> str:
    padding = " " * (width - cell_len(text))
    return text + padding if left else padding + text


def _decorated(blocks: Iterable[Block], console: Console) -> str:
    with console.capture() as captured:
        for _, group in itertools.groupby(blocks, type):
            same = list(group)
            labels = _label_width(same)
            for block in same:
                if isinstance(block, Heading):
                    console.print(Text(f"\n{block.text}", style="bold"))
                elif isinstance(block, Table):
                    _print_table(console, block)
                else:
                    _print_lines(console, block, labels)
    return captured.get()


def _print_lines(console: Console, block: Line | Formula, labels: int) -> None:
    text = Text("\n".join(_wrapped(block, labels, console.width)))
    text.stylize("cyan", _INDENT, _INDENT + len(block.label))
    # The lines are made already: a second wrapping would cut what the first had to leave long.
    console.print(text, soft_wrap=True)


def _print_table(console: Console, table: Table) -> None:
    widths = _widths(table)
    for group in _groups(widths, console.width - _INDENT):
        shown = RichTable(
            box=box.SIMPLE_HEAD,
            show_edge=False,
            pad_edge=False,
            collapse_padding=True,
            header_style="bold",
        )
        for i in group:
            shown.add_column(
                Text(table.columns[i]),
                justify="left" if i in table.left else "right",
                style="cyan" if i == 0 else "",
                no_wrap=True,
                min_width=widths[i],
            )
        for row in table.rows:
            shown.add_row(*(Text(row[i]) for i in group))
        # A terminal narrower than one column breaks the line itself; rich would cut the number.
        boundless = console.options.update(max_width=_BOUNDLESS)
        needed = Measurement.get(console, boundless, shown).maximum
        console.print(shown, width=max(console.width, needed), crop=False)
