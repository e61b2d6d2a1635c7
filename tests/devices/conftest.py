"""A driver's library, compiled once a session, under the real nvidia-ml-py."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
LIBRARY = "libnvidia-ml.so.1"


@pytest.fixture(scope="session")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folders with a library each: of a driver of today, an older and a newer one."""
    pytest.importorskip("pynvml", reason="needs nvidia-ml-py")
    compiler = shutil.which("gcc")
    if compiler is None or sys.platform != "linux":
        pytest.skip("needs gcc on Linux to make the library of a driver")
    folders = {}
    for name in ("TODAY", "OLD", "NEW"):
        folder = folders[name] = tmp_path_factory.mktemp(name.lower())
        options = ("-shared", "-fPIC", "-w", f"-D{name}", f"-Wl,-soname,{LIBRARY}")
        subprocess.run(
            [compiler, *options, "-o", folder / LIBRARY, HERE / "nvml_stub.c"], check=True
        )
    return folders


@pytest.fixture
def child(libraries: dict[str, Path], tmp_path: Path) -> Callable[..., Any]:
    """Runs statements in a process that has the library; gives what `result` was at their end."""

    def run(statements: str, *, driver: str = "TODAY", **environment: str) -> Any:
        script = f"import json\n{statements}\nprint(json.dumps(result))\n"
        done = subprocess.run(
            [sys.executable, "-c", script],
            env=os.environ
            | {"LD_LIBRARY_PATH": str(libraries[driver]), "STUB_LOG": str(tmp_path / "calls")}
            | environment,
            cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    return run
