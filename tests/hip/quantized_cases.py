"""Functions of 8-bit quantized values on the GPU."""

from __future__ import annotations

from collections.abc import Iterator
from ctypes import c_float, c_int, c_int32, c_int64
from typing import Any

import numpy as np

from tests.hip.activations import apply, parameters
from tests.hip.case import Case
from tests.hip.harness import Array, Harness, Plan, int64s
from tests.hip.integer_matmul_cases import random

Dims = tuple[int, ...]
# Shapes of a and b, for binary operators.
SHAPES: tuple[tuple[Dims, Dims], ...] = (
    ((5,), (5,)), ((3, 64), (64,)), ((2, 7, 3), (7, 1)), ((1,), (4, 33)), ((4, 1, 16), (1, 5, 16)), ((4099,), (1,)),
    ((2, 3, 4, 160), (2, 3, 4, 160)), ((0, 3), (1,)),
)  # fmt: skip
OPS = ("activate", "add", "mul")
# outer, size, inner.
SIZES = (1, 2, 10, 100, 1000, 7, 49, 3)
LINES = (
    (1, 1, 1), (3, 49, 1), (70, 100, 1), (2, 9, 5), (1, 33, 64), (9, 32, 1), (2, 1000, 1), (4, 7, 16), (1, 1, 4),
    (2, 49, 36), (3, 5, 260), (5, 130, 8),
)  # fmt: skip


def scale_of(rng: np.random.Generator, factor: float = 1) -> Array:
    return np.asarray([factor * (0.01 + 0.02 * rng.random())], np.float32)


def rounded(y: Array, scale: Array, zero: Array) -> Array:
    ends = np.iinfo(zero.dtype)
    return np.asarray(np.clip(np.rint(y / np.float64(scale[0])) + np.float64(zero[0]), ends.min, ends.max))


def real(x: Array, scale: Array, zero: Array) -> Array:
    return np.asarray((x.astype(np.float64) - np.float64(zero[0])) * np.float64(scale[0]))


def point(rng: np.random.Generator, dtype: Any, given: bool) -> Array:
    return random(rng, dtype, 1) if given else np.zeros(1, dtype)


def elementwise(name: str, dtype: Any, op: str, kind: str, i: int) -> Case:
    rng = np.random.default_rng([i, OPS.index(op)])
    a, b = (random(rng, dtype, *dims) for dims in SHAPES[i])
    has = [i % 3 != 1, i % 2 == 0, i % 4 != 3]
    a_zero, b_zero, y_zero = (point(rng, dtype, given) for given in has)
    a_scale, b_scale = scale_of(rng), scale_of(rng)
    x, z = real(a, a_scale, a_zero), real(b, b_scale, b_zero)
    exact = apply(kind, x) if op == "activate" else x + z if op == "add" else x * z
    y_scale = scale_of(rng, max(float(np.abs(exact).max(initial=0)), 1))
    shapes = [d for dims in (a.shape, b.shape, exact.shape) for d in (len(dims), *dims)]

    def plan(harness: Harness, facts: int) -> Plan:
        number, alpha, _ = parameters(kind)
        what = (c_int32(OPS.index(op)), c_int32(number), c_float(alpha))
        return harness.plan("quantized", facts, *what, int64s([dtype == np.int8, *has]), int64s(shapes))

    inputs = [a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero]
    return Case(name, "quantized", inputs, [rounded(exact, y_scale, y_zero)], plan, 0, output_dtype=dtype)


def lookup(name: str, dtype: Any, i: int) -> Case:
    rng = np.random.default_rng([i, 9])
    x, table = random(rng, dtype, *SHAPES[i][0]), random(rng, dtype, 256)
    shapes = int64s([len(x.shape), *x.shape, 0, len(x.shape), *x.shape])

    def plan(harness: Harness, facts: int) -> Plan:
        return harness.plan("quantized", facts, c_int32(len(OPS)), c_int32(0), c_float(0), int64s([0] * 4), shapes)

    return Case(name, "quantized", [x, table], [table[x.view(np.uint8)]], plan, 0, output_dtype=dtype)


def lines(name: str, dtype: Any, softmax: bool, i: int) -> Case:
    outer, size, inner = LINES[i]
    rng = np.random.default_rng([*LINES[i], softmax])
    x = random(rng, dtype, outer, size, inner)
    has = [i % 3 != 1, i % 2 == 0 or dtype == np.int8]
    x_scale, x_zero = scale_of(rng), point(rng, dtype, has[0])
    numbers = int64s([*LINES[i], dtype == np.int8, *has])
    exact = real(x, x_scale, x_zero)
    if softmax:
        most = x.astype(np.float64).max(1, keepdims=True)
        shares = np.exp((x - most) * np.float64(x_scale[0]))
        y_scale = np.asarray([1 / 256], np.float32)
        y_zero = np.asarray([np.iinfo(dtype).min], dtype) if has[1] else np.zeros(1, dtype)
        y = rounded(shares / shares.sum(1, keepdims=True), y_scale, y_zero)
        first = np.exp(-np.arange(256) * np.float64(x_scale[0])).astype(np.float32)
        inputs = [x, first, x_zero, y_scale, y_zero]
    else:
        y_scale, y_zero = scale_of(rng, 0.5), point(rng, dtype, has[1])
        y = rounded(exact.mean(1), y_scale, y_zero)
        inputs = [x, x_scale, x_zero, y_scale, y_zero]

    def plan(harness: Harness, facts: int) -> Plan:
        return harness.plan("quantized_lines", facts, c_int(softmax), numbers)

    return Case(name, "quantized", inputs, [y], plan, 0, output_dtype=dtype)


def exponentials(name: str, size: int, scale: float) -> Case:
    # Computed in float by the kernel's plan; the factor only affects the sums.
    largest = max(0.0, float(np.log(np.finfo(np.float32).max / np.float32(size))) - 5)
    y = np.exp(largest - np.arange(256) * np.float64(np.float32(scale)))

    def plan(harness: Harness, facts: int) -> Plan:
        return harness.plan("quantized_exponentials", facts, c_int64(size))

    # By row, since the first value is by far the largest.
    return Case(name, "quantized", [np.asarray([scale], np.float32)], [y.reshape(-1, 1)], plan, 1e-6, by_row=True)


def cases() -> Iterator[Case]:
    for i in range(len(SHAPES)):
        for dtype in (np.uint8, np.int8):
            of = np.dtype(dtype).name
            yield lookup(f"quantized_lookup_{of}-{i}", dtype, i)
            for kind in ("", "Sigmoid", "LeakyRelu"):
                yield elementwise(f"quantized_{kind or 'same'}_{of}-{i}", dtype, "activate", kind, i)
            for op in OPS[1:]:
                yield elementwise(f"quantized_{op}_{of}-{i}", dtype, op, "", i)
    for i in range(len(LINES)):
        for dtype in (np.uint8, np.int8):
            yield lines(f"quantized_mean_{np.dtype(dtype).name}-{i}", dtype, False, i)
            yield lines(f"quantized_softmax_{np.dtype(dtype).name}-{i}", dtype, True, i)
    for i, (size, scale) in enumerate(zip(SIZES, (0.1, 0.01, 0.3, 0.05, 0.2, 1.0, 0.001, 0.02), strict=True)):
        yield exponentials(f"quantized_exponentials-{i}", size, scale)
