"""Reading the files of a run as a stream of typed records, one line in memory at a time.

A torn line is what a killed process leaves: the beginning of a line. It is set apart (`Torn`) where
it may stand, at the end of a file or right before a new attempt. Any other bad line raises
`BadLine`, and what is no run of ours raises `BadInput`; their text is one sentence that says what is
wrong, where, and what to do. Unknown fields are accepted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

import msgspec

from otel_grpo.records.model import (
    SCHEMA,
    ClockOffset,
    Joined,
    Left,
    PublicationCompleted,
    Record,
    RunFile,
    Summary,
    WindowOpened,
    WorkerLine,
    _WorkerLine,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

#: A line that is longer is not a record of ours.
LONGEST_LINE = 1 << 28

# JSON can be nested deeper than a parser follows.
_UNREADABLE = (msgspec.MsgspecError, RecursionError)

T = TypeVar("T")
L = TypeVar("L", bound=_WorkerLine)


class BadInput(ValueError):  # noqa: N818 - it names what the user gave, not our failure
    """Not the files of a run that this version can read."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(f"{path}: {why}")
        self.path = path
        self.why = why


class BadLine(BadInput):
    """A line that is neither whole nor torn by the end of its process."""

    def __init__(self, path: Path, number: int, why: str) -> None:
        ValueError.__init__(self, f"{path}:{number}: {why}")
        self.path = path
        self.number = number
        self.why = why


@dataclass(frozen=True)
class Line:
    """One line of a file: its number from 1, its bytes without the line end, its byte offset."""

    number: int
    raw: bytes
    start: int
    ended: bool


@dataclass(frozen=True)
class Whole(Generic[T]):
    """A line that holds ``value``."""

    line: Line
    value: T


@dataclass(frozen=True)
class Torn:
    """A line that its process did not live to finish."""

    line: Line


def read_lines(path: Path) -> Iterator[Line]:
    """The lines of a file as they are. Raises BadInput if it can't be read."""
    number = start = 0
    try:
        with path.open("rb") as file:
            while raw := file.readline(LONGEST_LINE):
                number += 1
                ended = raw.endswith(b"\n")
                if not ended and len(raw) == LONGEST_LINE:
                    raise BadLine(path, number, f"longer than {LONGEST_LINE} bytes: not a record")
                yield Line(number, raw[:-1] if ended else raw, start, ended)
                start += len(raw)
    except OSError as error:
        raise BadInput(path, f"cannot be read: {error.strerror}") from error


def read_records(path: Path) -> Iterator[Whole[Record] | Torn]:
    """The records of a `metrics_raw.jsonl`, or of the one in a run directory."""
    path = _inside(path, "metrics_raw.jsonl")
    if path.exists() and path.stat().st_size == 0:
        raise BadInput(path, "is empty: no record was written")
    decode = msgspec.json.Decoder(Record).decode
    return read_typed(path, decode, lambda record: (record.schema, record.attempt))


class SpokenHead(_WorkerLine, frozen=True, tag="contribution"):
    """A contribution of which only is told whose it is, and to which window."""

    rank: int
    iteration: int


class TimedHead(_WorkerLine, frozen=True, tag="call"):
    """A call, and nothing of it."""


class ReadingHead(_WorkerLine, frozen=True, tag="memory"):
    """A reading, and nothing of it."""


WorkerHead = (
    WindowOpened
    | PublicationCompleted
    | Joined
    | SpokenHead
    | TimedHead
    | ReadingHead
    | ClockOffset
    | Left
)


def read_workers(run_dir: Path) -> Iterator[tuple[Path, Whole[WorkerLine] | Torn]]:
    """The lines of all files in `workers/`, file by file in the order of their names."""
    return _workers(run_dir, msgspec.json.Decoder(WorkerLine).decode)


def read_worker_heads(run_dir: Path) -> Iterator[tuple[Path, Whole[WorkerHead] | Torn]]:
    """The same without what the lines tell of single windows, in a tenth of the time."""
    return _workers(run_dir, msgspec.json.Decoder(WorkerHead).decode)


class RanksHead(msgspec.Struct):
    """The ranks whose numbers the record of a window lacks."""

    attempt: int
    iteration: int
    missing: list[int]


def read_missing(path: Path) -> Iterator[RanksHead]:
    """What each window's record in a `metrics_raw.jsonl` lacks; lines that are none are left out."""
    decode = msgspec.json.Decoder(_Rollout).decode
    for line in read_lines(path):
        try:
            found = decode(line.raw)
        except _UNREADABLE:
            continue
        if found.kind == "rollout" and found.iteration is not None:
            missing = found.attributes.ranks.missing
            yield RanksHead(found.attempt, found.iteration, missing)


