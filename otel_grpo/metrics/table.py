"""The table of metrics in docs/metrics.md, generated from the catalogue.

``python -m otel_grpo.metrics.table`` writes it between its marks, ``--check`` compares it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from otel_grpo.metrics.catalogue import CATALOGUE, Label, Metric
from otel_grpo.metrics.promnames import label_of, name_of

PATH = Path(__file__).resolve().parents[2] / "docs" / "metrics.md"

_BEGIN = "<!-- begin: python -m otel_grpo.metrics.table -->\n"
_END = "<!-- end -->\n"
_SCOPES = {
    "job": "Made by the process that makes the records",
    "process": "Made by each process for itself",
}
_KINDS = {"level": "up-down counter"}


def rows() -> Iterator[str]:
    """The lines of the table, one part for each scope."""
    for scope, title in _SCOPES.items():
        yield f"### {title}\n\n"
        yield "| metric | in Prometheus | kind, unit | labels | what it is |\n"
        yield "|---|---|---|---|---|\n"
        for metric in CATALOGUE:
            if metric.scope == scope:
                yield _row(metric)
        yield "\n"
    yield "### Buckets\n\nUpper bounds, inclusive, with one bucket more above the last:\n\n"
    for boundaries in dict.fromkeys(metric.boundaries for metric in CATALOGUE):
        if boundaries:
            of = ", ".join(f"`{m.name}`" for m in CATALOGUE if m.boundaries == boundaries)
            yield f"* {of}: {', '.join(f'{bound:.10g}' for bound in boundaries)}\n"


def _row(metric: Metric) -> str:
    kind = ", ".join(filter(None, (_KINDS.get(metric.kind, metric.kind), metric.unit)))
    labels = "<br>".join(_label(label) for label in metric.labels)
    names = f"`{metric.name}` | `{name_of(metric)}`"
    return f"| {names} | {kind} | {labels} | {metric.description} |\n"


def _label(label: Label) -> str:
    known = ", ".join(label.values)
    bound = "" if label.most is None else f"at most {label.most}"
    told = "; ".join(filter(None, (known, bound)))
    return f"`{label_of(label.name)}`" + (f": {told}" if told else "")


def text(page: str) -> str:
    """The page with the table as it should be. Raises ValueError if it has no marks."""
    before, begin, rest = page.partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not (begin and end):
        raise ValueError(f"no marks {_BEGIN.strip()} and {_END.strip()}")
    return f"{before}{_BEGIN}\n{''.join(rows())}\n{_END}{after}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the table, or with ``--check`` compare it; the exit status."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments not in ([], ["--check"]):
        sys.stderr.write("usage: python -m otel_grpo.metrics.table [--check]\n")
        return 2
    page = PATH.read_text(encoding="utf-8")
    right = text(page)
    if not arguments:
        PATH.write_text(right, encoding="utf-8")
    elif page != right:
        sys.stderr.write(f"{PATH} is out of date: run python -m otel_grpo.metrics.table\n")
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
