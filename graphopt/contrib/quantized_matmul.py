"""Quantized matrix multiplications, with exact sums of products in int32, and quantized convolutions.

    QLinearConv(x, w)           = quantize(Conv(dequantize(x), dequantize(w), B scale(x) scale(w)))
    MatMulIntegerToFloat(A, B)  = (A - zero(A)) (B - zero(B)) scale(A) scale(B) + bias
    DynamicQuantizeMatMul(A, B) = MatMulIntegerToFloat of DynamicQuantizeLinear(A)
    QGemm(A, B)                 = alpha scale(A) scale(B) ((A - zero(A)) (B - zero(B)) + C), quantized with y_scale
    MatMulInteger16(A, B)       = A B of 16-bit integers, accumulated in 32 bits

The int32 sums are cast to float32; QGemm then adds C in float32. quantized.py defines `dequantize` and `quantize`.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from graphopt.contrib.convolution import CONV_ATTRIBUTES
from graphopt.contrib.quantized import quantize, spec, to_scalar
from graphopt.contrib.schema import Call
from graphopt.contrib.writer import Writer
from graphopt.graph.operators.arguments import SCALES_OF_CHANNELS_OPSET
from graphopt.remarks import Code

FLOAT = ir.DataType.FLOAT
KERNELS, FORM = "matmul/integer_matmul", "MatMulInteger, Mul"
KEPT = "its kernel also scales the integer sums"

# -- definitions -------------------------------------------------------------------------------------------------------


def _define_conv(w: Writer, call: Call[ir.Value]) -> Mapping[str, ir.Value]:
    channels_last = call.attribute("channels_last")
    x = w.channels_first(call["x"]) if channels_last else call["x"]
    attributes = {n: call.attribute(n) for n in CONV_ATTRIBUTES if call.attribute(n) is not None}
    if w.opset < SCALES_OF_CHANNELS_OPSET:
        names = ("x_scale", "x_zero_point", "w", "w_scale", "w_zero_point", "y_scale", "y_zero_point")
        bias = (call["B"],) if "B" in call else ()
        y = w.op("QLinearConv", x, *(call[n] for n in names), *bias, **attributes)
    else:
        x_scale, w_scale = to_scalar(w, call["x_scale"]), call["w_scale"]
        real = w.op("DequantizeLinear", x, x_scale, to_scalar(w, call["x_zero_point"]))
        weights = w.op("DequantizeLinear", call["w"], w_scale, call["w_zero_point"], axis=0)
        # The unit of the bias is the product of both scales.
        bias = (w.mul(w.cast(call["B"], FLOAT), w.mul(x_scale, w_scale)),) if "B" in call else ()
        y = quantize(w, call, w.op("Conv", real, weights, *bias, **attributes), "y_scale", "y_zero_point", x)
    return {"y": w.channels_last(y) if channels_last else y}


def _matmul_integer(w: Writer, a: ir.Value, b: ir.Value, *zero_points: ir.Value | None) -> ir.Value:
    """Subtracts zero points from 8-bit matrices, multiplies exactly in int32, and casts the result to float32."""
    given = list(zero_points)
    while given and given[-1] is None:
        given.pop()
    # onnxruntime before 1.24 fails if an absent input precedes a present one.
    filled = [w.array(np.zeros((), w.dtype(a).numpy())) if p is None else p for p in given]
    return w.cast(w.op("MatMulInteger", a, b, *filled), FLOAT)


def _define_to_float(w: Writer, call: Call[ir.Value]) -> Mapping[str, ir.Value]:
    if w.dtype(call["a_scale"]) != FLOAT:
        raise w.refuse(Code.WRONG_DTYPE, "the scales are not float32")
    if w.rank(call["a_scale"]) > 0 and w.size(call["a_scale"], 0) != 1:
        raise w.refuse(Code.WRONG_SHAPE, "A has a scale for each column")
    y = _matmul_integer(w, call["A"], call["B"], call.get("a_zero_point"), call.get("b_zero_point"))
    y = w.mul(y, w.mul(to_scalar(w, call["a_scale"]), call["b_scale"]))
    return {"Y": w.add(y, call["bias"]) if "bias" in call else y}


def _define_dynamic(w: Writer, call: Call[ir.Value]) -> Mapping[str, ir.Value]:
    A, scale, zero = w.outputs("DynamicQuantizeLinear", call["A"], _count=3)
    A.dtype = zero.dtype = ir.DataType.UINT8
    y = _matmul_integer(w, A, call["B"], zero, call.get("b_zero_point"))
    y = w.mul(y, w.mul(scale, call["b_scale"]))
    return {"Y": w.add(y, call["bias"]) if "bias" in call else y}


def _define_gemm(w: Writer, call: Call[ir.Value]) -> Mapping[str, ir.Value]:
    a, b = (w.transpose(call[x], 1, 0) if call.attribute(f"trans{x}") else call[x] for x in "AB")
    a.dtype, b.dtype = w.dtype(call["A"]), w.dtype(call["B"])
    total = _matmul_integer(w, a, b, to_scalar(w, call["a_zero_point"]), call["b_zero_point"])
    if "C" in call:
        total = w.add(total, w.cast(call["C"], FLOAT))
    alpha = call.attribute("alpha")
    scale = w.mul(to_scalar(w, call["a_scale"]), call["b_scale"])
    if alpha != 1.0:
        scale = w.mul(scale, w.number(alpha, FLOAT))
    y = w.mul(total, scale)
    if "y_scale" not in call:
        return {"Y": y}
    return {"Y": quantize(w, call, y, "y_scale", "y_zero_point", call["A"])}


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
        kernels=KERNELS,
    ),
    spec(
        "MatMulIntegerToFloat(A, B, a_scale, b_scale, a_zero_point?, b_zero_point?, bias?) -> Y",
        _define_to_float,
        kernels=KERNELS,
        kept=KEPT,
        form=FORM,
    ),
    spec(
        "DynamicQuantizeMatMul(A, B, b_scale, b_zero_point?, bias?) -> Y",
        _define_dynamic,
        kernels=KERNELS,
        kept=KEPT,
        form=FORM,
    ),
    spec(
        "QGemm(A, a_scale, a_zero_point, B, b_scale, b_zero_point, C?, y_scale?, y_zero_point?) -> Y",
        _define_gemm,
        {"alpha": 1.0, "transA": 0, "transB": 0},
        kernels=KERNELS,
        kept=KEPT,
        form=FORM,
    ),
    spec(
        "MatMulInteger16(A, B) -> Y",
        _define_integer16,
        kernels=KERNELS,
        kept="its kernel needs no Cast",
        form="Cast, MatMul",
    ),
)
