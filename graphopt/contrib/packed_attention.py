"""PackedAttention and PackedMultiHeadAttention: concatenated sequences of different lengths, without padding.

`token_offset` [B, S] begins with one element for each token: the index of the token in the padded sequences [B S].
`cumulative_sequence_length` [B + 1] contains the index of each sequence's first token, then the number of tokens.
Padding is neither query nor key.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import onnx_ir as ir

from graphopt.contrib.attention import attend, lengths_mask, merge_heads, project, scale_of, split_heads
from graphopt.contrib.schema import REQUIRED, Call, ContribOp
from graphopt.contrib.writer import Writer
from graphopt.remarks import Code


def _define(w: Writer, call: Call[ir.Value], values: list[ir.Value], sizes: list[int]) -> Mapping[str, ir.Value]:
    """Pads the sequences, computes attention, and gathers the tokens.

    Args:
        w: writes the nodes.
        call: the node.
        values: Q, K and V, each [tokens, size].
        sizes: the last dimensions of `values`.
    """
    N, T = call.attribute("num_heads"), w.dtype(*call.inputs.values())
    tokens = w.dim(values[0], 0)
    offsets = call["token_offset"]
    B, S = w.dim(offsets, 0), w.dim(offsets, 1)
    token_index = w.cast(w.slice(w.reshape(offsets, -1), 0, w.ints(0), tokens), ir.DataType.INT64)
    rows = w.mul(B, S)
    column = w.unsqueeze(token_index, 1)
    padded = []
    for x, size in zip(values, sizes, strict=True):
        empty = w.expand(w.number(0.0, T), rows, size)
        padded.append(split_heads(w, w.reshape(w.op("ScatterND", empty, column, x), B, S, size), N))
    ends = call["cumulative_sequence_length"]
    lengths = w.sub(w.slice(ends, 0, 1, None), w.slice(ends, 0, 0, -1))
    kept = w.unsqueeze(lengths_mask(w, lengths, None, S), 1, 2)
    terms = [call["attention_bias"]] if "attention_bias" in call else []
    terms.append(w.op("Where", kept, w.number(0.0, T), w.number(-math.inf, T)))
    scale = scale_of(call, sizes[0] // N)
    assert scale is not None
    q, k, v = padded
    context, _ = attend(w, q, k, v, scale, terms, T)
    flat = w.reshape(merge_heads(w, context, sizes[2]), -1, sizes[2])
    return {"output": w.op("Gather", flat, token_index, axis=0)}


def _define_attention(w: Writer, call: Call[ir.Value]) -> Mapping[str, ir.Value]:
    return _define(w, call, *project(w, call))


def _define_multi_head(w: Writer, call: Call[ir.Value]) -> Mapping[str, ir.Value]:
    query, bias = call["query"], call.get("bias")
    if w.rank(query) == 4:  # packed: [tokens, N, 3, H]
        size = call.attribute("num_heads") * w.require_size(query, 3)
        sizes = [size] * 3
        values = [w.reshape(x, 0, size) for x in w.split(query, (1, 1, 1), 2)]
    else:
        if "key" not in call or "value" not in call:
            raise w.refuse(Code.UNSUPPORTED_OP, "keys and values are neither inputs nor packed")
        values = [query, call["key"], call["value"]]
        sizes = [w.require_size(x, -1) for x in values]
    if bias is not None:
        values = [w.add(x, b) for x, b in zip(values, w.split(bias, sizes, 0))]
    return _define(w, call, values, sizes)


SPECS = (
    ContribOp(
        "PackedAttention(input, weights, bias, token_offset, cumulative_sequence_length, attention_bias?) -> output",
        _define_attention,
        {"num_heads": REQUIRED, "qkv_hidden_sizes": None, "scale": None},
        form="ScatterND, FusedAttention, Gather",
    ),
    ContribOp(
        "PackedMultiHeadAttention(query, key?, value?, bias?, token_offset, cumulative_sequence_length, "
        "attention_bias?) -> output",
        _define_multi_head,
        {"mask_filter_value": None, "num_heads": REQUIRED, "scale": None},
        form="ScatterND, FusedAttention, Gather",
    ),
)
