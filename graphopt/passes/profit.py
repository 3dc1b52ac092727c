"""Which legal rewrites pay on which target."""

from __future__ import annotations

from graphopt.targets import Target
from graphopt.targets_cpu import winograd_gain

# What a swap must promise on a CPU: its estimate is good to about a tenth.
WINOGRAD_MIN_GAIN = 1.1
# On GPUs the tile transforms cost as much as they save below this many channels. Derived from arithmetic intensity; not
# measured on AMD.
WINOGRAD_MIN_CHANNELS = 32


def winograd_pays(target: Target, C: int, M: int, OH: int | None, OW: int | None) -> bool:
    """Whether WinogradConv from C to M channels with an OH x OW result is faster than Conv on `target`.

    Sizes that are not known count as large: the kernel itself falls back where tiles are few.
    """
    if target.device == "cpu":
        return winograd_gain(C, M, OH, OW) > WINOGRAD_MIN_GAIN
    return C >= WINOGRAD_MIN_CHANNELS and M >= WINOGRAD_MIN_CHANNELS
