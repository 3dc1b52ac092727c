"""The ways to this machine's GPUs, and for each thing that is missing the reason and what mends it.

The native library says what its drivers show (`GraphoptDescribeDevices`, native/device/report.h); the system says what
a driver that shows nothing can't (`machine.System`). docs/provider.md lists the codes.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from graphopt.runtime.machine import System

INSTALL_ROCM = "install ROCm, https://rocm.docs.amd.com/projects/install-on-linux (sudo apt install rocm)"
DOCKER = (
    "docker run --device /dev/kfd --device /dev/dri --group-add $(getent group render | cut -d: -f3) --group-add video"
)
# Names of the packages in AMD's repositories.
PACKAGES = {"rocBLAS": "rocblas", "hipBLASLt": "hipblaslt", "MIOpen": "miopen-hip"}


@dataclass(frozen=True)
class Reason:
    """Why something is not there, or not used.

    Attributes:
        code: for programs.
        text: for people.
        mend: a command or a step that mends it; "" where nothing has to be.

    """

    code: str
    text: str
    mend: str = ""

    def __str__(self) -> str:
        return f"{self.text}; to mend it: {self.mend}" if self.mend else self.text


@dataclass(frozen=True)
class Library:
    """A library of the GPU's vendor; `reason` says why it is not used."""

    name: str
    path: str
    version: str
    reason: Reason | None


@dataclass(frozen=True)
class Gpu:
    """A GPU as its driver describes it.

    Attributes:
        number: what the provider's option `device` takes.
        code: the architecture whose device code it runs, "" for none.
        bus_id: on the PCI bus.
        memory: bytes.
        integrated: it shares the CPU's memory.
        wave: lanes that run in step.
        driver: the GPU runtime with its version.
        reason: why it can't be used.

    """

    number: int
    name: str
    arch: str
    code: str
    bus_id: str
    memory: int
    integrated: bool
    compute_units: int
    driver: str
    wave: int
    libraries: tuple[Library, ...]
    reason: Reason | None


@dataclass(frozen=True)
class Route:
    """One way from ONNX Runtime to GPUs of one vendor.

    Attributes:
        name: "graphopt" (our provider on AMD GPUs), "rocm" (ONNX Runtime 1.22's own), "cuda" (our provider on NVIDIA
            GPUs) or "host" (our provider on host memory, for tests).
        provider: what ONNX Runtime calls it.
        runtime: the GPU runtime's file, "" where none was found.
        code: architectures that the native library has device code for.
        devices: what the runtime shows.
        reason: why the route can't be taken, in the first place.
        notes: what does not stand in the way.

    """

    name: str
    title: str
    provider: str
    runtime: str = ""
    version: str = ""
    code: tuple[str, ...] = ()
    devices: tuple[Gpu, ...] = ()
    reason: Reason | None = None
    notes: tuple[Reason, ...] = field(default=())

    @property
    def usable(self) -> list[Gpu]:
        return [] if self.reason else [device for device in self.devices if device.reason is None]

    @property
    def ready(self) -> bool:
        return bool(self.usable)

    def why_not(self) -> Reason | None:
        """Why no session would run here; None when one would."""
        if self.ready:
            return None
        return self.reason or next(d.reason for d in self.devices if d.reason)

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "ready": self.ready}


def describe(library: Path) -> dict[str, Any]:
    """What the native library's drivers show, in the form of native/device/report.h; no routes where it can't tell.

    Loads the GPU vendor's libraries into this process.
    """
    # A library that is older than this package has no such function.
    function = getattr(ctypes.CDLL(str(library)), "GraphoptDescribeDevices", None)
    if function is None:
        return {"format": 1, "code": [], "routes": []}
    function.restype = ctypes.c_char_p
    text = function()
    if text is None:
        return {"format": 1, "code": [], "routes": []}
    described: dict[str, Any] = json.loads(text)
    return described


def routes(
    described: Mapping[str, Any],
    system: System,
    *,
    provider: str,
    provider_missing: Reason | None,
    rocm_provider: Path | None,
) -> list[Route]:
    """Each route with its devices, or the reason why it has none.

    Args:
        described: of `describe`.
        system: of `look_around`.
        provider: the name of our own provider.
        provider_missing: why this ONNX Runtime can't load our provider.
        rocm_provider: the file of ONNX Runtime's own ROCm provider, if this one has it.
    """
    code = tuple(described["code"])
    shown = {part["route"]: part for part in described["routes"]}
    found = []
    if (amd := shown.get("hip")) is not None:
        ours = _route("graphopt", "AMD GPUs through our provider", provider, amd, code, "gfx", system)
        found.append(_with_reason(ours, provider_missing))
        rocm = _route("rocm", "AMD GPUs through ONNX Runtime's ROCm provider", _ROCM, amd, code, "gfx", system)
        found.append(_with_reason(rocm, _rocm_provider_missing(rocm_provider, amd, system)))
    if (nvidia := shown.get("cuda")) is not None:
        cuda = _route("cuda", "NVIDIA GPUs through our provider", provider, nvidia, code, "sm_", system)
        found.append(_with_reason(cuda, provider_missing))
    if (host := shown.get("host")) is not None:
        found.append(_with_reason(_route("host", "Host memory", provider, host, code, "", system), provider_missing))
    return found


