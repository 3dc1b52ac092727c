"""Float64 references of packed_attention.py and its random nodes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from graphopt.contrib.schema import Call
from graphopt.ops.schema import Array
from tests.contrib.case import Case, Reference, either, normal
from tests.contrib.references.attention import softmax


def _reference(call: Call[Array], q: Array, k: Array, v: Array) -> Mapping[str, Array]:
    """Computes each sequence and token separately."""
    N, ends = call.attribute("num_heads"), call["cumulative_sequence_length"]
    scale = call.attribute("scale", 0.0) or 1.0 / math.sqrt(q.shape[1] // N)
    y = np.zeros((len(q), v.shape[1]))
    for b in range(len(ends) - 1):
        tokens = slice(ends[b], ends[b + 1])
        L = ends[b + 1] - ends[b]
        for n in range(N):
            qn, kn, vn = (np.split(x[tokens], N, axis=1)[n] for x in (q, k, v))
            out = np.zeros_like(vn)
            for s in range(L):
                row = scale * (kn @ qn[s])
                if "attention_bias" in call:
                    bias = call["attention_bias"]
                    row = row + bias[b % bias.shape[0], n % bias.shape[1], s, :L]
                out[s] = softmax(row) @ vn
            y[tokens, n * vn.shape[1] : (n + 1) * vn.shape[1]] = out
    return {"output": y}


def _attention_reference(call: Call[Array]) -> Mapping[str, Array]:
    y = call["input"] @ call["weights"] + call.inputs.get("bias", np.zeros(1))
    sizes = call.attribute("qkv_hidden_sizes", [y.shape[-1] // 3] * 3)
    return _reference(call, *np.split(y, np.cumsum(sizes)[:2], axis=-1))


def _multi_head_reference(call: Call[Array]) -> Mapping[str, Array]:
    query = call["query"]
    if query.ndim == 4:
        values = [query[:, :, i].reshape(len(query), -1) for i in range(3)]
    else:
        values = [query, call["key"], call["value"]]
    if "bias" in call:
        ends = np.cumsum([x.shape[1] for x in values])[:2]
        values = [x + b for x, b in zip(values, np.split(call["bias"], ends))]
    return _reference(call, *values)


def _draw_offsets(rng: np.random.Generator) -> tuple[int, int, dict[str, Array]]:
    B, S = int(either(rng, 1, 3)), int(either(rng, 2, 5))
    lengths = rng.integers(1, S + 1, B)
    real = np.arange(S) < lengths[:, None]
    place = np.arange(B * S)
    offsets = np.concatenate([place[real.reshape(-1)], place[~real.reshape(-1)]]).reshape(B, S)
    ends = np.concatenate([[0], np.cumsum(lengths)])
    return (
        S,
        int(ends[-1]),
        {
            "token_offset": offsets.astype(np.int32),
            "cumulative_sequence_length": ends.astype(np.int32),
        },
    )


def _draw_extras(rng: np.random.Generator, inputs: dict[str, Array], N: int, S: int) -> dict[str, Any]:
    if rng.random() < 0.4:
        B = len(inputs["token_offset"])
        inputs["attention_bias"] = normal(rng, int(either(rng, 1, B)), int(either(rng, 1, N)), S, S)
    return {"num_heads": N, **either(rng, {}, {"scale": 0.3})}


def _draw_attention(rng: np.random.Generator) -> Case:
    S, tokens, offsets = _draw_offsets(rng)
    N, H, D = int(either(rng, 1, 2)), 4, 7
    Hv = int(either(rng, 4, 6))
    width = N * (2 * H + Hv)
    inputs = {
        "input": normal(rng, tokens, D),
        "weights": normal(rng, D, width, scale=0.5),
        "bias": normal(rng, width),
        **offsets,
    }
    attributes = _draw_extras(rng, inputs, N, S)
    if Hv != H:
        attributes["qkv_hidden_sizes"] = [N * H, N * H, N * Hv]
    return Case(inputs, attributes, ("output",), frozenset({"weights", "bias"}))


def _draw_multi_head(rng: np.random.Generator) -> Case:
    S, tokens, offsets = _draw_offsets(rng)
    N, H = int(either(rng, 1, 2)), 4
    Hv = int(either(rng, 4, 6))
    inputs: dict[str, Array] = {}
    dims: dict[str, tuple[int | str, ...]] = {}
    if rng.random() < 0.4:
        Hv = H
        inputs["query"], dims["query"] = normal(rng, tokens, N, 3, H), ("tokens", N, 3, H)
    else:
        for name, size in (("query", H), ("key", H), ("value", Hv)):
            inputs[name], dims[name] = normal(rng, tokens, N * size), ("tokens", N * size)
    if rng.random() < 0.5:
        inputs["bias"] = normal(rng, N * (2 * H + Hv))
    inputs |= offsets
    return Case(inputs, _draw_extras(rng, inputs, N, S), ("output",), frozenset({"bias"}), dims=dims)


REFERENCES = {
    ("com.microsoft", "PackedAttention"): Reference(_attention_reference, _draw_attention),
    ("com.microsoft", "PackedMultiHeadAttention"): Reference(_multi_head_reference, _draw_multi_head),
}
