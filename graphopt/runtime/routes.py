"""Routes from ONNX Runtime to the GPUs of this machine, with a reason and a remedy for each missing part.

The native library reports the devices of each driver, or the system's reasons why there are none
(`GraphoptDescribeDevices`, native/device/report.h). This file adds the reasons that concern ONNX Runtime and packages.
docs/provider_reference.md lists the codes.
"""

from __future__ import annotations

import ctypes
import json
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

# ONNX Runtime's ROCm provider needs ROCm 7 in the loader's search path. The wheels that
# native/device/rocm_packages.cpp proposes for our provider are not in that path.
_INSTALL_ROCM_7 = "install ROCm 7, https://rocm.docs.amd.com/projects/install-on-linux"


@dataclass(frozen=True)
class Reason:
    """Why something is missing or not used.

    Attributes:
        code: stable identifier for programs.
        text: explanation for users.
        remedy: a command or step that fixes it; "" if nothing has to be fixed.

    """

    code: str
    text: str
    remedy: str = ""

    def __str__(self) -> str:
        return f"{self.text}; to fix it: {self.remedy}" if self.remedy else self.text


@dataclass(frozen=True)
class Library:
    """A library of the GPU's vendor. `reason` explains why it is not used; None if it is used."""

    name: str
    path: str
    version: str
    reason: Reason | None


@dataclass(frozen=True)
class Gpu:
    """A GPU as described by its driver.

    Attributes:
        number: its index in the option `device` of our provider, or `device_id` of the ROCm provider; None if our
            provider cannot use it.
        code: the architecture of the device code that it runs; "" for none.
        bus_id: address on the PCI bus.
        memory: size of its memory in bytes.
        bytes_per_second: the peak rate of its memory.
        float32_flops, float16_flops: its peak operations per second; float16 on the matrix units if it has them.
        integrated: whether it shares the CPU's memory.
        wave: wavefront or warp size in threads.
        driver: the GPU runtime with its version.
        reason: why it cannot be used.

    """

    number: int | None
    name: str
    arch: str
    code: str
    bus_id: str
    memory: int
    integrated: bool
    compute_units: int
    bytes_per_second: float
    float32_flops: float
    float16_flops: float
    driver: str
    wave: int
    libraries: tuple[Library, ...]
    reason: Reason | None


@dataclass(frozen=True)
class Route:
    """A provider of ONNX Runtime with the GPUs of one vendor.

    Attributes:
        name: "graphopt" (our provider on AMD GPUs), "rocm" (the provider of ONNX Runtime 1.22), "cuda" (our provider on
            NVIDIA GPUs) or "host" (our provider on host memory, for tests).
        provider: the provider's name in ONNX Runtime.
        runtime: path of the GPU runtime; "" if none was found.
        code: architectures for which the native library has device code.
        devices: GPUs that the runtime lists.
        seen: whether the machine has such a GPU, even if the runtime does not list it.
        reason: the first reason why the route cannot be used.
        notes: remarks that do not prevent its use.

    """

    name: str
    title: str
    provider: str
    runtime: str = ""
    version: str = ""
    code: tuple[str, ...] = ()
    devices: tuple[Gpu, ...] = ()
    seen: bool = False
    reason: Reason | None = None
    notes: tuple[Reason, ...] = field(default=())

    @property
    def usable(self) -> list[Gpu]:
        return [] if self.reason else [device for device in self.devices if device.reason is None]

    @property
    def ready(self) -> bool:
        return bool(self.usable)

    def why_not(self) -> Reason | None:
        """Returns why no session can use this route; None if one can."""
        if self.ready:
            return None
        return self.reason or next(d.reason for d in self.devices if d.reason)

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "ready": self.ready}


def library_report(library: Path, function: str, *arguments: int) -> dict[str, Any]:
    """Returns the JSON object that a function of the native library reports; {} if there is no report.

    A library that is too old has no such function, and thus no report (docs/native_library.md lists the functions).
    """
    reports = getattr(ctypes.CDLL(str(library)), function, None)
    if reports is None:
        return {}
    reports.restype = ctypes.c_char_p
    text = reports(*arguments)
    return {} if text is None else dict(json.loads(text))


def describe(library: Path) -> dict[str, Any]:
    """Returns the native library's report about drivers and devices, in the format of native/device/report.h.

    Loads the GPU vendor's libraries into this process. The report has no routes if the library is too old.
    """
    return library_report(library, "GraphoptDescribeDevices") or {"format": 1, "code": [], "routes": []}


def routes(
    described: Mapping[str, Any],
    *,
    provider: str,
    provider_missing: Reason | None,
    rocm_provider: Path | None,
) -> list[Route]:
    """Returns each route with its devices, or the reason why it has none.

    Args:
        described: the result of `describe`.
        provider: the name of our provider.
        provider_missing: why this ONNX Runtime cannot load our provider; None if it can.
        rocm_provider: the library of ONNX Runtime's ROCm provider; None if this runtime has none.
    """
    code = tuple(described["code"])
    shown = {part["route"]: part for part in described["routes"]}
    linux = described.get("amd", {})
    found = []
    if (amd := shown.get("hip")) is not None:
        ours = _route("graphopt", "AMD GPUs through our provider", provider, amd, code, "gfx", linux)
        found.append(_with_reason(ours, provider_missing))
        rocm = _route("rocm", "AMD GPUs through ONNX Runtime's ROCm provider", _ROCM, amd, code, "gfx", linux)
        rocm = replace(rocm, devices=tuple(replace(gpu, number=i) for i, gpu in enumerate(rocm.devices)))
        found.append(_with_reason(rocm, _rocm_provider_missing(rocm_provider, amd, linux)))
    if (nvidia := shown.get("cuda")) is not None:
        cuda = _route("cuda", "NVIDIA GPUs through our provider", provider, nvidia, code, "sm_", linux)
        found.append(_with_reason(cuda, provider_missing))
    if (host := shown.get("host")) is not None:
        found.append(_with_reason(_route("host", "Host memory", provider, host, code, "", linux), provider_missing))
    return found


