"""The lines of ``spans/`` as typed structs: one OTLP/JSON ExportTraceServiceRequest each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from otel_grpo.records.model import SCHEMA
from otel_grpo.records.reader import Torn, Whole, read_typed
from otel_grpo.semconv import ATTEMPT


class Attribute(msgspec.Struct):
    """``value`` has one key, which says the type: ``{"intValue": "1"}``."""

    key: str
    value: dict[str, Any]


class Event(msgspec.Struct, rename="camel"):
    time_unix_nano: str
    name: str = ""
    attributes: list[Attribute] = []


class Link(msgspec.Struct, rename="camel"):
    trace_id: str
    span_id: str
    attributes: list[Attribute] = []


class Status(msgspec.Struct):
    code: int = 0


class Span(msgspec.Struct, rename="camel"):
    """Ids are hex; instants are Unix nanoseconds as decimal strings."""

    trace_id: str
    span_id: str
    name: str
    start_time_unix_nano: str
    end_time_unix_nano: str
    parent_span_id: str = ""
    flags: int = 0
    kind: int = 0
    attributes: list[Attribute] = []
    events: list[Event] = []
    links: list[Link] = []
    dropped_attributes_count: int = 0
    status: Status = msgspec.field(default_factory=Status)

    @property
    def start_ns(self) -> int:
        return int(self.start_time_unix_nano)

    @property
    def end_ns(self) -> int:
        return int(self.end_time_unix_nano)


class Scope(msgspec.Struct):
    name: str = ""
    version: str = ""


class ScopeSpans(msgspec.Struct):
    scope: Scope = msgspec.field(default_factory=Scope)
    spans: list[Span] = []


class Resource(msgspec.Struct):
    attributes: list[Attribute] = []


class ResourceSpans(msgspec.Struct, rename="camel"):
    resource: Resource = msgspec.field(default_factory=Resource)
    scope_spans: list[ScopeSpans] = []


class Request(msgspec.Struct, rename="camel"):
    """What one line holds."""

    resource_spans: list[ResourceSpans]

    @property
    def attempt(self) -> int:
        """Of the run, as its process knew it; 0 where it did not."""
        for each in self.resource_spans:
            attempt = plain(each.resource.attributes).get(ATTEMPT)
            if isinstance(attempt, int):
                return attempt
        return 0


def span_files(run_dir: Path) -> list[Path]:
    """By name."""
    return sorted((run_dir / "spans").glob("*.jsonl"))


def read_spans(path: Path) -> Iterator[Whole[Request] | Torn]:
    """The lines of a file of `spans/`. Raises `reader.BadInput`."""
    decode = msgspec.json.Decoder(Request).decode
    return read_typed(path, decode, lambda request: (SCHEMA, request.attempt))


def plain(attributes: Iterable[Attribute]) -> dict[str, Any]:
    """Names and values; of those that are no text and no number, and of numbers that JSON has not,
    what the file has.
    """
    return {each.key: _plain(each.value) for each in attributes}


def _plain(value: dict[str, Any]) -> Any:
    kind, content = next(iter(value.items()), ("", ""))
    try:
        return int(content) if kind == "intValue" else content
    except ValueError:
        return content
