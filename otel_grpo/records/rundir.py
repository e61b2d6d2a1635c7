"""Opening a run directory: whose it is, which attempt this is, where the hash chain goes on.

Training always starts: a directory that is another run's, another tool's or in use right now is
answered by a sibling directory and one warning, never by touching what is there. Only a place where
nothing can be written raises, `RunDirError`, and the caller then trains without files.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import re
import stat
import time
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from otel_grpo.records.files import atomic_write, errno_name
from otel_grpo.records.model import SCHEMA, Attempt, RunFile
from otel_grpo.records.writer import BOUNDS, Sink

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

#: Held locked for the life of an attempt; lists the files of common names that we made.
MARKER = ".otel-grpo"
_BLOCK = 1 << 16
_MOST_SIBLINGS = 1000
# File systems without locks answer with one of these.
_NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL}


class RunDirError(OSError):
    """No run directory can be made; ``strerror`` says why, ``filename`` where."""


class RunDir:
    """An open run directory: this process is the only one that writes its files.

    Attributes:
        path: absolute.
        run_id, attempt: of this process.
        earlier: what `run.json` says of the attempts before.
        seq, prev: where the chain of `metrics_raw.jsonl` goes on.
        warning: why this is not the directory that was asked for, in one sentence.
    """

    def __init__(
        self,
        path: Path,
        run_id: str,
        attempt: int,
        earlier: tuple[Attempt, ...],
        seq: int,
        prev: str | None,
        lock: int,
        warning: str | None,
    ) -> None:
        self.path = path
        self.run_id = run_id
        self.attempt = attempt
        self.earlier = earlier
        self.seq = seq
        self.prev = prev
        self.warning = warning
        self._lock: int | None = lock
        _live.add(self)

    @property
    def run_file(self) -> Path:
        """What is constant, one entry per attempt."""
        return self.path / "run.json"

    @property
    def summary(self) -> Path:
        """The totals."""
        return self.path / "summary.json"

    @property
    def metrics_raw(self) -> Path:
        """The driver's records."""
        return self.path / "metrics_raw.jsonl"

    @property
    def metrics(self) -> Path:
        """The trainer's flat scalars."""
        return self.path / "metrics.jsonl"

    def write_run_file(self, attempt: Attempt) -> None:
        """Write `run.json` with this attempt added (or replaced). Raises OSError."""
        run = RunFile(SCHEMA, self.run_id, [*self.earlier, attempt])
        atomic_write(self.run_file, msgspec.json.encode(run) + b"\n")

    def sinks(
        self, encode_spans: Callable[[list[Any]], bytes], *, role: str = "driver", rank: int = 0
    ) -> list[Sink]:
        """The sinks of the driver for a `Writer`: metrics_raw, metrics, workers, spans."""
        own = f"{role}-{rank}-{os.getpid()}.jsonl"
        return [
            Sink("metrics_raw", self.metrics_raw, BOUNDS["metrics_raw"], chained=True),
            self._flat_sink(),
            Sink("workers", self.path / "workers" / own, BOUNDS["workers"]),
            Sink("spans", self.path / "spans" / own, BOUNDS["spans"], encode=encode_spans),
        ]

    def _flat_sink(self) -> Sink:
        # The trainer's own logger may use this name: only a file that we made is ours.
        owned = self.metrics.name in self._owned()
        return Sink(
            "metrics",
            self.metrics,
            BOUNDS["metrics"],
            new_only=not owned,
            on_created=None if owned else self._own_flat_file,
        )

    def _owned(self) -> set[str]:
        with contextlib.suppress(OSError):
            return set((self.path / MARKER).read_text(encoding="utf-8").split())
        return set()

    def _own_flat_file(self) -> None:
        if self._lock is not None:
            os.pwrite(self._lock, f"{self.metrics.name}\n".encode(), 0)

    def release(self) -> None:
        """Let the next attempt have the directory. The marker stays: removing it would race."""
        lock, self._lock = self._lock, None
        if lock is not None:
            with contextlib.suppress(OSError):
                os.close(lock)


