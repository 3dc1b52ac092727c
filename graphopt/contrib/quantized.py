"""Quantized operators: what they compute on real numbers, between a dequantization and a quantization.

    QLinearX(x) = quantize(X(dequantize(x))),  dequantize(q) = (q - zero point) scale
    quantize(y) = saturate(round to even(y / scale) + zero point)

Products of 8-bit numbers are exact in int32 before they are scaled.
B. Jacob et al., "Quantization and Training of Neural Networks for Efficient Integer-Arithmetic-Only Inference", 2018.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx_ir as ir

from graphopt.contrib.convolution import CONV_ATTRIBUTES
from graphopt.contrib.schema import REQUIRED, Call, Case, ContribOp, either, normal
from graphopt.contrib.writer import Writer
from graphopt.ops.schema import Array
from graphopt.remarks import Code

FLOAT = ir.DataType.FLOAT
DEQUANTIZE_AXIS_OPSET = 13  # a scale for each channel
INTEGERS = "its kernel computes with integers, the definition with floats"
NOT_ON_PROVIDER = ("MatMulInteger16", "QLinearReduceMean")


# -- definitions -------------------------------------------------------------------------------------------------------


def _real(w: Writer, call: Call[ir.Value], x: str, scale: str, zero: str) -> ir.Value:
    """An input of a QLinear operator as numbers; its parameters are scalars."""
    points = (_scalar(w, call[zero]),) if zero in call else ()
    return w.op("DequantizeLinear", call[x], _scalar(w, call[scale]), *points)


def _quantized(w: Writer, call: Call[ir.Value], y: ir.Value, scale: str, zero: str, like: ir.Value) -> ir.Value:
    """QuantizeLinear(y) in the type of the zero point, or of `like` where there is none."""
    point = _scalar(w, call[zero]) if zero in call else w.array(np.zeros((), w.dtype(like).numpy()))
    return w.op("QuantizeLinear", y, _scalar(w, call[scale]), point)


def _scalar(w: Writer, x: ir.Value) -> ir.Value:
    """A tensor of one number as a scalar."""
    return x if w.editor.shapes.rank(x) == 0 else w.op("Reshape", x, w.array(np.zeros(0, np.int64)))


def _unary(function: Callable[[Writer, Call[ir.Value], ir.Value], ir.Value]) -> Callable[..., Mapping[str, ir.Value]]:
    def define(w: Writer, call: Call[ir.Value]) -> Mapping[str, ir.Value]:
        y = function(w, call, _real(w, call, "X", "X_scale", "X_zero_point"))
        return {"Y": _quantized(w, call, y, "Y_scale", "Y_zero_point", call["X"])}

    return define


def _binary(op: str) -> Callable[[Writer, Call[ir.Value]], Mapping[str, ir.Value]]:
    def define(w: Writer, call: Call[ir.Value]) -> Mapping[str, ir.Value]:
        a, b = (_real(w, call, x, f"{x}_scale", f"{x}_zero_point") for x in "AB")
        return {"C": _quantized(w, call, w.op(op, a, b), "C_scale", "C_zero_point", call["A"])}

    return define


def _define_softmax(w: Writer, call: Call[ir.Value]) -> Mapping[str, ir.Value]:
    x = _real(w, call, "X", "X_scale", "x_zero_point")
    axis, rank = call.attribute("axis"), w.rank(call["X"])
    if call.attribute("opset") < 13 and axis % rank != rank - 1:
        shape = w.op("Shape", x)
        flat = w.op("Flatten", x, axis=axis % rank)
        y = w.op("Reshape", w.softmax(flat), shape)
    elif axis % rank == rank - 1:
        y = w.softmax(x)
    else:
        perm = [i for i in range(rank) if i != axis % rank] + [axis % rank]
        y = w.transpose(w.softmax(w.transpose(x, *perm)), *np.argsort(perm).tolist())
    return {"Y": _quantized(w, call, y, "y_scale", "y_zero_point", call["X"])}


def _pooled(w: Writer, call: Call[ir.Value], pool: Callable[[ir.Value], ir.Value]) -> Mapping[str, ir.Value]:
    x = _real(w, call, "X", "x_scale", "x_zero_point")
    rank = w.rank(call["X"])
    if call.attribute("channels_last"):
        y = w.transpose(pool(w.transpose(x, 0, rank - 1, *range(1, rank - 1))), 0, *range(2, rank), 1)
    else:
        y = pool(x)
    return {"Y": _quantized(w, call, y, "y_scale", "y_zero_point", call["X"])}


def _define_average_pool(w: Writer, call: Call[ir.Value]) -> Mapping[str, ir.Value]:
    if call.attribute("ceil_mode") and call.attribute("count_include_pad"):
        raise w.refuse(Code.ATTRIBUTE, "runtimes differ in what of a last window they count")
    names = ("auto_pad", "ceil_mode", "count_include_pad", "kernel_shape", "pads", "strides")
    attributes = {n: call.attribute(n) for n in names if call.attribute(n) is not None}
    return _pooled(w, call, lambda x: w.op("AveragePool", x, **attributes))


def _define_concat(w: Writer, call: Call[ir.Value]) -> Mapping[str, ir.Value]:
    parts = []
    i = 0
    while f"inputs{i}" in call:
        parts.append(_real(w, call, f"inputs{i}", f"inputs{i + 1}", f"inputs{i + 2}"))
        i += 3
    y = w.op("Concat", *parts, axis=call.attribute("axis"))
    return {"Y": _quantized(w, call, y, "Y_scale", "Y_zero_point", call["inputs0"])}


def _define_where(w: Writer, call: Call[ir.Value]) -> Mapping[str, ir.Value]:
    x, y = (_real(w, call, n, f"{n.lower()}_scale", f"{n.lower()}_zero_point") for n in "XY")
    return {"Z": _quantized(w, call, w.op("Where", call["condition"], x, y), "z_scale", "z_zero_point", call["X"])}


def _define_reduce_mean(w: Writer, call: Call[ir.Value]) -> Mapping[str, ir.Value]:
    x = _real(w, call, "data", "data_scale", "data_zero_point")
    y = w.reduce("ReduceMean", x, *call.attribute("axes"), keepdims=call.attribute("keepdims"))
    return {"reduced": _quantized(w, call, y, "reduced_scale", "reduced_zero_point", call["data"])}


def _define_conv(w: Writer, call: Call[ir.Value]) -> Mapping[str, ir.Value]:
    x, rank = call["x"], w.rank(call["x"])
    last = bool(call.attribute("channels_last"))
    if last:
        x = w.transpose(x, 0, rank - 1, *range(1, rank - 1))
    attributes = {n: call.attribute(n) for n in CONV_ATTRIBUTES if call.attribute(n) is not None}
    if w.opset < DEQUANTIZE_AXIS_OPSET:
        names = ("x_scale", "x_zero_point", "w", "w_scale", "w_zero_point", "y_scale", "y_zero_point")
        bias = (call["B"],) if "B" in call else ()
        y = w.op("QLinearConv", x, *(call[n] for n in names), *bias, **attributes)
    else:
        x_scale, w_scale = _scalar(w, call["x_scale"]), call["w_scale"]
        real = w.op("DequantizeLinear", x, x_scale, _scalar(w, call["x_zero_point"]))
        weights = w.op("DequantizeLinear", call["w"], w_scale, call["w_zero_point"], axis=0)
        # The bias counts in units of both scales.
        bias = (w.mul(w.cast(call["B"], FLOAT), w.mul(x_scale, w_scale)),) if "B" in call else ()
        y = _quantized(w, call, w.op("Conv", real, weights, *bias, **attributes), "y_scale", "y_zero_point", x)
    return {"y": w.transpose(y, 0, *range(2, rank), 1) if last else y}


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
    y = w.mul(y, w.mul(_scalar(w, call["a_scale"]), call["b_scale"]))
    return {"Y": w.add(y, call["bias"]) if "bias" in call else y}


def _define_dynamic(w: Writer, call: Call[ir.Value]) -> Mapping[str, ir.Value]:
    quantized, scale, zero = w.outputs("DynamicQuantizeLinear", call["A"], outputs=3)
    quantized.dtype = zero.dtype = ir.DataType.UINT8
    y = _product(w, quantized, call["B"], zero, call.get("b_zero_point"))
    y = w.mul(y, w.mul(scale, call["b_scale"]))
    return {"Y": w.add(y, call["bias"]) if "bias" in call else y}


def _define_gemm(w: Writer, call: Call[ir.Value]) -> Mapping[str, ir.Value]:
    a, b = (w.transpose(call[x], 1, 0) if call.attribute(f"trans{x}") else call[x] for x in "AB")
    a.dtype, b.dtype = w.dtype(call["A"]), w.dtype(call["B"])
    total = _product(w, a, b, _scalar(w, call["a_zero_point"]), call["b_zero_point"])
    if "C" in call:
        total = w.add(total, w.cast(call["C"], FLOAT))
    alpha = call.attribute("alpha")
    scale = w.mul(_scalar(w, call["a_scale"]), call["b_scale"])
    if alpha != 1.0:
        scale = w.mul(scale, w.number(alpha, FLOAT))
    y = w.mul(total, scale)
    if "y_scale" not in call:
        return {"Y": y}
    return {"Y": _quantized(w, call, y, "y_scale", "y_zero_point", call["A"])}


def _define_integer16(w: Writer, call: Call[ir.Value]) -> Mapping[str, ir.Value]:
    if w.dtype(call["A"]) != w.dtype(call["B"]):
        raise w.refuse(Code.MIXED_DTYPE, "signed and unsigned factors")
    wide = ir.DataType.INT32 if w.dtype(call["A"]) == ir.DataType.INT16 else ir.DataType.UINT32
    return {"Y": w.matmul(w.cast(call["A"], wide), w.cast(call["B"], wide))}


# -- references --------------------------------------------------------------------------------------------------------


def _numbers(call: Call[Array], x: str, scale: str, zero: str) -> Array:
    return np.asarray(
        (call[x].astype(np.float64) - call.inputs.get(zero, np.zeros(())).astype(np.float64)) * call[scale]
    )


def _saturated(y: Array, call: Call[Array], scale: str, zero: str, dtype: np.dtype[Any]) -> Array:
    point: Array = call.inputs.get(zero, np.zeros((), dtype))
    bounds = np.iinfo(point.dtype)
    whole: Array = np.rint(y / call[scale]) + point.astype(np.float64)
    return np.clip(whole, bounds.min, bounds.max).astype(point.dtype)


def _unary_reference(function: Callable[[Call[Array], Array], Array]) -> Callable[[Call[Array]], Mapping[str, Array]]:
    def reference(call: Call[Array]) -> Mapping[str, Array]:
        y = function(call, _numbers(call, "X", "X_scale", "X_zero_point"))
        return {"Y": _saturated(y, call, "Y_scale", "Y_zero_point", call["X"].dtype)}

    return reference


def _binary_reference(function: Callable[[Array, Array], Array]) -> Callable[[Call[Array]], Mapping[str, Array]]:
    def reference(call: Call[Array]) -> Mapping[str, Array]:
        y = function(*(_numbers(call, x, f"{x}_scale", f"{x}_zero_point") for x in "AB"))
        return {"C": _saturated(y, call, "C_scale", "C_zero_point", call["A"].dtype)}

    return reference


def _pool_reference(call: Call[Array], pool: Callable[[Array], Array]) -> Mapping[str, Array]:
    x = _numbers(call, "X", "x_scale", "x_zero_point")
    last = call.attribute("channels_last")
    y = pool(np.moveaxis(x, -1, 1) if last else x)
    y = np.moveaxis(y, 1, -1) if last else y
    return {"Y": _saturated(y, call, "y_scale", "y_zero_point", call["X"].dtype)}


def _average_reference(call: Call[Array]) -> Mapping[str, Array]:
    kernel, pads = call.attribute("kernel_shape"), call.attribute("pads", [0, 0, 0, 0])
    strides = call.attribute("strides", [1, 1])

    def pool(x: Array) -> Array:
        spread = [(0, 0), (0, 0), (pads[0], pads[2]), (pads[1], pads[3])]
        if call.attribute("ceil_mode"):  # a last window that begins inside what is padded ends outside
            for axis, (k, stride) in enumerate(zip(kernel, strides), start=2):
                before, after = spread[axis]
                left = (x.shape[axis] + before + after - k) % stride
                begins = x.shape[axis] + before + after - k - left + stride
                if left and begins < x.shape[axis] + before:
                    spread[axis] = (before, after + stride - left)
        windows = np.lib.stride_tricks.sliding_window_view(np.pad(x, spread), kernel, axis=(2, 3))
        counted = np.pad(np.ones_like(x), spread, constant_values=1.0 if call.attribute("count_include_pad") else 0.0)
        counts = np.lib.stride_tricks.sliding_window_view(counted, kernel, axis=(2, 3))
        y: Array = windows.sum((-1, -2)) / counts.sum((-1, -2))
        return y[:, :, :: strides[0], :: strides[1]]

    return _pool_reference(call, pool)


def _softmax_reference(call: Call[Array]) -> Mapping[str, Array]:
    x, axis = _numbers(call, "X", "X_scale", "x_zero_point"), call.attribute("axis")
    if call.attribute("opset") < 13:
        flat = x.reshape(int(np.prod(x.shape[: axis % x.ndim])), -1)
        e = np.exp(flat - flat.max(-1, keepdims=True))
        y = (e / e.sum(-1, keepdims=True)).reshape(x.shape)
    else:
        e = np.exp(x - x.max(axis, keepdims=True))
        y = e / e.sum(axis, keepdims=True)
    return {"Y": _saturated(y, call, "y_scale", "y_zero_point", call["X"].dtype)}


def _concat_reference(call: Call[Array]) -> Mapping[str, Array]:
    names = [f"inputs{i}" for i in range(len(call.inputs) - 2)]
    parts = [_numbers(call, *names[i : i + 3]) for i in range(0, len(names), 3)]
    y = np.concatenate(parts, call.attribute("axis"))
    return {"Y": _saturated(y, call, "Y_scale", "Y_zero_point", call["inputs0"].dtype)}


def _where_reference(call: Call[Array]) -> Mapping[str, Array]:
    x, y = (_numbers(call, n, f"{n.lower()}_scale", f"{n.lower()}_zero_point") for n in "XY")
    return {"Z": _saturated(np.where(call["condition"], x, y), call, "z_scale", "z_zero_point", call["X"].dtype)}


def _reduce_reference(call: Call[Array]) -> Mapping[str, Array]:
    x = _numbers(call, "data", "data_scale", "data_zero_point")
    y = np.asarray(x.mean(tuple(call.attribute("axes")), keepdims=bool(call.attribute("keepdims"))))
    return {"reduced": _saturated(y, call, "reduced_scale", "reduced_zero_point", call["data"].dtype)}


def _conv_reference(call: Call[Array]) -> Mapping[str, Array]:
    from graphopt.contrib.convolution import conv_reference

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
    return {"y": _saturated(y, call, "y_scale", "y_zero_point", call["x"].dtype)}


def _less(call: Call[Array], x: str, zero: str) -> Array:
    return np.asarray(call[x].astype(np.float64) - call.inputs.get(zero, np.zeros(())).astype(np.float64))


def _to_float_reference(call: Call[Array]) -> Mapping[str, Array]:
    y = (_less(call, "A", "a_zero_point") @ _less(call, "B", "b_zero_point")) * call["a_scale"] * call["b_scale"]
    return {"Y": y + call.inputs.get("bias", np.zeros(1))}


def _dynamic_reference(call: Call[Array]) -> Mapping[str, Array]:
    """ONNX's DynamicQuantizeLinear: the range of A with 0 in it, on 0 to 255."""
    A = call["A"]
    low, high = min(A.min(), 0.0), max(A.max(), 0.0)
    scale = (high - low) / 255.0 or 1.0
    zero = np.clip(np.rint(-low / scale), 0, 255)
    quantized = np.clip(np.rint(A / scale) + zero, 0, 255)
    y = ((quantized - zero) @ _less(call, "B", "b_zero_point")) * scale * call["b_scale"]
    return {"Y": y + call.inputs.get("bias", np.zeros(1))}


