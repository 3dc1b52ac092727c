"""SkipLayerNormalization, SimplifiedLayerNormalization, SkipSimplifiedLayerNormalization, EmbedLayerNormalization.

The norm over the last axis of a sum: S = input + skip + bias, Y = norm(S) gamma + beta. "Simplified" is RMSNorm.
SimplifiedLayerNormalization stands in ONNX's own domain, where only ONNX Runtime knows it.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from graphopt.contrib.schema import Call, Case, ContribOp, either, normal
from graphopt.contrib.writer import Writer
from graphopt.ops.schema import Array
from graphopt.remarks import Code

EPSILON = 1e-12


def _define_skip(w: Writer, call: Call[ir.Value], rms: bool) -> Mapping[str, ir.Value]:
    x, bias, gamma = call["input"], call.get("bias"), call["gamma"]
    if bias is not None:
        x = w.add(x, bias)
    total = w.add(x, call["skip"])
    epsilon = call.attribute("epsilon")
    outputs = {"input_skip_bias_sum": total}
    if rms:
        outputs["output"] = w.rms_norm(total, gamma, epsilon)
    else:
        beta = call.get("beta")
        outputs["output"] = w.layer_norm(total, gamma, beta, epsilon)
    if call.asks_for("mean") or call.asks_for("inv_std_var"):
        centred = w.cast(total, ir.DataType.FLOAT)
        if not rms:
            outputs["mean"] = w.reduce("ReduceMean", centred, -1)
            centred = w.sub(centred, outputs["mean"])
        outputs["inv_std_var"] = w.op("Reciprocal", w.deviation(centred, epsilon))
        if rms:  # nothing was subtracted
            zero = w.number(0, ir.DataType.FLOAT)
            outputs["mean"] = w.op("Expand", zero, w.op("Shape", outputs["inv_std_var"]))
    return outputs


def _normalized(s: Array, gamma: Array, epsilon: float, rms: bool) -> tuple[Array, Array, Array]:
    mean = np.zeros_like(s[..., :1]) if rms else s.mean(axis=-1, keepdims=True)
    centred = s - mean
    inverse = 1.0 / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + epsilon)
    # Statistics are float32 whatever the data is.
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


def _define_simplified(w: Writer, call: Call[ir.Value]) -> Mapping[str, ir.Value]:
    x, scale = call["X"], call["scale"]
    axis = call.attribute("axis")
    if axis != -1 and axis != w.rank(x) - 1:
        raise w.refuse(Code.WRONG_AXIS, f"it normalises from axis {axis} on, its definition the last one")
    if w.dtype(x) != w.dtype(scale):
        raise w.refuse(Code.MIXED_DTYPE, f"X is {w.dtype(x)}, its scale {w.dtype(scale)}")
    if call.attribute("stash_type") != 1:
        raise w.refuse(Code.ATTRIBUTE, "statistics are not in float32")
    outputs = {"Y": w.rms_norm(x, scale, call.attribute("epsilon"))}
    if call.asks_for("inv_std_var"):
        wide = w.cast(x, ir.DataType.FLOAT)
        outputs["inv_std_var"] = w.op("Reciprocal", w.deviation(wide, call.attribute("epsilon")))
    return outputs


def _simplified_reference(call: Call[Array]) -> Mapping[str, Array]:
    y, _, inverse = _normalized(call["X"], call["scale"], call.attribute("epsilon"), rms=True)
    return {"Y": y, "inv_std_var": inverse}


def _draw_simplified(rng: np.random.Generator) -> Case:
    shape = either(rng, (2, 3, 33), (5, 16), (2, 2, 2, 8))
    attributes = either(rng, {}, {"axis": -1, "epsilon": 1e-3}, {"axis": len(shape) - 1, "stash_type": 1})
    outputs = either(rng, ("Y",), ("Y", "inv_std_var"))
    return Case({"X": normal(rng, *shape), "scale": normal(rng, shape[-1])}, attributes, outputs, frozenset({"scale"}))


def _define_embed(w: Writer, call: Call[ir.Value]) -> Mapping[str, ir.Value]:
    ids = call["input_ids"]
    words = w.op("Gather", call["word_embedding"], ids, axis=0)
    if "position_ids" in call:
        positions = w.op("Gather", call["position_embedding"], call["position_ids"], axis=0)
    else:
        positions = w.slice(call["position_embedding"], 0, 0, w.dim(ids, 1))
    total = w.add(words, positions)
    if "segment_ids" in call and "segment_embedding" in call:
        total = w.add(total, w.op("Gather", call["segment_embedding"], call["segment_ids"], axis=0))
    outputs = {
        "output": w.layer_norm(total, call["gamma"], call["beta"], call.attribute("epsilon")),
        "embedding_sum": total,
    }
    if call.asks_for("mask_index"):
        if "mask" in call:
            is_word = w.cast(w.op("Equal", call["mask"], w.number(1, ir.DataType.INT32)), ir.DataType.INT32)
            outputs["mask_index"] = w.reduce("ReduceSum", is_word, 1, keepdims=0)
        else:
            outputs["mask_index"] = w.expand(w.array(np.zeros(1, np.int32)), w.dim(ids, 0))
    return outputs


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


_STATISTICS = ("output", "mean?", "inv_std_var?", "input_skip_bias_sum?")
SPECS = (
    ContribOp(
        "SkipLayerNormalization",
        ("input", "skip", "gamma", "beta?", "bias?"),
        _STATISTICS,
        {"epsilon": EPSILON},
        lambda w, call: _define_skip(w, call, rms=False),
        lambda call: _skip_reference(call, rms=False),
        lambda rng: _draw_skip(rng, rms=False),
        on_provider="row_norm",
        form="FusedLayerNormAdd[Sum]",
    ),
    ContribOp(
        "SkipSimplifiedLayerNormalization",
        ("input", "skip", "gamma", "bias?"),
        _STATISTICS,
        {"epsilon": EPSILON},
        lambda w, call: _define_skip(w, call, rms=True),
        lambda call: _skip_reference(call, rms=True),
        lambda rng: _draw_skip(rng, rms=True),
        on_provider="row_norm",
        form="FusedRmsNormAdd[Sum]",
    ),
    ContribOp(
        "SimplifiedLayerNormalization",
        ("X", "scale"),
        ("Y", "inv_std_var?"),
        {"axis": -1, "epsilon": 1e-5, "stash_type": 1},
        _define_simplified,
        _simplified_reference,
        _draw_simplified,
        on_provider="row_norm",
        form="FusedRmsNorm",
        refuses="an axis before the last; types that differ",
        domain="",
    ),
    ContribOp(
        "EmbedLayerNormalization",
        (
            "input_ids",
            "segment_ids?",
            "word_embedding",
            "position_embedding",
            "segment_embedding?",
            "gamma",
            "beta",
            "mask?",
            "position_ids?",
        ),
        ("output", "mask_index?", "embedding_sum?"),
        {"epsilon": EPSILON, "mask_index_type": None},
        _define_embed,
        _embed_reference,
        _draw_embed,
        form="Gather, Add, FusedLayerNormAdd",
    ),
)
