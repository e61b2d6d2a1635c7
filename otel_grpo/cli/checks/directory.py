"""Whether the files of a run can be written where they will be, and who sees them."""

from __future__ import annotations

import fcntl
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

from otel_grpo.cli.checks.finding import Finding

TOPIC = "Run directory"

# File systems that other machines may see, too; what they are mounted by tells no more.
_SHARED = frozenset(
    [
        "9p",
        "afs",
        "beegfs",
        "ceph",
        "cifs",
        "glusterfs",
        "gpfs",
        "lustre",
        "nfs",
        "nfs4",
        "ocfs2",
        "orangefs",
        "panfs",
        "smb3",
        "virtiofs",
        "wekafs",
    ]
)


def directory(path: Path) -> Iterator[Finding]:
    """Of the directory that a run would use; what is tried in it is removed again."""
    path = path.absolute()
    there = path
    while not there.exists():
        there = there.parent
    kind = file_system(there)
    about: dict[str, object] = {"path": str(path), "file_system": kind}
    where = str(path) if there == path else f"{path} (made in {there})"
    if not there.is_dir():
        yield Finding(TOPIC, "bad", f"{where}: {there} is no directory; say another", about)
        return
    try:
        with tempfile.NamedTemporaryFile(dir=there, prefix=".otel-grpo-doctor-") as file:
            locks = _locks(file.name)
    except OSError as error:
        text = f"{where} can't be written ({error.strerror}): make it writable or say another"
        yield Finding(TOPIC, "bad", text, about)
        return
    about["locks"] = locks
    yield Finding(TOPIC, "good", f"{where} can be written", about)
    if not locks:
        text = f"locks do not work on {kind}: never let two runs write into one directory"
        yield Finding(TOPIC, "bad", text)
    if kind in _SHARED or kind.startswith("fuse."):
        text = f"its file system is {kind}: other machines may see it, too"
    else:
        text = (
            f"its file system is {kind}: other machines do not see it, and a job of several gathers"
            " their files by hand"
        )
    yield Finding(TOPIC, "note", text)


def _locks(path: str) -> bool:
    """Whether a second one who wants the lock is refused."""
    first, second = os.open(path, os.O_RDWR), os.open(path, os.O_RDWR)
    try:
        fcntl.flock(first, fcntl.LOCK_EX | fcntl.LOCK_NB)
        try:
            fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False
    except OSError:
        return False
    finally:
        os.close(first)
        os.close(second)


def file_system(path: Path, mounts: str | None = None) -> str:
    """Its type, by the kernel's table of mounts; ``unknown`` where that does not tell."""
    if mounts is None:
        try:
            mounts = Path("/proc/self/mountinfo").read_text("utf-8", "replace")
        except OSError:
            return "unknown"
    place, best, kind = str(path.resolve()), -1, "unknown"
    for line in mounts.splitlines():
        left, _, right = line.partition(" - ")
        fields = left.split(" ")
        if len(fields) < 5 or not right:
            continue
        point = re.sub(r"\\(\d{3})", lambda octal: chr(int(octal[1], 8)), fields[4])
        inside = place == point or place.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= best:
            best, kind = len(point), right.split(" ")[0]
    return kind