def nowhere(reason: str, *, built: bool = False) -> list[Sink]:
    """The same sinks without a directory: everything is dropped and counted under the reason.

    Records that are to be `built` all the same, for somebody else, are dropped after that.
    """
    bounds = {"metrics_raw": BOUNDS["metrics_raw"]} if built else {}
    return [Sink.nowhere(name, reason, bound=bounds.get(name, 0)) for name in BOUNDS]


def open_run_dir(path: Path | str | None = None, run_id: str | None = None) -> RunDir:
    """Open a directory for one attempt of a run, by the rules of this module.

    ``path`` defaults to ``runs/<utc time>-<id>``, ``run_id`` to the directory's, or else to a new
    one. Raises `RunDirError` if no directory can be made or written.
    """
    run_id = run_id or None
    new_id = run_id or os.urandom(8).hex()
    asked = Path(path) if path is not None else _default_path(new_id)
    # The trainer may change the working directory; a sibling is made beside a link, not its target.
    asked = Path(os.path.abspath(asked))  # noqa: PTH100
    try:
        reason = None
        for candidate in _candidates(asked):
            try:
                # A sibling is joined only if it is the asked run's own: without an id asked for,
                # two runs that compete for one directory must not follow each other's attempts.
                join = run_id is not None or candidate == asked
                found = _claim(candidate, run_id, new_id, join=join)
            except _Taken as taken:
                reason = reason or str(taken)
                continue
            if reason is not None:
                found.warning = f"{asked} {reason}: this run is recorded in {candidate}"
            return found
    except OSError as error:
        why = f"cannot make a run directory: {error.strerror} ({errno_name(error)})"
        raise RunDirError(error.errno, why, str(asked)) from error
    raise RunDirError(errno.EEXIST, "cannot make a run directory: too many siblings", str(asked))


class _Taken(Exception):  # noqa: N818 - not an error: the next directory is tried
    """A directory that is somebody else's, and why."""


