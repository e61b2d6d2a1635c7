"""The services of docker-compose.yml as processes of this machine, on its loopback interface.

The command lines, variables and configuration files are those that Compose would give to a
container. Only what a container would have to itself is put in its place: paths, names of hosts,
ports, and the addresses to listen on.
"""

from __future__ import annotations

import contextlib
import random
import re
import shutil
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from tools.stack.build import binary
from tools.stack.compose import Service

SINK = Path(__file__).with_name("sink.yaml")
LOOPBACK = "127.0.0.1"
START_S = 60.0
STOP_S = 20.0


@dataclass(frozen=True)
class Program:
    """What runs in place of an image."""

    binary: str
    health: tuple[int, str]
    """The port, as a container has it, and the path that answer 200 when it is ready."""
    stands_in: Path | None = None
    """The configuration with which it stands in for another program."""


PROGRAMS = {
    "otel/opentelemetry-collector-contrib": Program("otelcol", (13133, "/")),
    "prom/prometheus": Program("prometheus", (9090, "/-/ready")),
    "jaegertracing/jaeger": Program("jaeger", (13133, "/status")),
    "grafana/tempo": Program("otelcol", (13133, "/"), stands_in=SINK),
}
LEFT_OUT = ("grafana/grafana",)


class CannotStartError(Exception):
    """What the user should read, without a traceback."""


# ---------------------------------------------------------------------------------------- ports


@dataclass
class Ports:
    """Which port of this machine stands for which port of a container."""

    fixed: bool = False
    """Whether a published port keeps its number; free ones are taken otherwise."""
    taken: dict[tuple[str, int], int] = field(default_factory=dict)

    def of(self, service: Service, port: int) -> int:
        key = (service.name, port)
        if key not in self.taken:
            published = service.published.get(port) if self.fixed else None
            self.taken[key] = published or self._free()
        return self.taken[key]

    def _free(self) -> int:
        # Below the range that the kernel gives to clients, so that none gets it before the server.
        for port in random.sample(range(18_000, 32_000), 1_000):
            if port not in self.taken.values() and is_free(port):
                return port
        raise CannotStartError("no free port was found")


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
        return True


def holder(port: int) -> str:
    """Who listens on `port`, in words."""
    for connection in psutil.net_connections("tcp"):
        if connection.status == psutil.CONN_LISTEN and connection.laddr.port == port:
            with contextlib.suppress(psutil.Error):
                process = psutil.Process(connection.pid)
                return f"process {process.pid}, {' '.join(process.cmdline())[:200]}"
    return "a process that this user may not see"


# --------------------------------------------------------------------------------- one process


@dataclass
class Server:
    """A process that is started, stopped and killed by its own id, and may be started again."""

    name: str
    command: list[str]
    environment: dict[str, str]
    health: str
    home: Path
    process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> Path:
        return self.home / "log"

    def start(self) -> None:
        """Returns when it is ready; raises `CannotStartError` with the end of its log."""
        self.home.mkdir(parents=True, exist_ok=True)
        # Nothing here outlives whoever started it, however that ends.
        setpriv = shutil.which("setpriv")
        guard = (setpriv, "--pdeathsig", "TERM", "--") if setpriv else ()
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*guard, *self.command],
                cwd=self.home,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C stops them in order, not all at once
            )
        deadline = time.monotonic() + START_S
        while not self.is_ready():
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                raise CannotStartError(
                    f"{self.name} did not start:\n{self.log.read_text()[-3000:]}"
                )
            time.sleep(0.05)

    def is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(self.health, timeout=1) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def _end(self, how: signal.Signals) -> None:
        if self.process is None:
            return
        self.process.send_signal(how)
        try:
            self.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process = None

    def memory(self) -> int:
        """Resident bytes."""
        assert self.process is not None
        return int(psutil.Process(self.process.pid).memory_info().rss)


# -------------------------------------------------------------------------------------- placing


