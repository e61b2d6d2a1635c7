"""Memory of the host and of this process."""

from __future__ import annotations

import functools
import os
import socket
import sys
from typing import NamedTuple

import psutil

# The two figures stand in the first lines: reading them alone takes a quarter of the time that
# psutil spends on the whole of the file, and a reading is taken at every window of a training.
_MEMINFO = "/proc/meminfo"
_MEMINFO_HEAD = 256


class HostMemory(NamedTuple):
    """Bytes; `used` is total minus available, by the kernel's own estimate of the latter."""

    used: int
    total: int


@functools.cache
def host_name() -> str:
    """The name by which this host appears in the files."""
    return socket.gethostname()


def host_memory() -> HostMemory:
    """Memory of the whole host, whatever part of it a container may use.

    Raises OSError or psutil.Error where the host does not tell.
    """
    if sys.platform == "linux":
        descriptor = os.open(_MEMINFO, os.O_RDONLY | os.O_CLOEXEC)
        try:
            figures = parse_meminfo(os.read(descriptor, _MEMINFO_HEAD))
        finally:
            os.close(descriptor)
        if figures is not None:
            return figures
    memory = psutil.virtual_memory()
    return HostMemory(memory.total - memory.available, memory.total)


def parse_meminfo(head: bytes) -> HostMemory | None:
    """The figures in the first lines of `/proc/meminfo`; None where they are not there.

    The last line of `head` may be cut and is not looked at.
    """
    figures: dict[bytes, int] = {}
    for line in head.split(b"\n")[:-1]:
        name, _, rest = line.partition(b":")
        value, _, unit = rest.strip().partition(b" ")
        if unit == b"kB" and value.isdigit():
            figures[name] = int(value) * 1024
    total, available = figures.get(b"MemTotal"), figures.get(b"MemAvailable")
    if total is None or available is None:
        return None
    return HostMemory(total - available, total)


def process_rss() -> int:
    """Resident memory of this process, shared pages included."""
    return int(_process(os.getpid()).memory_info().rss)


@functools.lru_cache(maxsize=1)
def _process(pid: int) -> psutil.Process:
    # By pid: a forked child must not go on to read its parent.
    return psutil.Process(pid)
