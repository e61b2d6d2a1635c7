"""The whole stack of docker-compose.yml on this machine, and what one asks of it."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.stack.ask import Jaeger, Prometheus
from tools.stack.compose import COMPOSE_FILE, services
from tools.stack.servers import Place, Ports, Server, check_ports, running

COLLECTOR = "otel-collector"


@dataclass(frozen=True)
class Stack:
    place: Place
    servers: dict[str, Server]

    @property
    def otlp(self) -> str:
        """The endpoint for `OTEL_EXPORTER_OTLP_ENDPOINT`, OTLP over HTTP."""
        return self.url(COLLECTOR, 4318)

    def url(self, service: str, port: int) -> str:
        """Where `port` of the container of `service` can be reached."""
        return f"http://{self.place.address(service, port)}"

    @property
    def prometheus(self) -> Prometheus:
        return Prometheus(self.url("prometheus", 9090))

    @property
    def jaeger(self) -> Jaeger:
        return Jaeger(self.url("jaeger", 16686))

    def kept_spans(self) -> list[dict[str, Any]]:
        """What arrived where Tempo would be, as OTLP JSON has spans, each with its resource."""
        return [
            {**span, "resource": resource["resource"]}
            for request in self._kept("resourceSpans")
            for resource in request
            for scope in resource["scopeSpans"]
            for span in scope["spans"]
        ]

    def _kept(self, signal: str) -> Iterator[list[dict[str, Any]]]:
        file = self.servers["tempo"].home / "sink.jsonl"
        lines = file.read_text().splitlines(keepends=True) if file.exists() else []
        for line in lines:
            if line.endswith("\n"):  # the last one may be half written
                yield json.loads(line).get(signal, [])


@contextlib.contextmanager
def running_stack(
    home: Path, *overlays: Path, fixed: bool = False, scrape: str = "15s", **variables: str
) -> Iterator[Stack]:
    """The stack in the folder `home`, until the block ends.

    `overlays` are compose files over docker-compose.yml, `fixed` keeps the published ports,
    `scrape` is how often Prometheus reads, `variables` are for the configuration files.
    """
    place = Place(home, services(COMPOSE_FILE, *overlays), Ports(fixed), variables, scrape)
    servers = place.servers()
    check_ports(place)
    with running(servers):
        yield Stack(place, servers)
