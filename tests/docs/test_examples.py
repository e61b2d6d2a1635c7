"""What the documentation shows is run, and what it names is there."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import otel_grpo
import otel_grpo.testing
from otel_grpo.audit import audit
from otel_grpo.cli.commands import COMMANDS
from otel_grpo.records import reader
from otel_grpo.records.model import RolloutRecord
from otel_grpo.records.writer import BOUNDS

ROOT = Path(__file__).parents[2]
# Made of the reference trainer's own lines.
OF_THE_TRAINER = ROOT / "docs" / "instrument-your-trainer.md"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]

# What the script of a trainer has, where an example shows a part of it.
A_SCRIPT = {
    "otel_grpo": otel_grpo,
    "loader": ["batch"],
    "my_generate": list,
    "advantages": [],
    "model": SimpleNamespace(
        forward_backward=lambda *, inputs, advantages: None, clip_grad_and_step=lambda: None
    ),
}


def examples(page: Path) -> list[str]:
    """Its blocks of Python."""
    return re.findall(r"^```python\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)


def run(source: str, **names: Any) -> dict[str, Any]:
    exec(compile(source, "example", "exec"), names)
    return names


@pytest.fixture(autouse=True)
def _strict(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Wrong use raises, and what an example writes goes where it may."""
    for name in ("RUN_DIR", "RUN_ID", "DISABLED"):
        monkeypatch.delenv(f"OTEL_GRPO_{name}", raising=False)
    monkeypatch.setenv("OTEL_GRPO_STRICT", "true")
    monkeypatch.chdir(tmp_path)


def test_the_loop_of_the_readme(tmp_path: Path) -> None:
    """A loop of one's own, word by word, with stand-ins for what trains."""
    source = next(text for text in examples(ROOT / "README.md") if "start_run" in text)
    done: list[str] = []
    names: dict[str, Any] = {
        "otel_grpo": otel_grpo,
        "loader": ["first", "second"],
        "generate": lambda prompts: SimpleNamespace(
            id=prompts, prompt_lengths=[2, 2, 3], completion_lengths=[5, 6, 7], groups=[0, 0, 1]
        ),
        "loss": SimpleNamespace(backward=lambda: done.append("backward")),
        "optimizer": SimpleNamespace(step=lambda: done.append("step")),
        "version": 1,
        "publish": lambda on_done: on_done(),
    }
    run(source, **names)
    assert done == ["backward", "step"] * 2
    path = tmp_path / "runs" / "x"
    lines = reader.read_records(path)
    windows = [
        line.value
        for line in lines
        if isinstance(line, reader.Whole) and isinstance(line.value, RolloutRecord)
    ]
    assert len(windows) == 2
    for window in windows:
        metrics = window.metrics
        assert window.attributes.window.status == "complete"
        assert (metrics["samples.consumed"], metrics["samples.visits"]) == (3, 3)
        assert (metrics["groups"], metrics["tokens.total"]) == (2, 25)
        assert (metrics["updates.applied"], metrics["publications"]) == (1, 1)
        phases = {"generation", "policy_train", "optimizer", "weight_sync"}
        assert phases <= {row[2] for row in window.attributes.intervals}
    summary = reader.read_summary(path)
    assert (summary.status, summary.observed.errors) == ("completed", {})
    assert audit(path).exit_status == 0


def test_the_example_of_testing() -> None:
    """The test that the docstring shows is one, and passes."""
    text = otel_grpo.testing.__doc__ or ""
    names = run(text[text.index("from otel_grpo") :])
    names["test_generation_is_timed"]()


def test_blocks_of_the_reference_trainer() -> None:
    """Each is in its source, word by word; tests/reference runs that."""
    sources = [path.read_text() for path in sorted((ROOT / "demo").rglob("*.py"))]
    blocks = examples(OF_THE_TRAINER)
    assert len(blocks) > 10
    assert [b for b in blocks if not any(f"\n{b}" in source for source in sources)] == []


@pytest.mark.parametrize("page", [p for p in PAGES if p != OF_THE_TRAINER], ids=lambda p: p.name)
def test_other_examples_run(page: Path) -> None:
    """The one line that observes a trainer, wherever it is shown."""
    for source in examples(page):
        if "start_run" not in source:
            run(source, **A_SCRIPT)
            otel_grpo.uninstrument()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_is_named_is_there(page: Path) -> None:
    """Commands, targets of make, and files that are linked."""
    text = page.read_text()
    assert set(re.findall(r"(?:^|`)otel-grpo ([a-z]+)", text, re.MULTILINE)) <= set(COMMANDS)
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"(?:^|`)make ([a-z-]+)", text, re.MULTILINE)) <= targets
    links = re.findall(r"\]\((?!https?:)([^)#]+)\)", text)
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_the_queue_is_as_long_as_the_docs_say() -> None:
    """What a kill can cost."""
    text = (ROOT / "docs" / "files.md").read_text()
    for name, what in (
        ("metrics_raw", "records"),
        ("metrics", "scalar lines"),
        ("workers", "worker lines"),
        ("spans", "spans"),
    ):
        assert f"{BOUNDS[name]:,} {what}" in text