def _default_path(run_id: str) -> Path:
    name = re.sub(r"[^A-Za-z0-9._-]+", "_", run_id)[:64]
    return Path("runs", f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{name}")


def _candidates(asked: Path) -> Iterator[Path]:
    yield asked
    for n in range(2, _MOST_SIBLINGS):
        yield asked.with_name(f"{asked.name}-{n}")


def _claim(path: Path, run_id: str | None, new_id: str, *, join: bool) -> RunDir:
    """Take the directory for this process, or say why not."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=0o700)
    _look(path, run_id, join)  # before we leave anything of ours in it
    lock, locked = _lock(path)
    try:
        run = _look(path, run_id, join)  # again: now nobody can change it under us
        tail = _Tail.of(path / "metrics_raw.jsonl", run.run_id if run else None)
        earlier = tuple(run.attempts) if run else ()
        attempt = max([0, tail.attempt, *(one.attempt for one in earlier)]) + 1
        if not locked:
            _mark_attempt(path, attempt)
        _remove_drafts(path)
        for name in ("spans", "workers"):
            (path / name).mkdir(mode=0o700, exist_ok=True)
    except BaseException:
        os.close(lock)
        raise
    run_id = run.run_id if run else new_id
    return RunDir(path, run_id, attempt, earlier, tail.seq, tail.prev, lock, None)


def _look(path: Path, run_id: str | None, join: bool) -> RunFile | None:
    """What `run.json` says; None in a directory without a run. Raises _Taken if not ours."""
    for name in ("run.json", "summary.json", "metrics_raw.jsonl", "metrics.jsonl"):
        if not _is_file_or_absent(path / name):
            raise _Taken(f"holds a {name} that is no regular file")
    for name in ("spans", "workers"):
        if (path / name).exists() and not (path / name).is_dir():
            raise _Taken(f"holds a {name} that is no directory")
    if not (path / "run.json").exists():
        for name in ("summary.json", "metrics_raw.jsonl"):
            if (path / name).exists():
                raise _Taken(f"holds a {name} but no run.json of ours")
        return None
    run = _read_run_file(path / "run.json")
    if run is None:
        raise _Taken("holds a run.json that is not ours")
    if _is_foreign(path / "summary.json"):
        raise _Taken("holds a summary.json that is not ours")
    if run_id is not None and run.run_id != run_id:
        raise _Taken(f"is the directory of run {run.run_id}")
    if not join:
        raise _Taken(f"is the directory of run {run.run_id}")
    return run


def _is_file_or_absent(path: Path) -> bool:
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except FileNotFoundError:
        return True


def _read_run_file(path: Path) -> RunFile | None:
    try:
        run = msgspec.json.decode(path.read_bytes(), type=RunFile)
    except msgspec.MsgspecError:
        return None
    return run if run.schema == SCHEMA else None


def _is_foreign(path: Path) -> bool:
    """Whether a summary is somebody else's; one that a power cut left broken counts as ours."""
    try:
        content = msgspec.json.decode(path.read_bytes())
    except (FileNotFoundError, msgspec.MsgspecError):
        return False
    return not (isinstance(content, dict) and content.get("schema") == SCHEMA)


def _lock(path: Path) -> tuple[int, bool]:
    """Lock the directory for the life of this process; the kernel lets go however it ends.

    Returns the descriptor and whether this file system has locks at all.
    """
    lock = os.open(path / MARKER, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _NO_LOCKS:
            return lock, False
        os.close(lock)
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            raise _Taken("is in use by another process") from None
        raise
    return lock, True


def _mark_attempt(path: Path, attempt: int) -> None:
    """Without locks, the process that makes the attempt's file first has the attempt."""
    marker = path / f"{MARKER}-{attempt}"
    try:
        os.close(os.open(marker, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        raise _Taken(f"has an attempt {attempt} already") from None


def _remove_drafts(path: Path) -> None:
    for draft in [*path.glob(".run.json.*.tmp"), *path.glob(".summary.json.*.tmp")]:
        with contextlib.suppress(OSError):
            draft.unlink()


class _Head(msgspec.Struct):
    """What the end of the chain needs of a record."""

    schema: str
    run_id: str
    attempt: int
    seq: int


class _Tail(msgspec.Struct, frozen=True):
    """Where the chain of a file goes on: the next ``seq``, the last whole record's hash."""

    seq: int = 0
    prev: str | None = None
    attempt: int = 0

    @classmethod
    def of(cls, path: Path, run_id: str | None) -> _Tail:
        """Read backwards to the last line that is a record.

        A line without its end that is a whole JSON object counts: only its line end was lost, and
        the next attempt adds it.
        """
        if run_id is None or not path.exists():
            return cls()
        decode = msgspec.json.Decoder(_Head).decode
        for line in _lines_backwards(path):
            try:
                head = decode(line)
            except msgspec.MsgspecError:
                continue
            if head.schema != SCHEMA or head.run_id != run_id:
                raise _Taken("holds a metrics_raw.jsonl that is not ours")
            return cls(head.seq + 1, hashlib.sha256(line).hexdigest(), head.attempt)
        return cls()


def _lines_backwards(path: Path) -> Iterator[bytes]:
    """The lines of a file from its end, without line ends, reading no more than is asked for."""
    with path.open("rb") as file:
        position = file.seek(0, os.SEEK_END)
        parts: list[bytes] = []  # of the line whose start is not reached yet, last part first
        while position > 0:
            size = min(_BLOCK, position)
            position -= size
            file.seek(position)
            *_, block = first, *rest = file.read(size).split(b"\n")
            if not rest:
                parts.append(first)
                continue
            yield b"".join([block, *reversed(parts)])
            yield from reversed(rest[:-1])
            parts = [first]
        yield b"".join(reversed(parts))


_live: weakref.WeakSet[RunDir] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    # A child that outlives us must not keep the directory locked. Closing a copy of a descriptor
    # leaves the parent's lock alone.
    for run_dir in list(_live):
        run_dir.release()


os.register_at_fork(after_in_child=_after_fork_in_child)
