"""Files that hold whole lines, and files that are replaced as a whole. All are owner-only."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

#: Why nothing is written into a file that somebody else made.
NOT_OURS = "not_ours"


class LineFile:
    """An append-only file of whole lines, opened at its first line.

    With ``new_only`` a file that exists already is left alone; ``on_created`` is told of a new one.
    """

    __slots__ = ("_cut", "_fd", "_new_only", "_on_created", "_path", "_prefix")

    def __init__(
        self,
        path: Path | None,
        *,
        new_only: bool = False,
        on_created: Callable[[], None] | None = None,
    ) -> None:
        self._path = path
        self._new_only = new_only
        self._on_created = on_created
        self._fd: int | None = None
        self._prefix = b""
        self._cut: int | None = None

    def write(self, line: bytes) -> str | None:
        """Append one line; None if it is whole in the file, else why it is not."""
        done = before = 0
        try:
            if self._fd is None:
                self._fd = self._open()
            if self._cut is not None:
                os.ftruncate(self._fd, self._cut)
                self._cut = None
            before = os.fstat(self._fd).st_size
            data = memoryview(self._prefix + line + b"\n")
            while done < len(data):
                # One call, unless the disk takes a part only: the next call then says why.
                done += os.write(self._fd, data[done:])
        except FileExistsError:
            return NOT_OURS
        except OSError as error:
            if done and self._fd is not None:
                self._take_back(self._fd, before)
            return errno_name(error)
        self._prefix = b""
        return None

    def _open(self) -> int:
        if self._path is None:
            raise FileNotFoundError(errno.ENOENT, "no directory")
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        if self._new_only:
            flags |= os.O_EXCL
        fd = os.open(self._path, flags, 0o600)
        self._new_only = False
        if self._on_created is not None:
            with contextlib.suppress(OSError):
                self._on_created()
        if _is_torn(fd):
            # An earlier attempt was killed in its last line: close it by a line end, in the same
            # write as our first line, and leave the rest as it is.
            self._prefix = b"\n"
        return fd

    def _take_back(self, fd: int, length: int) -> None:
        """Remove our own unfinished line; if the disk refuses even that, before the next line."""
        try:
            os.ftruncate(fd, length)
        except OSError:
            self._cut = length

    def close(self) -> None:
        """Sync and close. An error of the sync is raised after the descriptor is closed."""
        fd, self._fd = self._fd, None
        if fd is None:
            return
        try:
            if self._cut is not None:
                os.ftruncate(fd, self._cut)
            if stat.S_ISREG(os.fstat(fd).st_mode):
                os.fsync(fd)
        finally:
            os.close(fd)

    def abandon(self) -> None:
        """In a forked child: let go of the parent's descriptor."""
        fd, self._fd = self._fd, None
        if fd is not None:
            with contextlib.suppress(OSError):
                os.close(fd)


def _is_torn(fd: int) -> bool:
    status = os.fstat(fd)
    regular = stat.S_ISREG(status.st_mode)
    return regular and status.st_size > 0 and os.pread(fd, 1, status.st_size - 1) != b"\n"


def errno_name(error: OSError) -> str:
    """The symbol of an operating system error, such as ``ENOSPC``."""
    return errno.errorcode.get(error.errno or 0, "EUNKNOWN")


def atomic_write(path: Path, data: bytes, *, fsync: bool = True) -> None:
    """Replace a file as a whole, owner-only; a reader sees the old bytes or the new ones.

    Raises OSError, and then the old file is untouched. Without ``fsync`` a power cut may leave an
    empty file.
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}.tmp")
    fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(fd, view) :]
            if fsync:
                os.fsync(fd)
        finally:
            os.close(fd)
        draft.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            draft.unlink()
        raise
    if fsync:
        _sync_directory(path.parent)


def _sync_directory(path: Path) -> None:
    # Best effort: some file systems can't sync a directory.
    with contextlib.suppress(OSError):
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
