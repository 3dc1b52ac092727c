"""FusedLayerNorm2d on the GPU."""

from __future__ import annotations

from collections.abc import Iterator
from ctypes import c_float, c_int, c_int64
from typing import Any

import numpy as np

from graphopt.ops import OPS
from tests.hip.case import FLOATS, Case, signed, tolerance_of
from tests.hip.harness import Harness, Plan

# N, C, pixels: one pixel, partial and whole work-groups, fewer channels than slices; then more channels than a small
# number of registers holds, and more than registers can hold.
SHAPES = (
    *((1, 2, 1), (2, 3, 35), (1, 96, 64), (3, 17, 33), (2, 128, 49), (1, 127, 7), (2, 8, 1024)),
    *((1, 129, 1), (2, 256, 33), (1, 192, 64), (1, 250, 9), (2, 136, 31), (1, 200, 5), (1, 255, 2), (2, 160, 32)),
    *((1, 257, 1), (2, 512, 33), (1, 400, 64), (1, 768, 9), (2, 392, 31), (1, 500, 5), (1, 767, 2), (2, 640, 32)),
    *((1, 769, 1), (1, 776, 33), (2, 800, 31), (1, 1024, 9), (1, 771, 64), (1, 1537, 3), (2, 770, 9), (1, 896, 32)),
    # Sizes with float16 pixels processed in pairs by a work-item, and sizes with pixels processed one by one.
    *((1, 5, 2), (1, 9, 5), (2, 96, 66), (1, 64, 130), (3, 128, 6), (1, 31, 200), (1, 33, 65), (2, 7, 30)),
    *((1, 129, 2), (2, 256, 66), (1, 192, 130), (3, 140, 6), (1, 255, 64), (1, 256, 33), (2, 130, 1), (1, 150, 3)),
    *((1, 257, 2), (2, 768, 66), (1, 384, 130), (3, 300, 6), (1, 767, 64), (1, 384, 33), (1, 260, 1), (1, 300, 3)),
    *((1, 769, 2), (1, 776, 66), (1, 1000, 6), (2, 770, 10), (1, 1025, 34), (1, 896, 128), (1, 780, 3), (1, 790, 5)),
)


def case(name: str, dtype: Any, N: int, C: int, pixels: int, equal: bool = False) -> Case:
    """Makes a case; with `equal` all channels of a pixel are equal, so the output must be beta for any epsilon."""
    rng = np.random.default_rng([N, C, pixels])
    x = (signed(rng, N, C, pixels) + 5).astype(dtype)
    if equal:
        x[:] = x[:, :1]
    gamma, beta = signed(rng, C, dtype=dtype), signed(rng, C, dtype=dtype)
    epsilon = 1e-12 if equal else 1e-3
    expected = OPS["FusedLayerNorm2d"].reference(x, gamma, beta, epsilon=float(np.float32(epsilon)))

    def plan(harness: Harness, facts: int) -> Plan:
        sizes = (c_int64(N), c_int64(C), c_int64(pixels))
        return harness.plan("layer_norm_2d", facts, c_int(dtype == np.float16), *sizes, c_float(epsilon))

    return Case(name, "FusedLayerNorm2d", [x, gamma, beta], list(expected), plan, tolerance_of(dtype))


def cases() -> Iterator[Case]:
    for suffix, dtype in FLOATS:
        for N, C, pixels in SHAPES:
            yield case(f"layer_norm_2d_{suffix}-{N}x{C}x{pixels}", dtype, N, C, pixels)
        yield case(f"layer_norm_2d_{suffix}-equal", dtype, 2, 40, 37, equal=True)
