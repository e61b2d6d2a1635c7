"""Lines and files as typed values; numbers keep the text that they were written with."""

from __future__ import annotations

import json
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Literal, NoReturn, TypeVar

import msgspec

from otel_grpo.records.model import (
    SCHEMA,
    Observed,
    RolloutAttributes,
    RunAttributes,
    RunFile,
    Summary,
    TrainAttributes,
)

Attributes = TrainAttributes | RolloutAttributes | RunAttributes
_T = TypeVar("_T")
Flat = dict[str, int | float | str | None]
Json = dict[str, Any]

# What the header of each kind says: scope, stage.
KINDS = {
    "train": ("update", "policy_train"),
    "rollout": ("iteration", "generation"),
    "run": ("run", "run"),
}


class Header(msgspec.Struct, frozen=True):
    """A line whose large parts are not decoded yet."""

    schema: str
    kind: Literal["train", "rollout", "run"]
    scope: str
    run_id: str
    attempt: int
    seq: int
    prev: str | None
    time_unix_ns: int
    stage: str
    iteration: int | None
    optimizer_step: int | None
    metrics: msgspec.Raw
    attributes: msgspec.Raw
    observed: msgspec.Raw
    trace_id: str | None = None
    span_id: str | None = None


@dataclass(frozen=True)
class Record:
    """One record: header, stored metrics, evidence, and for ``run`` its attributes as written."""

    head: Header
    metrics: Flat
    attributes: Attributes
    observed: Observed
    raw: Json


class OddText(float):
    """A float whose digits are not those of any value: it equals nothing, and prints as stored."""

    text: str

    def __new__(cls, text: str) -> OddText:
        number = super().__new__(cls, text)
        number.text = text
        return number

    def __repr__(self) -> str:
        return self.text


def _float(text: str) -> float:
    value = float(text)
    # Two texts can mean one float. The files hold the shortest; another one was not written by us.
    return value if Decimal(text) == Decimal(repr(value)) else OddText(text)


def _constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not JSON")


def plain(data: bytes | msgspec.Raw) -> Any:
    """JSON as plain values, floats checked for their text; ValueError where it is none."""
    return json.loads(bytes(data), parse_float=_float, parse_constant=_constant)


_header = msgspec.json.Decoder(Header)
_attributes: dict[str, msgspec.json.Decoder[Any]] = {
    "train": msgspec.json.Decoder(TrainAttributes),
    "rollout": msgspec.json.Decoder(RolloutAttributes),
    "run": msgspec.json.Decoder(RunAttributes),
}
_observed = msgspec.json.Decoder(Observed)


def _part(name: str, decoder: msgspec.json.Decoder[Any], data: msgspec.Raw) -> Any:
    try:
        return decoder.decode(data)
    except msgspec.MsgspecError as error:
        raise ValueError(f"{name}: {error}") from error


def record(line: bytes) -> Record:
    """A line as a record; ValueError says why it is none."""
    try:
        head = _header.decode(line)
    except msgspec.ValidationError as error:
        schema = _schema(line)
        if schema not in {SCHEMA, None}:
            raise ValueError(f"schema {schema!r}, this audit reads {SCHEMA!r}") from error
        raise ValueError(str(error)) from error
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"not JSON: {error}") from error
    if head.schema != SCHEMA:
        raise ValueError(f"schema {head.schema!r}, this audit reads {SCHEMA!r}")
    try:
        metrics = plain(head.metrics)
        raw = plain(head.attributes) if head.kind == "run" else {}
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not JSON: {error}") from error
    if not isinstance(metrics, dict) or not all(
        value is None or type(value) in {int, float, OddText} for value in metrics.values()
    ):
        raise ValueError("metrics: expected an object of numbers")
    return Record(
        head,
        metrics,
        _part("attributes", _attributes[head.kind], head.attributes),
        _part("observed", _observed, head.observed),
        raw,
    )


class _Prev(msgspec.Struct):
    prev: str | None


class _Schema(msgspec.Struct):
    schema: str


def prev_of(line: bytes) -> str | None:
    """``prev`` of a line that is no good record; ValueError where even that is unreadable."""
    try:
        return msgspec.json.decode(line, type=_Prev).prev
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(str(error)) from error


def is_json(line: bytes) -> bool:
    """Whether a line is whole JSON, of whatever kind."""
    try:
        msgspec.json.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return False
    return True


def _schema(data: bytes) -> str | None:
    try:
        return msgspec.json.decode(data, type=_Schema).schema
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def run_file(data: bytes) -> RunFile:
    """``run.json``; ValueError says why it is none."""
    return _whole(data, RunFile)


def summary_file(data: bytes) -> tuple[Summary, Json]:
    """``summary.json``, typed and as written."""
    return _whole(data, Summary), plain(data)


def _whole(data: bytes, kind: type[_T]) -> _T:
    schema = _schema(data)
    if schema not in {SCHEMA, None}:
        raise ValueError(f"schema {schema!r}, this audit reads {SCHEMA!r}")
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(str(error)) from error


def flat(tree: Json, prefix: str = "") -> Flat:
    """The numbers of nested objects by dotted names; lists and texts are left out."""
    result: Flat = {}
    for name, value in tree.items():
        if isinstance(value, dict):
            result |= flat(value, f"{prefix}{name}.")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            result[prefix + name] = value
    return result
