"""One clock per process: monotonic readings, anchored once to the wall clock."""

from __future__ import annotations

from pathlib import Path
from time import perf_counter_ns, time_ns


class Clock:
    """Unix nanoseconds that never step back: ``unix_ns + (perf_counter_ns() - perf_ns)``.

    The pair is read once, and again in a fork child. A wall clock that is stepped while the process
    runs can make no negative duration.
    """

    __slots__ = ("perf_ns", "unix_ns")

    def __init__(self, unix_ns: int, perf_ns: int) -> None:
        self.unix_ns = unix_ns
        self.perf_ns = perf_ns

    @classmethod
    def read(cls) -> Clock:
        return cls(time_ns(), perf_counter_ns())

    def now(self) -> int:
        """Unix time in nanoseconds."""
        return self.unix_ns + (perf_counter_ns() - self.perf_ns)

    def at(self, perf_ns: int) -> int:
        """Unix time of a reading of ``perf_counter_ns``."""
        return self.unix_ns + (perf_ns - self.perf_ns)


def boot_id() -> str | None:
    """Name of this boot of the machine: processes that share it share ``perf_counter_ns``."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return None
