"""A whole training with TRL, observed and not: what of its time is ours."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.measure import ROOT, python, python_with_trl
from benchmarks.table import Row
from otel_grpo.records import reader
from otel_grpo.records.model import OWN_LOG, RolloutRecord

GOAL = 0.001
ITERATIONS, TOKENS = 6, 128  # completions long enough for an iteration to take a second
PAIRS = 3

_SCRIPT = str(ROOT / "demo" / "train_trl.py")


def rows(**_: Any) -> Iterator[Row]:
    """On all cores, as a user trains."""
    executable = python_with_trl()
    if executable is None:
        yield Row("own time in a training with TRL", "TRL is not installed here", "<= 0.1 %")
        return
    with tempfile.TemporaryDirectory() as folder:
        options = ("--output-dir", f"{folder}/out", "--iterations", str(ITERATIONS),
                   "--max-tokens", str(TOKENS))  # fmt: skip
        run_dir = f"{folder}/run"
        hooks = ("-m", "benchmarks.observed_training", *options)
        printed = python(*hooks, executable=executable, OTEL_GRPO_RUN_DIR=run_dir)
        yield from _accounted(Path(run_dir))
        yield from _in_hooks(json.loads(printed.splitlines()[-1])["steps"])

        plain, observed = [], []
        for pair in range(PAIRS):
            plain.append(_seconds(python(_SCRIPT, *options, executable=executable)))
            command = ("-m", "otel_grpo.cli", "run", "--run-dir", f"{folder}/{pair}", "--")
            observed.append(
                _seconds(python(*command, executable, _SCRIPT, *options, executable=executable))
            )
    difference = median(observed) / median(plain) - 1
    noise = (max(plain) - min(plain)) / median(plain)
    yield Row(
        "  the whole training with us and without",
        f"{median(observed):.2f} s against {median(plain):.2f} s: {difference:+.1%}, where "
        f"{PAIRS} runs without us differ by {noise:.1%} among themselves",
    )


def _accounted(run_dir: Path) -> Iterator[Row]:
    """What the run says of itself: the sum over spans, and the log intervals marked as its own."""
    windows = [
        line.value
        for line in reader.read_records(run_dir / "metrics_raw.jsonl")
        if isinstance(line, reader.Whole) and isinstance(line.value, RolloutRecord)
    ]
    wall = [w.attributes.window.end_ns - w.attributes.window.start_ns for w in windows]
    # The first window holds what Python and torch do once.
    first, last = windows[0], windows[-1]
    logged = sum(
        row[4] - row[3]
        for window in windows[1:]
        for row in window.attributes.intervals
        if row[6] & OWN_LOG and row[4] is not None
    )
    own = last.observed.self_ns - first.observed.self_ns + logged
    each, share = own / len(wall[1:]), own / sum(wall[1:])
    yield Row(
        f"own accounted time, TRL, {median(wall[1:]) / 1e9:.2f} s an iteration",
        f"{share:.2%}: {each / 1e3:,.0f} us an iteration (phases, counts, windows), which is "
        f"0.1 % from {each / GOAL / 1e9:.1f} s an iteration on",
        "<= 0.1 %",
        share <= GOAL,
    )


def _in_hooks(steps: list[list[int]]) -> Iterator[Row]:
    """What a stopwatch around all our hooks says, between two optimizer steps."""
    wall, own, writing = (
        median(after[k] - before[k] for before, after in pairwise(steps)) for k in range(3)
    )
    yield Row(
        "  all of our hooks, by a stopwatch around them",
        f"{own / wall:.2%}: {own / 1e3:,.0f} us an iteration, the stopwatch's own included, and "
        f"{writing / 1e3:,.0f} us of CPU on the writer's thread",
        "<= 0.1 %",
        own / wall <= GOAL,
    )


def _seconds(printed: str) -> float:
    """The trainer's own measure of its loop."""
    found = re.search(r"train_runtime'?: '?([\d.]+)", printed)
    if found is None:
        raise RuntimeError("the trainer printed no train_runtime")
    return float(found.group(1))
