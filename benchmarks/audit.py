"""The audit of a big file, as our own recorder writes it."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import otel_grpo
from benchmarks.loop import SAMPLES, lengths, report, spans
from benchmarks.measure import python, stay_on_one_core
from benchmarks.table import Row

SPANS = 100
SMALL, FULL = 100 * 10**6, 10**9  # bytes

# In a process of its own: its peak of memory is the audit's.
_AUDIT = """
import json, resource, sys, time
from pathlib import Path
from otel_grpo.audit import audit
before, wall = time.process_time(), time.perf_counter()
report = audit(Path(sys.argv[1]))
print(json.dumps({
    "cpu": time.process_time() - before,
    "wall": time.perf_counter() - wall,
    "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    "fields": report.fields_checked,
    "status": report.exit_status,
}))
"""


def rows(*, full: bool, **_: Any) -> Iterator[Row]:
    stay_on_one_core()
    with tempfile.TemporaryDirectory() as folder:
        windows = _record(Path(folder), FULL if full else SMALL)
        size = Path(folder, "metrics_raw.jsonl").stat().st_size
        found = json.loads(python("-c", _AUDIT, folder))
    a_gigabyte = found["cpu"] / size * 1e9
    verdict = "passed" if found["status"] == 0 else f"FAILED with status {found['status']}"
    yield Row(
        f"audit of {size / 1e6:,.0f} MB ({windows} windows of {SAMPLES:,} samples)",
        f"{a_gigabyte:.0f} s of CPU for 1 GB, {size / 1e6 / found['cpu']:.1f} MB/s "
        f"(wall {found['wall']:.0f} s); {found['fields']:,} fields, {verdict}",
        "<= 120 s for 1 GB",
        a_gigabyte <= 120 and found["status"] == 0,
    )
    peak = found["peak"]
    yield Row("  its peak of memory", f"{peak / 2**20:.0f} MiB", "< 1 GiB", peak < 2**30)


def _record(folder: Path, size: int) -> int:
    """Windows until the file has the size; returns their number."""
    columns = lengths()
    with otel_grpo.start_run(folder, trainer="benchmark") as run:
        file = folder / "metrics_raw.jsonl"
        windows = 0
        while not file.exists() or file.stat().st_size < size:
            with run.iteration() as it:
                spans(it, SPANS)
                report(it, windows, columns)
            windows += 1
    return windows