_ROCM = "ROCMExecutionProvider"


def _with_reason(route: Route, provider: Reason | None) -> Route:
    """A GPU that is not there is said first: without one nobody needs a provider."""
    if provider is None or (route.reason is not None and not route.devices):
        return route
    return Route(**{**vars(route), "reason": provider})


def _route(
    name: str, title: str, provider: str, part: Mapping[str, Any], code: tuple[str, ...], prefix: str, system: System
) -> Route:
    own = tuple(arch for arch in code if arch.startswith(prefix))
    amd = prefix == "gfx"
    devices = tuple(_gpu(d, own, amd) for d in part["devices"])
    notes = []
    if amd and system.unreadable:
        count = len(system.unreadable)
        text = f"{count} nodes of the compute driver may not be read: GPUs that this container was not given"
        notes.append(Reason("kfd_unreadable", f"{text} ({', '.join(system.unreadable)})"))
    usable = [d for d in devices if d.reason is None]
    if usable and all(d.integrated for d in usable):
        notes.append(Reason("only_integrated", "all GPUs here share the CPU's memory: they are slow beside other GPUs"))
    return Route(
        name,
        title,
        provider,
        part["runtime"]["path"],
        part["runtime"]["version"],
        own,
        devices,
        _reason_of_route(part["problem"], system, amd),
        tuple(notes),
    )


def _gpu(told: Mapping[str, Any], code: tuple[str, ...], amd: bool) -> Gpu:
    libraries = tuple(
        Library(x["name"], x["path"], x["version"], _reason_of_library(x["name"], x["problem"]))
        for x in told["libraries"]
    )
    plain = {
        key: told[key]
        for key in (
            "number",
            "name",
            "arch",
            "code",
            "bus_id",
            "memory",
            "integrated",
            "compute_units",
            "driver",
            "wave",
        )
    }
    return Gpu(**plain, libraries=libraries, reason=_reason_of_device(told, code, amd))


def _reason_of_library(name: str, problem: Mapping[str, str] | None) -> Reason | None:
    if problem is None:
        return None
    mend = ""
    if problem["code"] == "missing" and name in PACKAGES:
        mend = f"sudo apt install {PACKAGES[name]}"
    return Reason(problem["code"], problem["text"], mend)


def _reason_of_device(told: Mapping[str, Any], code: tuple[str, ...], amd: bool) -> Reason | None:
    problem = told["problem"]
    if problem is None:
        return None
    if problem["code"] == "no_code" and not code:
        compiler = "clang and lld" if amd else "nvcc"
        text = f"this library has no device code: {compiler} was not there when the wheel was built"
        mend = "sudo apt install clang lld" if amd else "install CUDA's nvcc"
        option = "" if amd else f" -C cmake.define.GRAPHOPT_CUDA_ARCHS={told['arch'].removeprefix('sm_')}"
        return Reason("no_code_at_all", text, f"{mend}; pip install --force-reinstall --no-deps .{option}")
    mends = {
        "no_code": f"pip install --force-reinstall --no-deps . -C cmake.define.GRAPHOPT_HIP_ARCHS={told['arch']}"
        if amd
        else "",
        "old_runtime": "install ROCm 6.4 or newer",
    }
    return Reason(problem["code"], problem["text"], mends.get(problem["code"], ""))


def _reason_of_route(problem: Mapping[str, str] | None, system: System, amd: bool) -> Reason | None:
    if problem is None:
        return None
    code, text = problem["code"], problem["text"]
    if not amd:
        return Reason(code, text)
    if not system.may_have_amd_gpu and not system.wsl:
        return Reason("no_gpu", "this machine has no AMD GPU: there is none on its PCI bus")
    if code == "no_runtime":
        return _no_runtime(text, system)
    if code in _NO_DEVICE:
        return _no_device(code, text, system)
    return Reason(code, text)


# What the native library makes of a runtime that shows none; the runtime itself gives the same error for all of them.
_NO_DEVICE = frozenset({"no_driver", "no_permission", "old_driver", "no_device"})
_NEW_DRIVER = "a newer kernel, or AMD's own driver: sudo apt install amdgpu-dkms; sudo reboot"


