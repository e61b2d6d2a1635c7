"""Faults that others published, with the values that are right."""

from __future__ import annotations

import json
import re
from pathlib import Path

from opentelemetry.trace import SpanKind, StatusCode

from otel_grpo.testing import recorded_run

FIFTY_MB = 50 * 10**6


def test_fault_23_span_files_can_be_imported(tmp_path: Path) -> None:
    """Jaeger's import of OTLP JSON failed on files of many lines that are no documents, on lines over
    50 MB, on ids that were empty or base64 and on enums by name: each line is a small document of its
    own, ids are 32 and 16 hex digits and never empty, kinds and codes are numbers.
    """

    class OwnError(Exception):
        pass

    with recorded_run(tmp_path / "run") as recorded:
        for number in range(400):
            try:
                with recorded.run.iteration() as it, it.phase("generation"), it.phase("reward"):
                    if number == 7:
                        raise OwnError
            except OwnError:
                pass
    (path,) = (recorded.path / "spans").glob("*.jsonl")
    lines = path.read_bytes().splitlines()
    assert max(map(len, lines)) < FIFTY_MB / 10
    spans = []
    for line in lines:
        document = json.loads(line)
        assert list(document) == ["resourceSpans"]
        spans += [
            span
            for resource in document["resourceSpans"]
            for scope in resource["scopeSpans"]
            for span in scope["spans"]
        ]
    assert len(spans) == 3 * 400 + 1
    ids = {span["spanId"] for span in spans}
    assert len(ids) == len(spans)
    internal, error = SpanKind.INTERNAL.value + 1, StatusCode.ERROR.value
    for span in spans:
        assert re.fullmatch("[0-9a-f]{32}", span["traceId"])
        assert re.fullmatch("[0-9a-f]{16}", span["spanId"])
        assert int(span["traceId"], 16)
        assert int(span["spanId"], 16)
        assert "parentSpanId" not in span or span["parentSpanId"] in ids
        assert span["kind"] == internal == 1
        assert re.fullmatch("[0-9]+", span["startTimeUnixNano"])
        for link in span.get("links", ()):
            assert re.fullmatch("[0-9a-f]{32}", link["traceId"])
            assert link["spanId"] in ids
    failed = [span["status"] for span in spans if span.get("status")]
    assert failed == [{"code": error}] * 3
    assert error == 2
