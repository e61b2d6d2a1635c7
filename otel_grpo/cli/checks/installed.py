"""Which packages are here."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from otel_grpo._version import __version__
from otel_grpo.cli.checks.finding import Finding

TOPIC = "Installed"
_PACKAGES = (
    "opentelemetry-api",
    "opentelemetry-sdk",
    "opentelemetry-exporter-otlp-proto-http",
    "opentelemetry-exporter-otlp-proto-grpc",
    "torch",
    "ray",
    "nvidia-ml-py",
)
_DRIVER = Path("/proc/driver/nvidia/version")


def version_of(package: str) -> str | None:
    """None where it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def installed(trainers: list[str]) -> Iterator[Finding]:
    """Versions of what matters here; `trainers` are the packages that are observed."""
    found = {package: version_of(package) for package in (*_PACKAGES, *trainers)}
    here = ", ".join(f"{package} {number}" for package, number in found.items() if number)
    versions = {"otel-grpo": __version__, "python": platform.python_version(), **found}
    text = f"otel-grpo {__version__}, Python {platform.python_version()}, {here}"
    yield Finding(TOPIC, "good", text, {"versions": versions})
    absent = [package for package, number in found.items() if not number]
    if absent:
        yield Finding(TOPIC, "note", f"not installed: {', '.join(absent)}")
    if _DRIVER.exists() and not found["nvidia-ml-py"]:
        text = "GPUs of NVIDIA are here, and nothing reads them: pip install 'otel-grpo[nvml]'"
        yield Finding(TOPIC, "note", text)
