"""The whole stack of docker-compose.yml on this machine, and what one asks of it."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tools.stack.ask import Jaeger, Prometheus
from tools.stack.compose import COMPOSE_FILE, services
from tools.stack.servers import Place, Ports, Server, check_ports, running

COLLECTOR = "otel-collector"


@dataclass
class Sink:
    """The file of what stands in for Tempo: it grows, and each line is read once."""

    file: Path
    position: int = 0
    read: list[dict[str, Any]] = field(default_factory=list)

    def spans(self) -> list[dict[str, Any]]:
        if self.file.exists():
            with self.file.open("rb") as file:
                file.seek(self.position)
                for line in file:
                    if line.endswith(b"\n"):  # the last one may be half written
                        self.position += len(line)
                        self._take(json.loads(line))
        return self.read

    def _take(self, request: dict[str, Any]) -> None:
        self.read += [
            {**span, "resource": resource["resource"]}
            for resource in request.get("resourceSpans", ())
            for scope in resource["scopeSpans"]
            for span in scope["spans"]
        ]


@dataclass(frozen=True)
class Stack:
    place: Place
    servers: dict[str, Server]
    sink: Sink

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
        return list(self.sink.spans())


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
        yield Stack(place, servers, Sink(servers["tempo"].home / "sink.jsonl"))
