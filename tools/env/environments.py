"""The environments that `make` works in: made once for a machine, shared by every clone on it.

    environments.py make NAME...   make what is missing, print nothing when all is there (about 0.1 s)
    environments.py pythons        the supported Pythons that this machine has
    environments.py lock [NAME...] resolve the requirements afresh into constraints/

Two layers:

* The **base** holds the packages that constraints/NAME.txt pins. It lies in the user's cache folder,
  named by a hash of all that goes into it, so clones at different revisions never change each
  other's, and the compiled bytecode of torch (half a minute) is paid once.
* `.venv/NAME` in the clone is a thin environment over it (under a second): a path file that points
  at the base, this project as an editable install, and a launcher for each command of the base. So
  `otel-grpo`, its entry points and `opentelemetry-instrument` are those of this clone, in every
  child process too, and no other clone sees them.

The folder can be deleted at any time; the next call makes what it needs. `CUDA_LIBS=real` installs
torch with its CUDA libraries (3 GB), which a machine with a GPU needs. Any Python 3.8 runs this file.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import hashlib
import inspect
import os
import shlex
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

UV_VERSION = "0.13.9"
PYTHONS = ("3.10", "3.11", "3.12", "3.13")

HERE = Path(__file__).resolve().parent
CLONE = HERE.parent.parent
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "otel-grpo"
UV = CACHE / f"uv-{UV_VERSION}" / "bin" / "uv"
REAL_CUDA = os.environ.get("CUDA_LIBS") == "real"


class CannotMakeError(Exception):
    """What the user should read, without a traceback."""


@dataclass(frozen=True)
class Environment:
    name: str
    lock: str
    """constraints/LOCK.txt holds the pins."""
    pythons: tuple[str, ...]
    """The Pythons that will do, the best first."""
    proof: str
    """Statements that show that it works; running them writes the bytecode."""
    torch: bool = False
    sources: tuple[str, ...] = ()
    """Releases, as NAME==VERSION, whose source its tests read: each lies in sources/NAME-VERSION."""

    @property
    def constraints(self) -> Path:
        return HERE / "constraints" / f"{self.lock}.txt"

    @property
    def path(self) -> Path:
        return CLONE / ".venv" / self.name


@dataclass(frozen=True)
class Lock:
    """How the pins of constraints/NAME.txt are found: one resolution for all of `pythons`."""

    name: str
    sources: tuple[str, ...]
    pythons: tuple[str, ...]


LOCKS = (
    Lock("dev", ("pyproject.toml", "--group", "dev"), PYTHONS),
    Lock(
        "bench",
        (
            *("pyproject.toml", "--group", "bench"),
            *("--excludes", "tools/env/requirements/bench-exclude.txt"),
        ),
        PYTHONS[1:],
    ),
    Lock("live", ("pyproject.toml", "--group", "live"), PYTHONS[1:]),  # the dashboards' library
    Lock(
        "trl",
        (
            *("pyproject.toml", "--extra", "trl", "--group", "test"),
            "tools/env/requirements/trl.in",
            *("--excludes", "tools/env/requirements/exclude.txt"),
        ),
        PYTHONS[1:],  # TRL 1.16 needs 3.11
    ),
    Lock(
        "trl-oldest",
        (
            *("pyproject.toml", "--extra", "trl", "--group", "test"),
            "tools/env/requirements/trl-oldest.in",
            *("--excludes", "tools/env/requirements/exclude.txt"),
        ),
        PYTHONS[1:],  # as trl's
    ),
    Lock(
        "trl-deepspeed",
        (
            *("pyproject.toml", "--extra", "trl", "--group", "test"),
            *("tools/env/requirements/trl.in", "tools/env/requirements/trl-deepspeed.in"),
            *("--excludes", "tools/env/requirements/exclude.txt"),
        ),
        PYTHONS[1:],  # as trl's
    ),
    Lock(
        "ray",
        (
            *("pyproject.toml", "--extra", "ray", "--group", "test"),
            "tools/env/requirements/ray.in",
            *("--excludes", "tools/env/requirements/exclude.txt"),
        ),
        PYTHONS[1:],  # as trl's
    ),
    Lock(
        "swift",
        (
            *("pyproject.toml", "--extra", "swift", "--group", "test"),
            "tools/env/requirements/swift.in",
            *("--excludes", "tools/env/requirements/exclude.txt"),
        ),
        PYTHONS[1:],  # as trl's
    ),
    Lock(
        "twinkle",
        (
            *("pyproject.toml", "--extra", "twinkle", "--group", "test"),
            "tools/env/requirements/twinkle.in",
            *("--excludes", "tools/env/requirements/exclude.txt"),
        ),
        PYTHONS[1:3],  # its numpy and its Python (below 3.13) are pinned low
    ),
)

# The last patch of each minor release that the adapter claims, and the oldest one.
TRL_RELEASES = (
    *("1.0.0", "1.1.0", "1.2.0", "1.3.0", "1.4.0", "1.5.1", "1.6.0", "1.7.1", "1.8.0", "1.9.2"),
    *("1.10.0", "1.11.0", "1.12.0", "1.13.0", "1.14.2", "1.15.0", "1.16.0"),
)

DEV_PROOF = "import hypothesis, jsonschema, msgspec, numpy, opentelemetry.sdk.trace, pytest, rich"
ENVIRONMENTS = {
    environment.name: environment
    for environment in (
        *(Environment(f"dev-{python}", "dev", (python,), DEV_PROOF) for python in PYTHONS),
        Environment("bench", "bench", PYTHONS[1:], "import logfire, numpy"),
        Environment(
            "live",
            "live",
            PYTHONS[1:],
            "import grafana_foundation_sdk, promql_parser, pytest, yaml",
        ),
        Environment(
            *("trl", "trl", PYTHONS[1:], "from trl import GRPOTrainer"),
            torch=True,
            sources=tuple(f"trl=={release}" for release in TRL_RELEASES),
        ),
        Environment(
            "trl-oldest", "trl-oldest", PYTHONS[1:], "from trl import GRPOTrainer", torch=True
        ),
        Environment(
            *("trl-deepspeed", "trl-deepspeed", PYTHONS[1:]),
            "import deepspeed; from trl import GRPOTrainer",
            torch=True,
        ),
        Environment(
            "swift", "swift", PYTHONS[1:], "import swift.rlhf_trainers.grpo_trainer", torch=True
        ),
        Environment(
            "ray", "ray", PYTHONS[1:], "import ray, torch, transformers, pytest", torch=True
        ),
        Environment(
            "twinkle",
            "twinkle",
            PYTHONS[1:3],
            "import pytest, ray; from twinkle.model import TransformersModel",
            torch=True,
        ),
    )
}


def main() -> int:
    arguments = parse_arguments()
    # Without bytecode every process would compile every import again: 7 s for torch instead of 3.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    # An activated environment or a path of the caller's must not leak into ours.
    for variable in ("PYTHONHOME", "PYTHONPATH", "VIRTUAL_ENV"):
        os.environ.pop(variable, None)
    try:
        if arguments.command == "make":
            for name in arguments.names:
                make(ENVIRONMENTS[name])
        elif arguments.command == "lock":
            for lock in LOCKS:
                if lock.name in (arguments.names or [each.name for each in LOCKS]):
                    resolve(lock)
        else:
            print(*(python for python in PYTHONS if find_python((python,))))
    except CannotMakeError as error:
        print(f"environments: {error}", file=sys.stderr)
        return 1
    except subprocess.CalledProcessError as error:
        command = " ".join(shlex.quote(str(word)) for word in error.cmd)
        print(f"environments: failed with status {error.returncode}: {command}", file=sys.stderr)
        return 1
    return 0


def parse_arguments() -> argparse.Namespace:
    summary, _, details = (__doc__ or "").partition("\n")
    parser = argparse.ArgumentParser(
        description=summary, epilog=details, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("make").add_argument("names", nargs="+", choices=list(ENVIRONMENTS))
    locks = [each.name for each in LOCKS]
    commands.add_parser("lock").add_argument("names", nargs="*", help=f"any of {', '.join(locks)}")
    commands.add_parser("pythons")
    arguments = parser.parse_args()
    if arguments.command == "lock" and not set(arguments.names) <= set(locks):
        parser.error(f"a lock is one of {', '.join(locks)}")
    return arguments


# ----------------------------------------------------------------------------------- making one


def make(environment: Environment) -> None:
    """Makes `.venv/NAME`, and its base where no clone has made it, unless both are there."""
    sources = " ".join(environment.sources).encode()
    project = (CLONE / "pyproject.toml").read_bytes()
    wanted = digest(recipe(environment), project, bytes(CLONE), sources)
    if is_current(environment.path, wanted):
        return
    # One at a time for each environment, whoever asks: another clone may be making the same base.
    with locked(CACHE / "locks" / environment.name):
        if is_current(environment.path, wanted):
            return
        python = find_python(environment.pythons)
        if python is None:
            raise CannotMakeError(
                f"{environment.name} needs Python {' or '.join(environment.pythons)}, and none of "
                "them is on this machine (looked on PATH and among pyenv's and uv's versions)"
            )
        install_uv(python)
        base = CACHE / "env" / f"{environment.name}-{digest(recipe(environment), python.encode())}"
        if not (base / ".stamp").exists():
            make_base(environment, base, python)
        make_layer(environment, base, python)
        lay_sources(environment, base)
        write_stamp(environment.path, wanted)


def recipe(environment: Environment) -> bytes:
    """All that decides what a base holds, its Python apart."""
    parts = [environment.constraints.read_bytes(), inspect.getsource(make_base).encode()]
    if environment.torch:
        parts.append((HERE / "cuda_standins.py").read_bytes())
    return digest(*parts, bytes([REAL_CUDA])).encode()


def make_base(environment: Environment, base: Path, python: str) -> None:
    """Installs the pinned packages, proves them by an import and stamps the result."""
    print(f"making {environment.name} on {python}, once for this machine ...", file=sys.stderr)
    uv("venv", "--clear", "--python", python, base)
    # No resolver at work: the pins can't drift, and what a constraint file leaves out stays out.
    uv("pip", "sync", "--python", base / "bin/python", environment.constraints)
    if environment.torch and REAL_CUDA:
        torch = next(
            line.split(";")[0].strip()
            for line in environment.constraints.read_text().splitlines()
            if line.startswith("torch==")
        )
        uv("pip", "install", "--python", base / "bin/python", torch)
    elif environment.torch and sys.platform == "linux":
        run(base / "bin/python", HERE / "cuda_standins.py", site_packages(base))
    run(base / "bin/python", "-W", "ignore", "-c", environment.proof, stdout=subprocess.DEVNULL)
    write_stamp(base, "")


def make_layer(environment: Environment, base: Path, python: str) -> None:
    """Makes the clone's thin environment over `base`."""
    layer = environment.path
    uv("venv", "--clear", "--python", python, layer)
    (site_packages(layer) / "base_environment.pth").write_text(f"{site_packages(base)}\n")
    # The base has the build backend, so nothing is fetched for this.
    uv(
        *("pip", "install", "--no-deps", "--no-build-isolation", "--no-index"),
        *("--python", layer / "bin/python", "--editable", CLONE),
    )
    for command in sorted((base / "bin").iterdir()):
        own = layer / "bin" / command.name
        if own.exists() or not os.access(command, os.X_OK) or command.name.startswith("activate"):
            continue
        with command.open("rb") as file:
            is_script = file.read(2) == b"#!"
        if is_script:
            # A copy would start the base's Python, which does not see this clone.
            words = (shlex.quote(str(path)) for path in (layer / "bin/python", command))
            own.write_text('#!/bin/sh\nexec {} {} "$@"\n'.format(*words))
            own.chmod(0o755)
        else:
            own.symlink_to(command)


