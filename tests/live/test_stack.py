"""The stack itself: who may reach it, whether it is well, what it complains of."""

from __future__ import annotations

import re
import socket
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from tools.stack.build import binary
from tools.stack.compose import services
from tools.stack.servers import CannotStartError, is_free
from tools.stack.stack import Stack, running_stack

if TYPE_CHECKING:
    from conftest import Demo

#: What the servers may complain of, and why it is no fault.
EXPLAINED = (
    # Two tests send what Prometheus must refuse.
    r"out of bounds|too old sample|Delta|delta temporality",
    # Its pages are no part of its module.
    r"ui assets not embedded",
)


def test_nothing_listens_to_other_machines(stack: Stack) -> None:
    """Every socket of every server is one of the loopback interface."""
    for server in stack.servers.values():
        assert server.process is not None
        listening = {
            connection.laddr.ip
            for connection in psutil.Process(server.process.pid).net_connections("tcp")
            if connection.status == psutil.CONN_LISTEN
        }
        assert listening == {"127.0.0.1"}, server.name


def test_the_health_check_of_prometheus_passes(stack: Stack) -> None:
    """The command that compose gives, but for the address."""
    checked = subprocess.run(
        [binary("promtool"), "check", "ready", f"--url={stack.prometheus.url}"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 0, checked.stderr


def test_prometheus_reads_all_servers(stack: Stack) -> None:
    """Itself, the collector and Jaeger answer when it asks for their metrics."""
    up = {sample.labels["job"]: sample.value for sample in stack.prometheus.query("up")}
    assert up == {"prometheus": 1, "otelcol": 1, "jaeger": 1}


def test_a_taken_port_is_named_with_its_holder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process id and command of who holds it, and no server is started."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        monkeypatch.setenv("PROMETHEUS_PORT", str(port))
        assert not is_free(port)
        with pytest.raises(CannotStartError) as refused:
            with running_stack(tmp_path, fixed=True):
                pass
    said = str(refused.value)
    assert f"port {port} (prometheus) is taken by process {psutil.Process().pid}" in said
    assert list(tmp_path.rglob("log")) == []


def test_ports_move_by_the_variables_of_compose(monkeypatch: pytest.MonkeyPatch) -> None:
    """A published port is the one that was asked for."""
    monkeypatch.setenv("OTELCOL_HTTP_PORT", "24318")
    (collector,) = [each for each in services() if each.name == "otel-collector"]
    assert collector.published == {4317: 4317, 4318: 24318, 13133: 13133}


def test_no_server_complains(stack: Stack, demos: dict[str, Demo]) -> None:
    """Of deprecated names, refused data, dropped spans: of nothing at all."""
    complaints = [
        line
        for server in stack.servers.values()
        for line in server.log.read_text().splitlines()
        if re.search(r"\t(warn|error)\t|level=(WARN|ERROR)|deprecated", line)
        and not any(re.search(pattern, line) for pattern in EXPLAINED)
    ]
    assert complaints == []
