"""The AMD code objects of the library: builds them, and lists their kernels."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.hip.harness import ROOT, build


def build_code_objects(archs: Sequence[str]) -> dict[str, list[Path]]:
    """Compiles every kernel file for each architecture, as for the wheel; returns each architecture's files.

    Raises:
        RuntimeError: there is no compiler for one of the architectures.
    """
    options = {"GRAPHOPT_HIP_ARCHS": ";".join(archs), "GRAPHOPT_TESTS_ON_DEVICE": "ON"}
    folder = build(ROOT / "build" / "amd", ["device_code", "gpu_harness"], **options)
    objects = {arch: sorted((folder / arch).glob("*.co")) for arch in archs}
    missing = [arch for arch, files in objects.items() if not files]
    if missing:
        raise RuntimeError(f"no compiler for {', '.join(missing)}: clang and lld 18 or newer are needed")
    return objects


def tool(name: str) -> str:
    """Returns the path of an LLVM tool, of the newest installed version.

    Raises:
        RuntimeError: the tool is not installed.
    """
    for version in ("-22", "-21", "-20", "-19", "-18", ""):
        path = shutil.which(name + version)
        if path:
            return path
    raise RuntimeError(f"{name} is not installed")


def kernels(path: Path) -> list[str]:
    """Returns the kernel symbols of a code object: those with a kernel descriptor, `name.kd`."""
    readelf = shutil.which("readelf") or tool("llvm-readelf")
    symbols = subprocess.run([readelf, "-W", "-s", str(path)], check=True, stdout=subprocess.PIPE, text=True).stdout
    return sorted(set(re.findall(r" (\w+)\.kd$", symbols, re.MULTILINE)))


def metadata(paths: Sequence[Path]) -> dict[str, str]:
    """Returns the compiler's metadata of each kernel, as text printed by llvm-readelf."""
    command = [tool("llvm-readelf"), "--notes", *map(str, paths)]
    notes = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    found = {}
    for block in re.split(r"\n  - (?=\.a(?:gpr_count|rgs):)", notes)[1:]:
        symbol = re.search(r"\.symbol:\s+'?(\w+)\.kd", block)
        if symbol is None:
            raise RuntimeError(f"metadata without a symbol in one of {', '.join(path.name for path in paths)}")
        found[symbol[1]] = block
    return found


def parameters(paths: Sequence[Path]) -> dict[str, list[int]]:
    """Returns the parameter sizes of each kernel in bytes, with 0 for a pointer to global memory."""
    found = {}
    for name, block in metadata(paths).items():
        arguments = re.findall(r"\.size:\s+(\d+)\n\s+\.value_kind:\s+(\w+)", block)
        found[name] = [
            0 if kind == "global_buffer" else int(size) for size, kind in arguments if not kind.startswith("hidden")
        ]
    return found


def disagreement(launch: dict[str, Any], taken: list[int]) -> str:
    """Describes how the arguments of a launch differ from the kernel's parameters, or returns an empty string."""
    given = [0 if "hex" not in argument else len(argument["hex"]) // 2 for argument in launch["args"]]
    return "" if given == taken else f"{launch['kernel']} takes {taken}, the plan gives {given}"
