"""What each other process said of itself as it ended: lines that it lost, errors of its observer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from otel_grpo.cli.text import count, lost
from otel_grpo.cli.view import View
from otel_grpo.records.model import Left

# A last line is a few hundred bytes; what comes before it may be gigabytes.
_END = 1 << 16
# So many processes are named one by one.
_NAMED = 8

_decode = msgspec.json.Decoder(Left).decode


def note_last_words(view: View, run_dir: Path) -> None:
    """Adds them to the view, those of its attempt."""
    notes = []
    for path, left in _last_words(run_dir):
        # A rank that did not find the directory does not know the attempt: 0.
        if left.attempt not in {0, view.attempt}:
            continue
        view.job.errors.update(left.observed.errors)
        sinks = left.observed.sinks
        told = list(filter(None, map(lost, sinks, sinks.values())))
        if told:
            notes.append(f"workers/{path.name}: {', '.join(told)}")
    view.notes += notes[:_NAMED]
    if len(notes) > _NAMED:
        others = count(len(notes) - _NAMED, "more file")
        view.notes.append(f"{others} in workers/: lines were dropped there, too")


def _last_words(run_dir: Path) -> Iterator[tuple[Path, Left]]:
    for path in sorted((run_dir / "workers").glob("*.jsonl")):
        try:
            with path.open("rb") as file:
                file.seek(max(path.stat().st_size - _END, 0))
                *_, last, rest = b"", *file.read().split(b"\n")
            if not rest:
                yield path, _decode(last)
        except (OSError, msgspec.MsgspecError):
            continue  # not readable, or it did not end in order: no last words
