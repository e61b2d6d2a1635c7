"""Writes `dashboards/json`, or says whether it is what this code makes (`--check`)."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from grafana_foundation_sdk.cog.encoder import JSONEncoder

from dashboards import fleet, health, run

HERE = Path(__file__).parent / "json"


def rendered() -> dict[Path, str]:
    """The text of each file."""
    dashboards = {"run": run.build(), "fleet": fleet.build(), "health": health.build()}
    return {
        HERE / f"{name}.json": json.dumps(board, cls=JSONEncoder, indent=1, sort_keys=True) + "\n"
        for name, board in dashboards.items()
    }


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="dashboards", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing, fail when stale")
    check = parser.parse_args(arguments).check
    stale = [path for path, text in rendered().items() if not _holds(path, text)]
    if check:
        for path in stale:
            sys.stdout.write(f"{path.name} is not what the code makes: python -m dashboards\n")
        return bool(stale)
    HERE.mkdir(exist_ok=True)
    for path, text in rendered().items():
        path.write_text(text, encoding="utf-8")
    return 0


def _holds(path: Path, text: str) -> bool:
    return path.is_file() and path.read_text(encoding="utf-8") == text


if __name__ == "__main__":
    sys.exit(main())
