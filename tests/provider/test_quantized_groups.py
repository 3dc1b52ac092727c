"""Operators between DequantizeLinear and QuantizeLinear run on integers, with the results of ONNX Runtime's kernels."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from tests.provider.test_regions import runs
from tests.provider.worker import Array, new_session

LAYOUTS = ({"channels_last": "0"}, {"channels_last": "1"})


class Network:
    """Builds a model in QDQ format: each operator reads dequantized values, and its output is quantized."""

    def __init__(self, dtype: Any, x: Array) -> None:
        self.rng = np.random.default_rng(0)
        self.dtype, self.x, self.opset = dtype, x, 17
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, Array] = {}
        self.last = self.quantized("x", 0.02)

    def constant(self, x: Array) -> str:
        name = f"c{len(self.constants)}"
        self.constants[name] = x
        return name

    def node(self, op: str, inputs: list[str], **attributes: Any) -> str:
        output = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [output], **attributes))
        return output

    def quantized(self, value: str, scale: float, zero: int | None = None) -> list[str]:
        """Returns the value after QuantizeLinear, with its scale and zero point."""
        ends = np.iinfo(self.dtype)
        zero = int(self.rng.integers(ends.min, ends.max)) if zero is None else zero
        numbers = [self.constant(np.float32(scale)), self.constant(np.asarray(zero, self.dtype))]
        return [self.node("QuantizeLinear", [value, *numbers]), *numbers]

    def real(self, quantized: list[str] | None = None) -> str:
        return self.node("DequantizeLinear", quantized or self.last)

    def apply(
        self, op: str, scale: float, *more: str, act: str = "", zero: int | None = None, **attributes: Any
    ) -> None:
        value = self.node(op, [self.real(), *more], **attributes)
        if act:
            limits = [self.constant(np.float32(limit)) for limit in ((0, 6) if act == "Clip" else ())]
            value = self.node(act, [value, *limits])
        self.last = self.quantized(value, scale, zero)

    def move(self, op: str, *more: str, **attributes: Any) -> None:
        """Applies an operator that keeps scale and zero point."""
        value = self.node(op, [self.real(), *more], **attributes)
        self.last = [self.node("QuantizeLinear", [value, *self.last[1:]]), *self.last[1:]]

    def weights(self, *dims: int, scale: float, axis: int | None = 0) -> tuple[str, Array]:
        """Returns dequantized int8 weights and their scales: one for each index of the axis, or one for all."""
        w = self.rng.integers(-64, 64, dims).astype(np.int8)
        scales = (scale * (1 + self.rng.random(dims[axis] if axis is not None else ()))).astype(np.float32)
        zero = self.constant(np.zeros(scales.shape, np.int8))
        names = [self.constant(w), self.constant(scales), zero]
        return self.node("DequantizeLinear", names, **({} if axis is None else {"axis": axis})), scales

    def bias(self, scales: Array) -> str:
        """Returns a dequantized int32 bias for weights with these scales."""
        scale = (self.constants[self.last[1]] * scales).astype(np.float32)
        b = self.rng.integers(-999, 999, scales.shape).astype(np.int32)
        return self.node("DequantizeLinear", [self.constant(b), self.constant(scale)], axis=0)

    def conv(
        self, M: int, C: int, kernel: int, scale: float, bias: bool = True, act: str = "", **attributes: Any
    ) -> None:
        w, scales = self.weights(M, C, kernel, kernel, scale=0.01)
        pads = [kernel // 2] * 4
        self.apply("Conv", scale, w, *([self.bias(scales)] if bias else []), act=act, pads=pads, **attributes)

    def model(self) -> bytes:
        y = self.real()
        infos = [
            helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, self.x.shape),
            helper.make_tensor_value_info(y, onnx.TensorProto.FLOAT, None),
        ]
        constants = [numpy_helper.from_array(np.asarray(x), name) for name, x in self.constants.items()]
        graph = helper.make_graph(self.nodes, "g", infos[:1], infos[1:], constants)
        written: bytes = helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=8
        ).SerializeToString()
        return written


def add(net: Network) -> None:
    shortcut = net.last
    net.move("MaxPool", kernel_shape=[3, 3], pads=[1, 1, 1, 1])
    net.apply("Add", 0.03, net.real(shortcut), act="Relu")


def gemm(net: Network) -> None:
    net.apply("GlobalAveragePool", 0.01)
    net.move("Flatten")
    w, scales = net.weights(16, 10, scale=0.01, axis=1)
    net.apply("Gemm", 0.03, w, net.bias(scales))


def mean(net: Network, opset: int) -> None:
    """A mean over the pixels without their axes; from opset 18 on, the axes are an input."""
    net.opset = opset
    if opset < 18:
        net.apply("ReduceMean", 0.01, axes=[-1, 2], keepdims=0)
    else:
        net.apply("ReduceMean", 0.01, net.constant(np.array([2, 3])), keepdims=0)
    w, scales = net.weights(16, 10, scale=0.01, axis=1)
    net.apply("Gemm", 0.03, w, net.bias(scales))


def conv_transpose(net: Network) -> None:
    w, _ = net.weights(16, 8, 2, 2, scale=0.01, axis=None)
    net.apply("ConvTranspose", 0.05, w, strides=[2, 2])


def matmul(net: Network) -> None:
    w, _ = net.weights(15, 7, scale=0.02, axis=None)
    net.apply("MatMul", 0.2, w, act="Relu")


def conv_silu(net: Network) -> None:
    net.conv(24, 16, 3, 0.1)
    silu(net)


def silu(net: Network) -> None:
    x = net.last
    net.apply("Sigmoid", 1 / 256, zero=np.iinfo(net.dtype).min)
    net.apply("Mul", 0.02, net.real(x))


def hard_swish(net: Network) -> None:
    """As exporters write it: x Clip(x + 3, 0, 6) / 6."""
    net.conv(24, 16, 3, 0.05, zero=np.iinfo(net.dtype).min + 99)
    x = net.last
    net.apply("Add", 0.05, net.constant(np.float32(3)), act="Clip")
    net.apply("Mul", 0.1, net.real(x))
    net.apply("Div", 0.05, net.constant(np.float32(6)))


def residual(
    net: Network, C: int = 16, act: Callable[[Network], None] | None = None, scale: float = 0.1, **attributes: Any
) -> None:
    shortcut = net.last
    net.conv(16, C, 3, 0.1, act="LeakyRelu", **attributes)
    if act is not None:
        act(net)
    net.apply("Add", scale, net.real(shortcut), act="Relu", zero=np.iinfo(net.dtype).min + 3)


def broadcast_residual(net: Network) -> None:
    net.move("MaxPool", kernel_shape=[9, 15])
    shortcut = net.last
    net.last = ["v0", "c0", "c1"]
    net.conv(16, 16, 3, 0.1)
    net.apply("Add", 0.1, net.real(shortcut))


def exact_residual(net: Network) -> None:
    shortcut = net.last
    w, scales = net.weights(16, 16, 1, 1, scale=0.01)
    real = net.node("Conv", [net.real(), w, net.bias(scales)])
    net.last = net.quantized(net.node("Add", [net.real(shortcut), real]), 0.05)


def concat(net: Network) -> None:
    x = net.last
    net.conv(24, 16, 3, 0.1)
    first, net.last = net.last, x
    net.conv(8, 16, 1, 0.05)
    net.apply("Concat", 0.09, net.real(first), net.real(x), axis=1)


def equal_concat(net: Network) -> None:
    x = net.last
    net.move("MaxPool", kernel_shape=[3, 3], pads=[1, 1, 1, 1])
    net.move("Concat", net.real(x), axis=-3)


def split(net: Network) -> None:
    """The block of a detector that concatenates the parts of a tensor and a function of one part."""
    net.conv(32, 16, 1, 0.05)
    numbers = net.last[1:]
    parts = ["part 0", "part 1"]
    net.nodes.append(helper.make_node("Split", [net.real()], parts, axis=1))
    left, right = ([net.node("QuantizeLinear", [part, *numbers]), *numbers] for part in parts)
    net.last = right
    net.apply("Concat", 0.06, net.real(left), net.real(right), axis=1)


def two_convolutions(net: Network) -> None:
    x = net.last
    net.conv(24, 16, 3, 0.1, act="Relu")
    first, net.last = net.last, x
    net.conv(24, 16, 1, 0.05)
    net.apply("Add", 0.11, net.real(first), act="Relu")


def resnext(net: Network) -> None:
    """A block of ResNeXt: 16 groups of 4 channels."""
    shortcut = net.last
    net.conv(64, 16, 1, 0.05, act="Relu")
    net.conv(64, 4, 3, 0.1, act="Relu", group=16)
    net.conv(16, 64, 1, 0.2)
    net.apply("Add", 0.2, net.real(shortcut), act="Relu")


def shufflenet(net: Network) -> None:
    """Two pointwise convolutions with groups, whose channels are interleaved between them."""
    net.conv(64, 8, 1, 0.05, group=2)
    net.move("Reshape", net.constant(np.array([0, 2, 32, -1])))
    net.move("Transpose", perm=[0, 2, 1, 3])
    net.move("Reshape", net.constant(np.array([0, 64, 9, -1])))
    net.conv(96, 32, 1, 0.1, group=2, strides=[2, 1])


def groups_after(net: Network, channels: int, M: int, C: int, group: int) -> None:
    net.conv(channels, 16, 1, 0.05)
    net.conv(M, C, 3, 0.1, group=group)


def crop_and_resize(net: Network) -> None:
    """The last rows and columns are outside of the image and get the value 1.5."""
    crop = net.constant(np.array([0, 0, 0, 0, 1, 1, 1.5, 1.5], np.float32))
    scales = net.constant(np.array([1, 1, 2, 2], np.float32))
    mode = "tf_crop_and_resize"
    net.move("Resize", crop, scales, mode="nearest", coordinate_transformation_mode=mode, extrapolation_value=1.5)


# Name -> operators on an image with 16 channels, and the number of groups.
GROUPS: dict[str, tuple[Callable[[Network], object], int]] = {
    "conv": (lambda net: net.conv(24, 16, 3, 0.1, strides=[2, 1]), 1),
    "conv without bias": (lambda net: net.conv(9, 16, 1, 0.05, bias=False), 1),
    "conv and Relu": (lambda net: net.conv(32, 16, 3, 0.1, act="Relu"), 1),
    "conv and Clip": (lambda net: net.conv(32, 16, 3, 0.03, act="Clip"), 1),
    "depthwise": (lambda net: net.conv(16, 1, 5, 0.05, group=16, act="HardSwish"), 1),
    "residual": (residual, 1),
    "residual with broadcasting": (broadcast_residual, 3),
    "residual without quantization of the convolution": (exact_residual, 1),
    "two convolutions": (two_convolutions, 2),
    "depthwise and residual": (lambda net: residual(net, 1, group=16), 1),
    "quantized Silu": (conv_silu, 1),
    "Silu and residual": (lambda net: residual(net, act=silu, scale=0.03), 1),
    "quantized HardSwish": (hard_swish, 1),
    "Silu": (silu, 1),
    "two groups": (lambda net: net.conv(16, 8, 3, 0.1, group=2), 1),
    "two groups and residual": (lambda net: residual(net, 8, group=2), 1),
    "three groups of five channels": (lambda net: groups_after(net, 15, 9, 5, group=3), 2),
    "two filters of each channel": (lambda net: net.conv(32, 1, 3, 0.05, group=16), 1),
    "twelve channels with a filter each": (lambda net: groups_after(net, 12, 12, 1, group=12), 2),
    "ResNeXt": (resnext, 3),
    "ShuffleNet": (shufflenet, 5),
    "MaxPool and Add": (add, 2),
    "Mul": (lambda net: net.apply("Mul", 0.02, net.real()), 1),
    "AveragePool": (lambda net: net.apply("AveragePool", 0.0093, kernel_shape=[2, 2]), 1),
    "pool, Flatten and Gemm": (gemm, 3),
    "ReduceMean": (lambda net: net.apply("ReduceMean", 0.01, axes=[2, 3]), 1),
    "ReduceMean over rows": (lambda net: net.apply("ReduceMean", 0.01, axes=[2]), 0),
    "ReduceMean and Gemm": (lambda net: mean(net, 17), 2),
    "ReduceMean with axes as input and Gemm": (lambda net: mean(net, 18), 2),
    "LeakyRelu": (lambda net: net.apply("LeakyRelu", 0.02, alpha=0.3), 1),
    "Sigmoid": (lambda net: net.apply("Sigmoid", 0.003), 1),
    "Resize": (lambda net: net.move("Resize", "", net.constant(np.array([1, 1, 2, 2], np.float32)), mode="nearest"), 1),
    "ConvTranspose has no kernel for integers": (conv_transpose, 0),
    "linear Resize has no kernel for integers": (
        lambda net: net.move("Resize", "", net.constant(np.array([1, 1, 3, 3], np.float32)), mode="linear"),
        0,
    ),
    "Resize of a crop writes values that are not in its input": (crop_and_resize, 0),
    "Concat": (concat, 3),
    "Concat of equal scales": (equal_concat, 2),
    "Split and Concat": (split, 3),
    "Softmax": (lambda net: net.apply("Softmax", 1 / 512, axis=1, zero=np.iinfo(net.dtype).min), 1),
    "Transpose": (lambda net: net.move("Transpose", perm=[0, 3, 1, 2]), 1),
    "MatMul": (matmul, 1),
}


def on_cpu(model: bytes, feeds: dict[str, Array]) -> list[Array]:
    outputs: list[Array] = new_session(model, devices=0).run(None, feeds)
    return outputs


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
@pytest.mark.parametrize("name", GROUPS)
def test_one_step_from_the_definition(name: str, dtype: Any, worker: ProcessPoolExecutor) -> None:
    """The definition computes with floats, whose rounding can change an integer by one."""
    x = np.random.default_rng(1).standard_normal((2, 16, 9, 15)).astype(np.float32)
    net = Network(dtype, x)
    apply, count = GROUPS[name]
    apply(net)
    model, feeds = net.model(), {"x": x}
    (wanted,) = worker.submit(on_cpu, model, feeds).result()
    assert wanted.std() > 5 * net.constants[net.last[1]]
    for layout in LAYOUTS:
        [(got,)], events = worker.submit(runs, model, [feeds], {"min_nodes": "2", **layout}).result()
        assert events.get("fused", 0) == count
        steps = np.abs(got - wanted) / net.constants[net.last[1]]
        assert steps.max() < 1.01 and (steps > 0.5).mean() < 0.01


@pytest.mark.parametrize(
    ("C", "kernel", "strides", "pads"),
    [(3, 7, [2, 2], [3] * 4), (3, 3, [2, 2], [1] * 4), (4, 5, [2, 2], [1, 2, 2, 0]), (1, 4, [4, 3], [0, 5, 1, 0]),
     (5, 3, [1, 3], [2, 1, 0, 1]), (2, 1, [2, 2], [0] * 4)],
)  # fmt: skip
def test_few_channels(C: int, kernel: int, strides: list[int], pads: list[int], worker: ProcessPoolExecutor) -> None:
    """Blocks of pixels become channels."""
    x = np.random.default_rng(1).standard_normal((2, C, 17, 14)).astype(np.float32)
    net = Network(np.uint8, x)
    w, scales = net.weights(24, C, kernel, kernel, scale=0.01)
    net.apply("Conv", 0.05, w, net.bias(scales), strides=strides, pads=pads)
    (wanted,) = worker.submit(on_cpu, net.model(), {"x": x}).result()
    for layout in LAYOUTS:
        [(got,)], events = worker.submit(runs, net.model(), [{"x": x}], {"min_nodes": "2", **layout}).result()
        assert events["fused"] == 1 and got.shape == wanted.shape
        steps = np.abs(got - wanted) / 0.05
        assert steps.max() < 1.01 and (steps > 0.5).mean() < 0.01


def test_integers_remain_in_channels_last(worker: ProcessPoolExecutor) -> None:
    """Both layouts give the same integers. Only the first and the last image change their layout."""
    x = np.random.default_rng(1).standard_normal((2, 3, 17, 15)).astype(np.float32)
    net = Network(np.uint8, x)
    net.conv(24, 3, 3, 0.05, act="Relu")
    net.move("MaxPool", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    net.conv(32, 24, 1, 0.2)
    net.conv(32, 1, 3, 0.1, group=32, strides=[2, 1])
    shortcut = net.last
    net.conv(32, 32, 3, 0.5)
    net.apply("Add", 0.6, net.real(shortcut), act="Relu")
    feeds: list[Mapping[str, Array]] = [{"x": x}]
    first, last = (worker.submit(runs, net.model(), feeds, {"min_nodes": "2", **layout}).result() for layout in LAYOUTS)
    np.testing.assert_array_equal(first[0][0][0], last[0][0][0])
    assert last[1]["fused"] == 5 and last[1]["converted"] == 2


def test_nodes_outside_of_groups_compute_in_float(worker: ProcessPoolExecutor) -> None:
    """Tests a value that another node or the caller reads, a bias with other scales, and asymmetric filters."""
    x = np.random.default_rng(1).standard_normal((1, 16, 5, 5)).astype(np.float32)
    for change in ("reader", "bias", "zero"):
        net = Network(np.uint8, x)
        w, scales = net.weights(8, 16, 1, 1, scale=0.01)
        if change == "zero":
            net.constants[net.nodes[-1].input[2]][:] = 3
        bias = net.bias(scales * np.float32(1.5) if change == "bias" else scales)
        real = net.node("Conv", [net.real(), w, bias])
        net.last = net.quantized(real, 0.05)
        if change == "reader":
            net.last = net.quantized(net.node("Add", [real, net.real()]), 0.1)
        (wanted,) = worker.submit(on_cpu, net.model(), {"x": x}).result()
        [(got,)], events = worker.submit(runs, net.model(), [{"x": x}], {"min_nodes": "2"}).result()
        assert events.get("fused", 0) == 0
        assert np.abs(got - wanted).max() < 1.01 * net.constants[net.last[1]]