def lay_sources(environment: Environment, base: Path) -> None:
    """Lays the releases beside the clone's environment: they are read, and none is imported."""
    (environment.path / "sources").mkdir()
    for pin in environment.sources:
        name = pin.replace("==", "-")
        cached = CACHE / "sources" / name
        with locked(CACHE / "locks" / name):
            if not (cached / ".stamp").exists():
                target = ("--target", cached, "--python", base / "bin/python")
                uv("pip", "install", "--no-deps", *target, pin)
                write_stamp(cached, "")
        (environment.path / "sources" / name).symlink_to(cached)


def site_packages(environment: Path) -> Path:
    return next((environment / "lib").glob("python*/site-packages"))


def is_current(path: Path, stamp: str) -> bool:
    """Whether `path` was made for `stamp` and neither its Python nor its base has gone since."""
    try:
        bases = (site_packages(path) / "base_environment.pth").read_text().splitlines()
        return (
            (path / ".stamp").read_text() == stamp
            and (path / "bin/python").exists()
            and all(Path(base).exists() for base in bases)
        )
    except (OSError, StopIteration):
        return False


def write_stamp(path: Path, stamp: str) -> None:
    (path / ".stamp").write_text(stamp)


# ------------------------------------------------------------------------------- finding Pythons


def find_python(versions: tuple[str, ...]) -> str | None:
    """The real path of the first of `versions` that this machine has and that runs."""
    for version in versions:
        for candidate in candidates(version):
            # Asked, not trusted: a shim of pyenv lies on PATH also for a version it will not run.
            question = "import sys; print('%d.%d' % sys.version_info[:2], sys.executable)"
            answer = subprocess.run(
                [candidate, "-ISc", question],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                check=False,
            )
            found, _, executable = answer.stdout.strip().partition(" ")
            if answer.returncode == 0 and found == version and executable:
                return os.path.realpath(executable)
    return None


