"""PackedAttention and PackedMultiHeadAttention: sequences of different lengths one after another, without padding.

`token_offset` [B, S] begins with the place of each token in the padded [B S], and `cumulative_sequence_length` [B + 1]
holds where each sequence begins among the tokens. Padding is neither query nor key.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx_ir as ir

from graphopt.contrib.attention import attend, heads, lengths_mask, merged, projected, scale_of, softmax
from graphopt.contrib.schema import REQUIRED, Call, Case, ContribOp, either, normal
from graphopt.contrib.writer import Writer
from graphopt.ops.schema import Array
from graphopt.remarks import Code


def _define(w: Writer, call: Call[ir.Value], values: list[ir.Value], sizes: list[int]) -> Mapping[str, ir.Value]:
    """values: Q, K and V of each token; sizes: their last dimensions."""
    N, T = call.attribute("num_heads"), w.dtype(*call.inputs.values())
    tokens = w.dim(values[0], 0)
    offsets = call["token_offset"]
    B, S = w.dim(offsets, 0), w.dim(offsets, 1)
    place = w.cast(w.slice(w.reshape(offsets, -1), 0, w.ints(0), tokens), ir.DataType.INT64)
    rows = w.mul(B, S)
    column = w.unsqueeze(place, 1)
    padded = []
    for x, size in zip(values, sizes, strict=True):
        empty = w.expand(w.number(0.0, T), rows, size)
        padded.append(heads(w, w.reshape(w.op("ScatterND", empty, column, x), B, S, size), N))
    ends = call["cumulative_sequence_length"]
    lengths = w.sub(w.slice(ends, 0, 1, None), w.slice(ends, 0, 0, -1))
    kept = w.unsqueeze(lengths_mask(w, lengths, None, S), 1, 2)
    added = [call["attention_bias"]] if "attention_bias" in call else []
    added.append(w.op("Where", kept, w.number(0.0, T), w.number(-math.inf, T)))
    scale = scale_of(call, sizes[0] // N)
    assert scale is not None
    q, k, v = padded
    context, _ = attend(w, q, k, v, scale, added, T)
    flat = w.reshape(merged(w, context, sizes[2]), -1, sizes[2])
    return {"output": w.op("Gather", flat, place, axis=0)}


def _define_attention(w: Writer, call: Call[ir.Value]) -> Mapping[str, ir.Value]:
    return _define(w, call, *projected(w, call))


def _define_multi_head(w: Writer, call: Call[ir.Value]) -> Mapping[str, ir.Value]:
    query, bias = call["query"], call.get("bias")
    if w.rank(query) == 4:  # packed: [tokens, N, 3, H]
        size = call.attribute("num_heads") * w.require_size(query, 3)
        sizes = [size] * 3
        values = [w.reshape(x, 0, size) for x in w.split(query, (1, 1, 1), 2)]
    else:
        if "key" not in call or "value" not in call:
            raise w.refuse(Code.UNSUPPORTED_OP, "keys and values that are neither inputs nor packed")
        values = [query, call["key"], call["value"]]
        sizes = [w.require_size(x, -1) for x in values]
    if bias is not None:
        values = [w.add(x, b) for x, b in zip(values, w.split(bias, sizes, 0))]
    return _define(w, call, values, sizes)


def _reference(call: Call[Array], q: Array, k: Array, v: Array) -> Mapping[str, Array]:
    """Sequence by sequence, token by token."""
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


SPECS = (
    ContribOp(
        "PackedAttention",
        ("input", "weights", "bias", "token_offset", "cumulative_sequence_length", "attention_bias?"),
        ("output",),
        {"num_heads": REQUIRED, "qkv_hidden_sizes": None, "scale": None},
        _define_attention,
        _attention_reference,
        _draw_attention,
        form="ScatterND, FusedAttention, Gather",
    ),
    ContribOp(
        "PackedMultiHeadAttention",
        (
            "query",
            "key?",
            "value?",
            "bias?",
            "token_offset",
            "cumulative_sequence_length",
            "attention_bias?",
        ),
        ("output",),
        {"mask_filter_value": None, "num_heads": REQUIRED, "scale": None},
        _define_multi_head,
        _multi_head_reference,
        _draw_multi_head,
        form="ScatterND, FusedAttention, Gather",
    ),
)
