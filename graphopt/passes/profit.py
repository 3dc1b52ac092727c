"""Which legal rewrites pay on which target."""

from __future__ import annotations

from graphopt.targets import Target

# The tile transforms cost as much as they save below this many channels; few tiles leave threads idle.
WINOGRAD_MIN_CHANNELS = 32
WINOGRAD_MIN_PIXELS = 14 * 14


def winograd_pays(target: Target, C: int, M: int, OH: int | None, OW: int | None) -> bool:
    """Whether WinogradConv from C to M channels with an OH x OW result is faster than Conv on `target`.

    Sizes that are not known count as large: the kernel itself falls back where tiles are few. The numbers for GPUs are
    derived from arithmetic intensity; not measured on AMD.
    """
    if C < WINOGRAD_MIN_CHANNELS or M < WINOGRAD_MIN_CHANNELS:
        return False
    if target.device != "cpu" or OH is None or OW is None:
        return True
    return OH * OW >= WINOGRAD_MIN_PIXELS
