"""``otel-grpo audit``: every number of a run, recomputed from its raw evidence."""

from __future__ import annotations

import json
from pathlib import Path

import click


@click.command()
@click.argument(
    "run_dirs", metavar="RUN_DIR...", nargs=-1, required=True, type=click.Path(path_type=Path)
)
@click.option("--json", "as_json", is_flag=True, help="For scripts: one JSON object.")
@click.option(
    "--min-coverage",
    type=click.FloatRange(0, 1),
    metavar="SHARE",
    help="Least share of the windows' time that phases must explain, from 0 to 1.",
)
def audit(run_dirs: tuple[Path, ...], as_json: bool, min_coverage: float | None) -> int:
    """Recompute every number of the runs in RUN_DIR... from their raw evidence.

    Exit status: 0 all numbers are right, 1 one is not or a byte was changed, 2 a directory can't be
    read as a run. With several directories it is the worst.
    """
    from otel_grpo.audit import audit as audit_run, render
    from otel_grpo.cli.text import visible

    reports = []
    for run_dir in run_dirs:
        report = audit_run(run_dir, min_coverage=min_coverage)
        reports.append(report)
        if not as_json:
            # One line a finding: only line ends stand as they are.
            click.echo("\n".join(visible(line) for line in render(report).split("\n")))
    status = max(report.exit_status for report in reports)
    if as_json:
        whole = {"exit_status": status, "reports": [report.to_dict() for report in reports]}
        click.echo(json.dumps(whole, indent=1))
    return status
