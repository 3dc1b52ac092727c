"""Models of any number of nodes, and one of any number of bytes, for `scripts/bench_scale.py` and its test."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

OPSET = 17
CHANNELS = 8
HEADS, HEAD = 2, 8
D = HEADS * HEAD


class _Graph:
    """Nodes and weights of a graph that grows block by block; `next(op, ...)` appends a node and returns its output."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self._rng = np.random.default_rng(0)

    def next(self, op: str, *inputs: str, **attributes: Any) -> str:
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [name], f"n{len(self.nodes)}", **attributes))
        return name

    def weight(self, *shape: int, positive: bool = False) -> str:
        array = self._rng.normal(size=shape, scale=0.2).astype(np.float32)
        return self.constant(np.abs(array) + 0.5 if positive else array)

    def constant(self, array: npt.NDArray[Any]) -> str:
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(array, name))
        return name

    def model(self, shape: list[int | str], last: str) -> onnx.ModelProto:
        x = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)
        y = helper.make_tensor_value_info(last, TensorProto.FLOAT, shape)
        graph = helper.make_graph(self.nodes, "scale", [x], [y], self.weights)
        return helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", OPSET)])


def chain(nodes: int) -> onnx.ModelProto:
    """Mul, Relu, Identity and Add, repeated; 2 weights for each 4 nodes."""
    g, x = _Graph(), "x"
    while len(g.nodes) < nodes:
        x = g.next("Relu", g.next("Mul", x, g.weight(4)))
        x = g.next("Add", g.next("Identity", x), g.weight(4))
    return g.model(["N", 4], x)


def conv_blocks(nodes: int) -> onnx.ModelProto:
    """Residual blocks: Conv, BatchNormalization, Relu, Conv, BatchNormalization, Add, Relu."""
    g, x = _Graph(), "x"

    def conv_bn(x: str) -> str:
        y = g.next("Conv", x, g.weight(CHANNELS, CHANNELS, 3, 3), kernel_shape=[3, 3], pads=[1, 1, 1, 1])
        scale, shift, mean, var = (
            g.weight(CHANNELS),
            g.weight(CHANNELS),
            g.weight(CHANNELS),
            g.weight(CHANNELS, positive=True),
        )
        return g.next("BatchNormalization", y, scale, shift, mean, var)

    while len(g.nodes) < nodes:
        x = g.next("Relu", g.next("Add", conv_bn(g.next("Relu", conv_bn(x))), x))
    return g.model(["N", CHANNELS, 16, 16], x)


def transformer_blocks(nodes: int) -> onnx.ModelProto:
    """Pre-norm blocks as exporters write them: decomposed norms, head splits by Shape arithmetic, erf-Gelu."""
    g, x = _Graph(), "x"
    two, half, one = (g.constant(np.array(v, np.float32)) for v in (2.0, 0.5, 1.0))
    sqrt2, scale, epsilon = (g.constant(np.array(v, np.float32)) for v in (2**0.5, HEAD**-0.5, 1e-5))
    zero, first = (g.constant(np.array(v, np.int64)) for v in (0, 1))
    axis0 = g.constant(np.array([0], np.int64))
    heads, size, width = (g.constant(np.array([v], np.int64)) for v in (HEADS, HEAD, D))

    def norm(x: str) -> str:
        centred = g.next("Sub", x, g.next("ReduceMean", x, axes=[-1]))
        variance = g.next("ReduceMean", g.next("Pow", centred, two), axes=[-1])
        y = g.next("Div", centred, g.next("Sqrt", g.next("Add", variance, epsilon)))
        return g.next("Add", g.next("Mul", y, g.weight(D)), g.weight(D))

    def linear(x: str) -> str:
        return g.next("Add", g.next("MatMul", x, g.weight(D, D)), g.weight(D))

    def target(x: str, *last: str) -> str:
        shape = g.next("Shape", x)
        batch, length = (g.next("Unsqueeze", g.next("Gather", shape, i), axis0) for i in (zero, first))
        return g.next("Concat", batch, length, *last, axis=0)

    def split(x: str, perm: list[int]) -> str:
        return g.next("Transpose", g.next("Reshape", x, target(x, heads, size)), perm=perm)

    while len(g.nodes) < nodes:
        y = norm(x)
        q, k, v = split(linear(y), [0, 2, 1, 3]), split(linear(y), [0, 2, 3, 1]), split(linear(y), [0, 2, 1, 3])
        p = g.next("Softmax", g.next("Mul", g.next("MatMul", q, k), scale), axis=-1)
        o = g.next("Transpose", g.next("MatMul", p, v), perm=[0, 2, 1, 3])
        x = g.next("Add", x, linear(g.next("Reshape", o, target(o, width))))
        h = linear(norm(x))
        gate = g.next("Add", g.next("Erf", g.next("Div", h, sqrt2)), one)
        x = g.next("Add", x, linear(g.next("Mul", g.next("Mul", h, gate), half)))
    return g.model(["batch", "sequence", D], x)


