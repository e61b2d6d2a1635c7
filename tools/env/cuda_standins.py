"""Lets the CUDA build of torch import and train on a CPU without the 3 GB of CUDA libraries.

    python cuda_standins.py SITE_PACKAGES     (needs gcc and binutils, torch and nvidia-cuda-runtime)

The published Linux wheel of torch links the CUDA libraries, so it does not load without them, and
the registry has no CPU build. For each such library that is not installed this writes a stand-in
that exports the functions torch links, under the right soname and symbol versions. Each function
returns 1, which is an error in every one of these interfaces. None is reached on a CPU: libcudart
is the real one, so `torch.cuda.is_available()` is False in the usual way. Never use the result on
a machine with a GPU.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

# The symbols of these libraries carry no version, so a function's library is told by its prefix.
PREFIX_OF_UNVERSIONED = {
    "libcufile": "cuFile",
    "libcusparseLt": "cusparseLt",
    "libnccl": "nccl",
}
# Torch opens the driver by itself, and only where there is one.
DRIVER = "libcuda.so.1"


@dataclass
class Links:
    """What torch's own libraries ask of others."""

    libraries: set[str] = field(default_factory=set)
    functions: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    """By symbol version; "" for those without one."""
    library_of_version: dict[str, str] = field(default_factory=dict)


def main(site: Path) -> None:
    links = Links()
    for library in site.glob("torch/lib/*.so*"):
        read_links(library, links)
    installed = {path.name for path in site.glob("nvidia/**/*.so*")}
    missing = sorted(links.libraries - installed - {DRIVER})
    folder = site / "nvidia/cu13/lib"  # one of the folders on torch's own library path
    folder.mkdir(parents=True, exist_ok=True)
    for library in missing:
        versioned = {
            version: links.functions[version]
            for version, owner in links.library_of_version.items()
            if owner == library and version in links.functions
        }
        prefix = PREFIX_OF_UNVERSIONED.get(library.split(".")[0])
        unversioned = {
            name for name in links.functions[""] if prefix is not None and name.startswith(prefix)
        }
        compile_standin(folder / library, versioned, unversioned)
    print(f"{len(missing)} stand-ins for CUDA libraries")


def read_links(library: Path, links: Links) -> None:
    dynamic = output("readelf", "--dynamic", library)
    links.libraries.update(re.findall(r"NEEDED.*\[(lib(?:cu|nv|nccl)\S+)\]", dynamic))

    # "File: libcublas.so.13" is followed by a line "Name: libcublas.so.13  Flags" for each version.
    owner = ""
    versions = output("readelf", "--version-info", "--wide", library)
    for file, version in re.findall(r"File: (\S+)|Name: (\S+)  Flags", versions):
        owner = file or owner
        if version:
            links.library_of_version[version] = owner

    undefined = output("nm", "--dynamic", "--undefined-only", "--with-symbol-versions", library)
    for symbol in re.findall(r" U (\S+)", undefined):
        name, _, version = symbol.partition("@")
        links.functions[version].add(name)


def compile_standin(target: Path, versioned: dict[str, set[str]], unversioned: set[str]) -> None:
    names = sorted(unversioned.union(*versioned.values()))
    source = "".join(f"int {name}(void) {{ return 1; }}\n" for name in names) or "int nothing;\n"
    script = "".join(
        f"{version} {{ global: {' '.join(f'{name};' for name in sorted(functions))} }};\n"
        for version, functions in versioned.items()
    )
    with tempfile.TemporaryDirectory() as work:
        source_file, script_file = Path(work, "standin.c"), Path(work, "versions")
        source_file.write_text(source)
        script_file.write_text(script)
        options = ["-shared", "-fPIC", "-w", "-fno-builtin", f"-Wl,-soname,{target.name}"]
        if versioned:
            options.append(f"-Wl,--version-script={script_file}")
        output("gcc", *options, "-o", target, source_file)


def output(*command: str | Path) -> str:
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


if __name__ == "__main__":
    main(Path(sys.argv[1]))
