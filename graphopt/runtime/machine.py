"""What this machine is: its processors as reports name them, and device memory as the kernel driver counts it."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from pathlib import Path

_CPU_INFO = Path("/proc/cpuinfo")
_KFD_NODES = Path("/sys/class/kfd/kfd/topology/nodes")
_DRM = Path("/sys/class/drm")


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


def cpu_name(source: Path = _CPU_INFO) -> str:
    try:
        lines = source.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def amd_gpus(nodes: Path = _KFD_NODES) -> list[Device]:
    """Each AMD GPU, from the compute driver, which names no products; a CPU has a node too, with the version 0.

    A container sees the nodes of all GPUs of its host, and may read those that it was given.
    """
    found = []
    for properties in sorted(nodes.glob("*/properties"), key=lambda p: int(p.parent.name)):
        try:
            text = properties.read_text()
        except OSError:
            continue
        pairs = dict(line.split(None, 1) for line in text.splitlines() if " " in line)
        version = int(pairs.get("gfx_target_version", "0"))
        if version:
            arch = f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}"
            found.append(Device(arch, arch, _amdgpu_version(), int(pairs.get("wave_front_size", "0"))))
    return found


def _amdgpu_version(source: Path = Path("/sys/module/amdgpu/version")) -> str:
    """AMD's own driver has a version; the one of the Linux kernel has the kernel's."""
    try:
        return f"amdgpu {source.read_text().strip()}"
    except OSError:
        return f"amdgpu of Linux {platform.release()}"


def device_memory_used(cards: Path = _DRM) -> int | None:
    """Bytes in use on all AMD GPUs, by whatever process; None where there is none."""
    counts = [int(p.read_text()) for p in cards.glob("card*/device/mem_info_vram_used")]
    return sum(counts) if counts else None
