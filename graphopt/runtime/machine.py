"""What this machine is: its processors as reports name them, device memory, and what the system shows of GPUs."""

from __future__ import annotations

import grp
import os
import platform
from dataclasses import dataclass
from pathlib import Path

_CPU_INFO = Path("/proc/cpuinfo")
_DRM = Path("/sys/class/drm")

_AMD = "0x1002"  # the PCI vendor
_GPU_CLASSES = ("0x03", "0x12")  # displays, and accelerators without one


@dataclass(frozen=True)
class Device:
    """A processor that a provider runs on.

    Attributes:
        name: of the product, for instance "AMD EPYC 9554 64-Core Processor" or "AMD Instinct MI300X".
        arch: what kernels are compiled for, for instance "x86_64", "gfx942" or "sm_90"; "" where it is not known.
        driver: the GPU runtime or kernel driver with its version, "" for a CPU.
        wave: lanes that run in step on a GPU; 0 where it is not known, or a CPU.

    """

    name: str
    arch: str
    driver: str = ""
    wave: int = 0


@dataclass(frozen=True)
class System:
    """What Linux shows of AMD GPUs to this process, without asking any driver.

    Attributes:
        amd_gpus: on the PCI bus, which containers see whole; WSL shows none there.
        unbound: those that the kernel's driver amdgpu does not have: their bus ids, and who has them instead.
        kfd: the compute driver's device node is there.
        kfd_group: the group that may open it, by number where it has no name here; "" without a node.
        kfd_refusal: why this process can't open it, "" where it can.
        kfd_gpus: those that the compute driver has; None where it does not tell.
        render_nodes: /dev/dri/renderD*.
        render_group: the group that may open the first.
        render_refusal: why this process can open none of them, "" where it can.
        dxg: WSL's device node is there.
        wsl: this is WSL.
        container: this is a container.
        unreadable: nodes of the compute driver's topology that may not be read: GPUs of others.
        rocm: folders that hold the HIP runtime: of /opt/rocm*/lib and $ROCM_PATH/lib.

    """

    amd_gpus: int = 0
    unbound: tuple[str, ...] = ()
    kfd: bool = False
    kfd_group: str = ""
    kfd_refusal: str = ""
    kfd_gpus: int | None = None
    render_nodes: tuple[str, ...] = ()
    render_group: str = ""
    render_refusal: str = ""
    dxg: bool = False
    wsl: bool = False
    container: bool = False
    unreadable: tuple[str, ...] = ()
    rocm: tuple[str, ...] = ()

    @property
    def may_have_amd_gpu(self) -> bool:
        return self.amd_gpus > 0 or self.kfd or self.dxg


def look_around(root: Path = Path("/")) -> System:
    """Raises nothing; `root` is for tests."""
    kfd = root / "dev/kfd"
    usual = [*root.glob("opt/rocm*/lib"), *(Path(p) / "lib" for p in [os.environ.get("ROCM_PATH")] if p)]
    folders = {p.resolve() for p in usual if any(p.glob("libamdhip64.so*"))}
    kernel = _read(root / "proc/sys/kernel/osrelease").lower()
    devices = [p for p in sorted(root.glob("sys/bus/pci/devices/*")) if _read(p / "vendor") == _AMD]
    gpus = [p for p in devices if _read(p / "class").startswith(_GPU_CLASSES)]
    nodes = sorted(root.glob("dev/dri/renderD*"))
    render = [_refusal(node) for node in nodes]
    return System(
        amd_gpus=len(gpus),
        unbound=tuple(f"{gpu.name}: {driver or 'no driver'}" for gpu in gpus if (driver := _driver(gpu)) != "amdgpu"),
        kfd=kfd.exists(),
        kfd_group=_group(kfd),
        kfd_refusal=_refusal(kfd) if kfd.exists() else "",
        kfd_gpus=_kfd_gpus(root / "sys/class/kfd/kfd/topology/nodes"),
        render_nodes=tuple(map(str, nodes)),
        render_group=_group(nodes[0]) if nodes else "",
        # Of several GPUs a container may have been given one.
        render_refusal=render[0] if render and all(render) else "",
        dxg=(root / "dev/dxg").exists(),
        wsl="microsoft" in kernel,
        container=any((root / marker).exists() for marker in (".dockerenv", "run/.containerenv"))
        or "KUBERNETES_SERVICE_HOST" in os.environ,
        unreadable=tuple(
            str(p)
            for p in sorted(root.glob("sys/class/kfd/kfd/topology/nodes/*/properties"))
            if not _readable(p)  # its mode says yes: the driver refuses when it is read
        ),
        rocm=tuple(sorted(str(folder) for folder in folders)),
    )


def _refusal(node: Path) -> str:
    """Why a device node can't be opened: beside its mode, a container's rules and the driver itself have a say."""
    try:
        os.close(os.open(node, os.O_RDWR | os.O_CLOEXEC))
    except OSError as error:
        return os.strerror(error.errno or 0)
    return ""


def _driver(device: Path) -> str:
    """The kernel's driver that has a PCI device."""
    link = device / "driver"
    return link.resolve().name if link.exists() else ""


def _kfd_gpus(nodes: Path) -> int | None:
    """Processors have no SIMDs; a node that can't be read is another's GPU."""
    found = [dict(line.split(maxsplit=1) for line in text.splitlines() if " " in line) for text in _texts(nodes)]
    return sum(int(node.get("simd_count", "0")) > 0 for node in found) if found else None


def _texts(nodes: Path) -> list[str]:
    return [text for p in nodes.glob("*/properties") if (text := _read(p))]


def _readable(path: Path) -> bool:
    try:
        path.read_bytes()
    except OSError:
        return False
    return True


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def _group(path: Path) -> str:
    try:
        number = path.stat().st_gid
    except OSError:
        return ""
    try:
        return grp.getgrgid(number).gr_name
    except KeyError:
        return str(number)


def cpu_name(source: Path = _CPU_INFO) -> str:
    try:
        lines = source.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def device_memory_used(cards: Path = _DRM) -> int | None:
    """Bytes in use on all AMD GPUs, by whatever process; None where there is none."""
    counts = [int(p.read_text()) for p in cards.glob("card*/device/mem_info_vram_used")]
    return sum(counts) if counts else None
