"""WinogradConv[Add][act] on the GPU: every algorithm with every GEMM tile."""

from __future__ import annotations

from collections.abc import Iterator
from ctypes import c_float, c_int, c_int32, c_int64
from typing import Any

import numpy as np

from tests.hip import activations, tiles
from tests.hip.case import FLOATS, Case, signed, tolerance_of
from tests.hip.harness import Array, Harness, Plan

ALGORITHMS = ("winograd4", "winograd2", "implicit")
MATRIX = 3
# N, C, H, W, M, pads (top, left, bottom, right): one pixel, odd sizes, uneven pads, C and M around multiples of the
# tiles, several images, several chunks.
SHAPES = (
    (1, 1, 3, 3, 1, (0, 0, 0, 0)),
    (1, 17, 9, 11, 19, (1, 1, 1, 1)),
    (2, 3, 8, 8, 64, (1, 1, 1, 1)),
    (1, 16, 12, 20, 65, (0, 1, 1, 0)),
    (3, 5, 7, 7, 130, (1, 1, 1, 1)),
    (1, 33, 5, 6, 66, (2, 0, 1, 3)),
    (1, 2, 21, 22, 129, (1, 1, 1, 1)),
    (2, 20, 4, 4, 70, (1, 1, 1, 1)),
    (1, 7, 1, 1, 72, (1, 1, 1, 1)),
)


def convolution(x: Array, w: Array, pads: tuple[int, ...]) -> Array:
    """Computes the definition in float64: x [N, C, H, W], w [M, C, 3, 3], pads top, left, bottom, right."""
    top, left, bottom, right = pads
    x = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (top, bottom), (left, right)))
    windows = np.lib.stride_tricks.sliding_window_view(x, (3, 3), axis=(2, 3))
    y: Array = np.einsum("nchwrs,mcrs->nmhw", windows, w.astype(np.float64), optimize=True)
    return y


def case(
    name: str,
    dtype: Any,
    sizes: tuple[int, int, int, int, int],
    pads: tuple[int, int, int, int],
    act: str,
    residual: bool,
    algorithm: int = -1,
    tile: int = -1,
    chunk: int = -1,
) -> Case:
    N, C, H, W, M = sizes
    rng = np.random.default_rng([*sizes, *pads])
    x, bias = signed(rng, N, C, H, W, dtype=dtype), signed(rng, M, dtype=dtype)
    w = (signed(rng, M, C, 3, 3) / np.sqrt(9 * C)).astype(dtype)
    y = convolution(x, w, pads) + bias.astype(np.float64)[:, None, None]
    inputs = [x, w, bias]
    if residual:
        inputs.append(signed(rng, *y.shape, dtype=dtype))
        y = y + inputs[3].astype(np.float64)
    kind, a, b = activations.parameters(act)
    shape = (c_int64 * 9)(N, C, H, W, M, *pads)

    def plan_of(prepare: bool) -> Any:
        def plan(harness: Harness, facts: int) -> Plan:
            return harness.plan(
                "winograd_conv", facts, c_int(dtype == np.float16), shape, c_int(residual), c_int32(kind),
                c_float(a), c_float(b), c_int32(algorithm), c_int32(tile), c_int64(chunk), c_int(prepare),
            )  # fmt: skip

        return plan

    tolerance = tolerance_of(dtype, 1e-4 if algorithm in (-1, 0) else 1e-5)
    expected = [activations.apply(act, y)]
    return Case(name, "WinogradConv", inputs, expected, plan_of(False), tolerance, prepare=plan_of(True))


def cases() -> Iterator[Case]:
    for suffix, dtype in FLOATS:
        for algorithm, algorithm_name in enumerate(ALGORITHMS):
            # Winograd's GEMM is the same for both dtypes.
            for t, tile in enumerate(tiles.ALL_VECTOR):
                if suffix == "f16" and algorithm != 2 and tile is not tiles.ALL_VECTOR[-1]:
                    continue
                for i, (N, C, H, W, M, pads) in enumerate(SHAPES):
                    if t == 0 and M <= 64:
                        M += 64
                    act = activations.NAMES[(i + 2 * t + algorithm) % len(activations.NAMES)]
                    chunk = 4 if algorithm < 2 and N > 1 else -1
                    size = f"n{N}_c{C}_h{H}_w{W}_m{M}"
                    name = f"{algorithm_name}_{tile.size}_{act.lower() or 'none'}_{suffix}-{size}"
                    yield case(name, dtype, (N, C, H, W, M), pads, act, i % 2 == 1, algorithm, tile.number, chunk)
    for t, tile in enumerate(tiles.STRIDED):
        for i, (N, C, H, W, M, pads) in enumerate(SHAPES):
            act = activations.NAMES[(i + 3 * t) % len(activations.NAMES)]
            name = f"matrix_{tile.size}_{act.lower() or 'none'}_f16-n{N}_c{C}_h{H}_w{W}_m{M}"
            yield case(name, np.float16, (N, C, H, W, M), pads, act, i % 2 == 0, MATRIX, tile.number)
