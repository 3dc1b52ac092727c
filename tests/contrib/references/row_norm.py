"""Float64 references of row_norm.py and its random nodes."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from graphopt.contrib.schema import Call
from graphopt.ops.schema import Array
from tests.contrib.case import Case, Reference, either, normal


def _normalized(s: Array, gamma: Array, epsilon: float, rms: bool) -> tuple[Array, Array, Array]:
    mean = np.zeros_like(s[..., :1]) if rms else s.mean(axis=-1, keepdims=True)
    centred = s - mean
    inverse = 1.0 / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + epsilon)
    # Statistics are float32 for any data type.
    return centred * inverse * gamma, mean.astype(np.float32), inverse.astype(np.float32)


def _skip_reference(call: Call[Array], rms: bool) -> Mapping[str, Array]:
    s = call["input"] + call["skip"]
    if "bias" in call:
        s = s + call["bias"]
    y, mean, inverse = _normalized(s, call["gamma"], call.attribute("epsilon"), rms)
    if "beta" in call:
        y = y + call["beta"]
    return {"output": y, "mean": mean, "inv_std_var": inverse, "input_skip_bias_sum": s}


def _draw_skip(rng: np.random.Generator, rms: bool) -> Case:
    shape = either(rng, (2, 3, 33), (1, 7, 64), (3, 1, 8), (5, 16))
    D = shape[-1]
    skips = [shape, shape[-2:]] if len(shape) == 3 else [shape]
    if len(shape) == 3:
        skips.append((1, *shape[-2:]))
    inputs = {
        "input": normal(rng, *shape) + np.float32(0.5),
        "skip": normal(rng, *either(rng, *skips)),
        "gamma": normal(rng, D),
    }
    if not rms and rng.random() < 0.7:
        inputs["beta"] = normal(rng, D)
    if rng.random() < 0.5:
        inputs["bias"] = normal(rng, D)
    outputs = either(
        rng,
        ("output",),
        ("output", "input_skip_bias_sum"),
        ("output", "mean", "inv_std_var", "input_skip_bias_sum"),
        ("output", "inv_std_var"),
    )
    return Case(
        inputs, either(rng, {}, {"epsilon": 1e-5}, {"epsilon": 0.1}), outputs, frozenset({"gamma", "beta", "bias"})
    )


def _simplified_reference(call: Call[Array]) -> Mapping[str, Array]:
    y, _, inverse = _normalized(call["X"], call["scale"], call.attribute("epsilon"), rms=True)
    return {"Y": y, "inv_std_var": inverse}


def _draw_simplified(rng: np.random.Generator) -> Case:
    shape = either(rng, (2, 3, 33), (5, 16), (2, 2, 2, 8))
    attributes = either(rng, {}, {"axis": -1, "epsilon": 1e-3}, {"axis": len(shape) - 1, "stash_type": 1})
    outputs = either(rng, ("Y",), ("Y", "inv_std_var"))
    return Case({"X": normal(rng, *shape), "scale": normal(rng, shape[-1])}, attributes, outputs, frozenset({"scale"}))


def _embed_reference(call: Call[Array]) -> Mapping[str, Array]:
    ids = call["input_ids"]
    B, S = ids.shape
    positions = call["position_ids"] if "position_ids" in call else np.arange(S)[None]
    s = call["word_embedding"][ids] + call["position_embedding"][np.broadcast_to(positions, (B, S))]
    if "segment_ids" in call:
        s = s + call["segment_embedding"][call["segment_ids"]]
    y, _, _ = _normalized(s, call["gamma"], call.attribute("epsilon"), rms=False)
    words = (call["mask"] == 1).sum(axis=1) if "mask" in call else np.zeros(B)
    return {"output": y + call["beta"], "mask_index": words.astype(np.int32), "embedding_sum": s}


def _draw_embed(rng: np.random.Generator) -> Case:
    B, S, D = either(rng, (1, 3, 8), (2, 7, 33))
    inputs: dict[str, Array] = {"input_ids": rng.integers(0, 11, (B, S), np.int32)}
    if rng.random() < 0.6:
        inputs["segment_ids"] = rng.integers(0, 2, (B, S), np.int32)
        inputs["segment_embedding"] = normal(rng, 2, D)
    inputs["word_embedding"], inputs["position_embedding"] = normal(rng, 11, D), normal(rng, S + 3, D)
    inputs["gamma"], inputs["beta"] = normal(rng, D), normal(rng, D)
    outputs: tuple[str, ...] = ("output", "mask_index")
    if rng.random() < 0.6:
        lengths = rng.integers(0, S + 1, B)
        inputs["mask"] = (np.arange(S) < lengths[:, None]).astype(np.int32)
    if rng.random() < 0.5:
        inputs["position_ids"] = rng.integers(0, S + 3, (either(rng, 1, B), S), np.int32)
    if rng.random() < 0.5:
        outputs = (*outputs, "embedding_sum")
    constants = frozenset(n for n in inputs if n.endswith("embedding")) | {"gamma", "beta"}
    return Case(inputs, either(rng, {}, {"epsilon": 1e-5}), outputs, constants)


REFERENCES = {
    ("com.microsoft", "SkipLayerNormalization"): Reference(
        lambda call: _skip_reference(call, rms=False), lambda rng: _draw_skip(rng, rms=False)
    ),
    ("com.microsoft", "SkipSimplifiedLayerNormalization"): Reference(
        lambda call: _skip_reference(call, rms=True), lambda rng: _draw_skip(rng, rms=True)
    ),
    ("", "SimplifiedLayerNormalization"): Reference(_simplified_reference, _draw_simplified),
    ("com.microsoft", "EmbedLayerNormalization"): Reference(_embed_reference, _draw_embed),
}
