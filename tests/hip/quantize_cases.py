"""QuantizeLinear and DequantizeLinear on the GPU."""

from __future__ import annotations

from collections.abc import Iterator
from ctypes import c_int, c_int32
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import TensorProto

from tests.hip.case import Case, signed, tolerance_of
from tests.hip.harness import Array, Harness, Plan, element_type, int64s

# outer, size, inner, and the indices of a block; 0 for one scale for each index, -1 for a single scale.
SIZES = (
    (1, 100, 1, -1), (3, 5, 16, 0), (2, 7, 3, 0), (1, 9, 1, 0), (2, 8, 16, 4), (3, 7, 5, 3), (1, 4099, 1, -1),
    (2, 64, 1, 32),
)  # fmt: skip


FOUR_BITS = {"int4": int(TensorProto.INT4), "uint4": int(TensorProto.UINT4)}


@dataclass(frozen=True)
class Number:
    """An integer type by its ONNX name; numpy stores 4-bit values in 8 bits."""

    name: str

    @property
    def bits(self) -> int:
        return int(self.name.removeprefix("u")[3:])

    @property
    def held(self) -> Any:
        return np.dtype(self.name.replace("t4", "t8"))

    @property
    def code(self) -> int:
        return FOUR_BITS.get(self.name) or element_type(self.held).value

    @property
    def ends(self) -> tuple[int, int]:
        least = 0 if self.name[0] == "u" else -(1 << self.bits - 1)
        return least, least + (1 << self.bits) - 1

    def stored(self, x: Array) -> Array:
        """Returns the memory format: two 4-bit values share a byte, the first in the lower half."""
        if self.bits != 4:
            return x.astype(self.held)
        nibbles = np.append(x.ravel().astype(np.int8).view(np.uint8) & 15, np.zeros(x.size % 2, np.uint8))
        return np.asarray(nibbles[::2] | nibbles[1::2] << 4, np.uint8)


def parameters(
    rng: np.random.Generator, sizes: tuple[int, int, int, int], dtype: Any, number: Number
) -> tuple[Array, Array]:
    """Draws scales and zero points in the operators' shapes."""
    outer, size, inner, block = sizes
    dims = (1,) if block < 0 else (size,) if block == 0 else (outer, -(-size // block), inner)
    middle, spread = sum(number.ends) // 2, 3 if number.bits in (4, 32) else 28
    zero = rng.integers(middle - spread, middle + spread + 1, dims)
    return (0.02 + 0.03 * rng.random(dims)).astype(dtype), zero.astype(number.held)


def spread(values: Array, sizes: tuple[int, int, int, int]) -> Array:
    """Repeats the parameters for each element of x [outer, size, inner]."""
    outer, size, inner, block = sizes
    if block <= 0:
        return np.broadcast_to(values.reshape(1, -1, 1), (outer, size, inner))
    return np.repeat(values, block, 1)[:, :size]


def quantized(x: Array, scale: Array, zero: Array, number: Number, zero_first: bool) -> Array:
    """Computes the operator's definition in float32, with halves rounded to even."""
    y = x.astype(np.float32) / scale.astype(np.float32)
    point = zero.astype(np.float32)
    whole = np.rint(y + point) if zero_first else np.rint(y) + point
    return np.asarray(np.clip(whole, *number.ends).astype(number.held))


def case(
    name: str, dtype: Any, number: Number, sizes: tuple[int, int, int, int], back: bool, has_zero: bool,
    zero_first: bool = False,
) -> Case:  # fmt: skip
    rng = np.random.default_rng([*sizes[:3], sizes[3] + 1])
    scale, zero = parameters(rng, sizes, dtype, number)
    if not has_zero:
        zero = np.zeros_like(zero)
    scales, zeros = spread(scale, sizes), spread(zero, sizes)
    if back:
        least, most = number.ends if number.bits < 32 else (-(2**15), 2**15 - 1)
        x = rng.integers(least, most, sizes[:3], endpoint=True)
        if dtype == np.float16 and number.bits > 8:  # float16 cannot represent the largest values
            x = x // 64 + int(zeros.flat[0])
        y = (x - zeros.astype(np.float64)) * scales.astype(np.float64)
        given = number.stored(x)
    else:
        given = (3 * signed(rng, *sizes[:3])).astype(dtype)
        y = number.stored(quantized(given, scales, zeros, number, zero_first)).astype(np.float64)
    flags = (c_int(dtype == np.float16), c_int(has_zero), c_int(back), c_int(zero_first))

    def plan(harness: Harness, facts: int) -> Plan:
        return harness.plan("quantize", facts, c_int32(number.code), *flags, int64s(sizes))

    inputs = [given, scale, number.stored(zero)] if has_zero else [given, scale]
    op = "DequantizeLinear" if back else "QuantizeLinear"
    out = dtype if back else np.uint8 if number.bits == 4 else number.held
    return Case(name, op, inputs, [y], plan, tolerance_of(dtype) if back else 0, output_dtype=out)


def cases() -> Iterator[Case]:
    for dtype in (np.float32, np.float16):
        for number in map(Number, ("uint8", "int8", "int32", "uint16", "int16", "uint4", "int4")):
            for i, sizes in enumerate(SIZES):
                kinds = f"{number.name}_{np.dtype(dtype).name}"
                yield case(f"dequantize_{kinds}-{i}", dtype, number, sizes, True, i % 3 != 2)
                if number.bits != 32:
                    has_zero = i % 3 != 2 or number.name[0] == "i"
                    yield case(f"quantize_{kinds}-{i}", dtype, number, sizes, False, has_zero, i % 4 == 1)
