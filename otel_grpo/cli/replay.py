"""``otel-grpo replay``: a run that is over, sent to a collector."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from otel_grpo.cli import endpoint
from otel_grpo.cli.problem import Problem

if TYPE_CHECKING:
    from otel_grpo.otlp.answer import Signal
    from otel_grpo.replay.sending import Account

# What Prometheus still takes by deploy/prometheus/prometheus.yml.
_WINDOW_S = 24 * 3600
# Requests that are named one by one.
_NAMED = 8
_SIGNALS: dict[Signal, tuple[str, str]] = {
    "traces": ("spans", "span"),
    "metrics": ("metrics", "request"),
}


@click.command()
@click.argument("run_dir", type=click.Path(path_type=Path))
@click.option(
    "--otlp",
    metavar="URL",
    help="Where a collector listens, such as http://localhost:4318. Default: what the standard "
    "variables say; protocol, headers and certificates are theirs in any case.",
)
@click.option("--json", "as_json", is_flag=True, help="For scripts: one JSON object.")
def replay(run_dir: Path, otlp: str | None, as_json: bool) -> int:
    """Send the spans and metrics of the run in RUN_DIR to a collector.

    Ids and instants are those of the run, so that a second time changes nothing. Exit status: 0 all
    was taken, 1 not all, 2 RUN_DIR or URL is bad.
    """
    from otel_grpo.cli import receiver
    from otel_grpo.cli.load import check_directory, clear_errors
    from otel_grpo.records.reader import BadInput, read_run_file

    check_directory(run_dir)
    if otlp is not None:
        receiver.point_to(otlp)
    elif not endpoint.told(os.environ):
        mend = "--otlp http://localhost:4318, say, or OTEL_EXPORTER_OTLP_ENDPOINT"
        raise Problem("nobody says where to send it", where="otel-grpo replay", mend=mend)
    with clear_errors():
        run = read_run_file(run_dir)
        if not run.attempts:
            raise BadInput(run_dir / "run.json", "has no attempt")
        from otel_grpo.replay.run import send_metrics, send_spans
        from otel_grpo.replay.sending import Sender

        ways = {
            signal: receiver.transport(signal, protocol)
            for signal, protocol in receiver.protocols().items()
            if protocol is not None
        }
        accounts: dict[Signal, Account] = {}
        torn, missed = 0, dict[str, list[str]]()
        for signal, transport in ways.items():
            sender = Sender(transport)
            if signal == "traces":
                torn = send_spans(run_dir, sender)
            else:
                missed = send_metrics(run_dir, run, sender)
            transport.close()
            accounts[signal] = sender.account
    wheres = {signal: transport.where for signal, transport in ways.items()}
    age_s = time.time() - run.attempts[-1].started_unix_ns / 1e9
    if not any(account.created for account in accounts.values()):
        raise Problem("there is nothing in it to send", where=str(run_dir))
    if as_json:
        whole = {
            signal: _plain(account) | {"where": wheres[signal]}
            for signal, account in accounts.items()
        }
        told = {"torn_lines": torn, "requests_not_taken": missed}
        click.echo(json.dumps(whole | told, indent=1))
    else:
        for line in _lines(accounts, wheres, missed, torn, old=age_s > _WINDOW_S):
            click.echo(line)
    return int(any(account.lost for account in accounts.values()))


def _lines(
    accounts: Mapping[Signal, Account],
    wheres: Mapping[Signal, str],
    missed: dict[str, list[str]],
    torn: int,
    *,
    old: bool,
) -> Iterator[str]:
    from otel_grpo.cli.text import count, visible

    for signal, account in accounts.items():
        name, noun = _SIGNALS[signal]
        where = visible(wheres[signal])
        yield f"{name}: {account.taken} of {count(account.created, noun)} taken by {where}"
        for reason, n in account.lost.items():
            yield f"  {n} not taken, {visible(reason)}: {visible(account.said[reason])}"
            if signal == "metrics" and missed.get(reason):
                yield f"    {_named(missed[reason])}"
        if account.unconfirmed:
            yield f"  {account.unconfirmed} of these were sent without an answer and may be there"
    if torn:
        yield f"{count(torn, 'line')} of spans/ cut off when its process was killed, left out"
    if old and "metrics" in accounts:
        yield (
            "the run is older than 24 h: Prometheus may have refused its samples behind the "
            "collector (out_of_order_time_window)"
        )


def _named(requests: list[str]) -> str:
    shown = ", ".join(requests[:_NAMED])
    rest = len(requests) - _NAMED
    return f"{shown} and {rest} more up to {requests[-1]}" if rest > 0 else shown


def _plain(account: Account) -> dict[str, Any]:
    return {
        "created": account.created,
        "taken": account.taken,
        "lost": dict(account.lost),
        "unconfirmed": account.unconfirmed,
        "said": account.said,
    }
