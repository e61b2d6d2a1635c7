"""The group of commands, and what all of them have in common: how they fail."""

from __future__ import annotations

import importlib
import io
import json
import os
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

import click

from otel_grpo._version import __version__
from otel_grpo.cli.problem import Problem
from otel_grpo.cli.text import visible

# Command -> its help. The module of the same name holds a function of the same name; it is loaded
# when the command is called, so that `run` costs a training as little as possible.
COMMANDS = {
    "run": "Observe the training that CMD starts.",
    "show": "Where the time of a run went.",
    "audit": "Recompute every number of a run from its raw evidence.",
    "finish": "Make the summary of a run that ended without one.",
    "export": "Write a run as a trace that a viewer opens.",
    "replay": "Send the spans and metrics of a run that is over to a collector.",
    "doctor": "Whether a training here would be observed and its data arrive.",
}

BAD_INPUT = 2
INTERRUPTED = 130
# As any other program whose reader has gone: 128 + SIGPIPE. It is no finding, so it is not 1.
READER_GONE = 141


class Commands(click.Group):
    """Loads a command when it is called; ends in an exit status, never in a traceback."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"otel_grpo.cli.{cmd_name}")
        command: click.Command = getattr(module, cmd_name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def invoke(self, ctx: click.Context) -> Any:
        try:
            status = super().invoke(ctx)
            # What is still in the buffer meets a closed pipe here, not after the last handler.
            sys.stdout.flush()
        except BrokenPipeError:
            _forget_stdout()
            return READER_GONE
        return status

    def main(  # type: ignore[override]  # of its parameters those that anybody gives
        self, args: Sequence[str] | None = None, prog_name: str | None = None, **extra: Any
    ) -> NoReturn:
        arguments = list(sys.argv[1:] if args is None else args)
        extra["standalone_mode"] = False
        for stream in (sys.stdout, sys.stderr):
            # A name that this terminal has no letters for is shown escaped, and the rest as it is.
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="backslashreplace")
        try:
            status = super().main(arguments, prog_name, **extra)
        except click.ClickException as problem:
            status = _report(problem, arguments)
        except (click.Abort, KeyboardInterrupt):
            status = INTERRUPTED
        except OSError as error:  # the disk behind standard output is full, a file went away
            where = str(error.filename or "standard output")
            status = _report(Problem(error.strerror or str(error), where=where), arguments)
        except Exception as error:
            if os.environ.get("OTEL_GRPO_STRICT", "").lower() == "true":
                raise
            status = _report(_internal(error), arguments)
        sys.exit(status)


def _report(problem: click.ClickException, arguments: Sequence[str]) -> int:
    """Says what is wrong: as JSON on standard output where that was asked for, else on stderr."""
    if _asks_for_json(arguments):
        what: dict[str, str | None] = {"what": problem.format_message()}
        if isinstance(problem, Problem):
            what = {"what": problem.what, "where": problem.where, "mend": problem.mend}
        click.echo(json.dumps({"error": what}))
    elif isinstance(problem, Problem):
        problem.show()
    else:
        context = getattr(problem, "ctx", None)
        command = context.command_path if context else "otel-grpo"
        hint = f"see `{command} --help`"
        click.echo(f"{command}: {visible(problem.format_message())} ({hint})", err=True)
    return BAD_INPUT


def _asks_for_json(arguments: Sequence[str]) -> bool:
    # What stands behind `run` or `--` belongs to the observed command.
    if arguments[:1] == ["run"]:
        return False
    own = arguments[: arguments.index("--")] if "--" in arguments else arguments
    return "--json" in own


def _internal(error: Exception) -> Problem:
    return Problem(
        f"{type(error).__name__}: {error}",
        where="a fault of otel-grpo itself",
        mend="set OTEL_GRPO_STRICT=true for the traceback and report it",
    )


def _forget_stdout() -> None:
    # Python flushes standard output once more at exit and would complain about the same pipe.
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, sys.stdout.fileno())
    os.close(devnull)


@click.command(
    "otel-grpo",
    cls=Commands,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, message="otel-grpo %(version)s")
@click.pass_context
def main(context: click.Context) -> None:
    """Performance observations of GRPO training that anybody can recompute.

    Exit status: 0 good, 1 the finding is bad, 2 the input or the usage is bad.
    """
    if context.invoked_subcommand is None:
        click.echo(context.get_help())
        context.exit(BAD_INPUT)
