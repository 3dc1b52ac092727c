"""Attention, MultiHeadAttention and DecoderMaskedMultiHeadAttention.

    O = softmax(scale Q K^T + attention_bias + mask) V, heads apart; scale is 1 / sqrt(head size) where none is given

Q, K and V come as [batch, sequence, heads * head size], projected by the operator itself (Attention) or before it. A
mask is a number for each key, for each query and key, or lengths; masked keys get `mask_filter_value` added. `past`
keys and values stand before the new ones.
A. Vaswani et al., "Attention Is All You Need", NeurIPS 2017.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from graphopt.contrib.schema import REQUIRED, Call, Case, ContribOp, either, normal
from graphopt.contrib.writer import Writer
from graphopt.graph.shapes.sizes import Size
from graphopt.ops.schema import Array
from graphopt.remarks import Code

MASK_FILTER = -10000.0
INT64 = ir.DataType.INT64


# -- the steps of a definition -----------------------------------------------------------------------------------------


def heads(w: Writer, x: ir.Value, n: int) -> ir.Value:
    """[B, S, n H] as [B, n, S, H]."""
    return w.transpose(w.reshape(x, 0, 0, n, -1), 0, 2, 1, 3)


def merged(w: Writer, x: ir.Value, hidden: int | None) -> ir.Value:
    """[B, N, S, H] as [B, S, N H]."""
    return w.reshape(w.transpose(x, 0, 2, 1, 3), 0, 0, -1 if hidden is None else hidden)


def scale_of(call: Call[Any], head_size: int | None) -> float | None:
    """The factor of Q K^T; 0 is as good as none. None where the size of a head decides and is not known."""
    given = call.attribute("scale", 0.0)
    return given or (None if head_size is None else 1.0 / math.sqrt(head_size))


def lengths_mask(w: Writer, end: ir.Value, start: ir.Value | None, total: ir.Value) -> ir.Value:
    """Which keys [B, total] lie below `end` and from `start` on, each int32 [B]."""
    position = w.unsqueeze(w.arange(total), 0)
    kept = w.op("Less", position, w.unsqueeze(w.cast(end, INT64), 1))
    if start is None:
        return kept
    return w.op("And", kept, w.op("Not", w.op("Less", position, w.unsqueeze(w.cast(start, INT64), 1))))


def additive(w: Writer, mask: ir.Value, batch: ir.Value, total: ir.Value, T: ir.DataType, filtered: float) -> ir.Value:
    """A mask of any of the schema's forms as what is added to scores [B, N, S, total].

    The mask is [B, total] or [B, S, total], 0 where masked; or [B] lengths; [2 B] ends and starts; [3 B + 2], of which
    the first B are lengths. `batch` is a value whose first dimension is B, `total` the number of keys in shape [1], T
    the type of the scores, and `filtered` what masked keys get.
    """
    rank = w.rank(mask)
    if rank == 1:
        count, B = w.editor.shapes.dims(mask), w.editor.shapes.dims(batch)
        if count is None or B is None:
            raise w.refuse(Code.UNKNOWN_SHAPE, f"whether {mask.name} holds one number for each sequence or more")
        if count[0] == B[0]:
            kept = lengths_mask(w, mask, None, total)
        elif count[0] in (B[0] + B[0], B[0] + B[0] + B[0] + Size.of(2)):
            size = w.dim(batch, 0)
            end = w.slice(mask, 0, w.ints(0), size)
            start = w.slice(mask, 0, size, None) if count[0] == B[0] + B[0] else None
            kept = lengths_mask(w, end, start, total)
        else:
            raise w.refuse(Code.UNKNOWN_SHAPE, f"whether {mask.name} holds one number for each sequence or more")
    elif rank in (2, 3):
        kept = w.op("Greater", mask, w.number(0, ir.DataType.INT32))
    else:
        raise w.refuse(Code.WRONG_RANK, f"a mask of rank {rank}")
    kept = w.unsqueeze(kept, 1) if rank == 3 else w.unsqueeze(kept, 1, 2)
    return w.op("Where", kept, w.number(0.0, T), w.number(filtered, T))


def causal_mask(w: Writer, queries: ir.Value, total: ir.Value, T: ir.DataType) -> ir.Value:
    """What is added to scores [.., S, total], whose last row is that of the newest token."""
    row = w.unsqueeze(w.add(w.arange(queries), w.sub(total, queries)), 1)
    beyond = w.op("Greater", w.unsqueeze(w.arange(total), 0), row)
    return w.op("Where", beyond, w.number(-math.inf, T), w.number(0.0, T))


def joined(w: Writer, past: ir.Value, new: ir.Value, length: ir.Value | None) -> tuple[ir.Value, ir.Value]:
    """Keys or values [B, N, .., H] with the past ones before them, and what is kept of them for the next call.

    Where `length` (int32, one number) is given, `past` is a buffer of which only so many are valid.
    """
    if length is None:
        present = w.concat([past, new], 2)
        return present, present
    valid = w.op("Reshape", w.cast(length, INT64), w.ints(1))
    used = w.concat([w.slice(past, 2, w.ints(0), valid), new], 2)
    return used, w.concat([used, w.slice(past, 2, w.dim(used, 2), None)], 2)


def _turned(w: Writer, k: ir.Value) -> ir.Value:
    """[B, N, T, H] as [B, N, H, T], straight from [B, T, N, H] where that is what was turned."""
    node = k.producer()
    if node in w.nodes and node.op_type == "Transpose" and tuple(node.attributes["perm"].as_ints()) == (0, 2, 1, 3):
        apart = node.inputs[0]
        assert apart is not None
        return w.transpose(apart, 0, 2, 3, 1)
    return w.transpose(k, 0, 1, 3, 2)


def attend(
    w: Writer, q: ir.Value, k: ir.Value, v: ir.Value, scale: float, added: Sequence[ir.Value], T: ir.DataType
) -> tuple[ir.Value, ir.Value]:
    """softmax(scale q k^T + ..) v of [B, N, .., H], and the scores."""
    scores = w.mul(w.matmul(q, _turned(w, k)), w.number(scale, T))
    for term in added:
        scores = w.add(scores, term)
    return w.matmul(w.softmax(scores), v), scores


# -- definitions -------------------------------------------------------------------------------------------------------


def projected(w: Writer, call: Call[ir.Value]) -> tuple[list[ir.Value], list[int]]:
    """Q, K and V of the operators that project their input themselves, and their last dimensions."""
    x, weights, bias = call["input"], call["weights"], call.get("bias")
    sizes = call.attribute("qkv_hidden_sizes")
    if sizes is None:
        sizes = [w.require_size(weights, 1) // 3] * 3
    y = w.matmul(x, weights)
    return list(w.split(y if bias is None else w.add(y, bias), list(sizes), -1)), list(sizes)


def _define_attention(w: Writer, call: Call[ir.Value]) -> Mapping[str, ir.Value]:
    if call.attribute("do_rotary"):
        raise w.refuse(Code.ATTRIBUTE, "rotary positions inside Attention have no definition")
    if call.attribute("past_present_share_buffer") and "past_sequence_length" not in call:
        raise w.refuse(Code.UNSUPPORTED_OP, "past_present_share_buffer without past_sequence_length")
    N, T = call.attribute("num_heads"), w.dtype(call["input"], call["weights"])
    values, sizes = projected(w, call)
    q, k, v = (heads(w, x, N) for x in values)
    new_k, new_v = k, v
    if "past" in call:
        pasts = [w.squeeze(p, 0) for p in w.split(call["past"], (1, 1), 0)]
        length = call.get("past_sequence_length") if call.attribute("past_present_share_buffer") else None
        (k, new_k), (v, new_v) = joined(w, pasts[0], k, length), joined(w, pasts[1], v, length)
    scale = scale_of(call, sizes[0] // N)
    assert scale is not None
    context, _ = attend(w, q, k, v, scale, _added(w, call, "mask_index", q, k, call["input"], T), T)
    outputs = {"output": merged(w, context, sizes[2])}
    if call.asks_for("present"):
        outputs["present"] = w.concat([w.unsqueeze(new_k, 0), w.unsqueeze(new_v, 0)], 0)
    return outputs


def _added(
    w: Writer, call: Call[ir.Value], mask: str, q: ir.Value, k: ir.Value, batch: ir.Value, T: ir.DataType
) -> list[ir.Value]:
    added = []
    if "attention_bias" in call:
        added.append(call["attention_bias"])
    if mask in call:
        filtered = call.attribute("mask_filter_value", MASK_FILTER)
        added.append(additive(w, call[mask], batch, w.dim(k, 2), T, filtered))
    if call.attributes.get("unidirectional"):
        added.append(causal_mask(w, w.dim(q, 2), w.dim(k, 2), T))
    return added


def _define_multi_head(w: Writer, call: Call[ir.Value]) -> Mapping[str, ir.Value]:
    N, query, key = call.attribute("num_heads"), call["query"], call.get("key")
    T = w.dtype(query, key, call.get("bias"))
    biases: list[ir.Value | None] = [None] * 3
    rank = w.rank(query)
    hidden = _hidden_sizes(w, call)
    if "bias" in call:
        if None in hidden:
            raise w.refuse(Code.UNKNOWN_SHAPE, "the last dimensions of query, key and value, which share the bias")
        biases = list(w.split(call["bias"], [n for n in hidden if n is not None], 0))
    if rank == 5:  # packed: [B, S, N, 3, H]
        q, k, v = (w.transpose(w.squeeze(x, 3), 0, 2, 1, 3) for x in w.split(query, (1, 1, 1), 3))
        q, k, v = (_with_bias(w, x, b, N) for x, b in zip((q, k, v), biases))
    elif key is None:  # packed: [B, 1, 3 N H]
        sizes = [n for n in hidden if n is not None]
        if len(sizes) != 3:
            raise w.refuse(Code.UNKNOWN_SHAPE, f"the last dimension of {query.name}")
        parts = w.split(query, sizes, -1)
        q, k, v = (heads(w, _plus(w, x, b), N) for x, b in zip(parts, biases))
    else:
        q = heads(w, _plus(w, query, biases[0]), N)
        key_rank = w.rank(key)
        if key_rank == 5:
            k, v = (w.transpose(w.squeeze(x, 3), 0, 2, 1, 3) for x in w.split(key, (1, 1), 3))
            k, v = (_with_bias(w, x, b, N) for x, b in zip((k, v), biases[1:]))
        elif key_rank == 4:  # cached keys and values of a cross attention, which had their bias before
            k, v = key, call["value"]
        else:
            k, v = (heads(w, _plus(w, x, b), N) for x, b in zip((key, call["value"]), biases[1:]))
    new_k, new_v = k, v
    if "past_key" in call:
        length = call.get("past_sequence_length")
        (k, new_k), (v, new_v) = (
            joined(w, call["past_key"], k, length),
            joined(w, call["past_value"], v, length),
        )
    if "cache_indirection" in call and "past_key" in call:  # all beams share what a cross attention reads
        k, v = (_of_beams(w, x, call["cache_indirection"]) for x in (k, v))
    mask = "key_padding_mask" if "key_padding_mask" in call else "mask_index"
    size = hidden[0] // N if hidden[0] is not None else None
    scale = scale_of(call, size)
    if scale is None:
        raise w.refuse(Code.UNKNOWN_SHAPE, "the size of a head")
    context, scores = attend(w, q, k, v, scale, _added(w, call, mask, q, k, query, T), T)
    return {"output": merged(w, context, hidden[2]), "present_key": new_k, "present_value": new_v, "qk": scores}


def _hidden_sizes(w: Writer, call: Call[ir.Value]) -> list[int | None]:
    """The last dimensions of Q, K and V, heads together."""
    N, query, key = call.attribute("num_heads"), call["query"], call.get("key")
    if w.rank(query) == 5:
        size = w.size(query, 4)
        return [None if size is None else size * N] * 3
    last = w.size(query, -1)
    if key is None:
        return [None if last is None else last // 3] * 3
    if w.rank(key) == 5:
        return [last] * 3
    value = w.size(call["value"], -1)
    if w.rank(key) == 4:
        return [last, last, None if value is None else value * N]
    return [last, last, value]


def _plus(w: Writer, x: ir.Value, bias: ir.Value | None) -> ir.Value:
    return x if bias is None else w.add(x, bias)


def _with_bias(w: Writer, x: ir.Value, bias: ir.Value | None, N: int) -> ir.Value:
    """A bias [N H] onto [B, N, S, H]."""
    return x if bias is None else w.add(x, w.reshape(bias, N, 1, -1))


def _of_beams(w: Writer, x: ir.Value, indirection: ir.Value) -> ir.Value:
    """Keys or values [B W, N, T, H] of each beam, of which position t lies in the row of beam indirection[b, w, t].

    The newest position is the beam's own.
    """
    total, rows = w.dim(x, 2), w.dim(x, 0)
    beams = w.dim(indirection, 1)
    old = w.sub(total, w.ints(1))
    chosen = w.cast(w.slice(indirection, 2, w.ints(0), old), INT64)  # [B, W, T - 1]
    own = w.expand(w.reshape(w.arange(beams), 1, -1, 1), w.dim(indirection, 0), beams, 1)
    chosen = w.concat([chosen, own], 2)
    first = w.mul(w.reshape(w.arange(w.dim(indirection, 0)), -1, 1, 1), beams)
    row = w.reshape(w.add(chosen, first), rows, total)
    flat = w.add(w.mul(row, total), w.unsqueeze(w.arange(total), 0))  # into [B W T, N, H]
    by_token = w.transpose(x, 0, 2, 1, 3)
    table = w.op("Reshape", by_token, w.shape([-1, w.dim(x, 1), w.dim(x, 3)]))
    return w.transpose(w.op("Gather", table, flat, axis=0), 0, 2, 1, 3)


def _define_decoder(w: Writer, call: Call[ir.Value]) -> Mapping[str, ir.Value]:
    shared = dict(call.inputs)
    if not call.attribute("past_present_share_buffer"):
        shared.pop("past_sequence_length", None)
    return _define_multi_head(w, Call(shared, call.attributes, call.outputs))


# -- references --------------------------------------------------------------------------------------------------------


def softmax(x: Array) -> Array:
    e = np.exp(x - x.max())
    return np.asarray(e / e.sum())


def is_kept(mask: Array, b: int, s: int, t: int, B: int) -> bool:
    """Whether sequence b's query s may see its key t, by a mask of any of the schema's forms."""
    if mask.ndim == 1:
        start = mask[B + b] if len(mask) == 2 * B else 0
        return bool(start <= t < mask[b])
    return bool((mask[b, t] if mask.ndim == 2 else mask[b, s, t]) > 0)


def attention_reference(q: Array, k: Array, v: Array, call: Call[Array], mask: Array | None) -> tuple[Array, Array]:
    """Query by query: q [B, N, S, H], k and v [B, N, T, ..]; gives [B, S, N Hv] and the scores."""
    (B, N, S, H), T = q.shape, k.shape[2]
    scale = call.attribute("scale", 0.0) or 1.0 / math.sqrt(H)
    filtered = call.attribute("mask_filter_value", MASK_FILTER)
    scores = np.zeros((B, N, S, T))
    y = np.zeros((B, S, N, v.shape[3]))
    for b, n, s in np.ndindex(B, N, S):
        row = scale * (k[b, n] @ q[b, n, s])
        if "attention_bias" in call:
            row = row + np.broadcast_to(call["attention_bias"], scores.shape)[b, n, s]
        for t in range(T):
            if mask is not None and not is_kept(mask, b, s, t, B):
                row[t] += filtered
            if call.attributes.get("unidirectional") and t > T - S + s:
                row[t] = -np.inf
        scores[b, n, s] = row
        y[b, s, n] = softmax(row) @ v[b, n]
    return y.reshape(B, S, -1), scores


def split_heads(x: Array, N: int) -> Array:
    y: Array = x.reshape(*x.shape[:2], N, -1).transpose(0, 2, 1, 3)
    return y


def _cached(past: Array, new: Array, length: int | None) -> tuple[Array, Array]:
    if length is None:
        both = np.concatenate([past, new], axis=2)
        return both, both
    present = past.copy()
    present[:, :, length : length + new.shape[2]] = new
    return present[:, :, : length + new.shape[2]], present


def _attention_reference(call: Call[Array]) -> Mapping[str, Array]:
    N = call.attribute("num_heads")
    y = call["input"] @ call["weights"] + call.inputs.get("bias", np.zeros(1))
    sizes = call.attribute("qkv_hidden_sizes", [y.shape[-1] // 3] * 3)
    q, k, v = (split_heads(x, N) for x in np.split(y, np.cumsum(sizes)[:2], axis=-1))
    kept_k, kept_v = k, v
    if "past" in call:
        length = int(call["past_sequence_length"].item()) if call.attribute("past_present_share_buffer") else None
        (k, kept_k), (v, kept_v) = (_cached(p, x, length) for p, x in zip(call["past"], (k, v)))
    output, _ = attention_reference(q, k, v, call, call.get("mask_index"))
    outputs = {"output": output}
    if kept_k.shape == kept_v.shape:
        outputs["present"] = np.stack([kept_k, kept_v])
    return outputs


def _multi_head_reference(call: Call[Array]) -> Mapping[str, Array]:
    N, query, key, value = call.attribute("num_heads"), call["query"], call.get("key"), call.get("value")
    if query.ndim == 5:
        B, S = query.shape[:2]
        query, key, value = (query[:, :, :, i].reshape(B, S, -1) for i in range(3))
    elif key is None:
        query, key, value = np.split(query, 3, axis=-1)
    elif key.ndim == 5:
        B, S = key.shape[:2]
        key, value = (key[:, :, :, i].reshape(B, S, -1) for i in range(2))
    assert key is not None and value is not None
    bias = call.inputs.get("bias")
    cached = key.ndim == 4
    if bias is not None:
        D = query.shape[-1]
        query = query + bias[:D]
        if not cached:
            key, value = key + bias[D : 2 * D], value + bias[2 * D :]
    q = split_heads(query, N)
    k, v = (key, value) if cached else (split_heads(key, N), split_heads(value, N))
    kept_k, kept_v = k, v
    if "past_key" in call:
        shared = "past_sequence_length" in call and call.attributes.get("past_present_share_buffer", 1)
        length = int(call["past_sequence_length"].item()) if shared else None
        (k, kept_k), (v, kept_v) = _cached(call["past_key"], k, length), _cached(call["past_value"], v, length)
    if "cache_indirection" in call and "past_key" in call:
        table = call["cache_indirection"]
        beams = table.shape[1]
        k, v = k.copy(), v.copy()
        for own, t in np.ndindex(k.shape[0], k.shape[2] - 1):
            b, j = divmod(own, beams)
            other = b * beams + int(table[b, j, t])
            k[own, :, t], v[own, :, t] = kept_k[other, :, t], kept_v[other, :, t]
    mask = call.inputs.get("key_padding_mask", call.inputs.get("mask_index"))
    output, scores = attention_reference(q, k, v, call, mask)
    return {"output": output, "present_key": kept_k, "present_value": kept_v, "qk": scores}


# -- draws -------------------------------------------------------------------------------------------------------------


def draw_mask(
    rng: np.random.Generator, B: int, S: int, T: int, past: int
) -> tuple[Array, tuple[int | str, ...]] | None:
    """A mask of any form, and its declared dimensions; every query sees a key."""
    kind = either(rng, None, "keys", "queries", "lengths", "ends")
    if kind is None:
        return None
    if kind in ("lengths", "ends") and not past:
        end = rng.integers(1, T + 1, B)
        if kind == "lengths":
            return end.astype(np.int32), ("B",)
        # Both are static where twice the batch has to be told from the batch.
        return np.concatenate([end, rng.integers(0, end)]).astype(np.int32), (2 * B,)
    kept = (rng.random((B, T) if kind != "queries" else (B, S, T)) < 0.7).astype(np.int32)
    kept[..., 0] = 1
    return kept, ("B", *(["S"] if kind == "queries" else []), "T")


def _draw_attention(rng: np.random.Generator) -> Case:
    B, S, N, H = int(either(rng, 1, 3)), int(either(rng, 1, 5)), int(either(rng, 1, 2)), int(either(rng, 4, 8))
    D = int(either(rng, 7, 12))
    attributes: dict[str, Any] = {"num_heads": N}
    past = int(either(rng, 0, 0, 3))
    Hv = H
    if not past and rng.random() < 0.4:
        Hv = int(either(rng, 4, 6))
        attributes["qkv_hidden_sizes"] = [N * H, N * H, N * Hv]
    width = N * (2 * H + Hv)
    inputs = {"input": normal(rng, B, S, D), "weights": normal(rng, D, width, scale=0.5)}
    if rng.random() < 0.8:
        inputs["bias"] = normal(rng, width)
    T = past + S
    dims: dict[str, tuple[int | str, ...]] = {"input": ("B", "S", D)}
    if (mask := draw_mask(rng, B, S, T, past)) is not None:
        inputs["mask_index"], dims["mask_index"] = mask
        if isinstance(mask[1][0], int):
            dims["input"] = (B, "S", D)
    outputs: tuple[str, ...] = ("output",)
    if past:
        inputs["past"] = normal(rng, 2, B, N, past, H)
        outputs = ("output", "present")
    if rng.random() < 0.4:
        inputs["attention_bias"] = normal(rng, int(either(rng, 1, B)), int(either(rng, 1, N)), S, T)
    # A query before the first key of its sequence would see none.
    _draw_attributes(rng, attributes, causal=dims.get("mask_index") != (2 * B,))
    constants = frozenset({"weights", "bias"})
    return Case(inputs, attributes, outputs, constants, dims=dims, kernel=(0, 0) if "bias" in inputs else None)


def _draw_attributes(rng: np.random.Generator, attributes: dict[str, Any], causal: bool = True) -> None:
    if causal and rng.random() < 0.4:
        attributes["unidirectional"] = 1
    if rng.random() < 0.3:
        attributes["scale"] = float(either(rng, 0.2, 1.0))
    if rng.random() < 0.3:
        attributes["mask_filter_value"] = float(either(rng, -5.0, -3.4e38))


def _draw_multi_head(rng: np.random.Generator) -> Case:
    B, S, N, H = int(either(rng, 1, 3)), int(either(rng, 1, 5)), int(either(rng, 1, 2)), int(either(rng, 4, 8))
    form = either(rng, "self", "self", "cross", "cached", "packed", "packed kv")
    L = S if form in ("self", "packed") else int(either(rng, 2, 6))
    Hv = int(either(rng, H, 6)) if form in ("self", "cross") else H
    past = int(either(rng, 0, 3)) if form == "self" else 0
    if past:
        Hv = H
    attributes: dict[str, Any] = {"num_heads": N}
    inputs: dict[str, Array] = {}
    dims: dict[str, tuple[int | str, ...]] = {}
    if form == "packed":
        inputs["query"], dims["query"] = normal(rng, B, S, N, 3, H), ("B", "S", N, 3, H)
    else:
        inputs["query"], dims["query"] = normal(rng, B, S, N * H), ("B", "S", N * H)
    if form in ("self", "cross"):
        inputs["key"], dims["key"] = normal(rng, B, L, N * H), ("B", "L", N * H)
        inputs["value"], dims["value"] = normal(rng, B, L, N * Hv), ("B", "L", N * Hv)
    elif form == "cached":
        for name in ("key", "value"):
            inputs[name], dims[name] = normal(rng, B, N, L, H), ("B", N, "L", H)
    elif form == "packed kv":
        inputs["key"], dims["key"] = normal(rng, B, L, N, 2, H), ("B", "L", N, 2, H)
    if rng.random() < 0.5 and form != "packed kv":
        inputs["bias"] = normal(rng, N * (2 * H + Hv))
    T = past + L
    mask = draw_mask(rng, B, S, T, past)
    if mask is not None and form != "packed" and not (mask[0].ndim == 1 and len(mask[0]) == 2 * B):
        inputs["key_padding_mask"], dims["key_padding_mask"] = mask
    if rng.random() < 0.4:
        inputs["attention_bias"] = normal(rng, int(either(rng, 1, B)), int(either(rng, 1, N)), S, T)
    outputs: tuple[str, ...] = ("output",)
    if past:
        inputs["past_key"], inputs["past_value"] = normal(rng, B, N, past, H), normal(rng, B, N, past, Hv)
        outputs = ("output", "present_key", "present_value")
    _draw_attributes(rng, attributes, causal=form in ("self", "packed"))
    return Case(inputs, attributes, outputs, frozenset({"bias"}), dims=dims)


def _draw_decoder(rng: np.random.Generator) -> Case:
    N, H = int(either(rng, 1, 2)), int(either(rng, 4, 8))
    beams = int(either(rng, 1, 2))
    B = beams * int(either(rng, 1, 2))
    D = N * H
    attributes: dict[str, Any] = {"num_heads": N}
    inputs: dict[str, Array] = {"query": normal(rng, B, 1, D)}
    dims: dict[str, tuple[int | str, ...]] = {"query": ("B", 1, D)}
    outputs: tuple[str, ...] = ("output",)
    form = either(rng, "self", "shared", "cross")
    if form == "cross":
        T = 5
        for name in ("key", "value"):
            inputs[name], dims[name] = normal(rng, B, N, T, H), ("B", N, "L", H)
    else:
        past, longest = 3, 7
        T = past + 1
        for name in ("key", "value"):
            inputs[name], dims[name] = normal(rng, B, 1, D), ("B", 1, D)
        held = longest if form == "shared" else past
        inputs["past_key"], inputs["past_value"] = normal(rng, B, N, held, H), normal(rng, B, N, held, H)
        outputs = ("output", "present_key", "present_value")
        if form == "shared":
            attributes["past_present_share_buffer"] = 1
            inputs["past_sequence_length"] = np.array([past], np.int32)
    if rng.random() < 0.5:
        kept = (rng.random((B, T)) < 0.7).astype(np.int32)
        kept[:, 0] = 1
        inputs["mask_index"], dims["mask_index"] = kept, ("B", "T")
    if form != "cross" and rng.random() < 0.4:
        inputs["attention_bias"] = normal(rng, 1, N, 1, T)
    if rng.random() < 0.5:
        inputs["bias"] = normal(rng, 3 * D)
    if form != "self" and beams > 1:
        inputs["beam_width"] = np.array([beams], np.int32)
        inputs["cache_indirection"] = rng.integers(0, beams, (B // beams, beams, 7), np.int32)
    _draw_attributes(rng, attributes, causal=False)
    return Case(inputs, attributes, outputs, frozenset({"bias"}), dims=dims)


SPECS = (
    ContribOp(
        "Attention",
        ("input", "weights", "bias?", "mask_index?", "past?", "attention_bias?", "past_sequence_length?"),
        ("output", "present?"),
        {
            "do_rotary": None,
            "mask_filter_value": None,
            "num_heads": REQUIRED,
            "past_present_share_buffer": None,
            "qkv_hidden_sizes": None,
            "rotary_embedding_dim": None,
            "scale": None,
            "unidirectional": 0,
        },
        _define_attention,
        _attention_reference,
        _draw_attention,
        form="MatMul, FusedAttention",
        refuses="masks of rank 4; do_rotary",
    ),
    ContribOp(
        "MultiHeadAttention",
        (
            "query",
            "key?",
            "value?",
            "bias?",
            "key_padding_mask?",
            "attention_bias?",
            "past_key?",
            "past_value?",
            "past_sequence_length?",
            "cache_indirection?",
        ),
        ("output", "present_key?", "present_value?", "qk?"),
        {"mask_filter_value": None, "num_heads": REQUIRED, "scale": None, "unidirectional": 0},
        _define_multi_head,
        _multi_head_reference,
        _draw_multi_head,
        form="FusedAttention",
    ),
    ContribOp(
        "DecoderMaskedMultiHeadAttention",
        (
            "query",
            "key?",
            "value?",
            "mask_index?",
            "attention_bias?",
            "past_key?",
            "past_value?",
            "past_sequence_length?",
            "beam_width?",
            "cache_indirection?",
            "bias?",
        ),
        ("output", "present_key?", "present_value?", "qk?"),
        {
            "mask_filter_value": None,
            "num_heads": REQUIRED,
            "output_qk": None,
            "past_present_share_buffer": None,
            "scale": None,
        },
        _define_decoder,
        _multi_head_reference,
        _draw_decoder,
        stays_on_cpu="its kernel writes into the cache, the definition copies it",
        form="FusedAttention",
    ),
)
