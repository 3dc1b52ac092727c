"""Quantized element-wise operators, pools and means, and what all quantized operators share.

Each computes on real numbers, between a dequantization and a quantization:

    QLinearX(x) = quantize(X(dequantize(x))),  dequantize(q) = (q - zero point) scale
    quantize(y) = saturate(round to even(y / scale) + zero point)

B. Jacob et al., "Quantization and Training of Neural Networks for Efficient Integer-Arithmetic-Only Inference", 2018.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx_ir as ir

from graphopt.contrib.schema import REQUIRED, Call, Case, ContribOp, either
from graphopt.contrib.writer import Writer
from graphopt.graph.operators.arguments import flattens
from graphopt.ops.schema import Array
from graphopt.remarks import Code

INTEGERS = "its kernel computes with integers, the definition with floats"
# The room of native/operators that computes them on our provider, and what passes read them as.
ROOM, BETWEEN = "quantized", "DequantizeLinear, .., QuantizeLinear"


# -- definitions -------------------------------------------------------------------------------------------------------


def _real(w: Writer, call: Call[ir.Value], x: str, scale: str, zero: str) -> ir.Value:
    """An input of a QLinear operator as numbers; its parameters are scalars."""
    points = (scalar(w, call[zero]),) if zero in call else ()
    return w.op("DequantizeLinear", call[x], scalar(w, call[scale]), *points)


def quantized(w: Writer, call: Call[ir.Value], y: ir.Value, scale: str, zero: str, like: ir.Value) -> ir.Value:
    """QuantizeLinear(y) in the type of the zero point, or of `like` where there is none."""
    point = scalar(w, call[zero]) if zero in call else w.array(np.zeros((), w.dtype(like).numpy()))
    return w.op("QuantizeLinear", y, scalar(w, call[scale]), point)


def scalar(w: Writer, x: ir.Value) -> ir.Value:
    """A tensor of one number as a scalar."""
    return x if w.editor.shapes.rank(x) == 0 else w.op("Reshape", x, w.array(np.zeros(0, np.int64)))


def _unary(function: Callable[[Writer, Call[ir.Value], ir.Value], ir.Value]) -> Callable[..., Mapping[str, ir.Value]]:
    def define(w: Writer, call: Call[ir.Value]) -> Mapping[str, ir.Value]:
        y = function(w, call, _real(w, call, "X", "X_scale", "X_zero_point"))
        return {"Y": quantized(w, call, y, "Y_scale", "Y_zero_point", call["X"])}

    return define


def _binary(op: str) -> Callable[[Writer, Call[ir.Value]], Mapping[str, ir.Value]]:
    def define(w: Writer, call: Call[ir.Value]) -> Mapping[str, ir.Value]:
        a, b = (_real(w, call, x, f"{x}_scale", f"{x}_zero_point") for x in "AB")
        return {"C": quantized(w, call, w.op(op, a, b), "C_scale", "C_zero_point", call["A"])}

    return define


def _define_softmax(w: Writer, call: Call[ir.Value]) -> Mapping[str, ir.Value]:
    x = _real(w, call, "X", "X_scale", "x_zero_point")
    axis, rank = call.attribute("axis"), w.rank(call["X"])
    if not -rank <= axis < rank:
        raise w.refuse(Code.WRONG_AXIS, f"axis {axis} of {rank}, of which the runtime makes something else")
    if flattens("Softmax", call.attribute("opset")) and axis % rank != rank - 1:
        shape = w.op("Shape", x)
        flat = w.op("Flatten", x, axis=axis % rank)
        y = w.op("Reshape", w.softmax(flat), shape)
    elif axis % rank == rank - 1:
        y = w.softmax(x)
    else:
        perm = [i for i in range(rank) if i != axis % rank] + [axis % rank]
        y = w.transpose(w.softmax(w.transpose(x, *perm)), *np.argsort(perm).tolist())
    return {"Y": quantized(w, call, y, "y_scale", "y_zero_point", call["X"])}


def _pooled(w: Writer, call: Call[ir.Value], pool: Callable[[ir.Value], ir.Value]) -> Mapping[str, ir.Value]:
    x = _real(w, call, "X", "x_scale", "x_zero_point")
    y = w.channels_last(pool(w.channels_first(x))) if call.attribute("channels_last") else pool(x)
    return {"Y": quantized(w, call, y, "y_scale", "y_zero_point", call["X"])}


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
    return {"Y": quantized(w, call, y, "Y_scale", "Y_zero_point", call["inputs0"])}


def _define_where(w: Writer, call: Call[ir.Value]) -> Mapping[str, ir.Value]:
    x, y = (_real(w, call, n, f"{n.lower()}_scale", f"{n.lower()}_zero_point") for n in "XY")
    return {"Z": quantized(w, call, w.op("Where", call["condition"], x, y), "z_scale", "z_zero_point", call["X"])}


def _define_reduce_mean(w: Writer, call: Call[ir.Value]) -> Mapping[str, ir.Value]:
    x = _real(w, call, "data", "data_scale", "data_zero_point")
    y = w.reduce("ReduceMean", x, *call.attribute("axes"), keepdims=call.attribute("keepdims"))
    return {"reduced": quantized(w, call, y, "reduced_scale", "reduced_zero_point", call["data"])}


# -- references --------------------------------------------------------------------------------------------------------


def less_zero_point(call: Call[Array], x: str, zero: str) -> Array:
    """An input less its zero point, 0 where there is none, in float64."""
    return np.asarray(call[x].astype(np.float64) - call.inputs.get(zero, np.zeros(())).astype(np.float64))


def _numbers(call: Call[Array], x: str, scale: str, zero: str) -> Array:
    return np.asarray(less_zero_point(call, x, zero) * call[scale])


def saturated(y: Array, call: Call[Array], scale: str, zero: str, dtype: np.dtype[Any]) -> Array:
    point: Array = call.inputs.get(zero, np.zeros((), dtype))
    bounds = np.iinfo(point.dtype)
    number: Array = np.rint(y / call[scale]) + point.astype(np.float64)
    return np.clip(number, bounds.min, bounds.max).astype(point.dtype)


def _unary_reference(function: Callable[[Call[Array], Array], Array]) -> Callable[[Call[Array]], Mapping[str, Array]]:
    def reference(call: Call[Array]) -> Mapping[str, Array]:
        y = function(call, _numbers(call, "X", "X_scale", "X_zero_point"))
        return {"Y": saturated(y, call, "Y_scale", "Y_zero_point", call["X"].dtype)}

    return reference


def _binary_reference(function: Callable[[Array, Array], Array]) -> Callable[[Call[Array]], Mapping[str, Array]]:
    def reference(call: Call[Array]) -> Mapping[str, Array]:
        y = function(*(_numbers(call, x, f"{x}_scale", f"{x}_zero_point") for x in "AB"))
        return {"C": saturated(y, call, "C_scale", "C_zero_point", call["A"].dtype)}

    return reference


def _pool_reference(call: Call[Array], pool: Callable[[Array], Array]) -> Mapping[str, Array]:
    x = _numbers(call, "X", "x_scale", "x_zero_point")
    last = call.attribute("channels_last")
    y = pool(np.moveaxis(x, -1, 1) if last else x)
    y = np.moveaxis(y, 1, -1) if last else y
    return {"Y": saturated(y, call, "y_scale", "y_zero_point", call["X"].dtype)}


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
    if flattens("Softmax", call.attribute("opset")):
        flat = x.reshape(int(np.prod(x.shape[: axis % x.ndim])), -1)
        e = np.exp(flat - flat.max(-1, keepdims=True))
        y = (e / e.sum(-1, keepdims=True)).reshape(x.shape)
    else:
        e = np.exp(x - x.max(axis, keepdims=True))
        y = e / e.sum(axis, keepdims=True)
    return {"Y": saturated(y, call, "y_scale", "y_zero_point", call["X"].dtype)}


def _concat_reference(call: Call[Array]) -> Mapping[str, Array]:
    names = [f"inputs{i}" for i in range(len(call.inputs) - 2)]
    parts = [_numbers(call, *names[i : i + 3]) for i in range(0, len(names), 3)]
    y = np.concatenate(parts, call.attribute("axis"))
    return {"Y": saturated(y, call, "Y_scale", "Y_zero_point", call["inputs0"].dtype)}


def _where_reference(call: Call[Array]) -> Mapping[str, Array]:
    x, y = (_numbers(call, n, f"{n.lower()}_scale", f"{n.lower()}_zero_point") for n in "XY")
    return {"Z": saturated(np.where(call["condition"], x, y), call, "z_scale", "z_zero_point", call["X"].dtype)}


def _reduce_reference(call: Call[Array]) -> Mapping[str, Array]:
    x = _numbers(call, "data", "data_scale", "data_zero_point")
    y = np.asarray(x.mean(tuple(call.attribute("axes")), keepdims=bool(call.attribute("keepdims"))))
    return {"reduced": saturated(y, call, "reduced_scale", "reduced_zero_point", call["data"].dtype)}


# -- draws -------------------------------------------------------------------------------------------------------------


def whole(rng: np.random.Generator, dtype: Any, *shape: int) -> Array:
    bounds = np.iinfo(dtype)
    return rng.integers(bounds.min, bounds.max + 1, shape, dtype)


def weights(rng: np.random.Generator, dtype: Any, *shape: int) -> Array:
    """Beside uint8. Without VNNI the runtime adds two products in 16 bits, which hold those of int8 with 7 bits."""
    return whole(rng, dtype, *shape) // (2 if dtype == np.int8 else 1)


def byte_type(rng: np.random.Generator) -> Any:
    return either(rng, np.uint8, np.int8)


def parameters(rng: np.random.Generator, dtype: Any, scale: float) -> tuple[Array, Array]:
    return np.array(scale * rng.uniform(0.5, 2.0), np.float32), whole(rng, dtype) // 2


def _draw_unary(rng: np.random.Generator, scale: float = 0.05, out: float = 0.05) -> Case:
    dtype, shape = byte_type(rng), either(rng, (7,), (2, 3, 5))
    inputs = {"X": whole(rng, dtype, *shape)}
    inputs["X_scale"], inputs["X_zero_point"] = parameters(rng, dtype, scale)
    inputs["Y_scale"], inputs["Y_zero_point"] = parameters(rng, dtype, out)
    if rng.random() < 0.2:
        del inputs["X_zero_point"]
    return Case(inputs, {}, ("Y",), fixed(inputs), steps=1)


def fixed(inputs: Mapping[str, Array]) -> frozenset[str]:
    return frozenset(n for n in inputs if n.endswith(("scale", "zero_point")))


def _draw_leaky(rng: np.random.Generator) -> Case:
    case = _draw_unary(rng)
    case.attributes = either(rng, {}, {"alpha": 0.2})
    return case


def _draw_binary(rng: np.random.Generator) -> Case:
    dtype = byte_type(rng)
    a, b = either(rng, ((2, 3, 5), (2, 3, 5)), ((2, 3, 5), (5,)), ((4,), (3, 4)), ((2, 3), (1,)))
    inputs: dict[str, Array] = {}
    for name, shape in (("A", a), ("B", b)):
        inputs[name] = whole(rng, dtype, *shape)
        inputs[f"{name}_scale"], inputs[f"{name}_zero_point"] = parameters(rng, dtype, 0.03)
    inputs["C_scale"], inputs["C_zero_point"] = parameters(rng, dtype, 0.06)
    return Case(inputs, {}, ("C",), fixed(inputs), steps=1)


def _draw_softmax(rng: np.random.Generator) -> Case:
    dtype = byte_type(rng)
    inputs = {"X": whole(rng, dtype, 2, 3, 5)}
    inputs["X_scale"], inputs["x_zero_point"] = parameters(rng, dtype, 0.02)
    inputs["y_scale"] = np.array(1 / 256, np.float32)
    inputs["y_zero_point"] = np.array(0 if dtype == np.uint8 else -128, dtype)
    attributes = {"opset": int(either(rng, 11, 13)), **either(rng, {}, {"axis": -1}, {"axis": 1})}
    # In 1.22 a probability of 1 wraps around to 0.
    return Case(inputs, attributes, ("Y",), fixed(inputs), steps=1, kernel=(1, 31))


def _draw_pool(rng: np.random.Generator, average: bool) -> Case:
    dtype = byte_type(rng)
    last = bool(rng.random() < 0.5)
    inputs = {"X": whole(rng, dtype, *((2, 6, 5, 3) if last else (2, 3, 6, 5)))}
    inputs["x_scale"], inputs["x_zero_point"] = parameters(rng, dtype, 0.05)
    inputs["y_scale"], inputs["y_zero_point"] = parameters(rng, dtype, 0.05)
    attributes: dict[str, Any] = {"channels_last": int(last)}
    if average:
        attributes["kernel_shape"] = [2, 3]
        if rng.random() < 0.5:
            attributes |= {"pads": [1, 1, 0, 1], "count_include_pad": int(either(rng, 0, 1))}
        if rng.random() < 0.5:
            attributes["strides"] = either(rng, [2, 1], [2, 2])
        if not attributes.get("count_include_pad"):
            attributes["ceil_mode"] = int(either(rng, 0, 1))
    return Case(inputs, attributes, ("Y",), fixed(inputs), steps=1)


def _draw_concat(rng: np.random.Generator) -> Case:
    dtype, axis = byte_type(rng), int(either(rng, 0, 1, -1))
    inputs: dict[str, Array] = {}
    inputs["Y_scale"], inputs["Y_zero_point"] = parameters(rng, dtype, 0.05)
    for i in range(int(either(rng, 1, 3))):
        shape = [2, 3, 4]
        shape[axis] = i + 1
        inputs[f"inputs{3 * i}"] = whole(rng, dtype, *shape)
        inputs[f"inputs{3 * i + 1}"], inputs[f"inputs{3 * i + 2}"] = parameters(rng, dtype, 0.05)
    of_inputs = {n for n in inputs if n.startswith("inputs") and int(n[6:]) % 3}
    return Case(inputs, {"axis": axis}, ("Y",), fixed(inputs) | of_inputs, steps=1)


def _draw_where(rng: np.random.Generator) -> Case:
    dtype = byte_type(rng)
    x, y = either(rng, ((2, 3), (2, 3)), ((2, 3), (1, 3)))
    inputs: dict[str, Array] = {"condition": rng.random((2, 3)) < 0.5, "X": whole(rng, dtype, *x)}
    inputs["x_scale"], inputs["x_zero_point"] = parameters(rng, dtype, 0.05)
    inputs["Y"] = whole(rng, dtype, *y)
    inputs["y_scale"], inputs["y_zero_point"] = parameters(rng, dtype, 0.05)
    inputs["z_scale"], inputs["z_zero_point"] = parameters(rng, dtype, 0.05)
    return Case(inputs, {}, ("Z",), fixed(inputs), steps=1)


def _draw_reduce(rng: np.random.Generator) -> Case:
    dtype = byte_type(rng)
    inputs = {"data": whole(rng, dtype, 2, 3, 5)}
    inputs["data_scale"], inputs["data_zero_point"] = parameters(rng, dtype, 0.05)
    inputs["reduced_scale"], inputs["reduced_zero_point"] = parameters(rng, dtype, 0.03)
    attributes = {"axes": either(rng, [1], [0, 2], [-1]), "keepdims": int(either(rng, 0, 1))}
    return Case(inputs, attributes, ("reduced",), fixed(inputs), steps=1)


_UNARY = ("X", "X_scale", "X_zero_point?", "Y_scale", "Y_zero_point?")
_BINARY = ("A", "A_scale", "A_zero_point?", "B", "B_scale", "B_zero_point?", "C_scale", "C_zero_point?")


def spec(
    name: str,
    inputs: tuple[str, ...],
    output: str,
    attributes: Mapping[str, Any],
    define: Callable[[Writer, Call[ir.Value]], Mapping[str, ir.Value]],
    reference: Callable[[Call[Array]], Mapping[str, Array]],
    draw: Callable[[np.random.Generator], Case],
    *,
    room: str = ROOM,
    stays: str = INTEGERS,
    form: str = BETWEEN,
    refuses: str = "",
) -> ContribOp:
    """A quantized operator with one output; room: "" where our provider has no kernel; stays: why it is left."""
    return ContribOp(
        name,
        inputs,
        (output,),
        attributes,
        define,
        reference,
        draw,
        form,
        stays_on_cpu=stays,
        stays_on_gpu=stays,
        on_provider=room,
        quantized=True,
        refuses=refuses,
    )


SPECS = (
    spec("QLinearAdd", _BINARY, "C", {}, _binary("Add"), _binary_reference(np.add), _draw_binary),
    spec("QLinearMul", _BINARY, "C", {}, _binary("Mul"), _binary_reference(np.multiply), _draw_binary),
    spec(
        "QLinearSigmoid",
        _UNARY,
        "Y",
        {},
        _unary(lambda w, _, x: w.op("Sigmoid", x)),
        _unary_reference(lambda _, x: 1.0 / (1.0 + np.exp(-x))),
        lambda rng: _draw_unary(rng, out=0.005),
    ),
    spec(
        "QLinearLeakyRelu",
        _UNARY,
        "Y",
        {"alpha": 0.01},
        _unary(lambda w, call, x: w.op("LeakyRelu", x, alpha=call.attribute("alpha"))),
        _unary_reference(lambda call, x: np.where(x < 0, call.attribute("alpha") * x, x)),
        _draw_leaky,
    ),
    spec(
        "QLinearSoftmax",
        ("X", "X_scale", "x_zero_point?", "y_scale", "y_zero_point"),
        "Y",
        {"axis": -1, "opset": REQUIRED},
        _define_softmax,
        _softmax_reference,
        _draw_softmax,
    ),
    spec(
        "QLinearGlobalAveragePool",
        ("X", "x_scale", "x_zero_point", "y_scale", "y_zero_point"),
        "Y",
        {"channels_last": 0},
        lambda w, call: _pooled(w, call, lambda x: w.op("GlobalAveragePool", x)),
        lambda call: _pool_reference(call, lambda x: np.asarray(x.mean((2, 3), keepdims=True))),
        lambda rng: _draw_pool(rng, average=False),
    ),
    spec(
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
        refuses="ceil_mode with count_include_pad",
    ),
    spec(
        "QLinearConcat",
        ("Y_scale", "Y_zero_point", "inputs*"),
        "Y",
        {"axis": REQUIRED},
        _define_concat,
        _concat_reference,
        _draw_concat,
    ),
    spec(
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
    spec(
        "QLinearReduceMean",
        ("data", "data_scale", "data_zero_point?", "reduced_scale", "reduced_zero_point?"),
        "reduced",
        {"axes": REQUIRED, "keepdims": REQUIRED},
        _define_reduce_mean,
        _reduce_reference,
        _draw_reduce,
        room="",
        stays="no runtime has a kernel for it; lower reads it",
    ),
)
