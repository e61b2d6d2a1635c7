"""What docker-compose.yml says, read by Compose itself: no engine is needed for that."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tools.env.environments import CLONE

COMPOSE_FILE = CLONE / "docker-compose.yml"


@dataclass(frozen=True)
class Service:
    """One service, as Compose would start it."""

    name: str
    image: str
    """Without its tag."""
    command: tuple[str, ...]
    environment: dict[str, str] = field(default_factory=dict)
    mounts: dict[str, Path | None] = field(default_factory=dict)
    """A path in the container: the file or folder of this machine, None for a volume."""
    published: dict[int, int] = field(default_factory=dict)
    """A port in the container: the port of this machine."""
    needs: tuple[str, ...] = ()


def compose(*arguments: str | Path, environ: Mapping[str, str] | None = None) -> str:
    """What Compose answers; raises `CalledProcessError` with its words in `stderr`."""
    command = [Path(sys.executable).with_name("docker-compose"), *arguments]
    return subprocess.run(
        command,
        cwd=CLONE,
        env={**os.environ, **(environ or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=True,
    ).stdout


def services(*files: Path, environ: Mapping[str, str] | None = None) -> list[Service]:
    """The services of `files`, laid over each other, each after those that it needs."""
    options = [word for file in files for word in ("--file", str(file))]
    rendered = json.loads(compose(*options, "config", "--format", "json", environ=environ))
    found = {name: _service(name, said) for name, said in rendered["services"].items()}
    return _in_order(found)


def _service(name: str, said: dict[str, Any]) -> Service:
    return Service(
        name=name,
        image=said["image"].rpartition(":")[0],
        command=tuple(said["command"] or ()),
        environment=said.get("environment") or {},
        mounts={
            mount["target"]: Path(mount["source"]) if mount["type"] == "bind" else None
            for mount in said.get("volumes", ())
        },
        published={port["target"]: int(port["published"]) for port in said.get("ports", ())},
        needs=tuple(said.get("depends_on", ())),
    )


def _in_order(found: dict[str, Service]) -> list[Service]:
    ordered: list[Service] = []

    def add(name: str) -> None:
        for needed in found[name].needs:
            add(needed)
        if found[name] not in ordered:
            ordered.append(found[name])

    for name in found:
        add(name)
    return ordered