def _gemm_reference(call: Call[Array]) -> Mapping[str, Array]:
    a, b = _less(call, "A", "a_zero_point"), call["B"].astype(np.float64)
    a = a.T if call.attribute("transA") else a
    b = b.T if call.attribute("transB") else b
    y = a @ (b - call["b_zero_point"].astype(np.float64)) + call.inputs.get("C", np.zeros(1)).astype(np.float64)
    y = y * call.attribute("alpha") * call["a_scale"] * call["b_scale"]
    return {"Y": _saturated(y, call, "y_scale", "y_zero_point", call["A"].dtype) if "y_scale" in call else y}


# -- draws -------------------------------------------------------------------------------------------------------------


def _whole(rng: np.random.Generator, dtype: Any, *shape: int) -> Array:
    bounds = np.iinfo(dtype)
    return rng.integers(bounds.min, bounds.max + 1, shape, dtype)


def _type(rng: np.random.Generator) -> Any:
    return either(rng, np.uint8, np.int8)


def _parameters(rng: np.random.Generator, dtype: Any, scale: float) -> tuple[Array, Array]:
    return np.array(scale * rng.uniform(0.5, 2.0), np.float32), _whole(rng, dtype) // 2


def _draw_unary(rng: np.random.Generator, scale: float = 0.05, out: float = 0.05) -> Case:
    dtype, shape = _type(rng), either(rng, (7,), (2, 3, 5))
    inputs = {"X": _whole(rng, dtype, *shape)}
    inputs["X_scale"], inputs["X_zero_point"] = _parameters(rng, dtype, scale)
    inputs["Y_scale"], inputs["Y_zero_point"] = _parameters(rng, dtype, out)
    if rng.random() < 0.2:
        del inputs["X_zero_point"]
    return Case(inputs, {}, ("Y",), _fixed(inputs), steps=1)


