"""Quantized element-wise operators, pools and means, and helpers for all quantized operators.

Each operator dequantizes its inputs, computes in floating point, and quantizes the result:

    QLinearX(x) = quantize(X(dequantize(x))),  dequantize(q) = (q - zero point) scale
    quantize(y) = saturate(round to even(y / scale) + zero point)

B. Jacob et al., "Quantization and Training of Neural Networks for Efficient Integer-Arithmetic-Only Inference", 2018.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx_ir as ir

from graphopt.contrib.schema import REQUIRED, Call, ContribOp, Define
from graphopt.contrib.writer import Writer
from graphopt.graph.operators.arguments import flattens
from graphopt.remarks import Code

INTEGERS = "its kernel computes with integers, the definition with floats"
# The defaults of `spec`: the folder of native/operators with the kernels, and the result of the passes on a definition.
KERNELS, FORM = "quantized/quantized", "DequantizeLinear, .., QuantizeLinear"


# -- definitions -------------------------------------------------------------------------------------------------------


def _dequantize(w: Writer, call: Call[ir.Value], x: str, scale: str, zero: str) -> ir.Value:
    """Dequantizes input `x` of a QLinear operator, which has a scalar scale and zero point."""
    zero_points = (to_scalar(w, call[zero]),) if zero in call else ()
    return w.op("DequantizeLinear", call[x], to_scalar(w, call[scale]), *zero_points)


def quantize(w: Writer, call: Call[ir.Value], y: ir.Value, scale: str, zero: str, like: ir.Value) -> ir.Value:
    """Quantizes y to the type of the zero point, or to the type of `like` if there is none.

    Args:
        w: writes the nodes.
        call: the node.
        y: the floating-point result.
        scale: the formal name of the scale.
        zero: the formal name of the zero point, which may be absent.
        like: an input with the output's element type.
    """
    zero_point = to_scalar(w, call[zero]) if zero in call else w.array(np.zeros((), w.dtype(like).numpy()))
    return w.op("QuantizeLinear", y, to_scalar(w, call[scale]), zero_point)


def to_scalar(w: Writer, x: ir.Value) -> ir.Value:
    """Reshapes a tensor of one element to rank 0."""
    return x if w.editor.shapes.rank(x) == 0 else w.op("Reshape", x, w.array(np.zeros(0, np.int64)))


def _unary(function: Callable[[Writer, Call[ir.Value], ir.Value], ir.Value]) -> Define:
    def define(w: Writer, call: Call[ir.Value]) -> Mapping[str, ir.Value]:
        y = function(w, call, _dequantize(w, call, "X", "X_scale", "X_zero_point"))
        return {"Y": quantize(w, call, y, "Y_scale", "Y_zero_point", call["X"])}

    return define


def _binary(op: str) -> ContribOp:
    def define(w: Writer, call: Call[ir.Value]) -> Mapping[str, ir.Value]:
        a, b = (_dequantize(w, call, x, f"{x}_scale", f"{x}_zero_point") for x in "AB")
        return {"C": quantize(w, call, w.op(op, a, b), "C_scale", "C_zero_point", call["A"])}

    inputs = "A, A_scale, A_zero_point?, B, B_scale, B_zero_point?, C_scale, C_zero_point?"
    return spec(f"QLinear{op}({inputs}) -> C", define)


def _define_softmax(w: Writer, call: Call[ir.Value]) -> Mapping[str, ir.Value]:
    x = _dequantize(w, call, "X", "X_scale", "x_zero_point")
    axis, rank = call.attribute("axis"), w.rank(call["X"])
    if not -rank <= axis < rank:
        raise w.refuse(Code.WRONG_AXIS, f"ONNX Runtime interprets axis {axis} at rank {rank} differently")
    if flattens("Softmax", call.attribute("opset")) and axis % rank != rank - 1:
        shape = w.op("Shape", x)
        flat = w.op("Flatten", x, axis=axis % rank)
        y = w.op("Reshape", w.softmax(flat), shape)
    elif axis % rank == rank - 1:
        y = w.softmax(x)
    else:
        perm = [i for i in range(rank) if i != axis % rank] + [axis % rank]
        y = w.transpose(w.softmax(w.transpose(x, *perm)), *np.argsort(perm).tolist())
    return {"Y": quantize(w, call, y, "y_scale", "y_zero_point", call["X"])}


def _define_pool(w: Writer, call: Call[ir.Value], pool: Callable[[ir.Value], ir.Value]) -> Mapping[str, ir.Value]:
    x = _dequantize(w, call, "X", "x_scale", "x_zero_point")
    y = w.channels_last(pool(w.channels_first(x))) if call.attribute("channels_last") else pool(x)
    return {"Y": quantize(w, call, y, "y_scale", "y_zero_point", call["X"])}


def _define_average_pool(w: Writer, call: Call[ir.Value]) -> Mapping[str, ir.Value]:
    if call.attribute("ceil_mode") and call.attribute("count_include_pad"):
        raise w.refuse(Code.ATTRIBUTE, "runtimes count the elements of the last window differently")
    names = ("auto_pad", "ceil_mode", "count_include_pad", "kernel_shape", "pads", "strides")
    attributes = {n: call.attribute(n) for n in names if call.attribute(n) is not None}
    return _define_pool(w, call, lambda x: w.op("AveragePool", x, **attributes))


def _define_concat(w: Writer, call: Call[ir.Value]) -> Mapping[str, ir.Value]:
    parts = []
    i = 0
    while f"inputs{i}" in call:
        parts.append(_dequantize(w, call, f"inputs{i}", f"inputs{i + 1}", f"inputs{i + 2}"))
        i += 3
    y = w.op("Concat", *parts, axis=call.attribute("axis"))
    return {"Y": quantize(w, call, y, "Y_scale", "Y_zero_point", call["inputs0"])}


def _define_where(w: Writer, call: Call[ir.Value]) -> Mapping[str, ir.Value]:
    x, y = (_dequantize(w, call, n, f"{n.lower()}_scale", f"{n.lower()}_zero_point") for n in "XY")
    return {"Z": quantize(w, call, w.op("Where", call["condition"], x, y), "z_scale", "z_zero_point", call["X"])}


def _define_reduce_mean(w: Writer, call: Call[ir.Value]) -> Mapping[str, ir.Value]:
    x = _dequantize(w, call, "data", "data_scale", "data_zero_point")
    y = w.reduce("ReduceMean", x, *call.attribute("axes"), keepdims=call.attribute("keepdims"))
    return {"reduced": quantize(w, call, y, "reduced_scale", "reduced_zero_point", call["data"])}


def spec(
    signature: str,
    define: Define,
    attributes: Mapping[str, Any] = MappingProxyType({}),
    *,
    kernels: str = KERNELS,
    kept: str = INTEGERS,
    form: str = FORM,
    refuses: str = "",
) -> ContribOp:
    """Describes a quantized operator with one output.

    Args:
        signature: see ContribOp.
        define: see ContribOp.
        attributes: see ContribOp.
        kernels: the folder of native/operators with its kernels; "" if there are none.
        kept: the reason why `optimize` keeps its nodes.
        form: see ContribOp.
        refuses: see ContribOp.
    """
    return ContribOp(
        signature,
        define,
        attributes,
        form,
        kept_on_cpu=kept,
        kept_on_gpu=kept,
        on_provider=kernels,
        quantized=True,
        refuses=refuses,
    )


SPECS = (
    _binary("Add"),
    _binary("Mul"),
    spec(
        "QLinearSigmoid(X, X_scale, X_zero_point?, Y_scale, Y_zero_point?) -> Y",
        _unary(lambda w, _, x: w.op("Sigmoid", x)),
    ),
    spec(
        "QLinearLeakyRelu(X, X_scale, X_zero_point?, Y_scale, Y_zero_point?) -> Y",
        _unary(lambda w, call, x: w.op("LeakyRelu", x, alpha=call.attribute("alpha"))),
        {"alpha": 0.01},
    ),
    spec(
        "QLinearSoftmax(X, X_scale, x_zero_point?, y_scale, y_zero_point) -> Y",
        _define_softmax,
        {"axis": -1, "opset": REQUIRED},
    ),
    spec(
        "QLinearGlobalAveragePool(X, x_scale, x_zero_point, y_scale, y_zero_point) -> Y",
        lambda w, call: _define_pool(w, call, lambda x: w.op("GlobalAveragePool", x)),
        {"channels_last": 0},
    ),
    spec(
        "QLinearAveragePool(X, x_scale, x_zero_point?, y_scale, y_zero_point?) -> Y",
        _define_average_pool,
        {
            "auto_pad": "NOTSET",
            "ceil_mode": 0,
            "channels_last": 0,
            "count_include_pad": 0,
            "kernel_shape": REQUIRED,
            "pads": None,
            "strides": None,
        },
        refuses="ceil_mode with count_include_pad",
    ),
    spec("QLinearConcat(Y_scale, Y_zero_point, inputs*) -> Y", _define_concat, {"axis": REQUIRED}),
    spec(
        "QLinearWhere(condition, X, x_scale, x_zero_point, Y, y_scale, y_zero_point, z_scale, z_zero_point) -> Z",
        _define_where,
    ),
    spec(
        "QLinearReduceMean(data, data_scale, data_zero_point?, reduced_scale, reduced_zero_point?) -> reduced",
        _define_reduce_mean,
        {"axes": REQUIRED, "keepdims": REQUIRED},
        kernels="",
        kept="no runtime has a kernel for it; `lower` replaces it",
    ),
)
