"""Matrix products and convolutions of any shape on the GPU, by the kernels that need no library."""

from __future__ import annotations

from collections.abc import Iterator
from ctypes import c_float, c_int, c_int64
from typing import Any

import numpy as np

from tests.hip.case import Case, signed, tolerance_of
from tests.hip.harness import Harness, Plan
from tests.hip.movement_cases import int64s

# M, N, K, transposed A, transposed B, batch of A, batch of B
PRODUCTS: tuple[tuple[int, int, int, bool, bool, tuple[int, ...], tuple[int, ...]], ...] = (
    (3, 5, 7, False, False, (), ()),
    (64, 32, 16, False, False, (), ()),
    (65, 33, 17, True, False, (), ()),
    (70, 40, 33, False, True, (2,), (2,)),
    (5, 9, 100, True, True, (2, 3), (3,)),
    (1, 130, 31, False, False, (4, 1), (1, 2)),
    (129, 1, 8, False, False, (), ()),
    (10, 20, 1, False, True, (3,), ()),
)


def gemm(name: str, dtype: Any, product: Any) -> Case:
    M, N, K, transpose_a, transpose_b, a_batch, b_batch = product
    rng = np.random.default_rng([M, N, K])
    a = signed(rng, *a_batch, *((K, M) if transpose_a else (M, K)), dtype=dtype)
    b = signed(rng, *b_batch, *((N, K) if transpose_b else (K, N)), dtype=dtype)
    wide_a, wide_b = a.astype(np.float64), b.astype(np.float64)
    if transpose_a:
        wide_a = wide_a.swapaxes(-1, -2)
    if transpose_b:
        wide_b = wide_b.swapaxes(-1, -2)
    batches = [len(a_batch), *a_batch, len(b_batch), *b_batch]

    def plan(harness: Harness, facts: int) -> Plan:
        sizes = (c_int64(M), c_int64(N), c_int64(K), c_int(transpose_a), c_int(transpose_b))
        half = c_int(dtype == np.float16)
        return harness.plan("gemm", facts, half, *sizes, c_float(0.5), int64s(batches))

    return Case(name, "MatMul", [a, b], [0.5 * (wide_a @ wide_b)], plan, tolerance_of(dtype))


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
)


def conv(name: str, dtype: Any, sizes: Any, bias: bool) -> Case:
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
        return harness.plan("conv", facts, c_int(dtype == np.float16), c_int(bias), int64s(numbers))

    return Case(name, "Conv", inputs, [y], plan, tolerance_of(dtype))


def cases() -> Iterator[Case]:
    for dtype in (np.float32, np.float16):
        suffix = "f32" if dtype == np.float32 else "f16"
        for product in PRODUCTS:
            yield gemm(f"gemm_{suffix}-{product[0]}x{product[1]}x{product[2]}", dtype, product)
        for i, sizes in enumerate(CONVS):
            yield conv(f"conv_{suffix}-{'x'.join(map(str, sizes[:6]))}", dtype, sizes, i % 2 == 0)