def _fixed(inputs: Mapping[str, Array]) -> frozenset[str]:
    return frozenset(n for n in inputs if n.endswith(("scale", "zero_point")))


def _draw_leaky(rng: np.random.Generator) -> Case:
    case = _draw_unary(rng)
    case.attributes = either(rng, {}, {"alpha": 0.2})
    return case


def _draw_binary(rng: np.random.Generator) -> Case:
    dtype = _type(rng)
    a, b = either(rng, ((2, 3, 5), (2, 3, 5)), ((2, 3, 5), (5,)), ((4,), (3, 4)), ((2, 3), (1,)))
    inputs: dict[str, Array] = {}
    for name, shape in (("A", a), ("B", b)):
        inputs[name] = _whole(rng, dtype, *shape)
        inputs[f"{name}_scale"], inputs[f"{name}_zero_point"] = _parameters(rng, dtype, 0.03)
    inputs["C_scale"], inputs["C_zero_point"] = _parameters(rng, dtype, 0.06)
    return Case(inputs, {}, ("C",), _fixed(inputs), steps=1)


def _draw_softmax(rng: np.random.Generator) -> Case:
    dtype = _type(rng)
    inputs = {"X": _whole(rng, dtype, 2, 3, 5)}
    inputs["X_scale"], inputs["x_zero_point"] = _parameters(rng, dtype, 0.02)
    inputs["y_scale"] = np.array(1 / 256, np.float32)
    inputs["y_zero_point"] = np.array(0 if dtype == np.uint8 else -128, dtype)
    attributes = {"opset": int(either(rng, 11, 13)), **either(rng, {}, {"axis": -1}, {"axis": 1})}
    # In 1.22 a probability of 1 wraps around to 0.
    return Case(inputs, attributes, ("Y",), _fixed(inputs), steps=1, kernel=(1, 31))


