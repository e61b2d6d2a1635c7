"""The table of what observing costs. A measurement, not a test: the exit status is 0 either way.

Everything that is compared is measured in this one run, in turns, on one core. What a thread pays
is its CPU time, so that other work on the machine disturbs less.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import logging
import sys

from benchmarks import (
    audit,
    counts,
    imports,
    intervals,
    metrics,
    otlp,
    phase,
    ranks,
    ray,
    stack,
    training,
    writer,
)
from benchmarks.measure import describe_machine
from benchmarks.table import print_row, print_title

SUBJECTS = {
    "phase": phase.rows,
    "import": imports.rows,
    "counts": counts.rows,
    "intervals": intervals.rows,
    "writer": writer.rows,
    "otlp": otlp.rows,
    "metrics": metrics.rows,
    "ranks": ranks.rows,
    "audit": audit.rows,
    "ray": ray.rows,
    "training": training.rows,
    "stack": stack.rows,
}


def main() -> None:
    logging.getLogger("otel_grpo").setLevel(logging.ERROR)
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("subjects", nargs="*", help=f"some of {', '.join(SUBJECTS)}; default: all")
    parser.add_argument("--full", action="store_true", help="audit 1 GB instead of 100 MB")
    options = parser.parse_args()
    if not set(options.subjects) <= set(SUBJECTS):
        parser.error(f"a subject is one of {', '.join(SUBJECTS)}")
    print(describe_machine())
    print_title()
    for name in SUBJECTS:
        if not options.subjects or name in options.subjects:
            _measure(name, full=options.full)


def _measure(name: str, *, full: bool) -> None:
    said = io.StringIO()  # each run names its directory
    try:
        with contextlib.redirect_stderr(said):
            for row in SUBJECTS[name](full=full):
                print_row(row)
    except Exception as error:
        print(f"{said.getvalue()}{name}: {type(error).__name__}: {error}", file=sys.stderr)


if __name__ == "__main__":
    main()
