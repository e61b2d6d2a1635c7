"""One table, a row as soon as it is measured."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass

_WIDTHS = (46, 16, 52)


@dataclass(frozen=True)
class Row:
    """One figure. `ok` is None where there is no goal, or nothing was measured."""

    what: str
    measured: str
    goal: str = ""
    ok: bool | None = None


def print_title() -> None:
    _print(("what", "goal", "measured"), "")
    _print(tuple("-" * width for width in _WIDTHS), "----")


def print_row(row: Row) -> None:
    verdict = {True: "ok", False: "over", None: ""}[row.ok]
    _print((row.what, row.goal, row.measured), verdict)


def _print(cells: tuple[str, ...], verdict: str) -> None:
    """Wrapped to the widths of the columns."""
    wrapped = [textwrap.wrap(cell, width) for cell, width in zip(cells, _WIDTHS, strict=True)]
    for line in range(max(map(len, wrapped))):
        parts = [lines[line] if line < len(lines) else "" for lines in wrapped]
        padded = "  ".join(part.ljust(w) for part, w in zip(parts, _WIDTHS, strict=True))
        print(f"{padded}  {'' if line else verdict}".rstrip(), flush=True)