def _draw_pool(rng: np.random.Generator, average: bool) -> Case:
    dtype = _type(rng)
    last = bool(rng.random() < 0.5)
    inputs = {"X": _whole(rng, dtype, *((2, 6, 5, 3) if last else (2, 3, 6, 5)))}
    inputs["x_scale"], inputs["x_zero_point"] = _parameters(rng, dtype, 0.05)
    inputs["y_scale"], inputs["y_zero_point"] = _parameters(rng, dtype, 0.05)
    attributes: dict[str, Any] = {"channels_last": int(last)}
    if average:
        attributes["kernel_shape"] = [2, 3]
        if rng.random() < 0.5:
            attributes |= {"pads": [1, 1, 0, 1], "count_include_pad": int(either(rng, 0, 1))}
        if rng.random() < 0.5:
            attributes["strides"] = either(rng, [2, 1], [2, 2])
        if not attributes.get("count_include_pad"):
            attributes["ceil_mode"] = int(either(rng, 0, 1))
    return Case(inputs, attributes, ("Y",), _fixed(inputs), steps=1)


def _draw_concat(rng: np.random.Generator) -> Case:
    dtype, axis = _type(rng), int(either(rng, 0, 1, -1))
    inputs: dict[str, Array] = {}
    inputs["Y_scale"], inputs["Y_zero_point"] = _parameters(rng, dtype, 0.05)
    for i in range(int(either(rng, 1, 3))):
        shape = [2, 3, 4]
        shape[axis] = i + 1
        inputs[f"inputs{3 * i}"] = _whole(rng, dtype, *shape)
        inputs[f"inputs{3 * i + 1}"], inputs[f"inputs{3 * i + 2}"] = _parameters(rng, dtype, 0.05)
    fixed = _fixed(inputs) | {n for n in inputs if n.startswith("inputs") and int(n[6:]) % 3}
    return Case(inputs, {"axis": axis}, ("Y",), fixed, steps=1)