def _no_device(code: str, text: str, system: System) -> Reason:
    """Why ROCm shows no GPU, in the order in which it would meet the obstacles."""
    if system.wsl:
        if not system.dxg:
            return Reason("no_dxg", "this WSL has no /dev/dxg", "wsl --update in Windows, with AMD's driver for WSL")
        return Reason(
            "no_device_in_wsl",
            f"{text}: on WSL, ROCm finds GPUs through librocdxg only",
            "install librocdxg, https://github.com/ROCm/librocdxg; export HSA_ENABLE_DXG_DETECTION=1",
        )
    if not system.kfd:
        if system.container:
            return Reason("not_in_container", "this container was not given /dev/kfd", f"{DOCKER} ...")
        bound = f" ({', '.join(system.unbound)})" if system.unbound else ""
        return Reason(
            "no_driver",
            f"the kernel has no compute driver for the {system.amd_gpus} AMD GPUs on the PCI bus{bound}: "
            "there is no /dev/kfd",
            "sudo modprobe amdgpu (AMD's own: sudo apt install amdgpu-dkms; sudo reboot)",
        )
    if system.kfd_refusal:
        return _refused("/dev/kfd", system.kfd_refusal, system.kfd_group, system)
    hidden = _hidden()
    if hidden:
        return Reason("hidden", f"{text}; {hidden} hides GPUs", f"unset {hidden.partition('=')[0]}")
    if system.container and not system.render_nodes:
        return Reason("not_in_container", f"{text}: this container was not given /dev/dri", f"{DOCKER} ...")
    if system.render_refusal:
        return _refused(system.render_nodes[0], system.render_refusal, system.render_group, system)
    if system.unbound:
        return Reason(
            "old_driver",
            f"{text}: the kernel's driver amdgpu does not have {', '.join(system.unbound)}: it is too old for the GPU, "
            "lacks its firmware, or was told to leave it",
            f"sudo dmesg | grep amdgpu says which; {_NEW_DRIVER}",
        )
    if system.kfd_gpus == 0 and system.unreadable:
        count = len(system.unreadable)
        return Reason("not_in_container", f"{text}: the {count} GPUs here were given to others", f"{DOCKER} ...")
    if system.kfd_gpus == 0:
        return Reason(
            "not_in_kfd",
            f"{text}: the compute driver leaves out every GPU here, for instance where the slot has no PCIe atomics",
            f"sudo dmesg | grep kfd says why; {_NEW_DRIVER}",
        )
    if code == "old_driver":
        return Reason(code, text, _NEW_DRIVER)
    return Reason("no_device", text)


def _hidden() -> str:
    """What hides GPUs from HIP, which reads CUDA's variable where its own is not set."""
    for name in ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"):
        if os.environ.get(name):
            return f"{name}={os.environ[name]}"
    # To the layer below, an empty list is a list, too.
    name = "ROCR_VISIBLE_DEVICES"
    return f"{name}={os.environ[name]}" if name in os.environ else ""


def _refused(node: str, why: str, group: str, system: System) -> Reason:
    text = f"{node} can't be opened by this user: {why}"
    if why not in (os.strerror(errno.EACCES), os.strerror(errno.EPERM)):
        return Reason("node_fails", text, f"sudo dmesg | grep -e kfd -e amdgpu says why; {_NEW_DRIVER}")
    if system.container:
        group = group or "render"
        return Reason(
            "no_permission",
            f"{node} can't be opened by this user in this container: {why}",
            f"docker run --group-add $(stat -c %g {node}) ... (here group {group})",
        )
    return Reason("no_permission", text, f"sudo usermod -a -G {_groups(group)} $LOGNAME; then log in again")


def _groups(group: str) -> str:
    return ",".join(dict.fromkeys([group if not group.isdecimal() and group != "root" else "render", "video"]))


def _no_runtime(text: str, system: System) -> Reason:
    """ROCm's libraries lie where the loader does not look more often than they are not there."""
    if system.rocm:
        folder = system.rocm[-1]
        mend = f"echo {folder} | sudo tee /etc/ld.so.conf.d/rocm.conf; sudo ldconfig"
        root = Path(folder).parent
        return Reason(
            "not_found",
            f"the loader does not find the HIP runtime in {folder}: {text}",
            f"{mend} (or ROCM_PATH={root})",
        )
    return Reason("no_runtime", text, INSTALL_ROCM)


def _rocm_provider_missing(file: Path | None, part: Mapping[str, Any], system: System) -> Reason | None:
    if file is None:
        return Reason("no_provider", "this ONNX Runtime has no ROCm provider: 1.22 was the last with one")
    needed, path = part["runtime"]["needed"], part["runtime"]["path"]
    if needed and path and not Path(path).name.startswith(needed):
        return Reason("other_runtime", f"the ROCm provider needs {needed}, found was {path}", INSTALL_ROCM)
    missing = missing_libraries(file)
    if not missing:
        return None
    text = f"the ROCm provider cannot be loaded: the loader does not find {', '.join(missing)}"
    if system.rocm:
        folder = system.rocm[-1]
        return Reason("not_found", text, f"echo {folder} | sudo tee /etc/ld.so.conf.d/rocm.conf; sudo ldconfig")
    return Reason("missing_libraries", text, INSTALL_ROCM)


def missing_libraries(file: Path) -> list[str]:
    """What the loader would not find for a shared library; nothing of it runs."""
    ldd = shutil.which("ldd")
    if ldd is None:
        return []
    lines = subprocess.run([ldd, str(file)], capture_output=True, text=True).stdout.splitlines()
    missing = {line.split()[0] for line in lines if line.rstrip().endswith("not found")}
    # What PyTorch has loaded from its own folder is found by its name.
    here = {Path(line.split()[-1]).name for line in Path("/proc/self/maps").read_text().splitlines()}
    return sorted(name for name in missing if not any(loaded.startswith(name) for loaded in here))
