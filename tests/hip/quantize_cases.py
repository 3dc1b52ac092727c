"""QuantizeLinear and DequantizeLinear on the GPU."""

from __future__ import annotations

from collections.abc import Iterator
from ctypes import c_int, c_int32
from typing import Any

import numpy as np
from onnx import helper

from tests.hip.case import Case, signed, tolerance_of
from tests.hip.harness import Array, Harness, Plan
from tests.hip.movement_cases import int64s

# outer, size, inner, and the places of a block; 0: one scale for each place, -1: one for all.
SIZES = (
    (1, 100, 1, -1), (3, 5, 16, 0), (2, 7, 3, 0), (1, 9, 1, 0), (2, 8, 16, 4), (3, 7, 5, 3), (1, 4099, 1, -1),
    (2, 64, 1, 32),
)  # fmt: skip


def parameters(
    rng: np.random.Generator, sizes: tuple[int, int, int, int], dtype: Any, number: Any
) -> tuple[Array, Array]:
    """Scales and zero points, as the operators take them."""
    outer, size, inner, block = sizes
    dims = (1,) if block < 0 else (size,) if block == 0 else (outer, -(-size // block), inner)
    ends, around = np.iinfo(number), 3 if number == np.int32 else 28
    middle = (ends.min + ends.max + 1) // 2
    zero = rng.integers(middle - around, middle + around, dims)
    return (0.02 + 0.03 * rng.random(dims)).astype(dtype), zero.astype(number)


def spread(values: Array, sizes: tuple[int, int, int, int]) -> Array:
    """One for each element of x [outer, size, inner]."""
    outer, size, inner, block = sizes
    if block <= 0:
        return np.broadcast_to(values.reshape(1, -1, 1), (outer, size, inner))
    return np.repeat(values, block, 1)[:, :size]


def quantized(x: Array, scale: Array, zero: Array, zero_first: bool) -> Array:
    """In float32, as the operator says it: halves to even."""
    y = x.astype(np.float32) / scale.astype(np.float32)
    point = zero.astype(np.float32)
    whole = np.rint(y + point) if zero_first else np.rint(y) + point
    ends = np.iinfo(zero.dtype)
    return np.asarray(np.clip(whole, ends.min, ends.max).astype(zero.dtype))


def case(
    name: str, dtype: Any, number: Any, sizes: tuple[int, int, int, int], back: bool, has_zero: bool,
    zero_first: bool = False,
) -> Case:  # fmt: skip
    rng = np.random.default_rng([*sizes[:3], sizes[3] + 1])
    scale, zero = parameters(rng, sizes, dtype, number)
    if not has_zero:
        zero = np.zeros_like(zero)
    scales, zeros = spread(scale, sizes), spread(zero, sizes)
    if back:
        ends = np.iinfo(number) if number != np.int32 else np.iinfo(np.int16)
        x = rng.integers(ends.min, ends.max, sizes[:3], endpoint=True)
        if dtype == np.float16 and number not in (np.uint8, np.int8):  # the largest would be too large
            x = x // 64 + int(zeros.flat[0])
        given = x.astype(number)
        y = (given - zeros.astype(np.float64)) * scales.astype(np.float64)
    else:
        given = (3 * signed(rng, *sizes[:3])).astype(dtype)
        y = quantized(given, scales, zeros, zero_first).astype(np.float64)
    kind = int(helper.np_dtype_to_tensor_dtype(np.dtype(number)))
    flags = (c_int(dtype == np.float16), c_int(has_zero), c_int(back), c_int(zero_first))

    def plan(harness: Harness, facts: int) -> Plan:
        return harness.plan("quantize", facts, c_int32(kind), *flags, int64s(sizes))

    inputs = [given, scale, zero] if has_zero else [given, scale]
    op = "DequantizeLinear" if back else "QuantizeLinear"
    return Case(name, op, inputs, [y], plan, tolerance_of(dtype) if back else 0, output_dtype=dtype if back else number)


def cases() -> Iterator[Case]:
    for dtype in (np.float32, np.float16):
        for number in (np.uint8, np.int8, np.int32, np.uint16, np.int16):
            for i, sizes in enumerate(SIZES):
                kinds = f"{np.dtype(number).name}_{np.dtype(dtype).name}"
                yield case(f"dequantize_{kinds}-{i}", dtype, number, sizes, True, i % 3 != 2)
                if number != np.int32:
                    has_zero = i % 3 != 2 or number in (np.int8, np.int16)
                    yield case(f"quantize_{kinds}-{i}", dtype, number, sizes, False, has_zero, i % 4 == 1)