def tensorflow_blocks(nodes: int) -> onnx.ModelProto:
    """Post-norm blocks as tf2onnx writes TensorFlow's BERT.

    The shape of each Reshape is computed from the preceding layer: Shape - Cast - Slice - Squeeze, then Unsqueeze -
    Concat - Cast. A dense layer multiplies flattened rows.
    """
    g, x = _Graph(), "x"
    heads, size, hidden, rest = (g.constant(np.array([v], np.int32)) for v in (HEADS, HEAD, D, -1))
    axis0, one, two, three, free = (g.constant(np.array(v, np.int64)) for v in ([0], [1], [2], [3], [0, 1]))
    epsilon = g.constant(np.array(1e-12, np.float32))

    def shape(x: str) -> str:
        return g.next("Cast", g.next("Shape", x), to=TensorProto.INT32)

    def batch(x: str) -> str:
        first = g.next("Squeeze", g.next("Slice", shape(x), axis0, one, axis0), axis0)
        return g.next("Unsqueeze", first, axis0)

    def reshape(x: str, *parts: str) -> str:
        target = g.next("Cast", g.next("Concat", *parts, axis=0), to=TensorProto.INT64)
        return g.next("Reshape", x, target)

    def dense(x: str) -> str:
        kept = g.next("Gather", shape(x), free, axis=0)
        flat = reshape(x, g.next("ReduceProd", kept, axes=[0], keepdims=1), hidden)
        return g.next("Add", reshape(g.next("MatMul", flat, g.weight(D, D)), kept, hidden), g.weight(D))

    def norm(x: str) -> str:
        mean = g.next("ReduceMean", x, axes=[-1])
        centred = g.next("Sub", x, mean)
        variance = g.next("ReduceMean", g.next("Mul", centred, centred), axes=[-1])
        y = g.next("Div", centred, g.next("Sqrt", g.next("Add", variance, epsilon)))
        return g.next("Add", g.next("Mul", y, g.weight(D)), g.weight(D))

    def split(x: str, first: str, perm: list[int]) -> str:
        return g.next("Transpose", reshape(x, first, rest, heads, size), perm=perm)

    while len(g.nodes) < nodes:
        first = batch(x)
        q, k, v = (split(dense(x), first, perm) for perm in ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3]))
        # The head size, here the second-last axis of the keys.
        keys = g.next("Squeeze", g.next("Slice", shape(k), two, three, axis0), axis0)
        root = g.next("Sqrt", g.next("Cast", keys, to=TensorProto.FLOAT))
        p = g.next("Softmax", g.next("Div", g.next("MatMul", q, k), root), axis=-1)
        o = g.next("Transpose", g.next("MatMul", p, v), perm=[0, 2, 1, 3])
        x = norm(g.next("Add", dense(reshape(o, first, rest, hidden)), x))
        x = norm(g.next("Add", dense(g.next("Relu", dense(x))), x))
    return g.model(["batch", "sequence", D], x)


SHAPES: dict[str, Callable[[int], onnx.ModelProto]] = {
    "chain": chain,
    "conv": conv_blocks,
    "transformer": transformer_blocks,
    "tensorflow": tensorflow_blocks,
}


def large_weights(folder: Path, side: int = 14_000, batch_norm: bool = False) -> Path:
    """Writes model.onnx with three square float32 weights in weights.data, a sparse file (3 x 784 MB by default).

    Args:
        folder: the output folder.
        side: rows and columns of each weight.
        batch_norm: whether to add a BatchNormalization after a Gemm; then one weight is rewritten, otherwise none.
    """
    bytes_each = 4 * side * side
    with (folder / "weights.data").open("wb") as file:
        file.truncate(3 * bytes_each)
    weights = []
    for i in range(3):
        w = TensorProto(
            name=f"w{i}", data_type=TensorProto.FLOAT, dims=[side, side], data_location=TensorProto.EXTERNAL
        )
        for key, value in {"location": "weights.data", "offset": i * bytes_each, "length": bytes_each}.items():
            w.external_data.add(key=key, value=str(value))
        weights.append(w)
    nodes = [helper.make_node("Gemm", ["x", "w0"], ["a"]), helper.make_node("Gemm", ["a", "w1"], ["b"])]
    if batch_norm:
        ones = np.ones(side, np.float32)
        weights += [numpy_helper.from_array(ones * v, n) for n, v in (("s", 2), ("t", 1), ("mean", 0), ("var", 1))]
        nodes.append(helper.make_node("BatchNormalization", ["b", "s", "t", "mean", "var"], ["c"]))
    # Clean-up removes this Dropout, which makes `optimize` write the model in either case.
    nodes.append(helper.make_node("Dropout", ["c" if batch_norm else "b"], ["d"]))
    nodes.append(helper.make_node("Gemm", ["d", "w2"], ["y"]))
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, ["N", side]) for n in "xy")
    graph = helper.make_graph(nodes, "large", [x], [y], weights)
    model = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", OPSET)])
    path = folder / "model.onnx"
    onnx.save(model, path)
    return path
