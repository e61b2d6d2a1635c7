"""What a large job costs the servers of the live view, and what it loses when one is away.

Where the servers are not built: nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from benchmarks.measure import ROOT, python
from benchmarks.table import Row


def rows(**_: Any) -> Iterator[Row]:
    killed = _ask("benchmarks.stack_killed")
    what = "gateway killed for 60 s in a TRL run behind an agent"
    if not killed:
        yield Row(what, "its servers are not built: make test-live", "all arrives")
        return
    yield Row(
        what,
        "{lost} of {spans} spans lost, {twice} twice; {counted:.0f} of {tokens} tokens".format_map(
            killed
        ),
        "all arrives",
        not killed["lost"] and killed["counted"] == killed["tokens"],
    )
    yield from _load(_ask("benchmarks.stack_load"))


def _load(found: dict[str, Any]) -> Iterator[Row]:
    yield Row(
        "{ranks:,} ranks, {iterations} iterations, as fast as it is taken".format_map(found),
        "{points:,} samples, {spans:,} spans in {seconds:.0f} s".format_map(found),
        "nothing lost",
        not found["lost_points"] and not found["lost_spans"],
    )
    yield Row(
        "  lost on the way",
        "{lost_points:.0f} s of counted time, {lost_spans:,} spans; {twice:,} spans twice".format_map(
            found
        ),
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


def _ask(module: str) -> dict[str, Any]:
    """What it measures in the environment of the live view; {} where that is not here."""
    executable = ROOT / ".venv" / "live" / "bin" / "python"
    if not executable.exists():
        return {}
    found: dict[str, Any] = json.loads(
        python("-m", module, executable=str(executable)).splitlines()[-1]
    )
    return found