def _draw_where(rng: np.random.Generator) -> Case:
    dtype = _type(rng)
    x, y = either(rng, ((2, 3), (2, 3)), ((2, 3), (1, 3)))
    inputs: dict[str, Array] = {"condition": rng.random((2, 3)) < 0.5, "X": _whole(rng, dtype, *x)}
    inputs["x_scale"], inputs["x_zero_point"] = _parameters(rng, dtype, 0.05)
    inputs["Y"] = _whole(rng, dtype, *y)
    inputs["y_scale"], inputs["y_zero_point"] = _parameters(rng, dtype, 0.05)
    inputs["z_scale"], inputs["z_zero_point"] = _parameters(rng, dtype, 0.05)
    return Case(inputs, {}, ("Z",), _fixed(inputs), steps=1)


def _draw_reduce(rng: np.random.Generator) -> Case:
    dtype = _type(rng)
    inputs = {"data": _whole(rng, dtype, 2, 3, 5)}
    inputs["data_scale"], inputs["data_zero_point"] = _parameters(rng, dtype, 0.05)
    inputs["reduced_scale"], inputs["reduced_zero_point"] = _parameters(rng, dtype, 0.03)
    attributes = {"axes": either(rng, [1], [0, 2], [-1]), "keepdims": int(either(rng, 0, 1))}
    return Case(inputs, attributes, ("reduced",), _fixed(inputs), steps=1)


