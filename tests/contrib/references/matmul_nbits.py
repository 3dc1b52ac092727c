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
    """Computes each element separately."""
    K, N, bits, size = (call.attribute(n) for n in ("K", "N", "bits", "block_size"))
    blocks, per_byte = -(-K // size), 8 // bits
    B, scales = call["B"].reshape(N, blocks, -1), call["scales"].reshape(N, blocks)
    points = call.get("zero_points")
    weights = np.zeros((N, K))
    for n, k in np.ndindex(N, K):
        block, i = divmod(k, size)
        q = int(B[n, block, i // per_byte]) // 2 ** (bits * (i % per_byte)) % 2**bits
        if "g_idx" in call:
            block = int(call["g_idx"][k])
        if points is None:
            zero = 2.0 ** (bits - 1)
        elif points.dtype == np.uint8:
            byte = int(points.reshape(N, -1)[n, block // per_byte])
            zero = byte // 2 ** (bits * (block % per_byte)) % 2**bits
        else:
            zero = points.reshape(N, blocks)[n, block]
        weights[n, k] = (q - zero) * scales[n, block]
    return {"Y": call["A"] @ weights.T + call.inputs.get("bias", np.zeros(1))}


def _draw(rng: np.random.Generator) -> Case:
    bits, size = int(either(rng, *BITS, 4)), int(either(rng, 16, 32, 64))
    K, N = int(either(rng, size, 2 * size, 2 * size + 8, 3 * size)), int(either(rng, 3, 5, 16))
    blocks, per_byte = -(-K // size), 8 // bits
    shape = either(rng, (3,), (2, 5), (1, 1))
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
