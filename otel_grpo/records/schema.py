"""The JSON Schema (2020-12) of the files, generated from the structs of `model`.

``python -m otel_grpo.records.schema`` writes it, ``--check`` compares it: the file in the package is
never edited by hand.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from otel_grpo.records.model import SCHEMA, Record, RunFile, Summary, WorkerLine

if TYPE_CHECKING:
    from collections.abc import Sequence

PATH = Path(__file__).parent / "schema" / "otel-grpo-1.json"

_FILES = {
    "Record": (Record, "A line of metrics_raw.jsonl."),
    "WorkerLine": (WorkerLine, "A line of a file in workers/."),
    "RunFile": (RunFile, "run.json."),
    "Summary": (Summary, "summary.json."),
}


def generate() -> dict[str, Any]:
    """The schema: a definition per file (``#/$defs/Record`` and so on), any of them at the top."""
    files, parts = msgspec.json.schema_components(
        [kind for kind, _ in _FILES.values()], ref_template="#/$defs/{name}"
    )
    definitions = dict(parts)
    for (name, (_, title)), schema in zip(_FILES.items(), files, strict=True):
        definitions.setdefault(name, {"description": title, **schema})
    for definition in definitions.values():
        # A type can't say it: the name of the schema is written in full, and always.
        if "schema" in definition.get("properties", ()):
            definition["properties"]["schema"] = {"const": SCHEMA}
            definition["required"] = sorted({*definition["required"], "schema"})
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:{SCHEMA.replace('/', ':')}",
        "title": SCHEMA,
        "anyOf": [{"$ref": f"#/$defs/{name}"} for name in _FILES],
        "$defs": dict(sorted(definitions.items())),
    }


def text() -> str:
    """The schema as it stands in the file."""
    return json.dumps(generate(), indent=1, ensure_ascii=False) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the file, or with ``--check`` compare it; the exit status."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments not in ([], ["--check"]):
        sys.stderr.write("usage: python -m otel_grpo.records.schema [--check]\n")
        return 2
    if not arguments:
        PATH.parent.mkdir(exist_ok=True)
        PATH.write_text(text(), encoding="utf-8")
        return 0
    if not PATH.exists() or PATH.read_text(encoding="utf-8") != text():
        sys.stderr.write(f"{PATH} is out of date: run python -m otel_grpo.records.schema\n")
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
