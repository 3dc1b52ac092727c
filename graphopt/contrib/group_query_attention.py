"""GroupQueryAttention: causal attention with shared key and value heads, a cache and rotary positions.

Sequence b has `seqlens_k[b]` + 1 keys: past keys from the cache, then new keys. The first call, which has
total_sequence_length new tokens, has no past keys and pads shorter sequences on the right. Queries in the padding
attend only to the keys of their sequence. The output cache holds past and new keys and values, then zeros.
J. Ainslie et al., "GQA", 2023; E. Miller, "Attention Is Off By One", 2023 (smooth softmax; head_sink is its trained
form).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import onnx_ir as ir

from graphopt.contrib.attention import merge_heads, scale_of
from graphopt.contrib.rotary import gather_angles, rotate
from graphopt.contrib.schema import REQUIRED, Call, ContribOp
from graphopt.contrib.writer import Writer
from graphopt.graph.operators.arguments import MAX_OF_INTEGERS_OPSET
from graphopt.remarks import Code

INT64 = ir.DataType.INT64

# The first version of onnxruntime in which local_window_size n is a window of n tokens, and queries in the padding read
# only keys of their sequence. In 1.22 a window has n + 1 tokens, and queries in the padding read uninitialized memory.
WINDOW_AS_DEFINED = (1, 31)


def has_window(node: ir.Node) -> bool:
    """Returns whether a GroupQueryAttention limits its queries to a window of the last keys."""
    window = node.attributes.get("local_window_size")
    return node.op_type == "GroupQueryAttention" and window is not None and window.as_int() > 0


def _define(w: Writer, call: Call[ir.Value]) -> Mapping[str, ir.Value]:
    _refuse(w, call)
    N, G = call.attribute("num_heads"), call.attribute("kv_num_heads")
    query = call["query"]
    T = w.dtype(query, call.get("key"), call.get("past_key"))
    hidden = w.require_size(query, -1)
    if "key" in call:
        H = hidden // N
        parts = [query, call["key"], call["value"]]
    else:
        H = hidden // (N + 2 * G)
        parts = list(w.split(query, [N * H, G * H, G * H], -1))
    q, k, v = (w.reshape(x, 0, 0, n, H) for x, n in zip(parts, (N, G, G)))
    if "q_norm_weight" in call:
        q, k = (w.rms_norm(x, call[f"{n}_norm_weight"], _epsilon(call, n)) for n, x in (("q", q), ("k", k)))
    B, S = w.dim(query, 0), w.dim(query, 1)
    # The position of each sequence's first new token: 0 in the first call.
    total = w.op("Reshape", w.cast(call["total_sequence_length"], INT64), w.ints(1))
    ends = w.add(w.op("Reshape", w.cast(call["seqlens_k"], INT64), w.ints(-1, 1)), w.ints(1))  # [B, 1]
    is_first_call = w.op("Equal", total, S)
    begin = w.op("Where", is_first_call, w.ints(0), w.sub(ends, S))
    new = w.unsqueeze(w.arange(S), 0)
    position = w.add(begin, new)  # [B, S]
    if call.attribute("do_rotary", 0):
        ids = call.get("position_ids") or position
        cos, sin = call["cos_cache"], call["sin_cache"]
        dim = 2 * w.require_size(cos, 1)
        angles = gather_angles(w, cos, ids), gather_angles(w, sin, ids)
        q, k = (rotate(w, x, *angles, dim, H, bool(call.attribute("rotary_interleaved", 0))) for x in (q, k))
    q, k, v = (w.transpose(x, 0, 2, 1, 3) for x in (q, k, v))
    if "past_key" in call:
        k, v = (_cached(w, call[p], x, begin, S, total) for p, x in (("past_key", k), ("past_value", v)))
    keys = w.dim(k, 2)
    outputs = {"present_key": k, "present_value": v}
    # [B, G, N / G, S, ..]: the query heads of one key head are adjacent.
    grouped = w.reshape(q, 0, G, N // G, -1, H)
    scale = scale_of(call, H)
    assert scale is not None
    transposed_keys = w.unsqueeze(w.transpose(k, 0, 1, 3, 2), 2)
    scores = w.mul(w.matmul(grouped, transposed_keys), w.number(scale, T))
    if cap := call.attribute("softcap", 0.0):
        scores = w.mul(w.op("Tanh", w.div(scores, w.number(cap, T))), w.number(cap, T))
    scores = w.op("Reshape", scores, w.op("Concat", B, w.ints(N), S, keys, axis=0))
    if "attention_bias" in call:
        bias = call["attention_bias"]  # [.., total]; the cache may have more rows
        missing = w.sub(keys, w.dim(bias, 3))
        none = w.op("Expand", w.number(0.0, T), w.op("Concat", w.slice(w.op("Shape", bias), 0, 0, 3), missing, axis=0))
        scores = w.add(scores, w.concat([bias, none], 3))
    visible = _visible_keys(w, call, keys, position, ends)
    masked = w.op("Where", w.unsqueeze(visible, 1), scores, w.number(-math.inf, T))
    sink: ir.Value | None = None
    if "head_sink" in call:
        sink = w.reshape(call["head_sink"], 1, N, 1, 1)
    elif call.attribute("smooth_softmax") == 1:
        sink = w.number(0.0, T)
    if sink is None:
        p = w.softmax(masked)
        # Without a visible key the softmax is NaN, and the kernel returns 0.
        if call.attribute("local_window_size") > 0:
            p = w.op("Where", w.unsqueeze(visible, 1), p, w.number(0.0, T))
    else:  # the sink is one more key with value 0
        column = w.op("Expand", sink, w.op("Concat", B, w.ints(N), S, w.ints(1), axis=0))
        p = w.slice(w.softmax(w.concat([masked, column], 3)), 3, w.ints(0), keys)
    if call.has_output("output_qk"):
        outputs["output_qk"] = w.slice(masked if call.attribute("qk_output") == 1 else p, 3, w.ints(0), total)
    folded = w.op("Reshape", p, w.op("Concat", B, w.ints(G, N // G), S, keys, axis=0))
    context = w.matmul(folded, w.unsqueeze(v, 2))
    outputs["output"] = merge_heads(w, w.reshape(context, 0, N, -1, H), N * H)
    return outputs


def _visible_keys(w: Writer, call: Call[ir.Value], keys: ir.Value, position: ir.Value, ends: ir.Value) -> ir.Value:
    """Returns a mask of the keys that each query attends to, bool [B, S, keys]; excludes keys after the sequence's end.

    Args:
        w: writes the nodes.
        call: the node.
        keys: the number of keys, int64 [1].
        position: the position of each query, int64 [B, S].
        ends: the length of each sequence, int64 [B, 1].
    """
    if _clamps_padding_queries(call):
        position = w.op("Where", w.op("Less", position, ends), position, w.sub(ends, w.ints(1)))
    key = w.unsqueeze(w.arange(keys), 0, 1)  # [1, 1, keys]
    query = w.unsqueeze(position, 2)  # [B, S, 1]
    visible = w.op("Less", key, w.unsqueeze(ends, 2))
    if call.attribute("causal", 1):
        visible = w.op("And", visible, w.op("Not", w.op("Greater", key, query)))
    if (window := call.attribute("local_window_size")) > 0:
        visible = w.op("And", visible, w.op("Greater", key, w.sub(query, w.ints(window))))
    return visible


def _clamps_padding_queries(call: Call[Any]) -> bool:
    """Returns whether queries in the padding after a sequence have the window of the sequence's last token.

    onnxruntime 1.32 has two CPU kernels. The kernel without flash attention uses the window of the last token. The
    flash-attention kernel moves the window past the end of the sequence; if no key is left, the output is 0. The
    flash-attention kernel runs if the type is float32, both caches are outputs, and soft cap, sink and output_qk are
    absent.
    """
    return bool(
        call.attribute("softcap", 0.0)
        or call.attribute("smooth_softmax") == 1
        or "head_sink" in call
        or call.has_output("output_qk")
        or not (call.has_output("present_key") and call.has_output("present_value"))
    )


def _epsilon(call: Call[ir.Value], x: str) -> float:
    """Returns the epsilon of the norm of x, "q" or "k"."""
    epsilon: float = call.attribute(f"{x}_norm_epsilon", call.attribute("qk_norm_epsilon"))
    return epsilon


def _refuse(w: Writer, call: Call[ir.Value]) -> None:
    for name in ("k_scale", "v_scale"):
        if name in call:
            raise w.refuse(Code.QUANTIZED, "the cache is quantized")
    if ("q_norm_weight" in call) != ("k_norm_weight" in call):
        raise w.refuse(Code.UNSUPPORTED_OP, "the schema requires both q_norm_weight and k_norm_weight, or neither")
    if "query_seqlens" in call:
        raise w.refuse(Code.UNSUPPORTED_OP, "query_seqlens has no definition")
    if call.attribute("local_window_size") == 0:
        raise w.refuse(Code.ATTRIBUTE, "runtimes interpret local_window_size 0 differently")
    if call.attribute("sliding_window_cache"):
        raise w.refuse(Code.ATTRIBUTE, "sliding_window_cache has no definition")
    if call.has_output("output_qk") and call.attribute("qk_output") == 1:
        raise w.refuse(Code.ATTRIBUTE, "the schema leaves masked scores before the softmax undefined")


def _cached(w: Writer, past: ir.Value, new: ir.Value, begin: ir.Value, S: ir.Value, total: ir.Value) -> ir.Value:
    """Returns the output cache [B, G, max(total, past length), H]: past rows before `begin`, then new rows, then zeros.

    Args:
        w: writes the nodes.
        past: [B, G, past length, H].
        new: [B, G, S, H].
        begin: the position of each sequence's first new token, int64 [B, 1].
        S: the number of new tokens, int64 [1].
        total: total_sequence_length, int64 [1].
    """
    past_length = w.dim(past, 2)
    length = (
        w.op("Max", total, past_length)
        if w.opset >= MAX_OF_INTEGERS_OPSET
        else w.op("Where", w.op("Less", total, past_length), past_length, total)
    )
    row = w.unsqueeze(w.arange(length), 0)  # [1, length]
    new_row = w.sub(row, begin)  # [B, length]
    is_past = w.op("Less", new_row, w.ints(0))
    is_new = w.op("And", w.op("Not", is_past), w.op("Less", new_row, S))
    # `source` is the index of each row in the concatenation of past, new and one row of zeros.
    zero = w.op(
        "Expand",
        w.number(0.0, w.dtype(past, new)),
        w.op("Concat", w.dim(new, 0), w.dim(new, 1), w.ints(1), w.dim(new, 3), axis=0),
    )
    all_rows = w.concat([past, new, zero], 2)
    source = w.op("Where", is_new, w.add(new_row, past_length), w.add(past_length, S))
    source = w.op("Where", is_past, row, source)
    index = w.unsqueeze(source, 1, 3)
    shape = w.op("Concat", w.dim(new, 0), w.dim(new, 1), length, w.dim(new, 3), axis=0)
    return w.op("GatherElements", all_rows, w.op("Expand", index, shape), axis=2)


SPECS = (
    ContribOp(
        "GroupQueryAttention(query, key?, value?, past_key?, past_value?, seqlens_k, total_sequence_length, "
        "cos_cache?, sin_cache?, position_ids?, attention_bias?, head_sink?, k_scale?, v_scale?, q_norm_weight?, "
        "k_norm_weight?, query_seqlens?) -> output, present_key?, present_value?, output_qk?",
        _define,
        {
            "causal": 1,
            "do_rotary": None,
            "k_norm_epsilon": None,
            "k_quant_type": "NONE",
            "kv_cache_bit_width": None,
            "kv_num_heads": REQUIRED,
            "local_window_size": -1,
            "num_heads": REQUIRED,
            "q_norm_epsilon": None,
            "qk_norm_epsilon": 1e-6,
            "qk_output": 0,
            "rotary_interleaved": None,
            "scale": None,
            "sliding_window_cache": 0,
            "smooth_softmax": -1,
            "softcap": None,
            "v_quant_type": "NONE",
        },
        kept_on_cpu="its kernel writes into the cache, and the definition copies it",
        kept_on_gpu="its definition copies the whole cache at every step",
        on_provider="attention/group_query_attention",
        form="RoPE, cache, softmax(QK^T)V in standard ONNX",
        refuses="quantized caches; caches that drop tokens; windows of no tokens; `query_seqlens`; scores before the "
        "softmax as an output",
    ),
)
