"""Integer GEMMs on the GPU: matrices, convolutions, and the scaling of their sums."""

from __future__ import annotations

from collections.abc import Iterator
from ctypes import c_float
from dataclasses import replace
from typing import Any

import numpy as np

from tests.hip.case import Case, signed
from tests.hip.convolution_cases import CONVOLUTIONS, Sizes, convolve
from tests.hip.harness import Array, Harness, Plan, element_type, int64s

# M, N, K, batches of both operands.
PRODUCTS: tuple[tuple[int, int, int, tuple[int, ...], tuple[int, ...]], ...] = (
    (1, 1, 1, (), ()), (3, 5, 7, (), ()), (65, 70, 33, (), ()), (4, 130, 16, (2,), (1,)),
    (64, 64, 64, (2, 1), (1, 3)), (7, 3, 100, (5,), (5,)), (2, 9, 0, (), ()), (17, 1, 31, (), (2,)),
)  # fmt: skip
PAIRS = ((np.uint8, np.uint8), (np.int8, np.int8), (np.uint8, np.int8), (np.int8, np.uint8))


def random(rng: np.random.Generator, dtype: Any, *shape: int) -> Array:
    """Draws from the whole range of the type; sums of wide types wrap around."""
    ends = np.iinfo(dtype)
    return rng.integers(ends.min, ends.max, shape, dtype, endpoint=True)


def wide(x: Array) -> Array:
    return x.astype(np.int64)


def zero_points(rng: np.random.Generator, dtype: Any, kind: int, lines: int) -> Array:
    """Draws no zero point (kind 0, zeros), one (1), or one for each line (2)."""
    points = random(rng, dtype, lines if kind == 2 else 1)
    return points if kind else np.zeros_like(points)


def product(name: str, left: Any, right: Any, i: int) -> Case:
    M, N, K, a_batch, b_batch = PRODUCTS[i]
    rng = np.random.default_rng([M, N, K, i])
    a, b = random(rng, left, *a_batch, M, K), random(rng, right, *b_batch, K, N)
    turned = (i % 3 == 1, i % 2 == 1)
    size = np.dtype(left).itemsize
    small = size == 1
    kinds = (i % 3, (i + 1) % 3) if small else (0, 0)
    zeros = zero_points(rng, left, kinds[0], M), zero_points(rng, right, kinds[1], N)
    sums = np.dtype(np.int32) if size < 4 else np.dtype(left)
    by = i % 4  # a bias for each row, each column, each element, or none
    bias = random(rng, sums, *((M, 1), (1, N), (M, N), (1, 1))[by]) // (16 if small else 1)
    with np.errstate(over="ignore"):
        y = np.matmul(wide(a) - wide(zeros[0]).reshape(-1, 1), wide(b) - wide(zeros[1]))
        y = (y + (wide(bias) if by < 3 else 0)).astype(sums)
    steps = ((1, 0), (0, 1), (N, 1), (0, 0))[by]
    numbers = [M, N, K, *turned, len(a_batch), *a_batch, len(b_batch), *b_batch]
    inputs = [np.ascontiguousarray(x.swapaxes(-1, -2)) if t else x for x, t in zip((a, b), turned, strict=True)]
    inputs += [*zeros, np.ascontiguousarray(bias)]

    def plan(harness: Harness, facts: int) -> Plan:
        has = int64s([*kinds, by < 3, *steps])
        return harness.plan("integer_matmul", facts, element_type(left), element_type(right), has, int64s(numbers))

    return Case(name, "MatMulInteger", inputs, [y], plan, 0, output_dtype=sums)


def window(name: str, x_type: Any, w_type: Any, sizes: Sizes, i: int) -> Case:
    rng = np.random.default_rng([sizes.N, sizes.C, sizes.M, *sizes.size])
    filters = sizes.groups * sizes.M
    x = random(rng, x_type, sizes.N, sizes.groups * sizes.C, *sizes.size)
    w = random(rng, w_type, filters, sizes.C, *sizes.kernel)
    kinds = (i % 3, i % 2)
    w_zero, x_zero = zero_points(rng, w_type, kinds[0], filters), zero_points(rng, x_type, kinds[1], 1)
    bias = rng.integers(-9999, 9999, filters).astype(np.int32)
    ones = [1] * len(sizes.size)
    y = convolve(
        (wide(x) - wide(x_zero)), wide(w) - wide(w_zero).reshape(-1, 1, *ones), sizes.groups, sizes.strides,
        sizes.dilations, sizes.pads, sizes.out,
    )  # fmt: skip
    if i % 2:
        y += bias.reshape(-1, *ones)
    axes = [*zip(sizes.size, sizes.out, sizes.kernel, sizes.strides, sizes.dilations, sizes.pads, strict=True)]
    front = [(1, 1, 1, 1, 1, 0)] * (3 - len(axes))
    numbers = [sizes.N, sizes.groups, sizes.C, sizes.M, *(v for axis in (*front, *axes) for v in axis)]

    def plan(harness: Harness, facts: int) -> Plan:
        has = int64s([*kinds, i % 2, 1, 0])
        return harness.plan("integer_window", facts, element_type(w_type), element_type(x_type), has, int64s(numbers))

    return Case(name, "ConvInteger", [w, x, w_zero, x_zero, bias], [y], plan, 0, output_dtype=np.int32)


