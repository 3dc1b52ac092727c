"""What this machine is: names for measurements, and device memory as the kernel driver counts it."""

from __future__ import annotations

import platform
from pathlib import Path

_CPU_INFO = Path("/proc/cpuinfo")
_KFD_NODES = Path("/sys/class/kfd/kfd/topology/nodes")
_DRM = Path("/sys/class/drm")


def device_name(provider: str) -> str:
    """The processor that a provider runs on, for instance "AMD EPYC 9554 64-Core Processor" or "gfx942"."""
    if provider == "CPUExecutionProvider":
        return cpu_name()
    return next(iter(amd_gpus()), "unknown GPU")


def cpu_name(source: Path = _CPU_INFO) -> str:
    try:
        lines = source.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def amd_gpus(nodes: Path = _KFD_NODES) -> list[str]:
    """The architecture of each AMD GPU, from the compute driver; a CPU has a node too, with the version 0."""
    found = []
    for properties in sorted(nodes.glob("*/properties"), key=lambda p: int(p.parent.name)):
        pairs = dict(line.split(None, 1) for line in properties.read_text().splitlines() if " " in line)
        version = int(pairs.get("gfx_target_version", "0"))
        if version:
            found.append(f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}")
    return found


def device_memory_used(cards: Path = _DRM) -> int | None:
    """Bytes in use on all AMD GPUs, by whatever process; None where there is none."""
    counts = [int(p.read_text()) for p in cards.glob("card*/device/mem_info_vram_used")]
    return sum(counts) if counts else None
