"""Float64 references of quantized.py and its random nodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from graphopt.contrib.schema import Call
from graphopt.graph.operators.arguments import flattens
from graphopt.ops.schema import Array
from tests.contrib.case import Case, Reference, either

# -- references --------------------------------------------------------------------------------------------------------


def less_zero_point(call: Call[Array], x: str, zero: str) -> Array:
    """Returns an input minus its zero point, or 0 if there is none, in float64."""
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
        if call.attribute("ceil_mode"):  # a last window that begins inside the padded input may end outside
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


def byte_type(rng: np.random.Generator) -> Any:
    return either(rng, np.uint8, np.int8)


def whole(rng: np.random.Generator, dtype: Any, *shape: int) -> Array:
    bounds = np.iinfo(dtype)
    return rng.integers(bounds.min, bounds.max + 1, shape, dtype)


def weights(rng: np.random.Generator, dtype: Any, *shape: int) -> Array:
    """Draws weights; int8 ones use 7 bits, since runtimes without VNNI add two products with uint8 in 16 bits."""
    return whole(rng, dtype, *shape) // (2 if dtype == np.int8 else 1)


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


REFERENCES = {
    ("com.microsoft", "QLinearAdd"): Reference(_binary_reference(np.add), _draw_binary),
    ("com.microsoft", "QLinearMul"): Reference(_binary_reference(np.multiply), _draw_binary),
    ("com.microsoft", "QLinearSigmoid"): Reference(
        _unary_reference(lambda _, x: 1.0 / (1.0 + np.exp(-x))), lambda rng: _draw_unary(rng, out=0.005)
    ),
    ("com.microsoft", "QLinearLeakyRelu"): Reference(
        _unary_reference(lambda call, x: np.where(x < 0, call.attribute("alpha") * x, x)), _draw_leaky
    ),
    ("com.microsoft", "QLinearSoftmax"): Reference(_softmax_reference, _draw_softmax),
    ("com.microsoft", "QLinearGlobalAveragePool"): Reference(
        lambda call: _pool_reference(call, lambda x: np.asarray(x.mean((2, 3), keepdims=True))),
        lambda rng: _draw_pool(rng, average=False),
    ),
    ("com.microsoft", "QLinearAveragePool"): Reference(_average_reference, lambda rng: _draw_pool(rng, average=True)),
    ("com.microsoft", "QLinearConcat"): Reference(_concat_reference, _draw_concat),
    ("com.microsoft", "QLinearWhere"): Reference(_where_reference, _draw_where),
    ("com.microsoft", "QLinearReduceMean"): Reference(_reduce_reference, _draw_reduce),
}
