"""What the live view of a run is told, and when."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec import UNSET
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan

from otel_grpo.records.model import Call, Contribution, Record, RolloutRecord, SinkCounts
from otel_grpo.testing import FakeClock, recorded_run
from otel_grpo.tracing.light import finished
from otel_grpo.tracing.live import CLOSE_S, LiveSources
from otel_grpo.tracing.spans import Ended


class Told:
    """A live view that sends nothing and remembers everything."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.spans: list[ReadableSpan | Ended] = []
        self.items: list[Record | Contribution | Call] = []
        self.files_at_close: dict[str, SinkCounts] = {}

    def start(self, resource: Resource, sources: LiveSources) -> None:
        self.calls.append("start")
        self.resource, self.sources = resource, sources

    def span(self, span: ReadableSpan | Ended) -> None:
        self.spans.append(span)

    def made(self, item: Record | Contribution | Call) -> None:
        self.items.append(item)

    def counts(self) -> dict[str, SinkCounts]:
        n, closed = len(self.spans), "close" in self.calls
        return {"otlp_spans": SinkCounts(n, n - 1, 0, 0 if closed else 1, unconfirmed=int(closed))}

    def hurry(self) -> None:
        self.calls.append("hurry")

    def close(self, timeout_s: float) -> None:
        self.calls.append("close")
        assert timeout_s == CLOSE_S
        self.files_at_close = self.sources.files()


def test_it_gets_every_span_and_every_record_and_is_closed_before_the_last_summary() -> None:
    """Two windows with a phase, one with an update, the run: 7 spans, 5 records."""
    told, clock = Told(), FakeClock()
    with recorded_run(clock=clock, live=told) as recorded:
        assert told.calls == ["start"]
        assert told.resource.attributes["rl.run.id"] == recorded.run.run_id
        for _ in range(2):
            with recorded.run.iteration() as it, it.phase("generation"):
                clock.advance(1)
                opened = told.sources.open_window()
                assert opened is not None
                assert [phase.phase for phase in opened.phases] == ["generation"]
        with recorded.run.iteration() as it, it.update():
            pass
    assert told.calls == ["start", "hurry", "close"]
    names = sorted(finished(span).name for span in told.spans)
    assert names == ["rl.loop"] * 3 + ["rl.optimizer_step", "rl.run"] + ["rl.sample"] * 2
    # An update's record waits for its scalars.
    assert [item.scope for item in told.items] == [  # type: ignore[union-attr]
        *("iteration", "iteration", "iteration", "update", "run")
    ]
    # All files were written before the network was waited for; the last summary came after it.
    assert told.files_at_close["metrics_raw"].written == 5
    assert told.files_at_close["spans"].written == 7
    sent = recorded.summary.observed.sinks["otlp_spans"]
    assert (sent.created, sent.written, sent.pending, sent.unconfirmed) == (7, 6, 0, 1)
    assert recorded.summary.observed.sinks["spans"].unconfirmed is UNSET


def test_what_leaves_has_no_words_of_exceptions_and_nothing_of_foreign_spans() -> None:
    """The text of an error and a prompt in another library's span stay in the process."""
    told = Told()
    with recorded_run(live=told, strict=False) as recorded:
        tracer = recorded.run.tracer_provider.get_tracer("theirs")
        with recorded.run.iteration() as it, it.phase("generation") as phase:
            phase.span.record_exception(ValueError("secret"), {"exception.message": "secret"})
            attributes: dict[str, Any] = {"rl.phase": "reward", "prompt": "secret"}
            tracer.start_span("theirs", attributes=attributes).end()
    for span in map(finished, told.spans):
        assert "secret" not in span.to_json()
    (theirs,) = (s for s in map(finished, told.spans) if s.name == "theirs")
    assert dict(theirs.attributes or {}) == {"rl.phase": "reward"}


def test_without_a_directory_it_still_gets_spans_and_records(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The disk is lost, the network is not; every record counts as dropped once, told once."""
    told = Told()
    (tmp_path / "file").write_text("")
    from otel_grpo.tracing import starting

    run = starting.start(tmp_path / "file" / "run", trainer="test", live=told)
    with run, run.iteration() as it, it.phase("generation"):
        pass
    assert [item.scope for item in told.items] == ["iteration", "run"]  # type: ignore[union-attr]
    window = told.items[0]
    assert isinstance(window, RolloutRecord)
    assert window.metrics["phase.generation.calls"] == 1
    assert sorted(finished(span).name for span in told.spans) == ["rl.loop", "rl.run", "rl.sample"]
    counts = told.sources.files()["metrics_raw"]
    assert (counts.created, counts.written, counts.dropped, counts.pending) == (2, 0, 2, 0)
    assert caplog.text.count("nothing is recorded") == 1
    assert caplog.text.count("cannot write") == 0
