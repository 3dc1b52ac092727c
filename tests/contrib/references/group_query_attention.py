"""Float64 references of group_query_attention.py and its random nodes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from graphopt.contrib.group_query_attention import WINDOW_AS_DEFINED, _clamps_padding_queries
from graphopt.contrib.schema import Call
from graphopt.ops.schema import Array
from tests.contrib.case import Case, Reference, either, normal
from tests.contrib.references.rotary import draw_caches, rotate_reference


def _reference(call: Call[Array]) -> Mapping[str, Array]:
    """Computes each sequence, head and token separately."""
    N, G, query = call.attribute("num_heads"), call.attribute("kv_num_heads"), call["query"]
    B, S = query.shape[:2]
    if "key" in call:
        parts = [query, call["key"], call["value"]]
    else:
        H = query.shape[2] // (N + 2 * G)
        parts = np.split(query, [N * H, (N + G) * H], axis=-1)
    q, k, v = (x.reshape(B, S, n, -1) for x, n in zip(parts, (N, G, G)))
    H = q.shape[-1]
    if "q_norm_weight" in call:
        both = call.attribute("qk_norm_epsilon")
        q, k = (
            x / np.sqrt((x**2).mean(-1, keepdims=True) + call.attribute(f"{n}_norm_epsilon", both)) * weight
            for n, x, weight in (("q", q, call["q_norm_weight"]), ("k", k, call["k_norm_weight"]))
        )
    total = int(call["total_sequence_length"].item())
    ends = call["seqlens_k"].reshape(-1).astype(int) + 1
    begin = np.zeros(B, int) if total == S else ends - S
    positions = begin[:, None] + np.arange(S)
    if call.attribute("do_rotary", 0):
        ids = call.inputs.get("position_ids", positions)
        turns = call["cos_cache"][ids], call["sin_cache"][ids]
        q, k = (rotate_reference(x, *turns, bool(call.attribute("rotary_interleaved", 0))) for x in (q, k))
    held = call["past_key"].shape[2] if "past_key" in call else 0
    length = max(total, held)
    keys, values = np.zeros((B, G, length, H)), np.zeros((B, G, length, H))
    for b in range(B):
        for cache, past, new in ((keys, "past_key", k), (values, "past_value", v)):
            if begin[b]:
                cache[b, :, : begin[b]] = call[past][b, :, : begin[b]]
            cache[b, :, begin[b] : begin[b] + S] = new[b].transpose(1, 0, 2)
    scale, window = call.attribute("scale", 0.0) or 1 / math.sqrt(H), call.attribute("local_window_size")
    y = np.zeros((B, S, N, H))
    probabilities = np.zeros((B, N, S, length))
    for b, s, n in np.ndindex(B, S, N):
        query_at = min(positions[b, s], ends[b] - 1) if _clamps_padding_queries(call) else positions[b, s]
        last = min(query_at if call.attribute("causal", 1) else ends[b] - 1, ends[b] - 1)
        seen = slice(max(0, query_at - window + 1) if window > 0 else 0, last + 1)
        if seen.start >= seen.stop:  # the window is in the padding
            continue
        row = scale * (keys[b, n * G // N, seen] @ q[b, s, n])
        if cap := call.attribute("softcap", 0.0):
            row = cap * np.tanh(row / cap)
        if "attention_bias" in call:
            bias = call["attention_bias"]
            row = row + bias[b % bias.shape[0], n % bias.shape[1], s, seen]
        sink = (
            call["head_sink"][n] if "head_sink" in call else 0.0 if call.attribute("smooth_softmax") == 1 else -np.inf
        )
        top = max(row.max(), sink)
        e = np.exp(row - top)
        p = e / (e.sum() + np.exp(sink - top))
        probabilities[b, n, s, seen] = p
        y[b, s, n] = p @ values[b, n * G // N, seen]
    return {
        "output": y.reshape(B, S, N * H),
        "present_key": keys,
        "present_value": values,
        "output_qk": probabilities[..., :total],
    }


def _draw(rng: np.random.Generator) -> Case:
    G, H = int(either(rng, 1, 2)), int(either(rng, 16, 32, 128))
    N, B = G * int(either(rng, 1, 2, 3, 4, 7)), int(either(rng, 1, 2))
    prompt = rng.random() < 0.5
    S = int(either(rng, 1, 4)) if prompt or B == 1 else 1
    past = 0 if prompt else int(either(rng, 5, 150))
    attributes: dict[str, Any] = {"num_heads": N, "kv_num_heads": G}
    inputs: dict[str, Array] = {}
    dims: dict[str, tuple[int | str, ...]] = {}
    if rng.random() < 0.3:
        inputs["query"], dims["query"] = normal(rng, B, S, (N + 2 * G) * H), ("B", "S", (N + 2 * G) * H)
    else:
        inputs["query"], dims["query"] = normal(rng, B, S, N * H), ("B", "S", N * H)
        for name in ("key", "value"):
            inputs[name], dims[name] = normal(rng, B, S, G * H), ("B", "S", G * H)
    # A sequence may have fewer past tokens than the batch's longest one, or a shorter prompt, padded on the right.
    ends = np.full(B, past + S)
    if B > 1:
        ends[1] -= int(rng.integers(0, 3 if not prompt else S))
    held = past + int(either(rng, 0, 4))  # the cache may be longer than its contents
    if not prompt or rng.random() < 0.5:
        for name in ("past_key", "past_value"):
            cache = normal(rng, B, G, held if not prompt else int(either(rng, 0, S + 2)), H)
            inputs[name], dims[name] = cache, ("B", G, "P", H)
        inputs["past_value"] = normal(rng, *inputs["past_key"].shape)
    inputs["seqlens_k"] = (ends - 1).astype(np.int32)
    inputs["total_sequence_length"] = np.array(past + S, np.int32)
    if rng.random() < 0.6:
        attributes["do_rotary"] = 1
        inputs["cos_cache"], inputs["sin_cache"] = draw_caches(rng, past + 24, H if rng.random() < 0.6 else 16)
        if rng.random() < 0.5:
            attributes["rotary_interleaved"] = 1
    if rng.random() < 0.3:
        attributes["local_window_size"] = int(either(rng, 1, 2, 20))
    if rng.random() < 0.3:
        attributes["softcap"] = 2.0
    if rng.random() < 0.3:
        attributes["scale"] = 0.3
    if rng.random() < 0.3:
        attributes["smooth_softmax"] = 1
    if rng.random() < 0.25:
        inputs["attention_bias"] = normal(rng, int(either(rng, 1, B)), int(either(rng, 1, N)), S, past + S)
    elif rng.random() < 0.25:
        inputs["head_sink"] = normal(rng, N)
        attributes.pop("smooth_softmax", None)
    outputs = ("output", "present_key", "present_value")
    # The kernel of 1.22 does not support head_sink.
    newer = "local_window_size" in attributes or "head_sink" in inputs or (prompt and ends.min() < S)
    kernel: tuple[int, int] | None = WINDOW_AS_DEFINED if newer else (0, 0)
    if rng.random() < 0.25:
        inputs["q_norm_weight"], inputs["k_norm_weight"] = normal(rng, H), normal(rng, H)
        kernel = None  # ONNX Runtime normalizes heads only on GPUs
        if rng.random() < 0.5:
            attributes["q_norm_epsilon"], attributes["k_norm_epsilon"] = 0.1, 0.01
    constants = frozenset({"cos_cache", "sin_cache", "head_sink"})
    return Case(inputs, attributes, outputs, constants, dims=dims, kernel=kernel)


REFERENCES = {
    ("com.microsoft", "GroupQueryAttention"): Reference(_reference, _draw),
}
