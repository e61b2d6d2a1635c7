"""Memory of the host and of the process, by the real system."""

from __future__ import annotations

import os
import subprocess
import sys
from time import perf_counter_ns

import psutil
import pytest

from otel_grpo import devices
from otel_grpo.devices import host

MIB = 2**20


def test_host_memory_is_that_of_psutil() -> None:
    """Total exactly, used as total minus available (which moves between two reads)."""
    memory = psutil.virtual_memory()
    read = host.host_memory()
    assert read.total == memory.total
    assert read.used == pytest.approx(memory.total - memory.available, abs=256 * MIB)


def test_host_memory_where_there_is_no_meminfo(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another system, or a file with other lines: psutil's own figures."""
    monkeypatch.setattr(sys, "platform", "darwin")
    memory = psutil.virtual_memory()
    read = host.host_memory()
    assert read.total == memory.total
    assert read.used == pytest.approx(memory.total - memory.available, abs=256 * MIB)


def test_meminfo_is_in_units_of_1024_bytes() -> None:
    """The kernel writes kB and means KiB; a cut last line is no figure."""
    head = b"MemTotal:       1000 kB\nMemFree:  5 kB\nMemAvailable:   600 kB\nBuffers:   1"
    assert host.parse_meminfo(head) == (400 * 1024, 1000 * 1024)


@pytest.mark.parametrize(
    "head",
    [
        b"",
        b"MemTotal: 1000 kB\n",
        b"MemTotal: 1000 kB\nMemAvailable: 60",
        b"MemTotal: 1000 MB\nMemAvailable: 600 MB\n",
        b"MemTotal: x kB\nMemAvailable: 600 kB\n",
    ],
)
def test_meminfo_without_the_figures_is_unknown(head: bytes) -> None:
    """Never a 0 for what was not read."""
    assert host.parse_meminfo(head) is None


def test_process_rss_sees_what_the_process_takes() -> None:
    """128 MiB more of touched memory are about as much more of resident memory.

    About: a kernel that is short of memory takes other pages back meanwhile.
    """
    before = host.process_rss()
    taken = bytearray(os.urandom(1)) * (128 * MIB)
    assert host.process_rss() - before > 100 * MIB
    assert len(taken) == 128 * MIB


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_reads_itself() -> None:
    """The child's own size, not the parent's, although the parent's process object is there."""
    script = (
        "import os\n"
        "from otel_grpo.devices import host\n"
        "host.process_rss()\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    taken = bytearray(b'x') * (64 * 2**20)\n"
        "    import psutil\n"
        "    near = abs(host.process_rss() - psutil.Process(os.getpid()).memory_info().rss)\n"
        "    os._exit(0 if near < 8 * 2**20 else 1)\n"
        "raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def test_a_reading_costs_little() -> None:
    """Goal 100 microseconds; the bound of the test is wide, because the machine may be busy."""
    inventory = devices.inventory()
    costs = []
    for _ in range(200):
        start = perf_counter_ns()
        devices.Reader(0, devices=inventory)()
        costs.append(perf_counter_ns() - start)
    assert sorted(costs)[len(costs) // 4] < 400_000
