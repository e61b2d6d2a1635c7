"""What 1,024 ranks cost the collector and what stands behind it. Where the servers are not built: nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from benchmarks.measure import ROOT, python
from benchmarks.table import Row


def rows(**_: Any) -> Iterator[Row]:
    executable = ROOT / ".venv" / "live" / "bin" / "python"
    if not executable.exists():
        yield Row("1,024 ranks into the stack", "the live view is not here: make test-live")
        return
    said = python("-m", "benchmarks.stack_load", executable=str(executable))
    found = json.loads(said.splitlines()[-1])
    if not found:
        yield Row("1,024 ranks into the stack", "its servers are not built: make test-live")
        return
    what = "{ranks:,} ranks, {iterations} iterations, as fast as it is taken".format_map(found)
    yield Row(
        what,
        "{points:,} samples, {spans:,} spans in {seconds:.0f} s".format_map(found),
        "nothing lost",
        not found["lost_points"] and not found["lost_spans"],
    )
    yield Row(
        "  lost on the way",
        "{lost_points:,} samples, {lost_spans:,} spans, {twice:,} spans twice".format_map(found),
    )
    yield Row(
        "  samples/s, spans/s",
        f"{found['points'] / found['seconds']:,.0f}, {found['spans'] / found['seconds']:,.0f}",
    )
    yield Row(
        "  series in Prometheus",
        "{series:,}, of which {recorded:,} are those of recording rules".format_map(found),
    )
    yield Row(
        "  memory at its peak",
        ", ".join(f"{name} {value >> 20} MB" for name, value in found["memory"].items()),
    )
