"""What became of the last run: what a collector refused of it, and where it can be looked at."""

from __future__ import annotations

import json
import os
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlencode

from otel_grpo.cli import text
from otel_grpo.cli.checks.finding import Finding
from otel_grpo.records.model import RunFile, Summary
from otel_grpo.records.reader import BadInput, Torn, read_run_file, read_summary
from otel_grpo.records.spans import plain, read_spans, span_files
from otel_grpo.semconv import RUN_ID, SERVICE_NAME

TOPIC = "Last run"
JAEGER = "OTEL_GRPO_JAEGER_URL"
# Where `make stack` and docker-compose.yml have it.
_DEFAULT_JAEGER = "http://localhost:16686"
_TIMEOUT_S = 2.0
_SENT = ("otlp_spans", "otlp_metrics")


def find(given: Path | None) -> Path | None:
    """The directory that was given, if it is of a run, else the run that began last below `runs/`."""
    if given is not None and (given / "run.json").exists():
        return given
    files = [*(given or Path("runs")).glob("*/run.json")]
    return max(files, key=lambda file: file.stat().st_mtime).parent if files else None


def last_run(run_dir: Path) -> Iterator[Finding]:
    """Of a run in its directory."""
    try:
        run = read_run_file(run_dir)
        summary = read_summary(run_dir) if (run_dir / "summary.json").exists() else None
    except BadInput as bad:
        yield Finding(TOPIC, "bad", str(bad))
        return
    about = {"run_dir": str(run_dir), "run_id": run.run_id}
    status = "no summary yet" if summary is None else summary.status
    yield Finding(TOPIC, "good", f"{run_dir}: run {run.run_id}, {status}", about)
    if summary is not None:
        yield from _sent(summary)
    if run.attempts:
        yield _looked_at(run_dir, run, summary)


def _sent(summary: Summary) -> Iterator[Finding]:
    sinks = {name: n for name, n in summary.observed.sinks.items() if name in _SENT}
    for name, counts in sinks.items():
        unsure = counts.unconfirmed or 0
        numbers = {
            "sink": name,
            "created": counts.created,
            "written": counts.written,
            "dropped": counts.dropped,
            "unconfirmed": unsure,
            "pending": counts.pending,
            "reasons": counts.reasons,
        }
        told = text.lost(name, counts)
        if told:
            why = ", ".join(f"{reason} {n}" for reason, n in sorted(counts.reasons.items()))
            yield Finding(TOPIC, "bad", f"{told}" + (f": {why}" if why else ""), numbers)
        else:
            line = f"{name}: {counts.written} of {counts.created} taken"
            yield Finding(TOPIC, "good", line, numbers)
    if not sinks:
        yield Finding(TOPIC, "note", "nothing of it was sent; `otel-grpo replay` can do so")


def _looked_at(run_dir: Path, run: RunFile, summary: Summary | None) -> Finding:
    told = os.environ.get(JAEGER, "").strip()
    base = (told or _DEFAULT_JAEGER).rstrip("/")
    first = run.attempts[0].started_unix_ns
    last = time.time_ns() if summary is None else summary.ended_unix_ns
    query = {
        "service": _service(run_dir),
        "tags": json.dumps({RUN_ID: run.run_id}),
        "start": first // 1000,
        "end": -(-last // 1000),
        "limit": 1000,
    }
    link = f"{base}/search?{urlencode(query | {'lookback': 'custom'})}"
    about = {"jaeger": link}
    try:
        # Only what a user may have named; redirects lead nowhere else than he has sent us.
        with urllib.request.urlopen(  # noqa: S310
            f"{base}/api/traces?{urlencode(query | {'limit': 1})}", timeout=_TIMEOUT_S
        ) as answer:
            found = bool(json.load(answer).get("data"))
    except (OSError, ValueError) as error:
        if told:
            return Finding(TOPIC, "bad", f"{base} ({JAEGER}) does not answer: {error}", about)
        line = f"no Jaeger at {base} to look at it; {JAEGER} names another"
        return Finding(TOPIC, "note", line)
    if found:
        return Finding(TOPIC, "good", f"its traces: {link}", about)
    return Finding(TOPIC, "note", f"Jaeger at {base} has no trace of it", about)


def _service(run_dir: Path) -> str:
    for path in span_files(run_dir):
        for line in read_spans(path):
            if not isinstance(line, Torn):
                for each in line.value.resource_spans:
                    return str(plain(each.resource.attributes).get(SERVICE_NAME, "otel-grpo"))
    return "otel-grpo"
