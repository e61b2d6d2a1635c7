"""`export` writes a file that a viewer opens, as a whole or not at all."""

from __future__ import annotations

import gzip
import json
import stat
from pathlib import Path
from typing import Any

import pytest
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace

from otel_grpo.cli import export as module


def test_the_trace_lies_in_the_run_directory(real: Path, call: Any) -> None:
    """Compressed, for its owner alone, the same bytes each time; audit and finish mind it not."""
    first = call("export", "--perfetto", real)
    path = real / "trace.pftrace.gz"
    assert first.exit_code == 0
    assert first.stdout.startswith(f"{path}: 3 iterations, ")
    assert "https://ui.perfetto.dev" in first.stdout
    assert "\x1b" not in first.stdout
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    content = path.read_bytes()
    begun = sum(
        packet.track_event.type == 1 for packet in Trace.FromString(gzip.decompress(content)).packet
    )
    assert f"{begun} slices" in first.stdout
    assert call("export", "--perfetto", real).exit_code == 0
    assert path.read_bytes() == content
    assert call("audit", real).exit_code == 0
    assert "was complete already" in call("finish", real).stdout
    assert not list(real.glob(".trace*"))


def test_a_plain_file_and_numbers_for_scripts(real: Path, tmp_path: Path, call: Any) -> None:
    """-o without .gz is not compressed; --json counts what it holds."""
    path = tmp_path / "x.pftrace"
    told = json.loads(call("export", "--perfetto", "--json", "-o", path, real).stdout)
    packets = Trace.FromString(path.read_bytes()).packet
    kinds = [packet.track_event.type for packet in packets if packet.HasField("track_event")]
    assert told == {
        "path": str(path),
        "bytes": path.stat().st_size,
        "unpacked_bytes": path.stat().st_size,
        "windows": 3,
        "windows_without_record": 0,
        "slices": kinds.count(1),
        "instants": kinds.count(3),
        "counter_samples": kinds.count(4),
        "by_own_clock": [],
    }


def test_a_killed_run(killed: Any, call: Any) -> None:
    """Two windows have records; the torn line of the third is no obstacle."""
    result = call("export", "--perfetto", killed.write())
    assert result.exit_code == 0
    assert ": 2 iterations, " in result.stdout


def test_a_part(real: Path, call: Any) -> None:
    """One iteration; one that is not there is bad input and leaves no file."""
    told = json.loads(call("export", "--perfetto", "--json", "--iterations", "2", real).stdout)
    assert told["windows"] == 1
    Path(told["path"]).unlink()
    result = call("export", "--perfetto", "--iterations", "7-9", real)
    assert result.exit_code == 2
    assert "no iteration 7-9 in this run" in result.stderr
    assert not list(real.glob("*trace*"))


@pytest.mark.parametrize("given", ["", "x", "3-1", "-2", "1-"])
def test_what_is_no_range(given: str, real: Path, call: Any) -> None:
    """One line, exit status 2."""
    result = call("export", "--perfetto", f"--iterations={given}", real)
    assert result.exit_code == 2
    assert "say 7 or 10-20" in result.stderr
    assert result.stderr.count("\n") == 1


def test_bad_input(tmp_path: Path, real: Path, call: Any) -> None:
    """No run, no format, no place to write to, a line that is no record: one line each."""
    bad = real / "metrics_raw.jsonl"
    for arguments, said in (
        (("--perfetto", tmp_path), "is no run directory"),
        ((real,), "Missing option '--perfetto'"),
        (("--perfetto", "-o", tmp_path / "no" / "x", real), "can't be written (No such file"),
        (("--perfetto", real), "metrics_raw.jsonl:1"),
    ):
        if said == "metrics_raw.jsonl:1":
            bad.write_bytes(b"{}\n" + bad.read_bytes())
        result = call("export", *arguments)
        assert result.exit_code == 2
        assert said in result.stderr
        assert result.stderr.count("\n") == 1
        assert not list(real.glob("*trace*"))


def test_a_large_trace_says_what_a_browser_can_hold(
    real: Path, call: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the limit lowered to what three windows take."""
    monkeypatch.setattr(module, "_LARGE", 1000)
    assert "--iterations" in call("export", "--perfetto", real).stdout
