"""``otel-grpo show``: where the time of a run went."""

from __future__ import annotations

import json
from pathlib import Path

import click


@click.command()
@click.argument("run_dir", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="For scripts: one JSON object.")
def show(run_dir: Path, as_json: bool) -> None:
    """Where the time of the run in RUN_DIR went, also while it goes on.

    Plain text of 80 columns where standard output is no terminal.
    """
    from otel_grpo.cli.load import load

    view = load(run_dir)
    if as_json:
        click.echo(json.dumps(view.to_dict(), indent=1))
        return
    from otel_grpo.cli import page
    from otel_grpo.cli.show_page import page as blocks

    page.write(blocks(view))
