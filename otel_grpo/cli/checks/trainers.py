"""Which trainer is observed, and whether the hooks fit the one that is installed.

A trainer is imported in a process of its own: this one stays as it is.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from importlib.metadata import requires
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from otel_grpo.cli.checks.finding import Finding
from otel_grpo.cli.checks.installed import version_of
from otel_grpo.instrumentation import ADAPTERS, DISABLED
from otel_grpo.instrumentation.base import unsupported_version

TOPIC = "Trainers"
# To import torch and a trainer takes some seconds, and half a minute the first time.
TIMEOUT_S = 180

# Imports the trainer as a user's program does, and tells what was hooked and what was said of it.
_CHILD = """
import importlib, json, logging, sys
said = []
class Keep(logging.Handler):
    def emit(self, record):
        said.append(record.getMessage())
logging.getLogger("otel_grpo").addHandler(Keep())
from otel_grpo import instrumentation
instrumentation.instrument()
for name in sys.argv[1:]:
    importlib.import_module(name)
hooks = instrumentation._applied.get(sys.argv[1])
done = [] if hooks is None else hooks._patches._done
names = [f"{getattr(owner, '__name__', owner)}.{name}" for owner, name, _, _ in done]
notes = list(getattr(hooks, "notes", ()))
print("\\n" + json.dumps({"hooks": names, "said": said, "notes": notes}))
"""


def contracts() -> dict[str, Any]:
    """Module of a trainer -> what its adapter expects."""
    return {
        module: importlib.import_module(f"{hooks.rpartition('.')[0]}.contract")
        for module, hooks in ADAPTERS.items()
    }


def packages() -> list[str]:
    """Those that hold a trainer that is observed."""
    return [contract.PACKAGE for contract in contracts().values()]


def trainers() -> Iterator[Finding]:
    """Of each trainer that is installed."""
    if os.environ.get(DISABLED, "").strip().lower() == "true":
        text = f"{DISABLED} is true: no trainer is observed; unset it"
        yield Finding(TOPIC, "bad", text)
        return
    here = {
        module: (contract, number)
        for module, contract in contracts().items()
        if (number := version_of(contract.PACKAGE)) is not None
    }
    for module, (contract, number) in here.items():
        about = {"trainer": contract.PACKAGE, "version": number, "supported": contract.SUPPORTED}
        reason = unsupported_version(contract.PACKAGE, contract.SUPPORTED)
        host = _brought_by(contract.PACKAGE, [each.PACKAGE for each, _ in here.values()])
        if reason is not None and host is not None:
            text = f"{contract.PACKAGE} {number} is there for {host} and not observed by itself"
            yield Finding(TOPIC, "note", text, about)
        elif reason is not None:
            yield Finding(TOPIC, "bad", f"not observed: {reason}", about)
        else:
            modules = (module, *getattr(contract, "LATER", ()))
            name, optional = f"{contract.PACKAGE} {number}", False
            if module in getattr(contract, "OPTIONAL", ()):
                # A part of the trainer that needs packages which few have.
                name, optional = f"{name}, {module}", True
            yield _hooked(modules, name, about, optional=optional)
    if not here:
        text = f"none is installed ({', '.join(packages())}); a loop of your own needs none"
        yield Finding(TOPIC, "note", text)


def _brought_by(package: str, trainers: list[str]) -> str | None:
    """The trainer that needs this package itself."""
    for trainer in trainers:
        for requirement in requires(trainer) or ():
            if canonicalize_name(Requirement(requirement).name) == canonicalize_name(package):
                return trainer
    return None


def _hooked(modules: Sequence[str], name: str, about: dict[str, Any], *, optional: bool) -> Finding:
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    try:
        child = subprocess.run(  # noqa: S603 - our own words
            [sys.executable, "-c", _CHILD, *modules],
            check=False,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            env=environment,
        )
    except subprocess.TimeoutExpired:
        text = f"{name} took more than {TIMEOUT_S} s to be imported: its hooks were not looked at"
        return Finding(TOPIC, "note", text, about)
    *_, last = child.stdout.splitlines() or [""]
    try:
        told = json.loads(last)
    except ValueError:
        *_, why = child.stderr.strip().splitlines() or [f"exit status {child.returncode}"]
        text = f"{name} can't be imported: {why}"
        return Finding(TOPIC, "note" if optional else "bad", text, about)
    about |= told
    if told["said"]:
        return Finding(TOPIC, "bad", f"{name}: {'; '.join(told['said'])}", about)
    if not told["hooks"]:
        return Finding(TOPIC, "bad", f"{name} was imported, and nothing of it was hooked", about)
    n = len(told["hooks"])
    text = "; ".join([f"{name} is observed by {n} hooks, all of which fit", *told["notes"]])
    return Finding(TOPIC, "good", text, about)
