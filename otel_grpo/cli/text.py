"""How names and numbers are written for people."""

from __future__ import annotations

import unicodedata
from decimal import Decimal
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # `run` writes texts and starts a training: it imports next to nothing
    from otel_grpo.records.model import SinkCounts

# What a terminal obeys instead of showing it: controls, direction and format marks, lone surrogates
# and line breaks of other alphabets.
_NOT_SHOWN = frozenset({"Cc", "Cf", "Cs", "Co", "Zl", "Zp"})
_LONGEST_NAME = 60
# The sinks that are no files, and what they count.
_SENT = {"otlp_spans": "span", "otlp_metrics": "metrics export"}


def visible(text: str) -> str:
    """`text` with everything that a terminal would obey written as an escape."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        char.encode("unicode_escape").decode() if unicodedata.category(char) in _NOT_SHOWN else char
        for char in text
    )


def name(text: str) -> str:
    """A name from a file, fit for a cell: visible, on one line, its middle left out if endless."""
    shown = visible(text)
    if len(shown) <= _LONGEST_NAME:
        return shown
    half = (_LONGEST_NAME - 3) // 2
    return f"{shown[:half]}...{shown[-half:]}"


def seconds(ns: int | None) -> str:
    """Nanoseconds as seconds with three decimals, rounded from the exact value."""
    return "-" if ns is None else f"{Decimal(ns).scaleb(-9):.3f}"


def milliseconds(ns: int) -> str:
    """Nanoseconds as milliseconds with three decimals."""
    return f"{Decimal(ns).scaleb(-6):.3f}"


def gib(count: float | None) -> str:
    """Bytes as GiB (2**30) with three decimals."""
    return "-" if count is None else f"{count / 2**30:.3f}"


def rate(value: float | None) -> str:
    """A ratio with three decimals."""
    return "-" if value is None else f"{value:.3f}"


def integer(value: int | None) -> str:
    """A count; what is not known is a dash, never a 0."""
    return "-" if value is None else str(value)


def count(number: int, noun: str) -> str:
    """``1 file``, ``2 files``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def lost(sink: str, counts: SinkCounts) -> str:
    """What of a sink is lost, and where it can be had; empty where nothing is."""
    n, unsure = counts.dropped, counts.unconfirmed or 0
    if sink not in _SENT:
        return f"{count(n, 'line')} of {name(sink)} dropped" if n else ""
    told = [f"{count(n, _SENT[sink])} not taken"] if n else []
    told += [f"{count(unsure, _SENT[sink])} sent without an answer"] if unsure else []
    return f"{', '.join(told)} (`otel-grpo replay` sends them again)" if told else ""
