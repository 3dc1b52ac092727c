"""The AMD code objects that the library carries: building them, and the kernels that are in one."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.hip.harness import ROOT, build


def build_code_objects(archs: Sequence[str]) -> dict[str, list[Path]]:
    """Compile every kernel file for each architecture, as the wheel does; returns the files of each architecture.

    Raises:
        RuntimeError: when there is no compiler for one of the architectures.

    """
    folder = build(ROOT / "build" / "amd", ["device_code", "gpu_harness"], GRAPHOPT_HIP_ARCHS=";".join(archs))
    objects = {arch: sorted((folder / arch).glob("*.co")) for arch in archs}
    missing = [arch for arch, files in objects.items() if not files]
    if missing:
        raise RuntimeError(f"no compiler for {', '.join(missing)}: clang and lld 18 or newer are needed")
    return objects


def tool(name: str) -> str:
    """An LLVM tool of the newest version that is installed.

    Raises:
        RuntimeError: when there is none.

    """
    for version in ("-22", "-21", "-20", "-19", "-18", ""):
        path = shutil.which(name + version)
        if path:
            return path
    raise RuntimeError(f"{name} is not installed")


def kernels(path: Path) -> list[str]:
    """Kernel symbols of a code object: those with a kernel descriptor, `name.kd`."""
    readelf = shutil.which("readelf") or tool("llvm-readelf")
    symbols = subprocess.run([readelf, "-W", "-s", str(path)], check=True, stdout=subprocess.PIPE, text=True).stdout
    return sorted(set(re.findall(r" (\w+)\.kd$", symbols, re.MULTILINE)))
