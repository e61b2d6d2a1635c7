"""Bad input and bad usage: one line that says what, where and how to mend it."""

from __future__ import annotations

from typing import IO, Any

import click

from otel_grpo.cli.text import visible


class Problem(click.ClickException):
    """The command can't do its work; exit status 2, never a traceback.

    `mend` is None where `what` says it already.
    """

    exit_code = 2

    def __init__(self, what: str, *, where: str, mend: str | None = None) -> None:
        super().__init__(f"{where}: {what}" + (f"; {mend}" if mend else ""))
        self.what = what
        self.where = where
        self.mend = mend

    def format_message(self) -> str:
        """The line, with nothing in it that a terminal would obey."""
        return visible(self.message)

    def show(self, file: IO[Any] | None = None) -> None:
        """Says it on standard error."""
        click.echo(f"otel-grpo: {self.format_message()}", err=file is None, file=file)
