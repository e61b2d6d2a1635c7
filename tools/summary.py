"""The end of `make test`: one row a check, and a last line that counts tests and checks.

    summary.py RESULTS CHECK...

RESULTS/CHECK.ok says that a check passed, RESULTS/CHECK.xml is pytest's report of it. A check that
has no tests counts as one. Exits with 1 if anything failed or a check left no word.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree as ET


@dataclass
class Counts:
    passed: int = 0
    failed: int = 0
    skipped: int = 0


def main(results: Path, checks: list[str]) -> int:
    total = Counts()
    print()
    for check in checks:
        counts = read(results, check)
        total.passed += counts.passed
        total.failed += counts.failed
        total.skipped += counts.skipped
        mark = "FAILED" if counts.failed else "ok"
        print(f"{mark:<7}{check:<19}{describe(counts)}")
    print()
    print(describe(total))
    return 1 if total.failed else 0


def read(results: Path, check: str) -> Counts:
    counts = Counts()
    report = results / f"{check}.xml"
    if report.exists():
        for suite in ET.parse(report).getroot().iter("testsuite"):
            tests, failures, errors, skipped = (
                int(suite.get(name, 0)) for name in ("tests", "failures", "errors", "skipped")
            )
            counts.passed += tests - failures - errors - skipped
            counts.failed += failures + errors
            counts.skipped += skipped
    finished = (results / f"{check}.ok").exists()
    if finished and not report.exists():
        counts.passed = 1
    elif not finished and not counts.failed:
        counts.failed = 1  # it broke before, or beside, its tests
    return counts


def describe(counts: Counts) -> str:
    skipped = f", {counts.skipped} skipped" if counts.skipped else ""
    return f"{counts.passed} passed, {counts.failed} failed{skipped}"


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