def _workers(run_dir: Path, decode: Callable[[bytes], L]) -> Iterator[tuple[Path, Whole[L] | Torn]]:
    folder = run_dir / "workers"
    for path in sorted(folder.glob("*.jsonl")) if folder.is_dir() else []:
        for line in read_typed(path, decode, lambda line: (SCHEMA, line.attempt)):
            yield path, line


def read_run_file(path: Path) -> RunFile:
    """`run.json`, or the one in a run directory."""
    return _document(_inside(path, "run.json"), RunFile)


def read_summary(path: Path) -> Summary:
    """`summary.json`, or the one in a run directory."""
    return _document(_inside(path, "summary.json"), Summary)


def _inside(path: Path, name: str) -> Path:
    if path.is_dir():
        if not (path / "run.json").exists():
            raise BadInput(path, "is not a run directory of otel-grpo: it has no run.json")
        path = path / name
    if not path.exists():
        raise BadInput(path, "does not exist")
    return path


def _document(path: Path, kind: type[T]) -> T:
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise BadInput(path, f"cannot be read: {error.strerror}") from error
    if not raw.strip():
        raise BadInput(path, "is empty")
    try:
        schema = msgspec.json.decode(raw, type=_Schema).schema
    except _UNREADABLE as error:
        raise BadInput(path, f"is not a JSON object ({_reason(error)})") from None
    if schema != SCHEMA:
        raise BadInput(path, _wrong_schema(schema))
    try:
        return msgspec.json.decode(raw, type=kind)
    except _UNREADABLE as error:
        raise BadInput(path, f"is not what {SCHEMA} says ({_reason(error)})") from None


def read_typed(
    path: Path, decode: Callable[[bytes], T], header: Callable[[T], tuple[str, int]]
) -> Iterator[Whole[T] | Torn]:
    """The lines of a file; `header` tells schema and attempt of one. Raises BadInput."""
    attempt = 0
    torn: list[Line] = []  # until the next whole line tells whether they may stand here
    for line in read_lines(path):
        try:
            value = decode(line.raw)
        except _UNREADABLE as error:
            if not _is_torn(line.raw):
                raise BadLine(path, line.number, _what_is_wrong(line.raw, error)) from None
            torn.append(line)
            continue
        schema, new_attempt = header(value)
        if schema != SCHEMA:
            raise BadLine(path, line.number, _wrong_schema(schema))
        if torn and new_attempt <= attempt:
            raise BadLine(
                path,
                torn[0].number,
                "is cut off in the middle of an attempt: the file was changed after it was written,"
                " restore it from a copy or delete the line",
            )
        yield from map(Torn, torn)
        torn.clear()
        attempt = max(attempt, new_attempt)
        yield Whole(line, value)
    yield from map(Torn, torn)


def _is_torn(raw: bytes) -> bool:
    """Whether it is the beginning of a line; after a power cut the rest may be zero bytes."""
    rest = raw.rstrip(b"\0")
    if rest != raw and not rest:
        return True
    if not rest.startswith(b"{"):
        return False
    try:
        # Half a number is malformed, not truncated, to a parser: leave it out.
        msgspec.json.decode(rest.rstrip(b"0123456789+-.eE"))
    except _UNREADABLE as error:
        return "truncated" in str(error)
    return False


def _what_is_wrong(raw: bytes, error: Exception) -> str:
    if not raw.strip():
        return "is blank: delete the line"
    try:
        schema = msgspec.json.decode(raw, type=_Schema).schema
    except msgspec.ValidationError:
        pass  # JSON, but not an object
    except _UNREADABLE:
        return f"is not JSON ({_reason(error)}): delete the line, or restore it from a copy"
    else:
        if schema is not None and schema != SCHEMA:
            return _wrong_schema(schema)
    return f"is not a record of {SCHEMA} ({_reason(error)}): delete it, or restore it from a copy"


def _reason(error: Exception) -> str:
    return str(error).split("\n")[0]


def _wrong_schema(schema: object) -> str:
    if isinstance(schema, str) and schema.startswith("otel-grpo/"):
        return (
            f"has schema {schema}, but this version reads {SCHEMA}: use the release that wrote it"
        )
    return f"was written by another tool: its schema is {schema!r}, not {SCHEMA!r}"


class _Schema(msgspec.Struct):
    schema: object = None


class _Missing(msgspec.Struct):
    missing: list[int] = []


class _Evidence(msgspec.Struct):
    ranks: _Missing = msgspec.field(default_factory=_Missing)


class _Rollout(msgspec.Struct):
    kind: str
    attempt: int
    iteration: int | None
    attributes: _Evidence
