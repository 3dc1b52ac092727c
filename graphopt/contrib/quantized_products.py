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
from typing import Any

import numpy as np
import onnx_ir as ir

from graphopt.contrib.convolution import CONV_ATTRIBUTES, conv_reference
from graphopt.contrib.quantized import (
    byte_type,
    fixed,
    less_zero_point,
    parameters,
    quantized,
    saturated,
    scalar,
    spec,
    weights,
    whole,
)
from graphopt.contrib.schema import Call, Case, either, normal
from graphopt.contrib.writer import Writer
from graphopt.graph.operators.arguments import SCALES_OF_CHANNELS_OPSET
from graphopt.ops.schema import Array
from graphopt.remarks import Code

FLOAT = ir.DataType.FLOAT
ROOM, FORM = "integer_product", "MatMulInteger, Mul"

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
        raise w.refuse(Code.WRONG_DTYPE, "scales that are not float32")
    if w.rank(call["a_scale"]) > 0 and w.size(call["a_scale"], 0) != 1:
        raise w.refuse(Code.WRONG_SHAPE, "a scale for each column of A")
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
        raise w.refuse(Code.MIXED_DTYPE, "signed and unsigned factors")
    wide = ir.DataType.INT32 if w.dtype(call["A"]) == ir.DataType.INT16 else ir.DataType.UINT32
    return {"Y": w.matmul(w.cast(call["A"], wide), w.cast(call["B"], wide))}


# -- references --------------------------------------------------------------------------------------------------------


def _conv_reference(call: Call[Array]) -> Mapping[str, Array]:
    last = call.attribute("channels_last")
    x = call["x"].astype(np.float64) - float(call["x_zero_point"].item())
    x = np.moveaxis(x, -1, 1) if last else x
    points = call["w_zero_point"].astype(np.float64).reshape(-1, *[1] * (x.ndim - 1))
    inner = {"W": call["w"].astype(np.float64) - points}
    if "B" in call:
        inner["B"] = call["B"].astype(np.float64)
    scales = (call["x_scale"] * call["w_scale"]).reshape(-1, *[1] * (x.ndim - 2))
    y = conv_reference(x, Call(inner, call.attributes, frozenset())) * scales
    y = np.moveaxis(y, 1, -1) if last else y
    return {"y": saturated(y, call, "y_scale", "y_zero_point", call["x"].dtype)}


def _to_float_reference(call: Call[Array]) -> Mapping[str, Array]:
    y = less_zero_point(call, "A", "a_zero_point") @ less_zero_point(call, "B", "b_zero_point")
    y = y * call["a_scale"] * call["b_scale"]
    return {"Y": y + call.inputs.get("bias", np.zeros(1))}


def _dynamic_reference(call: Call[Array]) -> Mapping[str, Array]:
    """ONNX's DynamicQuantizeLinear: the range of A with 0 in it, on 0 to 255."""
    A = call["A"]
    low, high = min(A.min(), 0.0), max(A.max(), 0.0)
    scale = (high - low) / 255.0 or 1.0
    zero = np.clip(np.rint(-low / scale), 0, 255)
    steps = np.clip(np.rint(A / scale) + zero, 0, 255)
    y = ((steps - zero) @ less_zero_point(call, "B", "b_zero_point")) * scale * call["b_scale"]
    return {"Y": y + call.inputs.get("bias", np.zeros(1))}


def _gemm_reference(call: Call[Array]) -> Mapping[str, Array]:
    a, b = less_zero_point(call, "A", "a_zero_point"), call["B"].astype(np.float64)
    a = a.T if call.attribute("transA") else a
    b = b.T if call.attribute("transB") else b
    y = a @ (b - call["b_zero_point"].astype(np.float64)) + call.inputs.get("C", np.zeros(1)).astype(np.float64)
    y = y * call.attribute("alpha") * call["a_scale"] * call["b_scale"]
    return {"Y": saturated(y, call, "y_scale", "y_zero_point", call["A"].dtype) if "y_scale" in call else y}


# -- draws -------------------------------------------------------------------------------------------------------------


