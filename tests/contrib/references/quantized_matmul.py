"""Float64 references of quantized_matmul.py and its random nodes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from graphopt.contrib.schema import Call
from graphopt.ops.schema import Array
from tests.contrib.case import Case, Reference, either, normal
from tests.contrib.references.convolution import conv_reference
from tests.contrib.references.quantized import byte_type, fixed, less_zero_point, parameters, saturated, weights, whole

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
    """Computes ONNX's DynamicQuantizeLinear: maps the range of A including 0 to 0 to 255."""
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
    # There is no kernel for signed inputs with unsigned weights.
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


REFERENCES = {
    ("com.microsoft", "QLinearConv"): Reference(_conv_reference, _draw_conv),
    ("com.microsoft", "MatMulIntegerToFloat"): Reference(_to_float_reference, lambda rng: _draw_product(rng, "float")),
    ("com.microsoft", "DynamicQuantizeMatMul"): Reference(
        _dynamic_reference, lambda rng: _draw_product(rng, "dynamic")
    ),
    ("com.microsoft", "QGemm"): Reference(_gemm_reference, _draw_gemm),
    ("com.microsoft", "MatMulInteger16"): Reference(
        lambda call: {"Y": (call["A"].astype(np.int64) @ call["B"].astype(np.int64)).astype(np.int32)}, _draw_integer16
    ),
}
