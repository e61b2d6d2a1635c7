"""Sets the clocks of a process that is started with the library preloaded."""

from __future__ import annotations

import mmap
import shutil
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest

from otel_grpo.records.model import ClockPair

SOURCE = Path(__file__).with_name("shim.c")


def compiled(folder: Path) -> Path:
    """The library; the test is left out where it can't be made."""
    compiler = shutil.which("gcc")
    if compiler is None or sys.platform != "linux":
        pytest.skip("needs gcc on Linux to make the library that sets clocks")
    library = folder / "shim.so"
    options = ("-shared", "-fPIC", "-Wall", "-Werror", "-O1")
    subprocess.run([compiler, *options, "-o", library, SOURCE, "-ldl", "-pthread"], check=True)
    return library


class Clocks:
    """The clocks of one process, in nanoseconds from the truth; `drift` in ns a millisecond.

    With a `boot` id it seems to be on another machine.
    """

    def __init__(
        self, folder: Path, wall: int = 0, monotonic: int = 0, drift: int = 0, *, boot: str | None
    ) -> None:
        self.origin = time.monotonic_ns()
        self.monotonic, self.drift = monotonic, drift
        folder.mkdir()
        file = folder / "clocks"
        file.write_bytes(struct.pack("4q", wall, monotonic, drift, self.origin))
        with file.open("r+b") as opened:
            self._shared = mmap.mmap(opened.fileno(), 0)
        self._environment = {"CLOCK_SHIM": str(file)}
        if boot is not None:
            (folder / "boot_id").write_text(f"{boot}\n")
            self._environment["CLOCK_SHIM_BOOT_ID"] = str(folder / "boot_id")

    def environment(self, library: Path) -> dict[str, str]:
        """What a process is started with."""
        return {"LD_PRELOAD": str(library), **self._environment}

    def step(self, wall: int) -> None:
        """Set the wall clock, at once."""
        self._shared[:8] = struct.pack("q", wall)

    def truth(self, pair: ClockPair, instant: int) -> int:
        """The machine's own CLOCK_MONOTONIC at an instant of the process."""
        told = instant - pair.unix_ns + pair.perf_ns - self.monotonic
        return (told * 10**6 + self.origin * self.drift) // (10**6 + self.drift)