def _draw_conv(rng: np.random.Generator) -> Case:
    group, M = int(either(rng, 1, 2)), 4
    C = 2 * group
    last = bool(rng.random() < 0.5)
    # Signed inputs have no kernel with unsigned weights.
    inputs: dict[str, Array] = {"x": whole(rng, np.uint8, *((2, 6, 5, C) if last else (2, C, 6, 5)))}
    inputs["x_scale"], inputs["x_zero_point"] = parameters(rng, np.uint8, 0.03)
    inputs["w"] = weights(rng, np.int8, M, C // group, 3, 2)
    inputs["w_scale"] = rng.uniform(0.01, 0.03, either(rng, (), (M,))).astype(np.float32)
    inputs["w_zero_point"] = np.zeros(inputs["w_scale"].shape, np.int8)
    inputs["y_scale"], inputs["y_zero_point"] = parameters(rng, np.uint8, 0.1)
    if rng.random() < 0.5:
        inputs["B"] = rng.integers(-9000, 9000, M, np.int32)
    attributes: dict[str, Any] = {"group": group, "channels_last": int(last), "kernel_shape": [3, 2]}
    if rng.random() < 0.5:
        attributes |= {"pads": [1, 0, 1, 1], "strides": [2, 1]}
    else:
        attributes["auto_pad"] = either(rng, "NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID")
    if not attributes.get("auto_pad", "NOTSET").startswith("SAME") and rng.random() < 0.5:
        attributes["dilations"] = [2, 1]
    return Case(inputs, attributes, ("y",), fixed(inputs) | {"w", "B"}, steps=1)


def _draw_product(rng: np.random.Generator, kind: str) -> Case:
    K, N = int(rng.integers(1, 9)), int(rng.integers(2, 9))
    columns = either(rng, (), (N,))
    inputs: dict[str, Array] = {}
    shape = either(rng, (3,), (2, 4)) if kind != "gemm" else (3,)
    if kind == "dynamic":
        inputs["A"] = normal(rng, *shape, K)
    else:
        inputs["A"] = whole(rng, np.uint8, *shape, K)
    weight_type = byte_type(rng)
    inputs["B"] = weights(rng, weight_type, K, N)
    if kind == "dynamic":
        inputs["b_scale"] = rng.uniform(0.01, 0.03, columns).astype(np.float32)
        if rng.random() < 0.6:
            inputs["b_zero_point"] = whole(rng, weight_type, *columns)
    elif kind == "float":
        inputs["a_scale"] = np.array(rng.uniform(0.01, 0.03), np.float32)
        inputs["b_scale"] = rng.uniform(0.01, 0.03, columns).astype(np.float32)
        if rng.random() < 0.6:
            inputs["a_zero_point"] = whole(rng, np.uint8)
        if rng.random() < 0.6:
            inputs["b_zero_point"] = whole(rng, weight_type, *columns)
    if rng.random() < 0.5:
        inputs["bias"] = normal(rng, N)
    return Case(inputs, {}, ("Y",), fixed(inputs) | {"B", "bias"})


def _draw_gemm(rng: np.random.Generator) -> Case:
    M, K, N = (int(n) for n in rng.integers(1, 7, 3))
    attributes: dict[str, Any] = {}
    a, b = (M, K), (K, N)
    if rng.random() < 0.4:
        attributes["transA"], a = 1, a[::-1]
    if rng.random() < 0.4:
        attributes["transB"], b = 1, b[::-1]
    columns = either(rng, (), (N,))
    inputs: dict[str, Array] = {"A": whole(rng, np.uint8, *a)}
    inputs["a_scale"], inputs["a_zero_point"] = parameters(rng, np.uint8, 0.03)
    inputs["B"] = weights(rng, np.int8, *b)
    inputs["b_scale"] = rng.uniform(0.01, 0.03, columns).astype(np.float32)
    inputs["b_zero_point"] = whole(rng, np.int8, *columns)
    if rng.random() < 0.5:
        inputs["C"] = rng.integers(-900, 900, either(rng, (N,), (M, N)), np.int32)
    if rng.random() < 0.6:
        inputs["y_scale"], inputs["y_zero_point"] = parameters(rng, np.uint8, 0.2)
    if rng.random() < 0.3:
        attributes["alpha"] = 0.5
    return Case(inputs, attributes, ("Y",), fixed(inputs) | {"B", "C"}, steps=1)


def _draw_integer16(rng: np.random.Generator) -> Case:
    return Case(
        {"A": rng.integers(-99, 99, (2, 3, 4), np.int16), "B": rng.integers(-99, 99, (4, 5), np.int16)}, {}, ("Y",)
    )


SPECS = (
    spec(
        "QLinearConv",
        (
            "x",
            "x_scale",
            "x_zero_point",
            "w",
            "w_scale",
            "w_zero_point",
            "y_scale",
            "y_zero_point",
            "B?",
        ),
        "y",
        {**CONV_ATTRIBUTES, "channels_last": 0},
        _define_conv,
        _conv_reference,
        _draw_conv,
        room=ROOM,
    ),
    spec(
        "MatMulIntegerToFloat",
        ("A", "B", "a_scale", "b_scale", "a_zero_point?", "b_zero_point?", "bias?"),
        "Y",
        {},
        _define_to_float,
        _to_float_reference,
        lambda rng: _draw_product(rng, "float"),
        room=ROOM,
        form=FORM,
    ),
    spec(
        "DynamicQuantizeMatMul",
        ("A", "B", "b_scale", "b_zero_point?", "bias?"),
        "Y",
        {},
        _define_dynamic,
        _dynamic_reference,
        lambda rng: _draw_product(rng, "dynamic"),
        room=ROOM,
        form=FORM,
    ),
    spec(
        "QGemm",
        (
            "A",
            "a_scale",
            "a_zero_point",
            "B",
            "b_scale",
            "b_zero_point",
            "C?",
            "y_scale?",
            "y_zero_point?",
        ),
        "Y",
        {"alpha": 1.0, "transA": 0, "transB": 0},
        _define_gemm,
        _gemm_reference,
        _draw_gemm,
        room=ROOM,
        form=FORM,
    ),
    spec(
        "MatMulInteger16",
        ("A", "B"),
        "Y",
        {},
        _define_integer16,
        lambda call: {"Y": (call["A"].astype(np.int64) @ call["B"].astype(np.int64)).astype(np.int32)},
        _draw_integer16,
        room=ROOM,
        form=FORM,
    ),
)
