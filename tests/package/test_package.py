"""What is installed: whole, light to import, and with a command line of its own."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from importlib.metadata import distribution
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_the_wheel_holds_what_is_read_at_run_time(tmp_path: Path) -> None:
    """Types, schema and hooks beside the modules, nothing of the tests; built without a network."""
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    for name in (
        "py.typed",
        "records/schema/otel-grpo-1.json",
        "instrumentation/auto/sitecustomize.py",
    ):
        assert f"otel_grpo/{name}" in names
    sources = {path.relative_to(ROOT).as_posix() for path in (ROOT / "otel_grpo").rglob("*.py")}
    assert sources <= set(names)
    assert {name.partition("/")[0].partition("-")[0] for name in names} == {"otel_grpo"}


def test_entry_points_lead_somewhere() -> None:
    """`otel-grpo`, and the instrumentor that `opentelemetry-instrument` looks for."""
    points = {point.group: point for point in distribution("otel-grpo").entry_points}
    assert set(points) == {"console_scripts", "opentelemetry_instrumentor"}
    for point in points.values():
        assert callable(point.load())


@pytest.mark.parametrize(
    "start",
    [
        "import otel_grpo; otel_grpo.instrument()",
        # What Ray's workers do as they start, also those that train nothing.
        "from otel_grpo.ray.process import offer; offer({})",
    ],
)
def test_import_loads_nothing_heavy(start: str) -> None:
    """Numpy and msgspec come when a run starts; torch and the trainers when the user imports them."""
    script = (
        f"import sys; {start};"
        "print([m for m in ('numpy', 'msgspec', 'opentelemetry.sdk.trace', 'psutil', 'rich', 'torch',"
        " 'trl', 'ray') if m in sys.modules])"
    )
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"
