"""Float64 references of gather_block_quantized.py and its random nodes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np

from graphopt.contrib.schema import Call
from graphopt.ops.schema import Array
from tests.contrib.case import Case, Reference, either


def _reference(call: Call[Array]) -> Mapping[str, Array]:
    data, scales, points = call["data"], call["scales"], call.get("zero_points")
    bits = call.attribute("bits") if data.dtype == np.uint8 else 4
    axis, size = call.attribute("quantize_axis"), call.attribute("block_size")
    default = 2 ** (bits - 1) if data.dtype == np.uint8 else 0

    def unpacked(x: Array, last: int) -> Array:
        """Returns the first `last` elements of each row as floats."""
        if x.dtype != np.uint8:
            return x.astype(np.float64)
        i = np.arange(last)
        return np.asarray(x[..., i * bits // 8] >> (i * bits % 8) & (2**bits - 1), np.float64)

    codes = unpacked(data, data.shape[-1] * 8 // bits)
    zero = np.full(scales.shape, float(default)) if points is None else unpacked(points, scales.shape[-1])
    block = np.arange(codes.shape[axis]) // size
    weights = (codes - np.take(zero, block, axis)) * np.take(scales, block, axis)
    return {"output": np.take(weights, call["indices"], call.attribute("gather_axis"))}


def _draw(rng: np.random.Generator) -> Case:
    kind = either(rng, np.uint8, ml_dtypes.uint4, ml_dtypes.int4)
    packed = kind == np.uint8
    bits, size = int(either(rng, 4, 8, 2)) if packed else 4, int(either(rng, 16, 32, 64))
    rank = 2 if packed else int(either(rng, 2, 3))
    # Rows of whole bytes; the last block may be incomplete.
    shape = [int(n) for n in rng.integers(2, 9, rank)]
    gather = 0 if packed else int(rng.integers(rank))
    axis = rank - 1 if packed else int(rng.integers(rank))
    shape[axis] = int(either(rng, size, 3 * size, 2 * size + 8))
    blocks = list(shape)
    blocks[axis] = -(-blocks[axis] // size)

    def integers(dims: list[int]) -> Array:
        if packed:
            return rng.integers(0, 256, (*dims[:-1], -(-dims[-1] * bits // 8)), np.uint8)
        return rng.integers(-8 if kind == ml_dtypes.int4 else 0, 8, dims).astype(kind)

    inputs: dict[str, Array] = {
        "data": integers(shape),
        "indices": rng.integers(0, shape[gather], either(rng, (), (3,), (2, 4))).astype(
            either(rng, np.int32, np.int64)
        ),
        "scales": (rng.random(blocks) * 0.1 + 0.01).astype(np.float32),
    }
    if rng.random() < 0.6:
        inputs["zero_points"] = integers(blocks)
    attributes: dict[str, Any] = {"block_size": size, "gather_axis": gather, "quantize_axis": axis - rank}
    if packed:
        attributes["bits"] = bits
    # The schema of 1.22 lacks `bits`.
    kernel = (1, 31) if packed else (0, 0)
    return Case(inputs, attributes, ("output",), frozenset(inputs) - {"indices"}, kernel=kernel)


REFERENCES = {
    ("com.microsoft", "GatherBlockQuantized"): Reference(_reference, _draw),
}
