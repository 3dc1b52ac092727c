"""README's section "An AMD GPU", command by command, on a machine with stand-ins for ROCm.

    .venv-ort/bin/python -m tests.first_run

Prints the commands' output, as shown in docs/guide.md. The machine has an RX 7900 and a Ryzen's integrated GPU. Its HIP
runtime (tests/native/stand_ins) is installed below $ROCM_PATH and computes in host memory. The package is this source
tree with a native library that contains device code for the stand-in; everything else equals a user's installation.
Only installation commands are skipped.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import onnx

from models import ZOO
from tests.hip.harness import ROOT
from tests.provider.stand_in import build_stand_ins

DEVICES = "gfx1100,gfx1036/gfx10-3-generic"
INSTALLS = ("sudo apt install ", "pip install ")


def commands() -> list[str]:
    """Returns the commands of the README's section on AMD GPUs, in order, without installations."""
    section = re.search(r"^### An AMD GPU\n\n```\n(.*?)^```", (ROOT / "README.md").read_text(), re.M | re.S)
    assert section is not None
    return [command for command in section[1].splitlines() if not command.startswith(INSTALLS)]


@dataclass
class Machine:
    """A folder with this installation, and the environment variables to find it."""

    folder: Path
    environment: dict[str, str]

    def run(self, command: str, **more: str) -> str:
        """Returns the output of a command, with the folder names of a usual machine.

        Raises:
            CalledProcessError: the command fails.
        """
        environment = {**self.environment, **more}
        done = subprocess.run(command, shell=True, cwd=self.folder, env=environment, capture_output=True, text=True)
        if done.returncode:
            print(done.stdout, done.stderr)
            done.check_returncode()
        lines = (done.stdout + done.stderr).splitlines(keepends=True)
        return "".join(_at_home(line, self.folder) for line in lines)


def stand_in_machine(folder: Path) -> Machine:
    """Installs ROCm, the package and a model into a folder."""
    stand_ins = build_stand_ins()
    rocm, package = folder / "rocm", folder / "site" / "graphopt"
    shutil.copytree(stand_ins.folder("hip"), rocm / "lib", symlinks=True)
    shutil.copytree(stand_ins.folder("blas"), rocm / "lib", symlinks=True, dirs_exist_ok=True)
    # As in ROCm's packages: rocBLAS supports the first GPU, but not the second.
    (rocm / "lib" / "rocblas" / "library").mkdir(parents=True)
    (rocm / "lib" / "rocblas" / "library" / "TensileLibrary_lazy_gfx1100.dat").touch()
    (package / "lib").mkdir(parents=True)
    for part in (ROOT / "graphopt").iterdir():
        if part.name not in ("lib", "__pycache__"):
            (package / part.name).symlink_to(part)
    shutil.copy(stand_ins.libraries / "libgraphopt_on_stand_in.so", package / "lib" / "libgraphopt.so")
    programs = folder / "bin"
    programs.mkdir()
    for name, start in (("python", ""), ("graphopt", "-m graphopt ")):
        (programs / name).write_text(f'#!/bin/sh\nexec {sys.executable} {start}"$@"\n')
        (programs / name).chmod(0o755)
    onnx.save(ZOO["resnet18"](small=True, dynamic=True), folder / "in.onnx")
    environment = {
        **os.environ,
        "PATH": f"{programs}:{os.environ['PATH']}",
        "PYTHONPATH": str(package.parent),
        "ROCM_PATH": str(rocm),
        # libraries ask it whether a stream is being captured
        "STAND_IN_DRIVER": str(rocm / "lib" / "libamdhip64.so.7"),
        "STAND_IN_DEVICES": DEVICES,
        "STAND_IN_KERNELS": str(stand_ins.kernels),
        "XDG_CACHE_HOME": str(folder / "cache"),
        "COLUMNS": "130",
    }
    return Machine(folder, environment)


def _at_home(line: str, folder: Path) -> str:
    """Returns the line with the folder names of a usual machine; a table row keeps its width."""
    shown = line.replace(str(folder / "rocm"), "/opt/rocm").replace(str(folder), "~")
    narrower = " " * (len(line) - len(shown))
    return shown.removesuffix("│\n") + narrower + "│\n" if shown.endswith("│\n") else shown


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        machine = stand_in_machine(Path(folder))
        for command in commands():
            print(f"$ {command}\n{machine.run(command)}", end="")


if __name__ == "__main__":
    main()
