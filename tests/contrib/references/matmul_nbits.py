"""Float64 references of matmul_nbits.py and its random nodes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from graphopt.contrib.matmul_nbits import BITS
from graphopt.contrib.schema import Call
from graphopt.ops.schema import Array
from tests.contrib.case import Case, Reference, either, normal


def _reference(call: Call[Array]) -> Mapping[str, Array]:
    K, N, bits, size = (call.attribute(n) for n in ("K", "N", "bits", "block_size"))
    blocks, per_byte = -(-K // size), 8 // bits

    def unpacked(rows: Array, index: Array) -> Array:
        """Returns the elements with these indices of each row of bytes."""
        return np.asarray(rows.reshape(N, -1)[:, index // per_byte] >> (bits * (index % per_byte)) & (2**bits - 1))

    k = np.arange(K)
    block = call["g_idx"][:K] if "g_idx" in call else k // size
    points = call.get("zero_points")
    zero: Array | float = 2.0 ** (bits - 1)
    if points is not None and points.dtype == np.uint8:
        zero = unpacked(points, block).astype(np.float64)
    elif points is not None:
        zero = points.reshape(N, blocks)[:, block]
    weights = (unpacked(call["B"], k) - zero) * call["scales"].reshape(N, blocks)[:, block]
    return {"Y": call["A"] @ weights.T + call.inputs.get("bias", np.zeros(1))}


def _draw(rng: np.random.Generator) -> Case:
    bits, size = int(either(rng, *BITS, 4)), int(either(rng, 16, 32, 64, 128))
    K, N = int(either(rng, size, 2 * size, 2 * size + 8, 3 * size)), int(either(rng, 3, 5, 16))
    blocks, per_byte = -(-K // size), 8 // bits
    shape = either(rng, (3,), (2, 5), (1, 1), (2, 9))
    inputs: dict[str, Array] = {
        "A": normal(rng, *shape, K),
        "B": rng.integers(0, 256, (N, blocks, size // per_byte), np.uint8),
        "scales": (rng.random((N, blocks)) * 0.1 + 0.01).astype(np.float32),
    }
    kind = either(rng, "none", "packed", "floats")
    if kind == "packed":
        inputs["zero_points"] = rng.integers(0, 256, (N, -(-blocks // per_byte)), np.uint8)
    elif kind == "floats":
        inputs["zero_points"] = (rng.random((N, blocks)) * 2**bits).astype(np.float32)
    if rng.random() < 0.4:
        inputs["bias"] = normal(rng, N)
    attributes: dict[str, Any] = {"K": K, "N": N, "bits": bits, "block_size": size}
    constants = frozenset(set(inputs) - {"A"}) if rng.random() < 0.7 else frozenset()
    # The kernel of 1.22 supports only 4 bits; no kernel supports float zero points with 8 bits.
    kernel = (0, 0) if bits == 4 else None if bits == 8 and kind == "floats" else (1, 31)
    dims: dict[str, tuple[int | str, ...]] = {"bias": (N,)}
    return Case(inputs, attributes, ("Y",), constants, kernel=kernel, dims=dims)


REFERENCES = {
    ("com.microsoft", "MatMulNBits"): Reference(_reference, _draw),
}
