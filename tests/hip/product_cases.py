"""GEMMs and convolutions of any shape on the GPU, by the kernels that need no vendor library."""

from __future__ import annotations

import math
from collections.abc import Iterator
from ctypes import c_float, c_int, c_int32, c_int64
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tests.hip import activations, tiles
from tests.hip.case import FLOATS, Case, signed, tolerance_of
from tests.hip.harness import Harness, Plan, int64s


@dataclass(frozen=True)
class Product:
    """Y = act(A B / 2 + bias + 3/4 R).

    `bias_step` is the distance to the next matrix's bias. `aligned` is the alignment passed to the plan.
    """

    M: int
    N: int
    K: int
    transpose_a: bool = False
    transpose_b: bool = False
    a_batch: tuple[int, ...] = ()
    b_batch: tuple[int, ...] = ()
    bias: bool = False
    bias_step: int = 0
    residual: bool = False
    act: str = ""
    aligned: bool = True


PRODUCTS = (
    Product(3, 5, 7),
    Product(64, 32, 16, bias=True, act="Relu"),
    Product(65, 33, 273, transpose_a=True, bias=True, residual=True, act="Gelu"),
    Product(72, 40, 263, transpose_a=True, a_batch=(2,), b_batch=(2,), bias=True, residual=True, act="Gelu"),
    Product(70, 136, 264, transpose_b=True, a_batch=(2,), residual=True),
    Product(5, 9, 104, True, True, (2, 3), (3,), act="Silu"),
    Product(1, 130, 31, a_batch=(4, 1), b_batch=(1, 2), bias=True),
    Product(129, 1, 8),
    Product(136, 264, 40, True, True, bias=True, act="Clip"),
    Product(24, 160, 72, residual=True, aligned=False),
    Product(10, 20, 1, transpose_b=True, a_batch=(3,)),
    # K is split here, as in the cases above with K > 256.
    Product(2, 3, 300, True, True, a_batch=(2,), b_batch=(2,)),
    Product(5, 7, 257, bias=True, act="Tanh"),
    Product(8, 40, 384, transpose_b=True, bias=True, residual=True, act="Relu"),
    Product(33, 16, 520, transpose_a=True, residual=True),
    Product(1, 24, 1000, a_batch=(3,), b_batch=(3,)),
    Product(9, 24, 32, b_batch=(3,), bias=True, bias_step=32, act="Silu"),
    Product(2, 16, 300, b_batch=(2,), bias=True, bias_step=19),
)

# Whole packs of both operands, plain and transposed, with split K, batches, and two groups of rows of tiles.
PANELS = (
    Product(8, 8, 8),
    Product(64, 32, 16, bias=True, act="Relu"),
    Product(33, 72, 72, a_batch=(2, 1), b_batch=(3,), residual=True),
    Product(130, 24, 40, bias=True, residual=True, act="Gelu"),
    Product(7, 200, 104, bias=True),
    Product(1, 24, 264, a_batch=(3,), b_batch=(3,)),
    Product(40, 16, 520, residual=True, act="Silu"),
    Product(290, 16, 24, act="Clip"),
    Product(70, 72, 40, b_batch=(3,), bias=True, bias_step=80, act="Relu"),
    Product(3, 24, 264, b_batch=(2,), bias=True, bias_step=24, residual=True),
    Product(33, 16, 16, b_batch=(3,), bias=True, bias_step=17),
)
TRANSPOSED = tuple(replace(p, N=p.N - 3 if i % 2 else p.N, transpose_b=True) for i, p in enumerate(PANELS))


def gemm(name: str, dtype: Any, p: Product, tile: int = -1) -> Case:
    rng = np.random.default_rng([p.M, p.N, p.K])
    a = signed(rng, *p.a_batch, *((p.K, p.M) if p.transpose_a else (p.M, p.K)), dtype=dtype)
    b = signed(rng, *p.b_batch, *((p.N, p.K) if p.transpose_b else (p.K, p.N)), dtype=dtype)
    wide_a, wide_b = a.astype(np.float64), b.astype(np.float64)
    if p.transpose_a:
        wide_a = wide_a.swapaxes(-1, -2)
    if p.transpose_b:
        wide_b = wide_b.swapaxes(-1, -2)
    y = 0.5 * (wide_a @ wide_b)
    steps = math.prod(y.shape[:-2]) - 1
    bias = signed(rng, steps * p.bias_step + p.N, dtype=dtype)
    inputs = [a, b, bias]
    if p.bias:
        each = np.stack([bias[i * p.bias_step :][: p.N] for i in range(steps + 1)]).astype(np.float64)
        y += each.reshape(*y.shape[:-2], 1, p.N)
    if p.residual:
        inputs.append(signed(rng, *y.shape, dtype=dtype))
        y += 0.75 * inputs[3].astype(np.float64)
    batches = [len(p.a_batch), *p.a_batch, len(p.b_batch), *p.b_batch]

    def plan(harness: Harness, facts: int) -> Plan:
        sizes = (c_int64(p.M), c_int64(p.N), c_int64(p.K), c_int(p.transpose_a), c_int(p.transpose_b))
        kind, alpha, beta = activations.parameters(p.act)
        factors, bias = (c_float(0.5), c_float(0.75 if p.residual else 0)), (c_int(p.bias), c_int64(p.bias_step))
        epilogue = (*factors, *bias, c_int(p.residual), c_int32(kind))
        act = (c_float(alpha), c_float(beta))
        half = c_int(dtype == np.float16)
        last = (int64s(batches), c_int(p.aligned), c_int32(tile))
        return harness.plan("gemm", facts, half, *sizes, *epilogue, *act, *last)

    # A float32 sum of K products rounds by about sqrt(K) units; cuBLAS on an H200 is also 1.0e-5 off at K=768.
    tolerance = tolerance_of(dtype) * max(1.0, math.sqrt(p.K / 512))
    return Case(name, "MatMul", inputs, [activations.apply(p.act, y)], plan, tolerance)