@dataclass
class Place:
    """The services of one stack in one folder of this machine."""

    home: Path
    services: Sequence[Service]
    ports: Ports
    variables: dict[str, str] = field(default_factory=dict)
    """What the configuration files read beside what Compose gives."""
    scrape: str = "15s"
    """How often Prometheus reads the other servers and its rules."""

    def servers(self) -> dict[str, Server]:
        """One for each service that runs here, in the order to start them."""
        return {
            service.name: self._server(service)
            for service in self.services
            if service.image not in LEFT_OUT
        }

    def address(self, name: str, port: int) -> str:
        """`host:port` of this machine for `port` of the container of `name`."""
        service = next(each for each in self.services if each.name == name)
        return f"{LOOPBACK}:{self.ports.of(service, port)}"

    def _server(self, service: Service) -> Server:
        program = PROGRAMS[service.image]
        if program.stands_in:
            command = [f"--config={program.stands_in}"]
        else:
            command = [self._here(service, word) for word in service.command]
        port, path = program.health
        return Server(
            name=service.name,
            command=[str(binary(program.binary)), *command],
            environment={
                **{key: self._here(service, value) for key, value in service.environment.items()},
                **dict(self._defaults(service, command)),
                **self.variables,
            },
            health=f"http://{LOOPBACK}:{self.ports.of(service, port)}{path}",
            home=self.home / service.name,
        )

    def _defaults(self, service: Service, command: list[str]) -> Iterator[tuple[str, str]]:
        """The variables whose defaults, in a configuration file, are right in a container alone."""
        for word in command:
            option, _, path = word.partition("=")
            if option != "--config":
                continue
            for name, value in re.findall(r"\$\{env:(\w+):-([^}]*)\}", Path(path).read_text()):
                if name.endswith("_LISTEN_HOST"):
                    yield name, LOOPBACK
                elif name.endswith("_PORT"):
                    yield name, str(self.ports.of(service, int(value)))
                elif (here := self._here(service, value)) != value:
                    yield name, here

    def _here(self, service: Service, text: str) -> str:
        """`text` with the paths and addresses of this machine."""
        for target, source in service.mounts.items():
            path = rf"(?<![\w/.-]){re.escape(target)}(?![\w.-])"
            if re.search(path, text):
                text = re.sub(path, str(self._mounted(service, target, source)), text)
        names = {each.name: each for each in self.services}
        names.update({"localhost": service, "0.0.0.0": service})
        pattern = rf"(?<![\w.-])({'|'.join(map(re.escape, names))}):(\d+)\b"
        return re.sub(
            pattern,
            lambda found: f"{LOOPBACK}:{self.ports.of(names[found[1]], int(found[2]))}",
            text,
        )

    def _mounted(self, service: Service, target: str, source: Path | None) -> Path:
        folder = self.home / service.name / target.strip("/").replace("/", "-")
        if source is None:
            folder.mkdir(parents=True, exist_ok=True)
            return folder
        targets = source / "targets.yml"  # Prometheus reads no variables there
        if not targets.exists():
            return source
        if not folder.exists():
            shutil.copytree(source, folder)
            (folder / "targets.yml").write_text(self._here(service, targets.read_text()))
            settings = folder / "prometheus.yml"
            settings.write_text(
                settings.read_text().replace("_interval: 15s", f"_interval: {self.scrape}")
            )
        return folder


@contextlib.contextmanager
def running(servers: dict[str, Server]) -> Iterator[dict[str, Server]]:
    """Starts all in their order, stops all in the reverse one."""
    with contextlib.ExitStack() as stack:
        for server in servers.values():
            stack.callback(server.stop)
            server.start()
        yield servers


def check_ports(place: Place) -> None:
    """Raises `CannotStartError` that names who holds a port that the stack needs."""
    held = [
        f"port {port} ({name}) is taken by {holder(port)}"
        for (name, _), port in sorted(place.ports.taken.items())
        if not is_free(port)
    ]
    if held:
        raise CannotStartError("\n".join(held))
