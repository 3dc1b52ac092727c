"""SkipLayerNormalization, SimplifiedLayerNormalization, SkipSimplifiedLayerNormalization, EmbedLayerNormalization.

Normalization of a sum over the last axis: S = input + skip + bias, Y = norm(S) gamma + beta. "Simplified" is RMSNorm.
SimplifiedLayerNormalization is in ONNX's own domain, but only ONNX Runtime defines it.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from graphopt.contrib.schema import Call, ContribOp
from graphopt.contrib.writer import Writer
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
    if call.has_output("mean") or call.has_output("inv_std_var"):
        centred = w.cast(total, ir.DataType.FLOAT)
        if not rms:
            outputs["mean"] = w.reduce("ReduceMean", centred, -1)
            centred = w.sub(centred, outputs["mean"])
        outputs["inv_std_var"] = w.op("Reciprocal", w.root_mean_square(centred, epsilon))
        if rms:  # RMSNorm subtracts no mean
            zero = w.number(0, ir.DataType.FLOAT)
            outputs["mean"] = w.op("Expand", zero, w.op("Shape", outputs["inv_std_var"]))
    return outputs


def _define_simplified(w: Writer, call: Call[ir.Value]) -> Mapping[str, ir.Value]:
    x, scale = call["X"], call["scale"]
    axis = call.attribute("axis")
    if axis != -1 and axis != w.rank(x) - 1:
        raise w.refuse(Code.WRONG_AXIS, f"axis is {axis}; the definition covers the last axis only")
    if w.dtype(x) != w.dtype(scale):
        raise w.refuse(Code.MIXED_DTYPE, f"X is {w.dtype(x)}, and the scale is {w.dtype(scale)}")
    if call.attribute("stash_type") != 1:
        raise w.refuse(Code.ATTRIBUTE, "statistics are not in float32")
    outputs = {"Y": w.rms_norm(x, scale, call.attribute("epsilon"))}
    if call.has_output("inv_std_var"):
        wide = w.cast(x, ir.DataType.FLOAT)
        outputs["inv_std_var"] = w.op("Reciprocal", w.root_mean_square(wide, call.attribute("epsilon")))
    return outputs


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
    if call.has_output("mask_index"):
        if "mask" in call:
            is_word = w.cast(w.op("Equal", call["mask"], w.number(1, ir.DataType.INT32)), ir.DataType.INT32)
            outputs["mask_index"] = w.reduce("ReduceSum", is_word, 1, keepdims=0)
        else:
            outputs["mask_index"] = w.expand(w.array(np.zeros(1, np.int32)), w.dim(ids, 0))
    return outputs


SPECS = (
    ContribOp(
        "SkipLayerNormalization(input, skip, gamma, beta?, bias?) -> output, mean?, inv_std_var?, input_skip_bias_sum?",
        lambda w, call: _define_skip(w, call, rms=False),
        {"epsilon": EPSILON},
        on_provider="normalization/row_norm",
        form="FusedLayerNormAdd[Sum]",
    ),
    ContribOp(
        "SkipSimplifiedLayerNormalization(input, skip, gamma, bias?) -> output, mean?, inv_std_var?, "
        "input_skip_bias_sum?",
        lambda w, call: _define_skip(w, call, rms=True),
        {"epsilon": EPSILON},
        on_provider="normalization/row_norm",
        form="FusedRmsNormAdd[Sum]",
    ),
    ContribOp(
        "SimplifiedLayerNormalization(X, scale) -> Y, inv_std_var?",
        _define_simplified,
        {"axis": -1, "epsilon": 1e-5, "stash_type": 1},
        on_provider="normalization/row_norm",
        form="FusedRmsNorm",
        refuses="an axis before the last; types that differ",
        domain="",
    ),
    ContribOp(
        "EmbedLayerNormalization(input_ids, segment_ids?, word_embedding, position_embedding, "
        "segment_embedding?, gamma, beta, mask?, position_ids?) -> output, mask_index?, embedding_sum?",
        _define_embed,
        {"epsilon": EPSILON, "mask_index_type": None},
        form="Gather, Add, FusedLayerNormAdd",
    ),
)