def candidates(version: str) -> Iterator[Path]:
    """Where Python `version` may be: pyenv's and uv's own folders (no shim to start), then PATH."""
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    data = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local/share")
    managed = [
        *pyenv.glob(f"versions/{version}.*/bin/python{version}"),
        *data.glob(f"uv/python/cpython-{version}.*/bin/python{version}"),
    ]
    yield from sorted(managed, key=patch_number, reverse=True)
    for folder in os.get_exec_path():
        for name in (f"python{version}", "python3"):
            path = Path(folder) / name
            if os.access(path, os.X_OK):
                yield path


def patch_number(python: Path) -> int:
    """12 for .../3.11.12/bin/python3.11 and .../cpython-3.11.12-linux-x86_64-gnu/bin/python3.11."""
    release = python.parent.parent.name
    digits = release.split(".", 2)[2].split("-")[0]
    return int(digits) if digits.isdigit() else -1  # a release candidate or a build of one's own


# --------------------------------------------------------------------------------------- uv


def install_uv(python: str) -> None:
    if UV.exists():
        return
    with locked(CACHE / "locks" / "uv"):
        if UV.exists():
            return
        home = UV.parent.parent
        try:
            run(python, "-m", "venv", "--clear", home)
            run(home / "bin/python", "-m", "pip", "install", "--quiet", f"uv=={UV_VERSION}")
        except subprocess.CalledProcessError as error:
            raise CannotMakeError(
                f"could not install uv {UV_VERSION} with {python}: is its venv module there (on "
                "Debian the package python3-venv), and can pip reach the package registry?"
            ) from error