# outer, M, N
SUMS = ((1, 1, 1), (1, 3, 5), (2, 7, 9), (3, 1, 300), (1, 257, 2), (2, 16, 16), (1, 5, 100), (4, 2, 3))


def scaled(name: str, i: int, target: Any) -> Case:
    outer, M, N = SUMS[i]
    rng = np.random.default_rng([outer, M, N])
    sums = rng.integers(-(10**5), 10**5, (outer, M, N)).astype(np.int32)
    many = (i % 2 == 1, i % 3 == 1)
    left = (1e-3 + 1e-3 * rng.random((M if many[0] else 1, 1))).astype(np.float32)
    right = (1e-2 + 1e-2 * rng.random(N if many[1] else 1)).astype(np.float32)
    alpha = np.float32(0.5 if i % 4 == 3 else 1)
    bias, has_bias, has_zero = signed(rng, N), target == np.float32 and i % 2 == 0, i % 3 != 0
    y_scale = np.array([0.02], np.float32)
    zero = np.array([(100 if target == np.uint8 else -3) if has_zero else 0]).astype(target)
    if target == np.float32:
        y = sums * (left.astype(np.float64) * right * alpha) + (bias if has_bias else 0)
    else:
        ends = np.iinfo(target)
        whole = np.rint(sums.astype(np.float32) * (alpha * left * right / y_scale)) + zero.astype(np.float32)
        y = np.clip(whole, ends.min, ends.max).astype(np.float64)
    kind = 0 if target == np.float32 else element_type(target).value
    numbers = [outer, M, N, *many, has_bias, kind, has_zero]

    def plan(harness: Harness, facts: int) -> Plan:
        return harness.plan("scale_sums", facts, int64s(numbers), c_float(alpha))

    inputs = [sums, left, right, y_scale, zero, bias]
    return Case(name, "QLinearMatMul", inputs, [y], plan, 1e-6 if target == np.float32 else 0, output_dtype=target)


RANGES = ((-1.0, 2.0), (0.5, 3.0), (-4.0, -0.5), (0.0, 0.0), (-1e-8, 1e-8), (-300.0, 100.0), (0.0, 1.0), (-2.0, 0.0))


def dynamic(name: str, least: float, most: float) -> Case:
    ends = [np.array([x], np.float32) for x in (least, most)]
    low, high = np.minimum(ends[0], 0), np.maximum(ends[1], 0)
    scale = (high - low) / np.float32(255) if high > low else np.ones(1, np.float32)
    zero = np.rint(-low / scale)

    def plan(harness: Harness, facts: int) -> Plan:
        return harness.plan("dynamic_scale", facts)

    return Case(name, "DynamicQuantizeLinear", ends, [scale, zero], plan, 1e-6, output_dtype=(np.float32, np.uint8))


def cases() -> Iterator[Case]:
    for i in range(len(PRODUCTS)):
        for left, right in (*PAIRS, (np.int16, np.int16), (np.int32, np.int32), (np.uint64, np.uint64)):
            kinds = f"{np.dtype(left).name}_{np.dtype(right).name}"
            yield product(f"integer_matmul_{kinds}-{i}", left, right, i)
    for i, sizes in enumerate((*CONVOLUTIONS, replace(CONVOLUTIONS[3], M=70, N=2), replace(CONVOLUTIONS[1], M=1))):
        x_type, w_type = PAIRS[i % len(PAIRS)]
        yield window(f"integer_window_{np.dtype(x_type).name}_{np.dtype(w_type).name}-{i}", x_type, w_type, sizes, i)
    for i in range(len(SUMS)):
        for target in (np.float32, np.uint8, np.int8):
            yield scaled(f"scale_sums_{np.dtype(target).name}-{i}", i, target)
    for i, (least, most) in enumerate(RANGES):
        yield dynamic(f"dynamic_scale-{i}", least, most)
