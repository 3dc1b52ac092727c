"""Plans and devices of the native library from Python (tests/hip/harness.cpp), and functions that build them."""

from __future__ import annotations

import ctypes
import fcntl
import functools
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import helper

ROOT = Path(__file__).resolve().parents[2]
Array = npt.NDArray[Any]


def build(directory: Path, targets: Sequence[str], **options: str) -> Path:
    """Builds native targets in `directory`; returns the folder of the libraries.

    Raises:
        subprocess.CalledProcessError: the build failed; its output has been printed.
    """
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path}
    generator = ["-G", "Ninja"] if shutil.which("ninja", path=path) else []
    configure = ["cmake", "-S", str(ROOT / "native"), "-B", str(directory), *generator, "-DGRAPHOPT_TESTS=ON"]
    configure += [f"-D{name}={value}" for name, value in options.items()]
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / "lock").open("w") as lock:  # test workers build in the same folder
        fcntl.flock(lock, fcntl.LOCK_EX)
        for command in (configure, ["cmake", "--build", str(directory), "-j", "--target", *targets]):
            done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            if done.returncode:
                print(done.stdout)
                done.check_returncode()
    return directory / "device"


@functools.cache
def build_for_tests(*targets: str) -> Path:
    """As `build`, in the build folder of the wheel and of scripts/test-native, which already has most objects."""
    return build(ROOT / "build" / "native", targets)


def build_for_cuda(target: str) -> Path:
    """Returns `target` with its kernels for sm_90, prebuilt in the folder $GRAPHOPT_BUILT or built here."""
    built = os.environ.get("GRAPHOPT_BUILT")
    if built:
        return Path(built) / f"lib{target}.so"
    options = {"GRAPHOPT_HIP_ARCHS": "", "GRAPHOPT_CUDA_ARCHS": "sm_90", "GRAPHOPT_TESTS_ON_DEVICE": "ON"}
    folder = build(ROOT / "build" / "cuda", [target], **options)
    return (folder if target == "gpu_harness" else folder.parent) / f"lib{target}.so"


def int64s(numbers: Sequence[int]) -> Any:
    """Returns an array for a plan's argument."""
    return (ctypes.c_int64 * len(numbers))(*numbers)


def element_type(dtype: npt.DTypeLike) -> ctypes.c_int32:
    """Returns the ONNX type of a tensor for a plan's argument."""
    return ctypes.c_int32(int(helper.np_dtype_to_tensor_dtype(np.dtype(dtype))))


class Plan:
    """The launches for one node and one set of shapes."""

    def __init__(self, library: Harness, pointer: int) -> None:
        self._library = library
        self.pointer = pointer
        content = json.loads(library.call("graphopt_plan_json", ctypes.c_char_p, ctypes.c_void_p(pointer)))
        self.launches: list[dict[str, Any]] = content["launches"]
        self.workspace: list[int] = content["workspace"]
        self.weights: int = content["weights"]

    def __del__(self) -> None:
        self._library.call("graphopt_free_plan", None, ctypes.c_void_p(self.pointer))


class Harness:
    """The library gpu_harness."""

    def __init__(self, path: Path) -> None:
        self._library = ctypes.CDLL(str(path))

    def call(self, name: str, result: Any, *arguments: Any) -> Any:
        function = getattr(self._library, name)
        function.restype = result
        return function(*arguments)

    def error(self) -> str:
        message: bytes = self.call("graphopt_error", ctypes.c_char_p)
        return message.decode()

    def typical_facts(self, arch: str) -> int:
        """Returns a handle of an architecture's facts, for planning without a device."""
        return self._pointer("graphopt_typical_facts", arch.encode())

    def _pointer(self, name: str, *arguments: Any) -> int:
        pointer = self.call(name, ctypes.c_void_p, *arguments)
        if not pointer:
            raise RuntimeError(self.error())
        return int(pointer)

    def plan(self, op: str, facts: int, *arguments: Any) -> Plan:
        """Calls `graphopt_<op>_plan` with the facts and further ctypes arguments."""
        return Plan(self, self._pointer(f"graphopt_{op}_plan", ctypes.c_void_p(facts), *arguments))

    def open(self, backend: str) -> Device:
        """Opens a device: `hip`, `cuda`, or the path of a library of kernels for the CPU."""
        pointer = self._pointer("graphopt_open", backend.encode())
        return Device(self, pointer)


class Device:
    """A device; buffers are addresses."""

    def __init__(self, harness: Harness, pointer: int) -> None:
        self._harness = harness
        self._pointer = pointer
        self.facts: int = harness.call("graphopt_device_facts", ctypes.c_void_p, ctypes.c_void_p(pointer))

    def run(
        self,
        plan: Plan,
        inputs: Sequence[int],
        outputs: Sequence[int],
        workspace: Sequence[int] = (),
        weights: int = 0,
        stream: int = 0,
    ) -> None:
        """Enqueues the launches of a plan on a stream."""

        def table(addresses: Sequence[int]) -> Any:
            return (ctypes.c_void_p * max(1, len(addresses)))(*addresses)

        failed = self._harness.call(
            "graphopt_run",
            ctypes.c_int,
            ctypes.c_void_p(self._pointer),
            ctypes.c_void_p(plan.pointer),
            table(inputs),
            table(outputs),
            table(workspace),
            ctypes.c_void_p(weights),
            ctypes.c_void_p(stream),
        )
        if failed:
            raise RuntimeError(self._harness.error())


class HostKernels:
    """Kernels compiled for the CPU; launches run work-items in a chosen order."""

    FORWARD, REVERSE, RANDOM = range(3)

    def __init__(self, path: Path) -> None:
        self._library = ctypes.CDLL(str(path))
        self._library.graphopt_host_kernels.restype = ctypes.c_char_p
        self.names: list[str] = self._library.graphopt_host_kernels().decode().split(",")
        self.wave: int = self._library.graphopt_host_wave()

    def launch(self, launch: dict[str, Any], buffers: dict[str, Array], order: int, seed: int) -> None:
        """Runs one launch of a plan's JSON to completion."""
        values: list[Any] = []
        for argument in launch["args"]:
            ((kind, value),) = argument.items()
            if kind == "buffer":
                values.append(ctypes.c_void_p(buffers[value].ctypes.data))
            elif kind == "hex":
                values.append(ctypes.create_string_buffer(bytes.fromhex(value), len(value) // 2))
            else:
                types = {"i32": ctypes.c_int32, "u32": ctypes.c_uint32, "f32": ctypes.c_float, "u64": ctypes.c_uint64}
                values.append(types[kind](value))
        addresses = (ctypes.c_void_p * len(values))(*(ctypes.addressof(v) for v in values))
        grid, block = (ctypes.c_uint32 * 3)(*launch["grid"]), (ctypes.c_uint32 * 3)(*launch["block"])
        lds, seed32 = ctypes.c_uint32(launch["lds"]), ctypes.c_uint32(seed)
        name = launch["kernel"].encode()
        if self._library.graphopt_host_launch(name, grid, block, lds, addresses, order, seed32):
            raise RuntimeError(f"no kernel {launch['kernel']}")
