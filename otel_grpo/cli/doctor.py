"""``otel-grpo doctor``: whether a training here would be observed, and its data arrive."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from otel_grpo.cli.run import RUN_DIR

if TYPE_CHECKING:
    from otel_grpo.cli.checks.finding import Finding

_LABELS = {"good": "ok", "note": "note", "bad": "BAD"}


@click.command()
@click.option(
    "--otlp",
    metavar="URL",
    help="A collector to ask, as if `run` had been told it. Default: what the variables say.",
)
@click.option(
    "--run-dir",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Directory that a run will use or has used. Default: runs/, and the last run in it.",
)
@click.option("--json", "as_json", is_flag=True, help="For scripts: one JSON object.")
def doctor(otlp: str | None, run_dir: Path | None, as_json: bool) -> int:
    """Tell what is installed, what is observed, and whether a collector takes our data.

    No value of a header or another secret is printed, and nothing stays behind in a collector or a
    directory. Exit status: 0 all is fine, 1 a finding is bad, 2 wrong usage.
    """
    from otel_grpo.cli.endpoint import checked

    if otlp is not None:
        checked(otlp)
    findings = list(_findings(otlp, run_dir))
    status = int(any(each.state == "bad" for each in findings))
    if as_json:
        whole = {"exit_status": status, "findings": [each.to_dict() for each in findings]}
        click.echo(json.dumps(whole, indent=1))
        return status
    from otel_grpo.cli import page
    from otel_grpo.cli.text import visible

    blocks: list[page.Block] = []
    for topic, of_topic in itertools.groupby(findings, lambda each: each.topic):
        blocks.append(page.Heading(topic))
        blocks += [page.Line(_LABELS[each.state], visible(each.text)) for each in of_topic]
    page.write(blocks)
    return status


def _findings(otlp: str | None, run_dir: Path | None) -> Iterator[Finding]:
    from otel_grpo.cli.checks import collector, directory, installed, last_run, trainers

    told = os.environ.get(RUN_DIR, "").strip()
    given = run_dir or (Path(told) if told else None)
    yield from installed.installed(trainers.packages())
    yield from trainers.trainers()
    yield from collector.collector(otlp)
    yield from directory.directory(given or Path("runs"))
    last = last_run.find(given)
    if last is not None:
        yield from last_run.last_run(last)
