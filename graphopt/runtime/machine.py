"""Processors of this machine: names, vector instructions, used memory of GPUs."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from pathlib import Path

_CPU_INFO = Path("/proc/cpuinfo")
_DRM = Path("/sys/class/drm")


@dataclass(frozen=True)
class Device:
    """A processor on which a provider runs.

    Attributes:
        name: product name, for instance "AMD EPYC 9554 64-Core Processor" or "AMD Instinct MI300X".
        arch: target of compiled kernels, for instance "x86_64", "gfx942" or "sm_90"; "" if unknown.
        driver: the GPU runtime or kernel driver with its version; "" for a CPU.
        wave: wavefront or warp size of a GPU in threads; 0 if unknown, or for a CPU.

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


def has_fma(source: Path = _CPU_INFO) -> bool:
    """Returns whether this is an x86 processor with AVX2 and FMA."""
    flags = _cpu_flags(source)
    return "avx2" in flags and "fma" in flags


def lacks_vnni(source: Path = _CPU_INFO) -> bool:
    """Returns whether this is an x86 processor with AVX2 but without VNNI, in 256-bit and in 512-bit vectors."""
    flags = _cpu_flags(source)
    return "avx2" in flags and not flags & {"avx_vnni", "avx512_vnni"}


def _cpu_flags(source: Path) -> set[str]:
    """Returns the flags of the first x86 processor; none on other machines."""
    try:
        # The file has a section for each processor, which takes the system a while on large machines.
        with source.open(encoding="utf-8", errors="replace") as lines:
            return set(next((line for line in lines if line.startswith("flags")), "").split())
    except OSError:
        return set()


def device_memory_used(cards: Path = _DRM) -> int | None:
    """Returns the bytes in use on all AMD GPUs, by all processes; None without an AMD GPU."""
    counts = [int(p.read_text()) for p in cards.glob("card*/device/mem_info_vram_used")]
    return sum(counts) if counts else None
