"""The targets that a model can be optimized for, and the nodes that each accepts."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from graphopt.errors import OptionError, did_you_mean

TargetName: TypeAlias = Literal["auto", "cpu", "rocm", "cuda", "migraphx", "portable"]
DEVICES = tuple(name for name in get_args(TargetName) if name != "auto")
# Architecture names of AMD (gfx90a:xnack-, gfx9-4-generic) and NVIDIA (sm_90a).
_ARCHITECTURES = {
    "rocm": re.compile(r"(gfx[0-9][0-9a-f]{2,}|gfx[0-9]+(-[0-9]+)?-generic)(:[a-z]+[+-])*"),
    "cuda": re.compile(r"sm_[0-9]{2,}a?"),
}


@dataclass(frozen=True)
class Target:
    """The machine that a model is optimized for. The optimized file runs on every other machine as well.

    Attributes:
        device: one of `DEVICES`.
        arch: a GPU architecture such as "gfx942", or "" for any.
        vnni: False for a processor with AVX2 that is known to have no VNNI.
    """

    device: str
    arch: str = ""
    vnni: bool = True

    @property
    def custom_ops(self) -> bool:
        """Whether passes may emit nodes of our domain. MIGraphX runs no custom kernels."""
        return self.device == "cpu" or self.gpu_kernels

    @property
    def gpu_kernels(self) -> bool:
        """Whether nodes of our domain run as GPU kernels."""
        return self.device in ("rocm", "cuda")

    def __str__(self) -> str:
        return f"{self.device}:{self.arch}" if self.arch else self.device


def parse_target(text: str) -> Target:
    """Parses a target such as "cpu", "rocm", "rocm:gfx942", "cuda", "migraphx" or "portable".

    Raises:
        OptionError: the text names no device of `DEVICES`, or no architecture of that device.
    """
    device, _, arch = text.partition(":")
    known = device in DEVICES
    if known and ":" in text:
        names = _ARCHITECTURES.get(device)
        known = names is not None and names.fullmatch(arch) is not None
    if not known:
        named = [f"{kind}:{text}" for kind, names in _ARCHITECTURES.items() if names.fullmatch(text)]
        raise OptionError(
            f"unknown target '{text}'{did_you_mean(text, (*named, *get_args(TargetName)))}; choose auto or one of "
            f"{', '.join(DEVICES)} (rocm:gfx942 names an arch)"
        )
    return Target(device, arch)
