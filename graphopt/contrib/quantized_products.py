"""Quantized products: exact in int32 before they are scaled.

    QLinearConv(x, w)           = quantize(Conv(dequantize(x), dequantize(w), B scale(x) scale(w)))
    MatMulIntegerToFloat(A, B)  = (A - zero(A)) (B - zero(B)) scale(A) scale(B) + bias
    DynamicQuantizeMatMul(A, B) = MatMulIntegerToFloat of DynamicQuantizeLinear(A)
    QGemm(A, B)                 = alpha scale(A) scale(B) ((A - zero(A)) (B - zero(B)) + C), quantized if asked
    MatMulInteger16(A, B)       = A B of 16-bit numbers, in 32 bits

`dequantize` and `quantize` as in quantized.py.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from graphopt.contrib.convolution import CONV_ATTRIBUTES
from graphopt.contrib.quantized import (
    quantized,
    scalar,
    spec,
)
from graphopt.contrib.schema import Call
from graphopt.contrib.writer import Writer
from graphopt.graph.operators.arguments import SCALES_OF_CHANNELS_OPSET
from graphopt.remarks import Code

FLOAT = ir.DataType.FLOAT
ROOM, FORM = "matmul/integer_product", "MatMulInteger, Mul"

# -- definitions -------------------------------------------------------------------------------------------------------


def _define_conv(w: Writer, call: Call[ir.Value]) -> Mapping[str, ir.Value]:
    last = call.attribute("channels_last")
    x = w.channels_first(call["x"]) if last else call["x"]
    attributes = {n: call.attribute(n) for n in CONV_ATTRIBUTES if call.attribute(n) is not None}
    if w.opset < SCALES_OF_CHANNELS_OPSET:
        names = ("x_scale", "x_zero_point", "w", "w_scale", "w_zero_point", "y_scale", "y_zero_point")
        bias = (call["B"],) if "B" in call else ()
        y = w.op("QLinearConv", x, *(call[n] for n in names), *bias, **attributes)
    else:
        x_scale, w_scale = scalar(w, call["x_scale"]), call["w_scale"]
        real = w.op("DequantizeLinear", x, x_scale, scalar(w, call["x_zero_point"]))
        weights = w.op("DequantizeLinear", call["w"], w_scale, call["w_zero_point"], axis=0)
        # The bias counts in units of both scales.
        bias = (w.mul(w.cast(call["B"], FLOAT), w.mul(x_scale, w_scale)),) if "B" in call else ()
        y = quantized(w, call, w.op("Conv", real, weights, *bias, **attributes), "y_scale", "y_zero_point", x)
    return {"y": w.channels_last(y) if last else y}


def _product(w: Writer, a: ir.Value, b: ir.Value, *points: ir.Value | None) -> ir.Value:
    """The exact product of 8-bit numbers less their zero points, as float32."""
    given = list(points)
    while given and given[-1] is None:
        given.pop()
    # No absent input before one that is there: runtimes below 1.24 stumble over them.
    filled = [w.array(np.zeros((), w.dtype(a).numpy())) if p is None else p for p in given]
    return w.cast(w.op("MatMulInteger", a, b, *filled), FLOAT)


def _define_to_float(w: Writer, call: Call[ir.Value]) -> Mapping[str, ir.Value]:
    if w.dtype(call["a_scale"]) != FLOAT:
        raise w.refuse(Code.WRONG_DTYPE, "the scales are not float32")
    if w.rank(call["a_scale"]) > 0 and w.size(call["a_scale"], 0) != 1:
        raise w.refuse(Code.WRONG_SHAPE, "A has a scale for each column")
    y = _product(w, call["A"], call["B"], call.get("a_zero_point"), call.get("b_zero_point"))
    y = w.mul(y, w.mul(scalar(w, call["a_scale"]), call["b_scale"]))
    return {"Y": w.add(y, call["bias"]) if "bias" in call else y}


def _define_dynamic(w: Writer, call: Call[ir.Value]) -> Mapping[str, ir.Value]:
    A, scale, zero = w.outputs("DynamicQuantizeLinear", call["A"], _count=3)
    A.dtype = zero.dtype = ir.DataType.UINT8
    y = _product(w, A, call["B"], zero, call.get("b_zero_point"))
    y = w.mul(y, w.mul(scale, call["b_scale"]))
    return {"Y": w.add(y, call["bias"]) if "bias" in call else y}


def _define_gemm(w: Writer, call: Call[ir.Value]) -> Mapping[str, ir.Value]:
    a, b = (w.transpose(call[x], 1, 0) if call.attribute(f"trans{x}") else call[x] for x in "AB")
    a.dtype, b.dtype = w.dtype(call["A"]), w.dtype(call["B"])
    total = _product(w, a, b, scalar(w, call["a_zero_point"]), call["b_zero_point"])
    if "C" in call:
        total = w.add(total, w.cast(call["C"], FLOAT))
    alpha = call.attribute("alpha")
    scale = w.mul(scalar(w, call["a_scale"]), call["b_scale"])
    if alpha != 1.0:
        scale = w.mul(scale, w.number(alpha, FLOAT))
    y = w.mul(total, scale)
    if "y_scale" not in call:
        return {"Y": y}
    return {"Y": quantized(w, call, y, "y_scale", "y_zero_point", call["A"])}


def _define_integer16(w: Writer, call: Call[ir.Value]) -> Mapping[str, ir.Value]:
    if w.dtype(call["A"]) != w.dtype(call["B"]):
        raise w.refuse(Code.MIXED_DTYPE, "one factor is signed, and the other is not")
    wide = ir.DataType.INT32 if w.dtype(call["A"]) == ir.DataType.INT16 else ir.DataType.UINT32
    return {"Y": w.matmul(w.cast(call["A"], wide), w.cast(call["B"], wide))}


SPECS = (
    spec(
        "QLinearConv(x, x_scale, x_zero_point, w, w_scale, w_zero_point, y_scale, y_zero_point, B?) -> y",
        _define_conv,
        {**CONV_ATTRIBUTES, "channels_last": 0},
        room=ROOM,
    ),
    spec(
        "MatMulIntegerToFloat(A, B, a_scale, b_scale, a_zero_point?, b_zero_point?, bias?) -> Y",
        _define_to_float,
        room=ROOM,
        form=FORM,
    ),
    spec("DynamicQuantizeMatMul(A, B, b_scale, b_zero_point?, bias?) -> Y", _define_dynamic, room=ROOM, form=FORM),
    spec(
        "QGemm(A, a_scale, a_zero_point, B, b_scale, b_zero_point, C?, y_scale?, y_zero_point?) -> Y",
        _define_gemm,
        {"alpha": 1.0, "transA": 0, "transB": 0},
        room=ROOM,
        form=FORM,
    ),
    spec("MatMulInteger16(A, B) -> Y", _define_integer16, room=ROOM, form=FORM),
)
