"""The catalogue is what is made, what is written down, and what the rules of names allow."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.metrics import NoOpMeter

from otel_grpo import semconv
from otel_grpo.metrics import Instruments, table
from otel_grpo.metrics.catalogue import CATALOGUE

KINDS = {
    "create_counter": "counter",
    "create_histogram": "histogram",
    "create_observable_counter": "counter",
    "create_observable_gauge": "gauge",
    "create_observable_up_down_counter": "level",
}


class Ledger(NoOpMeter):
    """A meter that writes down what is made with it."""

    def __init__(self) -> None:
        super().__init__("test")
        self.made: list[tuple[Any, ...]] = []

    def __getattribute__(self, name: str) -> Any:
        method = super().__getattribute__(name)
        if name not in KINDS:
            return method

        def create(*args: Any, **options: Any) -> Any:
            bounds = options.get("explicit_bucket_boundaries_advisory", ())
            texts = [text for text in args if isinstance(text, str)]
            self.made.append((texts[0], KINDS[name], *texts[1:], bounds))
            return method(*args, **options)

        return create


def rows(scopes: set[str]) -> list[tuple[Any, ...]]:
    return sorted(
        (m.name, m.kind, m.unit, m.description, m.boundaries)
        for m in CATALOGUE
        if m.scope in scopes
    )


def test_what_is_made_is_the_catalogue(sources: Any) -> None:
    """Name, kind, unit, description and buckets of each instrument, and each one once."""
    meter = Ledger()
    Instruments(meter, sources())
    assert sorted(meter.made) == rows({"job", "process"})


def test_a_rank_counts_and_distributes_nothing_of_the_job(sources: Any) -> None:
    """Of the job it makes the gauges, which have no point there."""
    meter = Ledger()
    Instruments(meter, sources({"workers": object()}))
    job = {m.name for m in CATALOGUE if m.scope == "job" and m.kind != "gauge"}
    assert not job & {name for name, *_ in meter.made}
    assert {row[0] for row in rows({"process"})} <= {name for name, *_ in meter.made}


def test_names_follow_the_rules() -> None:
    """Lower case with dots, each once, from `semconv`, without units and totals in them."""
    names = [metric.name for metric in CATALOGUE]
    assert len(names) == len(set(names))
    known = {value for value in vars(semconv).values() if isinstance(value, str)}
    for metric in CATALOGUE:
        assert metric.name in known
        assert re.fullmatch(r"[a-z_]+(\.[a-z_]+)+", metric.name)
        assert not set(re.split(r"[._]", metric.name)) & {"total", "seconds", "bytes", "ratio"}
        assert {label.name for label in metric.labels} <= known
        assert metric.unit in {"", "1", "s", "By", "J", "W", "Cel"} or re.fullmatch(
            r"\{[a-z]+\}(/s)?", metric.unit
        )
        assert (metric.kind == "histogram") == bool(metric.boundaries)


def test_nothing_that_changes_with_each_iteration_is_a_label() -> None:
    """Iteration, step, sample and run tell apart more series than a back end can bear."""
    labels = {label.name for metric in CATALOGUE for label in metric.labels}
    never = {semconv.ITERATION, semconv.RUN_ID, semconv.OPTIMIZER_STEP, semconv.ATTEMPT}
    assert not labels & never


def test_a_page_that_lags_behind_is_seen_and_mended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`--check` fails on a changed description, and the command writes it back."""
    page = tmp_path / "metrics.md"
    right = table.PATH.read_text("utf-8")
    page.write_text(right.replace("Attempted updates.", "Updates."), "utf-8")
    monkeypatch.setattr(table, "PATH", page)
    assert table.main(["--check"]) == 1
    assert "out of date" in capsys.readouterr().err
    assert table.main([]) == 0
    assert table.main(["--check"]) == 0
    assert page.read_text("utf-8") == right
    assert table.main(["--what"]) == 2
    page.write_text("no marks", "utf-8")
    with pytest.raises(ValueError, match="no marks"):
        table.main([])


def test_the_example_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A provider of one's own, word by word: seven tokens, one window."""
    monkeypatch.chdir(tmp_path)
    (source,) = re.findall(r"```python\n(.*?)```", table.PATH.read_text("utf-8"), re.DOTALL)
    names: dict[str, Any] = {}
    exec(compile(source, "example", "exec"), names)
    found = {
        metric.name: [point.value for point in metric.data.data_points]
        for metric in names["metrics"].resource_metrics[0].scope_metrics[0].metrics
        if hasattr(metric.data.data_points[0], "value")
    }
    assert found["rl.tokens"] == [3, 4]
    assert found["rl.loop.windows"] == [0, 1, 0]  # partial: the sample is never trained on
    names["provider"].shutdown()
