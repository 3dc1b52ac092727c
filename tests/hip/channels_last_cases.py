"""Depthwise convolutions, and operators between convolutions, on channels-last float16 tensors [N, H, W, C]."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from ctypes import c_float, c_int, c_int32, c_int64
from typing import Any

import numpy as np

from tests.hip import activations, tiles
from tests.hip.case import Case, signed, tolerance_of
from tests.hip.convolution_cases import convolve, transpose_convolve
from tests.hip.harness import Harness, Plan, int64s
from tests.hip.pool_cases import POOLS, WINDOWS, pool
from tests.hip.resize_cases import COORDINATES, IMAGES, WAYS_OF_IMAGES, resize

# batch, rows, columns: divisible by the vector length in both, one or no dimension; smaller and larger than a tile;
# square tiles, and tiles for few rows or few columns.
SQUARE = ((2, 64, 64), (2, 65, 129), (1, 136, 72), (1, 9, 9), (2, 128, 64), (1, 100, 16), (3, 16, 41), (1, 73, 200))
FEW = ((8, 200), (5, 16), (3, 131), (1, 9), (8, 1024), (7, 513), (8, 512), (2, 600))
MATRICES = (
    *SQUARE,
    *((1 + i % 3, few, many) for i, (few, many) in enumerate(FEW)),
    *((1 + i % 3, many, few) for i, (few, many) in enumerate(FEW)),
    (2, 24, 7),
)


def swap(name: str, dtype: Any, batch: int, rows: int, columns: int) -> Case:
    x = signed(np.random.default_rng([batch, rows, columns]), batch, rows, columns, dtype=dtype)

    def plan(harness: Harness, facts: int) -> Plan:
        return harness.plan("transpose_planes", facts, *map(c_int64, (batch, rows, columns, x.itemsize)))

    return Case(name, "Transpose", [x], [x.swapaxes(1, 2).astype(np.float64)], plan, 0)


# N, channels, H, W, kernel, strides, dilations, leading pads, spatial axes of Y, activation, residual
DEPTHWISE: tuple[tuple[Any, ...], ...] = (
    (1, 8, 5, 7, (3, 3), (1, 1), (1, 1), (1, 1), (5, 7), "", False),
    (2, 24, 9, 11, (3, 3), (2, 2), (1, 1), (1, 1), (5, 6), "Relu", False),
    (1, 16, 12, 6, (5, 5), (1, 1), (1, 1), (2, 2), (12, 6), "HardSwish", True),
    (1, 40, 8, 9, (3, 2), (1, 3), (2, 1), (0, 1), (4, 4), "Silu", False),
    (3, 8, 4, 4, (7, 7), (1, 1), (1, 1), (3, 3), (4, 4), "Gelu", True),
    (1, 136, 3, 5, (1, 1), (1, 1), (1, 1), (0, 0), (3, 5), "Clip", False),
    (1, 32, 1, 33, (1, 4), (1, 2), (1, 3), (0, 2), (1, 14), "Sigmoid", True),
    (2, 64, 7, 7, (3, 3), (1, 1), (1, 1), (2, 0), (9, 7), "", True),
    (1, 8, 1, 1, (3, 3), (1, 1), (1, 1), (1, 1), (1, 1), "Silu", True),
    (2, 16, 6, 13, (3, 3), (1, 2), (1, 1), (0, 1), (4, 7), "HardSwish", False),
    (1, 72, 10, 9, (3, 3), (1, 1), (2, 2), (2, 2), (10, 9), "Relu", True),
    (1, 32, 15, 17, (3, 3), (2, 2), (1, 1), (0, 0), (7, 8), "Clip", False),
    (4, 8, 3, 40, (3, 3), (3, 1), (1, 1), (1, 0), (1, 38), "Gelu", False),
    (1, 24, 11, 3, (5, 1), (2, 1), (1, 1), (2, 0), (6, 3), "Silu", True),
    (2, 8, 9, 9, (7, 7), (2, 2), (1, 1), (3, 3), (5, 5), "", False),
    (1, 48, 6, 21, (2, 5), (1, 1), (3, 2), (0, 4), (3, 21), "Relu", False),
)
# The same with channels that are not a multiple of 8.
ODD_DEPTHWISE: tuple[tuple[Any, ...], ...] = (
    (1, 1, 5, 7, (3, 3), (1, 1), (1, 1), (1, 1), (5, 7), "", False),
    (2, 3, 9, 11, (3, 3), (2, 2), (1, 1), (1, 1), (5, 6), "Relu", True),
    (1, 13, 12, 6, (5, 5), (1, 1), (1, 1), (2, 2), (12, 6), "HardSwish", True),
    (1, 42, 8, 9, (3, 2), (1, 3), (2, 1), (0, 1), (4, 4), "Silu", False),
    (3, 7, 4, 4, (7, 7), (1, 1), (1, 1), (3, 3), (4, 4), "Gelu", True),
    (1, 133, 3, 5, (1, 1), (1, 1), (1, 1), (0, 0), (3, 5), "Clip", False),
    (1, 30, 1, 33, (1, 4), (1, 2), (1, 3), (0, 2), (1, 14), "Sigmoid", True),
    (2, 65, 7, 7, (3, 3), (1, 1), (1, 1), (2, 0), (9, 7), "", True),
)

# For the kernels of one square window: N, channels of one block and of several, H, W, leading pad. Rows that are and
# are not multiples of a strip.
SQUARE_DEPTHWISE = (
    (1, 8, 7, 8, 1), (2, 24, 5, 13, 2), (1, 264, 6, 9, 3), (1, 136, 9, 7, 0), (3, 72, 4, 7, 1), (1, 208, 4, 17, 2),
    (2, 40, 11, 5, 3), (1, 96, 8, 16, 1),
)  # fmt: skip
# The same with an even number of channels that is not a multiple of 8, also with a smaller last block.
EVEN_DEPTHWISE = ((2, 30, 7, 9, 1), (1, 2, 9, 8, 2), (1, 42, 6, 13, 3), (1, 134, 7, 7, 1), (2, 258, 4, 5, 1))


def square_depthwise(
    side: int, stride: int, sizes: Sequence[tuple[int, int, int, int, int]] = SQUARE_DEPTHWISE
) -> Iterator[tuple[Any, ...]]:
    """Yields sizes like those of DEPTHWISE."""
    acts = ("", "Relu", "HardSwish", "Silu", "Gelu", "Clip", "Sigmoid", "")
    for i, (N, channels, H, W, pad) in enumerate(sizes):
        out = tuple((size + pad + side // 2 - side) // stride + 1 for size in (H, W))
        act = acts[i % len(acts)]
        yield N, channels, H, W, (side, side), (stride, stride), (1, 1), (pad, pad), out, act, i % 2 == 1


def depthwise(name: str, sizes: tuple[Any, ...], long_strips: bool = False) -> Case:
    N, channels, H, W, kernel, strides, dilations, pads, out, act, residual = sizes
    rng = np.random.default_rng([N, channels, H, W])
    x, w = (signed(rng, *shape, dtype=np.float16) for shape in ((N, channels, H, W), (channels, 1, *kernel)))
    b, r = (signed(rng, *shape, dtype=np.float16) for shape in ((channels,), (N, *out, channels)))
    y = np.moveaxis(convolve(x, w, channels, strides, dilations, pads, out), 1, -1) + b.astype(np.float64)
    inputs = [np.ascontiguousarray(np.moveaxis(x, 1, -1)), w, b]
    if residual:
        inputs.append(r)
        y = y + r.astype(np.float64)
    kind, p, q = activations.parameters(act)
    numbers = [N, channels, H, W, *out, *kernel, *strides, *dilations, *pads]

    def plan(harness: Harness, facts: int) -> Plan:
        act = (c_int32(kind), c_float(p), c_float(q))
        return harness.plan("depthwise", facts, int64s(numbers), c_int(residual), *act, c_int(long_strips))

    return Case(name, "Conv", inputs, [activations.apply(act, y)], plan, tolerance_of(np.float16))


# Convolutions as GEMMs: N, channels, filters, size of X, of Y, kernel, strides, dilations, leading pads, activation,
# bias, residual. Channels that are and are not a multiple of the GEMM's K step, filters that are not a multiple of a
# vector, split K, windows that begin before and end after X.
PRODUCTS: tuple[tuple[Any, ...], ...] = (
    (1, 8, 8, (5, 7), (5, 7), (3, 3), (1, 1), (1, 1), (1, 1), "", False, False),
    (2, 16, 24, (9, 11), (5, 6), (3, 3), (2, 2), (1, 1), (1, 1), "Relu", True, False),
    (1, 40, 13, (6, 6), (6, 6), (3, 3), (1, 1), (1, 1), (1, 1), "Silu", True, True),
    (3, 64, 72, (4, 5), (4, 5), (1, 1), (1, 1), (1, 1), (0, 0), "Gelu", True, True),
    (1, 24, 130, (8, 9), (4, 5), (1, 1), (2, 2), (1, 1), (0, 0), "", True, False),
    (2, 8, 40, (19, 12), (10, 6), (7, 7), (2, 2), (1, 1), (3, 3), "HardSwish", False, True),
    (1, 72, 16, (10, 9), (10, 9), (3, 3), (1, 1), (2, 2), (2, 2), "Clip", True, False),
    (1, 128, 32, (3, 3), (3, 3), (3, 3), (1, 1), (1, 1), (1, 1), "Relu", True, True),
    (1, 32, 3, (12, 13), (14, 13), (2, 5), (1, 1), (1, 1), (1, 2), "Sigmoid", True, False),
    (2, 16, 8, (1, 33), (1, 16), (1, 4), (1, 2), (1, 3), (0, 2), "", False, True),
)
DISJOINT: tuple[tuple[Any, ...], ...] = (
    (1, 8, 8, (3, 4), (6, 8), (2, 2), (2, 2), (1, 1), (0, 0), "", False, False),
    (2, 16, 24, (5, 3), (10, 6), (2, 2), (2, 2), (1, 1), (0, 0), "Relu", True, False),
    (1, 40, 16, (4, 7), (12, 14), (3, 2), (3, 2), (1, 1), (0, 0), "Silu", True, True),
    (3, 8, 40, (2, 2), (2, 8), (1, 4), (1, 4), (1, 1), (0, 0), "", True, True),
    (1, 64, 32, (1, 9), (2, 18), (2, 2), (2, 2), (1, 1), (0, 0), "Gelu", True, False),
    (1, 72, 8, (7, 5), (7, 5), (1, 1), (1, 1), (1, 1), (0, 0), "", False, True),
    (2, 24, 136, (3, 3), (6, 6), (2, 2), (2, 2), (1, 1), (0, 0), "Clip", True, False),
    (1, 136, 8, (6, 7), (24, 28), (4, 4), (4, 4), (1, 1), (0, 0), "HardSwish", True, True),
)
# Convolutions with pixels shared between taps: channels that are not, and that exceed, one block; images smaller than a
# tile and of several tiles; kernels of one row and one column; pads on one side; K split between the taps of a block,
# and not split.
SHARED: tuple[tuple[Any, ...], ...] = tuple(
    (N, C, M, size, size, kernel, (1, 1), (1, 1), pads, act, bias, residual)
    for N, C, M, size, kernel, pads, act, bias, residual in (
        (1, 8, 8, (5, 7), (3, 3), (1, 1), "", False, False),
        (1, 40, 13, (6, 6), (3, 3), (1, 1), "Silu", True, True),
        (2, 120, 136, (9, 11), (3, 3), (1, 1), "Relu", True, True),
        (3, 248, 16, (4, 5), (5, 5), (2, 2), "", True, False),
        (2, 160, 24, (7, 7), (3, 3), (2, 0), "Gelu", True, True),
        (1, 64, 8, (13, 30), (3, 5), (0, 3), "", False, False),
        (1, 128, 8, (17, 1), (7, 1), (5, 0), "", False, True),
        (1, 56, 40, (1, 70), (1, 6), (0, 2), "HardSwish", True, False),
        (1, 128, 72, (6, 5), (3, 3), (1, 1), "Relu", True, True),
        (1, 192, 40, (3, 9), (3, 3), (1, 1), "", True, False),
        (2, 64, 104, (4, 4), (3, 3), (1, 1), "LeakyRelu", False, True),
        (4, 40, 1024, (32, 8), (2, 3), (1, 1), "Clip", True, True),
    )
)


def product(name: str, sizes: tuple[Any, ...], transposed: bool, tile: int, halo: bool = False) -> Case:
    N, C, M, size, out, kernel, strides, dilations, pads, act, bias, residual = sizes
    rng = np.random.default_rng([N, C, M, *size])
    x = signed(rng, N, C, *size, dtype=np.float16)
    w = signed(rng, *((C, M) if transposed else (M, C)), *kernel, dtype=np.float16)
    y = (transpose_convolve if transposed else convolve)(x, w, 1, strides, dilations, pads, out)
    y = np.moveaxis(y, 1, -1)
    b, r = signed(rng, M, dtype=np.float16), signed(rng, N, *out, M, dtype=np.float16)
    inputs = [np.ascontiguousarray(np.moveaxis(a, 1, -1)) for a in (x, w)] + [b]
    if bias:
        y = y + b.astype(np.float64)
    if residual:
        inputs.append(r)
        y = y + r.astype(np.float64)
    axes = zip(size, out, kernel, strides, dilations, pads, strict=True)
    numbers = [N, C, M, *(v for axis in axes for v in axis)]
    has = (c_int * 2)(bias, residual)
    kind, p, q = activations.parameters(act)

    def plan(harness: Harness, facts: int) -> Plan:
        last = (has, c_int32(kind), c_float(p), c_float(q), c_int32(tile), c_int(halo))
        return harness.plan("channels_last_conv", facts, c_int(transposed), int64s(numbers), *last)

    op = "ConvTranspose" if transposed else "Conv"
    return Case(name, op, inputs, [activations.apply(act, y)], plan, tolerance_of(np.float16))


def cases() -> Iterator[Case]:
    for tile in tiles.DENSE:
        for table, kind in ((PRODUCTS, "channels_last_conv"), (DISJOINT, "conv_disjoint")):
            for i, sizes_ in enumerate(table):
                yield product(f"{kind}_{tile.size}-{i}", sizes_, kind == "conv_disjoint", tile.number)
    for tile in tiles.HALO:
        for i, sizes_ in enumerate(SHARED):
            yield product(f"conv_halo_{tile.size}-{i}", sizes_, False, tile.number, halo=True)
    for sizes in MATRICES:
        for dtype in (np.float16, np.float32):
            yield swap(f"transpose_planes_{np.dtype(dtype).name}-{'x'.join(map(str, sizes))}", dtype, *sizes)
    for one in (*DEPTHWISE, *ODD_DEPTHWISE):
        yield depthwise(f"depthwise-{'x'.join(map(str, one[:4]))}", one)
    for side, stride, long_strips in (
        (3, 1, 0),
        (3, 2, 0),
        (5, 1, 0),
        (5, 2, 0),
        (7, 1, 0),
        (7, 2, 0),
        (5, 1, 1),
        (7, 1, 1),
    ):
        kind = f"depthwise_{side}_by_{stride}{'_long' if long_strips else ''}"
        for one in square_depthwise(side, stride, (*SQUARE_DEPTHWISE, *EVEN_DEPTHWISE)):
            yield depthwise(f"{kind}-{'x'.join(map(str, one[:4]))}", one, bool(long_strips))
    for channels in (16, 3):
        flat = [window for window in WINDOWS if len(window[0]) == 2]
        for i, window in enumerate(flat):
            mode, size = POOLS[i % 3], "x".join(map(str, window[0]))
            name = f"pool_channels_last_{mode.lower()}-{size}x{channels}"
            yield pool(name, np.float16, window, mode, channels)
            for byte in (np.int8, np.uint8):
                yield pool(f"max_{name}_{np.dtype(byte).name}-{i}", byte, window, "Max", channels)
        for i in range(2 * len(IMAGES)):
            coordinates, how, sizes_ = COORDINATES[i % 4], WAYS_OF_IMAGES[i % 5], IMAGES[i % len(IMAGES)]
            size = "x".join(map(str, (*sizes_, channels)))
            yield resize(
                f"resize_channels_last_{coordinates}_{how}-{size}", np.float16, sizes_, coordinates, how, channels
            )