def uv(*arguments: object) -> None:
    run(UV, arguments[0], "--quiet", *arguments[1:])


def resolve(lock: Lock) -> None:
    """Resolves `lock` afresh into its constraint file."""
    target = HERE / "constraints" / f"{lock.name}.txt"
    python = find_python(lock.pythons)
    if python is None:
        raise CannotMakeError(f"{lock.name} needs Python {' or '.join(lock.pythons)} to resolve")
    install_uv(python)
    with tempfile.TemporaryDirectory() as folder:
        resolved = Path(folder, "pins.txt")  # not the target: uv would keep the pins it finds there
        uv(
            *("pip", "compile", "--universal", "--python-version", lock.pythons[0]),
            *("--no-header", "--no-annotate", "--no-emit-index-url"),
            *("--output-file", resolved, *lock.sources),
        )
        pins = resolved.read_text()
    target.write_text(f"# Made by `make lock`, for Python {lock.pythons[0]} and later.\n{pins}")
    print(f"{target.relative_to(CLONE)}: {len(pins.splitlines())} pins")


# ------------------------------------------------------------------------------------- helpers


def run(*command: object, stdout: int | None = None) -> None:
    """Runs `command` in the clone; an error ends all with its command line."""
    words = [str(word) for word in command]
    variables = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run(
        words, cwd=CLONE, env=variables, stdin=subprocess.DEVNULL, stdout=stdout, check=True
    )


def digest(*parts: bytes) -> str:
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Holds a lock that ends with the process, however that ends."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


if __name__ == "__main__":
    sys.exit(main())
