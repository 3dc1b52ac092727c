"""Processes with stand-ins for GPU drivers and the vendors' libraries (tests/native/stand_ins)."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.hip.harness import build_for_tests
from tests.provider.fork_server import ForkServer, fork_server

NAMES = {"hip": "libamdhip64.so.7", "hip5": "libamdhip64.so.5", "cuda": "libcuda.so.1"}
CONVOLUTIONS = {"hip": "libMIOpen.so.1", "cuda": "libcudnn.so.9"}
EPILOGUES = {"hip": "libhipblaslt.so.1", "cuda": "libcublasLt.so.13"}
PRODUCTS = "librocblas.so.5"


@dataclass
class Outcome:
    """The function's result, and the process's stderr."""

    value: Any
    said: str


@dataclass
class StandIn:
    """Runs functions of a module in separate processes."""

    libraries: Path
    kernels: Path
    kernels_64: Path
    module: str = "tests.provider.driver_cases"

    def folder(self, driver: str) -> Path:
        return self.libraries / driver

    def run(
        self, name: str, devices: str = "gfx1100", driver: str = "hip", folder: Path | str | None = None, **more: str
    ) -> Outcome:
        """Runs a function in a process that finds the driver's library in `folder`, or in its build folder.

        `driver` may name several drivers, separated by spaces; the function accesses the first one. `more` are
        environment variables.
        """
        done = self.process(name, devices, driver, folder, **more)
        assert done.returncode == 0, done.stderr
        return Outcome(json.loads(done.stdout.splitlines()[-1]), done.stderr)

    def process(
        self, name: str, devices: str = "gfx1100", driver: str = "hip", folder: Path | str | None = None, **more: str
    ) -> subprocess.CompletedProcess[str]:
        folders = [Path(folder or self.folder(d)) for d in driver.split()]
        environment = {
            **os.environ,
            "STAND_IN_DRIVER": str(folders[0] / NAMES[driver.split()[0]]),
            "STAND_IN_LIBRARY": str(self.libraries / "libgraphopt_on_stand_in.so"),
            "STAND_IN_KERNELS": str(self.kernels),
            "STAND_IN_KERNELS_64": str(self.kernels_64),
            "STAND_IN_DEVICES": devices,
            **more,
        }
        path = more.get("LD_LIBRARY_PATH", os.pathsep.join(map(str, folders)))
        if all(Path(part).is_relative_to(self.libraries) for part in path.split(os.pathsep)):
            return fork_server(path).run(self.module, name, environment)
        server = ForkServer(path)
        try:
            return server.run(self.module, name, environment)
        finally:
            server.close()


def build_stand_ins() -> StandIn:
    names = ("hip", "hip5", "cuda", "blas_lt_hip", "blas_lt_cuda", "dnn_hip", "dnn_cuda", "rocblas")
    targets = ["graphopt_on_stand_in", *(f"stand_in_{n}" for n in names)]
    libraries = build_for_tests(*targets) / "stand_in"
    waves = [f"hip_on_cpu_{wave}" for wave in (32, 64)]
    folder = build_for_tests(*waves)
    narrow, wide = (folder / f"lib{name}.so" for name in waves)
    return StandIn(libraries, narrow, wide)
