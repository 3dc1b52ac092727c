"""Float64 references of attention.py and its random nodes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from graphopt.contrib.attention import MASK_FILTER
from graphopt.contrib.schema import Call
from graphopt.ops.schema import Array
from tests.contrib.case import Case, Reference, either, normal

# -- references --------------------------------------------------------------------------------------------------------


def softmax(x: Array) -> Array:
    e = np.exp(x - x.max())
    return np.asarray(e / e.sum())


def is_kept(mask: Array, b: int, s: int, t: int, B: int) -> bool:
    """Whether sequence b's query s may attend to its key t, by a mask of any form in the schema."""
    if mask.ndim == 1:
        start = mask[B + b] if len(mask) == 2 * B else 0
        return bool(start <= t < mask[b])
    return bool((mask[b, t] if mask.ndim == 2 else mask[b, s, t]) > 0)


def attention_reference(q: Array, k: Array, v: Array, call: Call[Array], mask: Array | None) -> tuple[Array, Array]:
    """Computes each query separately: q [B, N, S, H], k and v [B, N, T, ..]; returns [B, S, N Hv] and the scores."""
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
    """Draws a mask of any form, and its declared dimensions; every query attends to some key."""
    kind = either(rng, None, "keys", "queries", "lengths", "ends")
    if kind is None:
        return None
    if kind in ("lengths", "ends") and not past:
        end = rng.integers(1, T + 1, B)
        if kind == "lengths":
            return end.astype(np.int32), ("B",)
        # Both are static if twice the batch must be distinguished from the batch.
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
    # A query before the first key of its sequence would attend to none.
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


REFERENCES = {
    ("com.microsoft", "Attention"): Reference(_attention_reference, _draw_attention),
    ("com.microsoft", "MultiHeadAttention"): Reference(_multi_head_reference, _draw_multi_head),
    ("com.microsoft", "DecoderMaskedMultiHeadAttention"): Reference(_multi_head_reference, _draw_decoder),
}