# N, groups, channels and filters of a group, H, W, kernel, strides, dilations, pads (top, left) on both sides
CONVS = (
    (2, 1, 3, 5, 9, 11, (3, 3), (1, 1), (1, 1), (1, 1)),
    (2, 1, 3, 8, 19, 21, (7, 7), (2, 2), (1, 1), (3, 3)),
    (1, 1, 6, 70, 9, 8, (1, 1), (1, 1), (1, 1), (0, 0)),
    (2, 6, 1, 1, 9, 8, (3, 3), (2, 1), (1, 1), (1, 1)),
    (1, 2, 2, 3, 12, 12, (3, 2), (1, 1), (2, 3), (1, 2)),
    (1, 1, 17, 4, 7, 7, (5, 3), (1, 1), (1, 1), (2, 1)),
    (3, 1, 4, 6, 1, 17, (1, 5), (1, 3), (1, 1), (0, 2)),
    (1, 3, 5, 2, 6, 6, (2, 2), (2, 2), (1, 1), (0, 0)),
    (1, 1, 16, 136, 12, 13, (3, 3), (2, 1), (1, 1), (1, 1)),
    (2, 1, 40, 24, 4, 6, (1, 1), (1, 1), (1, 1), (0, 0)),
)


def conv(name: str, dtype: Any, sizes: Any, bias: bool, tile: int = -1) -> Case:
    N, groups, C, M, H, W, kernel, strides, dilations, pads = sizes
    rng = np.random.default_rng([N, groups, C, M, H, W])
    x = signed(rng, N, groups * C, H, W, dtype=dtype)
    w = signed(rng, groups * M, C, *kernel, dtype=dtype)
    padded = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (pads[0], pads[0]), (pads[1], pads[1])))
    OH = (padded.shape[2] - (kernel[0] - 1) * dilations[0] - 1) // strides[0] + 1
    OW = (padded.shape[3] - (kernel[1] - 1) * dilations[1] - 1) // strides[1] + 1
    y = np.zeros((N, groups * M, OH, OW))
    for r in range(kernel[0]):
        for s in range(kernel[1]):
            top, left = r * dilations[0], s * dilations[1]
            patch = padded[:, :, top : top + OH * strides[0] : strides[0], left : left + OW * strides[1] : strides[1]]
            patch = patch[:, :, :OH, :OW].reshape(N, groups, C, OH, OW)
            taps = w[:, :, r, s].astype(np.float64).reshape(groups, M, C)
            y += np.einsum("ngchw,gmc->ngmhw", patch, taps).reshape(y.shape)
    inputs = [x, w]
    if bias:
        inputs.append(signed(rng, groups * M, dtype=dtype))
        y += inputs[2].astype(np.float64)[:, None, None]
    numbers = [N, groups, C, H, W, M, OH, OW, *kernel, *strides, *dilations, *pads]

    def plan(harness: Harness, facts: int) -> Plan:
        return harness.plan("conv", facts, c_int(dtype == np.float16), c_int(bias), int64s(numbers), c_int32(tile))

    return Case(name, "Conv", inputs, [y], plan, tolerance_of(dtype))


def cases() -> Iterator[Case]:
    for suffix, dtype in FLOATS:
        for tile in tiles.of_type(suffix):
            for p in PRODUCTS:
                yield gemm(f"gemm_{tile.size}_{suffix}-{p.M}x{p.N}x{p.K}", dtype, p, tile.number)
            for i, sizes in enumerate(CONVS):
                name = f"conv_{tile.size}_{suffix}-{'x'.join(map(str, sizes[:6]))}"
                yield conv(name, dtype, sizes, i % 2 == 0, tile.number)
    for tile in tiles.DENSE:
        for kind, products in (("panels", PANELS), ("transposed", TRANSPOSED)):
            for p in products:
                yield gemm(f"gemm_{kind}_{tile.size}-{p.M}x{p.N}x{p.K}", np.float16, p, tile.number)