def _draw_conv(rng: np.random.Generator) -> Case:
    group, M = int(either(rng, 1, 2)), 4
    C = 2 * group
    last = bool(rng.random() < 0.5)
    # Signed inputs have no kernel with unsigned weights.
    inputs: dict[str, Array] = {"x": _whole(rng, np.uint8, *((2, 6, 5, C) if last else (2, C, 6, 5)))}
    inputs["x_scale"], inputs["x_zero_point"] = _parameters(rng, np.uint8, 0.03)
    inputs["w"] = _whole(rng, np.int8, M, C // group, 3, 2)
    inputs["w_scale"] = rng.uniform(0.01, 0.03, either(rng, (), (M,))).astype(np.float32)
    inputs["w_zero_point"] = np.zeros(inputs["w_scale"].shape, np.int8)
    inputs["y_scale"], inputs["y_zero_point"] = _parameters(rng, np.uint8, 0.1)
    if rng.random() < 0.5:
        inputs["B"] = rng.integers(-9000, 9000, M, np.int32)
    attributes: dict[str, Any] = {"group": group, "channels_last": int(last), "kernel_shape": [3, 2]}
    if rng.random() < 0.5:
        attributes |= {"pads": [1, 0, 1, 1], "strides": [2, 1]}
    else:
        attributes["auto_pad"] = either(rng, "NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID")
    if not attributes.get("auto_pad", "NOTSET").startswith("SAME") and rng.random() < 0.5:
        attributes["dilations"] = [2, 1]
    return Case(inputs, attributes, ("y",), _fixed(inputs) | {"w", "B"}, steps=1)


def _draw_product(rng: np.random.Generator, kind: str) -> Case:
    K, N = int(rng.integers(1, 9)), int(rng.integers(2, 9))
    columns = either(rng, (), (N,))
    inputs: dict[str, Array] = {}
    shape = either(rng, (3,), (2, 4)) if kind != "gemm" else (3,)
    if kind == "dynamic":
        inputs["A"] = normal(rng, *shape, K)
    else:
        inputs["A"] = _whole(rng, np.uint8, *shape, K)
    weight_type = _type(rng)
    inputs["B"] = _whole(rng, weight_type, K, N)
    if kind == "dynamic":
        inputs["b_scale"] = rng.uniform(0.01, 0.03, columns).astype(np.float32)
        if rng.random() < 0.6:
            inputs["b_zero_point"] = _whole(rng, weight_type, *columns)
    elif kind == "float":
        inputs["a_scale"] = np.array(rng.uniform(0.01, 0.03), np.float32)
        inputs["b_scale"] = rng.uniform(0.01, 0.03, columns).astype(np.float32)
        if rng.random() < 0.6:
            inputs["a_zero_point"] = _whole(rng, np.uint8)
        if rng.random() < 0.6:
            inputs["b_zero_point"] = _whole(rng, weight_type, *columns)
    if rng.random() < 0.5:
        inputs["bias"] = normal(rng, N)
    return Case(inputs, {}, ("Y",), _fixed(inputs) | {"B", "bias"})


def _draw_gemm(rng: np.random.Generator) -> Case:
    M, K, N = (int(n) for n in rng.integers(1, 7, 3))
    attributes: dict[str, Any] = {}
    a, b = (M, K), (K, N)
    if rng.random() < 0.4:
        attributes["transA"], a = 1, a[::-1]
    if rng.random() < 0.4:
        attributes["transB"], b = 1, b[::-1]
    columns = either(rng, (), (N,))
    inputs: dict[str, Array] = {"A": _whole(rng, np.uint8, *a)}
    inputs["a_scale"], inputs["a_zero_point"] = _parameters(rng, np.uint8, 0.03)
    inputs["B"] = _whole(rng, np.int8, *b)
    inputs["b_scale"] = rng.uniform(0.01, 0.03, columns).astype(np.float32)
    inputs["b_zero_point"] = _whole(rng, np.int8, *columns)
    if rng.random() < 0.5:
        inputs["C"] = rng.integers(-900, 900, either(rng, (N,), (M, N)), np.int32)
    if rng.random() < 0.6:
        inputs["y_scale"], inputs["y_zero_point"] = _parameters(rng, np.uint8, 0.2)
    if rng.random() < 0.3:
        attributes["alpha"] = 0.5
    return Case(inputs, attributes, ("Y",), _fixed(inputs) | {"B", "C"}, steps=1)


def _draw_integer16(rng: np.random.Generator) -> Case:
    return Case(
        {"A": rng.integers(-99, 99, (2, 3, 4), np.int16), "B": rng.integers(-99, 99, (4, 5), np.int16)}, {}, ("Y",)
    )


_UNARY = ("X", "X_scale", "X_zero_point?", "Y_scale", "Y_zero_point?")
_BINARY = ("A", "A_scale", "A_zero_point?", "B", "B_scale", "B_zero_point?", "C_scale", "C_zero_point?")


def _spec(
    name: str,
    inputs: tuple[str, ...],
    output: str,
    attributes: Mapping[str, Any],
    define: Callable[[Writer, Call[ir.Value]], Mapping[str, ir.Value]],
    reference: Callable[[Call[Array]], Mapping[str, Array]],
    draw: Callable[[np.random.Generator], Case],
    refuses: str = "",
) -> ContribOp:
    product = name.startswith(("MatMul", "Dynamic", "QGemm"))
    room = "integer_product" if product or name == "QLinearConv" else "quantized"
    if name in NOT_ON_PROVIDER:
        room = ""
    form = "MatMulInteger, Mul" if product else "DequantizeLinear, .., QuantizeLinear"
    return ContribOp(
        name,
        inputs,
        (output,),
        attributes,
        define,
        reference,
        draw,
        form,
        stays_on_cpu=INTEGERS,
        stays_on_gpu=INTEGERS,
        on_provider=room,
        quantized=True,
        refuses=refuses,
    )


SPECS = (
    _spec("QLinearAdd", _BINARY, "C", {}, _binary("Add"), _binary_reference(np.add), _draw_binary),
    _spec("QLinearMul", _BINARY, "C", {}, _binary("Mul"), _binary_reference(np.multiply), _draw_binary),
    _spec(
        "QLinearSigmoid",
        _UNARY,
        "Y",
        {},
        _unary(lambda w, _, x: w.op("Sigmoid", x)),
        _unary_reference(lambda _, x: 1.0 / (1.0 + np.exp(-x))),
        lambda rng: _draw_unary(rng, out=0.005),
    ),
    _spec(
        "QLinearLeakyRelu",
        _UNARY,
        "Y",
        {"alpha": 0.01},
        _unary(lambda w, call, x: w.op("LeakyRelu", x, alpha=call.attribute("alpha"))),
        _unary_reference(lambda call, x: np.where(x < 0, call.attribute("alpha") * x, x)),
        _draw_leaky,
    ),
    _spec(
        "QLinearSoftmax",
        ("X", "X_scale", "x_zero_point?", "y_scale", "y_zero_point"),
        "Y",
        {"axis": -1, "opset": REQUIRED},
        _define_softmax,
        _softmax_reference,
        _draw_softmax,
    ),
    _spec(
        "QLinearGlobalAveragePool",
        ("X", "x_scale", "x_zero_point", "y_scale", "y_zero_point"),
        "Y",
        {"channels_last": 0},
        lambda w, call: _pooled(w, call, lambda x: w.op("GlobalAveragePool", x)),
        lambda call: _pool_reference(call, lambda x: np.asarray(x.mean((2, 3), keepdims=True))),
        lambda rng: _draw_pool(rng, average=False),
    ),
    _spec(
        "QLinearAveragePool",
        ("X", "x_scale", "x_zero_point?", "y_scale", "y_zero_point?"),
        "Y",
        {
            "auto_pad": "NOTSET",
            "ceil_mode": 0,
            "channels_last": 0,
            "count_include_pad": 0,
            "kernel_shape": REQUIRED,
            "pads": None,
            "strides": None,
        },
        _define_average_pool,
        _average_reference,
        lambda rng: _draw_pool(rng, average=True),
        "ceil_mode with count_include_pad",
    ),
    _spec(
        "QLinearConcat",
        ("Y_scale", "Y_zero_point", "inputs*"),
        "Y",
        {"axis": REQUIRED},
        _define_concat,
        _concat_reference,
        _draw_concat,
    ),
    _spec(
        "QLinearWhere",
        (
            "condition",
            "X",
            "x_scale",
            "x_zero_point",
            "Y",
            "y_scale",
            "y_zero_point",
            "z_scale",
            "z_zero_point",
        ),
        "Z",
        {},
        _define_where,
        _where_reference,
        _draw_where,
    ),
    _spec(
        "QLinearReduceMean",
        ("data", "data_scale", "data_zero_point?", "reduced_scale", "reduced_zero_point?"),
        "reduced",
        {"axes": REQUIRED, "keepdims": REQUIRED},
        _define_reduce_mean,
        _reduce_reference,
        _draw_reduce,
    ),
    _spec(
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
    ),
    _spec(
        "MatMulIntegerToFloat",
        ("A", "B", "a_scale", "b_scale", "a_zero_point?", "b_zero_point?", "bias?"),
        "Y",
        {},
        _define_to_float,
        _to_float_reference,
        lambda rng: _draw_product(rng, "float"),
    ),
    _spec(
        "DynamicQuantizeMatMul",
        ("A", "B", "b_scale", "b_zero_point?", "bias?"),
        "Y",
        {},
        _define_dynamic,
        _dynamic_reference,
        lambda rng: _draw_product(rng, "dynamic"),
    ),
    _spec(
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
    ),
    _spec(
        "MatMulInteger16",
        ("A", "B"),
        "Y",
        {},
        _define_integer16,
        lambda call: {"Y": (call["A"].astype(np.int64) @ call["B"].astype(np.int64)).astype(np.int32)},
        _draw_integer16,
    ),
)
