"""Float64 references of rotary.py and its random nodes."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from graphopt.contrib.schema import Call
from graphopt.ops.schema import Array
from tests.contrib.case import Case, Reference, either, normal


def rotate_reference(x: Array, cos: Array, sin: Array, interleaved: bool) -> Array:
    """Rotates arrays by complex multiplication: x [B, S, N, H], cos and sin [B, S, dim / 2]."""
    half = cos.shape[-1]
    turn = (cos + 1j * sin)[:, :, None]
    y: Array = x.copy()
    first = slice(0, 2 * half, 2) if interleaved else slice(0, half)
    second = slice(1, 2 * half, 2) if interleaved else slice(half, 2 * half)
    turned = (x[..., first] + 1j * x[..., second]) * turn
    y[..., first], y[..., second] = turned.real, turned.imag
    return y


def _reference(call: Call[Array]) -> Mapping[str, Array]:
    x, ids, cos = call["input"], call["position_ids"], call["cos_cache"]
    S = x.shape[2] if x.ndim == 4 else x.shape[1]
    positions = ids[0] + np.arange(S)[None] if ids.ndim == 1 else ids
    B = x.shape[0]
    positions = np.broadcast_to(positions, (B, S))
    if x.ndim == 4:
        split = x.transpose(0, 2, 1, 3)
    elif call.attribute("rotary_embedding_dim", 0):
        split = x.reshape(B, S, call.attribute("num_heads"), -1)
    else:
        split = x.reshape(B, S, -1, 2 * cos.shape[1])
    y = rotate_reference(split, cos[positions], call["sin_cache"][positions], bool(call.attribute("interleaved", 0)))
    return {"output": y.transpose(0, 2, 1, 3) if x.ndim == 4 else y.reshape(x.shape)}


def draw_caches(rng: np.random.Generator, positions: int, dim: int) -> tuple[Array, Array]:
    angle = np.arange(positions)[:, None] * rng.uniform(0.1, 1.0, dim // 2)
    return np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)


def _draw(rng: np.random.Generator) -> Case:
    B, S, N = int(either(rng, 1, 2)), int(either(rng, 1, 5)), int(either(rng, 1, 3))
    H = int(either(rng, 8, 16))
    attributes: dict[str, int] = {}
    dim = H
    if rng.random() < 0.4:
        dim = H // 2
        attributes |= {"rotary_embedding_dim": dim, "num_heads": N}
    if rng.random() < 0.5:
        attributes["interleaved"] = int(either(rng, 0, 1))
    cos, sin = draw_caches(rng, 12, dim)
    ids = rng.integers(0, 12 - S, (1,), np.int64) if rng.random() < 0.4 else rng.integers(0, 12, (B, S), np.int64)
    x = normal(rng, B, N, S, H) if rng.random() < 0.4 else normal(rng, B, S, N * H)
    inputs = {"input": x, "position_ids": ids, "cos_cache": cos, "sin_cache": sin}
    dims = {"input": ("B", N, "S", H) if x.ndim == 4 else ("B", "S", N * H)}
    return Case(inputs, attributes, ("output",), frozenset({"cos_cache", "sin_cache"}), dims=dims)


REFERENCES = {
    ("com.microsoft", "RotaryEmbedding"): Reference(_reference, _draw),
}
