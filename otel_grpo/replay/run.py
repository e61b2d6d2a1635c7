"""Both signals of a run, one request after the other."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

from otel_grpo.otlp.answer import MAX_BYTES
from otel_grpo.records.model import RunFile
from otel_grpo.replay.metrics import metric_requests
from otel_grpo.replay.sending import Sender
from otel_grpo.replay.spans import halves, span_requests


def send_spans(run_dir: Path, sender: Sender) -> int:
    """All spans of the files. Returns how many torn lines were left out. Raises `reader.BadInput`."""
    torn = 0
    for batch in span_requests(run_dir, MAX_BYTES):
        torn += batch.torn
        waiting = [batch]
        while waiting:
            part = waiting.pop()
            if not part.n or sender.send(part.request.SerializeToString(), part.n):
                continue
            if part.n == 1:
                sender.give_up(1)
            else:
                waiting += halves(part.request)
    return torn


def send_metrics(run_dir: Path, run: RunFile, sender: Sender) -> dict[str, list[str]]:
    """All windows, each in a request of its own: one that is refused spoils no other.

    Returns what was not taken, as a whole or a part, by reason. Raises `reader.BadInput`.
    """
    missed: dict[str, list[str]] = defaultdict(list)
    lost = sender.account.lost
    for each in metric_requests(run_dir, run):
        before = lost.copy()
        if not sender.send(each.request.SerializeToString(), 1):
            sender.give_up(1)
        for reason in lost - before:
            missed[reason].append(each.what)
    return dict(missed)
