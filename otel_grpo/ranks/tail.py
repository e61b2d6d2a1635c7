"""A file that another process appends to, read from where the last look ended."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from otel_grpo.records.reader import LONGEST_LINE

# What a file grows by between two looks; a larger buffer would cost more than the file.
_BLOCK = 1 << 16


class Tail:
    """The whole lines of one file, each once.

    The file is opened at each look: over a network file system only a fresh open shows what another
    machine has written. Nothing is kept of the file but the beginning of a line that is not ended.
    `offset` is how many bytes were read.
    """

    __slots__ = ("_begun", "offset", "path")

    def __init__(self, path: Path) -> None:
        self.path = path
        self.offset = 0
        self._begun = b""

    def lines(self) -> Iterator[bytes]:
        """Those that are new, without line ends. Raises OSError."""
        fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            while data := os.pread(fd, _BLOCK, self.offset):
                self.offset += len(data)
                *whole, self._begun = (self._begun + data).split(b"\n")
                yield from whole
                if len(self._begun) > LONGEST_LINE:  # no line of ours: its reader will say so
                    begun, self._begun = self._begun, b""
                    yield begun
                if len(data) < _BLOCK:
                    return
        finally:
            os.close(fd)