_ROCM = "ROCMExecutionProvider"


def _with_reason(route: Route, provider: Reason | None) -> Route:
    """Adds the reason why the provider is missing; a route without GPUs keeps its own reason."""
    if provider is None or (route.reason is not None and not route.devices):
        return route
    return replace(route, reason=provider)


def _route(
    name: str,
    title: str,
    provider: str,
    part: Mapping[str, Any],
    code: tuple[str, ...],
    prefix: str,
    linux: Mapping[str, Any],
) -> Route:
    own = tuple(arch for arch in code if arch.startswith(prefix))
    amd = prefix == "gfx"
    devices = tuple(_gpu(d, own, amd) for d in part["devices"])
    # On WSL the vendor of a GPU is unknown until AMD's runtime is installed.
    kernel = linux.get("seen", False) or (linux.get("dxg", False) and part["runtime"]["path"] != "")
    seen = bool(devices) or (amd and kernel)
    notes = []
    if amd and (unreadable := linux.get("unreadable", [])):
        text = f"{len(unreadable)} nodes of the compute driver cannot be read: this container may not use their GPUs"
        notes.append(Reason("kfd_unreadable", f"{text} ({', '.join(unreadable)})"))
    usable = [d for d in devices if d.reason is None]
    if usable and all(d.integrated for d in usable):
        notes.append(Reason("only_integrated", "all GPUs here share the CPU's memory: they are slower than other GPUs"))
    return Route(
        name,
        title,
        provider,
        part["runtime"]["path"],
        part["runtime"]["version"],
        own,
        devices,
        seen,
        _reason(part["problem"]),
        tuple(notes),
    )


def _gpu(described: Mapping[str, Any], code: tuple[str, ...], amd: bool) -> Gpu:
    libraries = tuple(
        Library(x["name"], x["path"], x["version"], _reason(x["problem"])) for x in described["libraries"]
    )
    own = {"libraries": libraries, "reason": _reason_of_device(described, code, amd)}
    return Gpu(**{member.name: described[member.name] for member in fields(Gpu) if member.name not in own} | own)


def _reason_of_device(described: Mapping[str, Any], code: tuple[str, ...], amd: bool) -> Reason | None:
    problem = described["problem"]
    if problem is None:
        return None
    if problem["code"] == "no_code" and not code:
        return no_code_at_all(described["arch"], amd=amd)
    remedies = {
        "no_code": rebuild_command(described["arch"]) if amd else "",
        "unsupported": "a newer version of graphopt, if it lists this GPU in docs/gpu.md",
        "old_runtime": "install ROCm 6.4 or newer",
    }
    return Reason(problem["code"], problem["text"], remedies.get(problem["code"], ""))


def no_code_at_all(arch: str, *, amd: bool) -> Reason:
    """Returns the reason and the remedy for a library that was built without any device code."""
    compiler = "clang with lld that compiles for AMD GPUs" if amd else "nvcc"
    text = f"this library has no device code: there was no {compiler} when the wheel was built"
    remedy = "sudo apt install clang lld" if amd else "install CUDA's nvcc"
    option = "" if amd else f" -C cmake.define.GRAPHOPT_CUDA_ARCHS={arch}"
    return Reason("no_code_at_all", text, f"{remedy}; pip install --force-reinstall --no-deps .{option}")


def rebuild_command(arch: str) -> str:
    """Returns the command that builds the library with device code for an AMD GPU."""
    return f"pip install --force-reinstall --no-deps . -C cmake.define.GRAPHOPT_HIP_ARCHS={arch}"


def _reason(problem: Mapping[str, str] | None) -> Reason | None:
    """Converts a problem from the native library's report."""
    return None if problem is None else Reason(problem["code"], problem["text"], problem.get("remedy", ""))


def _rocm_provider_missing(file: Path | None, part: Mapping[str, Any], linux: Mapping[str, Any]) -> Reason | None:
    if file is None:
        return Reason("no_provider", "this ONNX Runtime has no ROCm provider: version 1.22 was the last to have it")
    needed, path = part["runtime"]["needed"], part["runtime"]["path"]
    if needed and path and not Path(path).name.startswith(needed):
        return Reason("other_runtime", f"the ROCm provider needs {needed}, but {path} is installed", _INSTALL_ROCM_7)
    missing = missing_libraries(file)
    if not missing:
        return None
    text = f"the ROCm provider cannot be loaded: the loader does not find {', '.join(missing)}"
    if folders := linux.get("rocm", []):
        folder = folders[-1]
        return Reason("not_found", text, f"echo {folder} | sudo tee /etc/ld.so.conf.d/rocm.conf; sudo ldconfig")
    return Reason("missing_libraries", text, _INSTALL_ROCM_7)


def missing_libraries(file: Path) -> list[str]:
    """Returns the dependencies of a shared library that the loader cannot find, without loading it."""
    ldd = shutil.which("ldd")
    if ldd is None:
        return []
    lines = subprocess.run([ldd, str(file)], capture_output=True, text=True).stdout.splitlines()
    missing = {line.split()[0] for line in lines if line.rstrip().endswith("not found")}
    # The loader does not search for a library that PyTorch has already loaded from its own folder.
    here = {Path(line.split()[-1]).name for line in Path("/proc/self/maps").read_text().splitlines()}
    return sorted(name for name in missing if not any(loaded.startswith(name) for loaded in here))
