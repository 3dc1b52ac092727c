"""Gelu, BiasGelu, FastGelu, QuickGelu, BiasSplitGelu and BiasAdd.

Gelu is x Phi(x), computed by the error function; FastGelu approximates it by tanh. QuickGelu is x sigmoid(alpha x).
D. Hendrycks, K. Gimpel, "Gaussian Error Linear Units (GELUs)", 2016.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import onnx_ir as ir

from graphopt.contrib.schema import Call, ContribOp
from graphopt.contrib.writer import Writer
from graphopt.graph.operators.arguments import first_opset


def gelu(w: Writer, x: ir.Value, T: ir.DataType) -> ir.Value:
    """Writes Gelu(x): the Gelu operator, or below its opset the Erf pattern of exporters, which runtimes fuse."""
    if w.opset >= first_opset("Gelu"):
        return w.op("Gelu", x)
    e = w.op("Erf", w.div(x, w.number(math.sqrt(2.0), T)))
    return w.mul(w.mul(x, w.add(e, w.number(1.0, T))), w.number(0.5, T))


def _fast_gelu(w: Writer, x: ir.Value, T: ir.DataType) -> ir.Value:
    if w.opset >= first_opset("Gelu"):
        return w.op("Gelu", x, approximate="tanh")
    cubed = w.op("Pow", x, w.number(3.0, T))
    inner = w.mul(w.add(x, w.mul(cubed, w.number(0.044715, T))), w.number(math.sqrt(2.0 / math.pi), T))
    return w.mul(w.mul(x, w.add(w.op("Tanh", inner), w.number(1.0, T))), w.number(0.5, T))


def _define_gelu(w: Writer, call: Call[ir.Value]) -> Mapping[str, ir.Value]:
    return {"Y": gelu(w, call["X"], w.dtype(call["X"]))}


def _define_bias_gelu(w: Writer, call: Call[ir.Value]) -> Mapping[str, ir.Value]:
    return {"C": gelu(w, w.add(call["A"], call["B"]), w.dtype(call["B"], call["A"]))}


def _define_fast_gelu(w: Writer, call: Call[ir.Value]) -> Mapping[str, ir.Value]:
    bias = call.get("bias")
    x = call["X"] if bias is None else w.add(call["X"], bias)
    return {"Y": _fast_gelu(w, x, w.dtype(call["X"], bias))}


def _define_quick_gelu(w: Writer, call: Call[ir.Value]) -> Mapping[str, ir.Value]:
    x, alpha = call["X"], call.attribute("alpha")
    inner = x if alpha == 1.0 else w.mul(x, w.number(alpha, w.dtype(x)))
    return {"Y": w.mul(x, w.op("Sigmoid", inner))}


def _define_bias_split_gelu(w: Writer, call: Call[ir.Value]) -> Mapping[str, ir.Value]:
    bias = call["bias"]
    half = w.require_size(bias, 0) // 2
    left, right = w.split(w.add(call["X"], bias), (half, half), -1)
    return {"Y": w.mul(left, gelu(w, right, w.dtype(bias, call["X"])))}


def _define_bias_add(w: Writer, call: Call[ir.Value]) -> Mapping[str, ir.Value]:
    return {"Y": w.add(w.add(call["X"], call["bias"]), call["skip"])}


SPECS = (
    ContribOp(
        "Gelu(X) -> Y",
        _define_gelu,
        kept_on_cpu="the runtime fuses the definition into this kernel",
        on_provider="elementwise/elementwise",
        form="Gelu",
    ),
    ContribOp(
        "BiasGelu(A, B) -> C",
        _define_bias_gelu,
        kept_on_cpu="the runtime fuses the definition into this kernel",
        on_provider="elementwise/elementwise",
        form="Add, Gelu",
    ),
    ContribOp(
        "FastGelu(X, bias?) -> Y",
        _define_fast_gelu,
        kept_on_cpu="its kernel takes 0.4 of the definition's time",
        on_provider="elementwise/elementwise",
        form="Gelu (tanh)",
    ),
    ContribOp(
        "QuickGelu(X) -> Y",
        _define_quick_gelu,
        {"alpha": 1.702},
        kept_on_cpu="the runtime fuses the definition into this kernel",
        on_provider="elementwise/unary",
        form="x Sigmoid(alpha x)",
    ),
    ContribOp("BiasSplitGelu(X, bias) -> Y", _define_bias_split_gelu, form="Add, Split, Gelu, Mul"),
    ContribOp("BiasAdd(X, bias, skip) -> Y", _define_bias_add, form="Add, Add"),
)
