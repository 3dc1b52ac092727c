"""Convolutions as quantize_dynamic writes them: windows, parameters, activations, other readers, refusals."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnxruntime.quantization import QuantType, quantize_dynamic

import graphopt
from graphopt.passes.dynamic_quantized_conv import DynamicQuantizedConv
from models import ZOO
from tests import rewriting
from tests.rewriting import Array, Rewritten, assert_same_outputs, model_from_text

RNG = np.random.default_rng(53)
C, M = 6, 10


def rewrite(before: onnx.ModelProto, *, device: str = "cpu", ignore_cost_model: bool = True) -> Rewritten:
    return rewriting.rewrite(before, [DynamicQuantizedConv()], device=device, ignore_cost_model=ignore_cost_model)


def convolution(
    tail: str = "y = Identity(p)",
    window: str = "<pads = [1, 1, 1, 1]>",
    *,
    kernel: tuple[int, ...] = (3, 3),
    group: int = 1,
    inputs: str = "q, w, z, wz",
    declared: str = "",
    outputs: str = "",
    **changed: Array,
) -> onnx.ModelProto:
    """Returns a model with p, the scaled sums, and the nodes `tail`."""
    parameters = {
        "w": RNG.integers(0, 256, (M, C // group, *kernel)).astype(np.uint8),
        "wz": np.uint8(121),
        "ws": RNG.uniform(0.001, 0.1, M).astype(np.float32).reshape(M, *[1] * len(kernel)),
        "b": RNG.normal(size=(1, M, *[1] * len(kernel))).astype(np.float32),
    } | changed
    window = window.replace(">", f", group = {group}>") if window else f"<group = {group}>"
    body = f"""q, s, z = DynamicQuantizeLinear(x)  m = ConvInteger{window}({inputs})  c = Cast<to = 1>(m)
               u = Mul(s, ws)  p = Mul(c, u)  {tail}"""
    used = {name: array for name, array in parameters.items() if f"{name})" in body or f"{name}," in body}
    spatial = ", ".join("HWD"[: len(kernel)])
    sizes = ", ".join(("P", "Q", "R")[: len(kernel)])
    return model_from_text(
        f"g (float[B, {C}, {spatial}] x{declared}) => (float[B, {M}, {sizes}] y{outputs}) {{ {body} }}", used
    )


def data(*spatial: int) -> dict[str, Array]:
    return {"x": RNG.normal(0.3, size=(2, C, *spatial)).astype(np.float32)}


@pytest.mark.parametrize(
    ("kernel", "window"),
    [
        ((3, 3), "<pads = [1, 1, 1, 1]>"),
        ((3, 2), "<pads = [2, 0, 1, 1], strides = [2, 1]>"),
        ((5, 3), "<dilations = [1, 2], strides = [1, 3]>"),
        ((3, 3), '<auto_pad = "SAME_UPPER">'),
        ((2, 4), '<auto_pad = "SAME_LOWER">'),
        ((3, 3), '<auto_pad = "VALID", strides = [2, 2]>'),
        ((1, 1), ""),
        ((1, 1), "<strides = [2, 2]>"),
        ((5,), "<pads = [2, 1]>"),
        ((4,), "<strides = [3], dilations = [2]>"),
        ((2, 3, 3), "<pads = [1, 0, 1, 0, 1, 1]>"),
    ],
)
@pytest.mark.parametrize("group", [1, 2])
def test_windows(kernel: tuple[int, ...], window: str, group: int) -> None:
    """The integers are exact, although W has 8 bits: ONNX Runtime does not saturate uint8 weights."""
    before = convolution("t = Add(p, b)  y = Relu(t)", window, kernel=kernel, group=group)
    result = rewrite(before)
    assert result.op_types == ["DynamicQuantizedConvRelu"] and result.codes() == ["APPLIED"]
    assert_same_outputs(before, result.proto, data(*(13, 17, 7)[: len(kernel)]))
    assert rewrite(result.proto).proto == result.proto


@pytest.mark.parametrize("width", [1, 2, 3, 5])
def test_depthwise_windows(width: int) -> None:
    before = convolution(
        window="<pads = [1, 0, 1, 0]>",
        group=C,
        kernel=(3, width),
        w=RNG.integers(0, 256, (M // 5 * C, 1, 3, width)).astype(np.uint8),
        ws=np.float32(0.01),
    )
    before.graph.output[0].type.tensor_type.shape.dim[1].dim_value = M // 5 * C
    result = rewrite(before)
    assert result.op_types == ["DynamicQuantizedConv", "Identity"]
    assert_same_outputs(before, result.proto, data(9, 21))


@pytest.mark.parametrize(
    ("tail", "operators"),
    [
        ("y = Identity(p)", ["DynamicQuantizedConv", "Identity"]),
        ("t = Add(b, p)  y = LeakyRelu<alpha = 0.1>(t)", ["DynamicQuantizedConvLeakyRelu"]),
        ("t = Add(p, b)  g = Sigmoid(t)  y = Mul(t, g)", ["DynamicQuantizedConvSilu"]),
        ("t = Add(p, b)  y = Softplus(t)", ["DynamicQuantizedConv", "Softplus"]),
        ("t = Add(p, b)  a = Relu(t)  y = Add(a, t)", ["DynamicQuantizedConv", "Relu", "Add"]),
        # A residual sum is no bias.
        ("r = Tanh(p)  y = Add(p, r)", ["DynamicQuantizedConv", "Tanh", "Add"]),
    ],
)
def test_nodes_around(tail: str, operators: list[str]) -> None:
    before = convolution(tail)
    result = rewrite(before)
    assert result.op_types == operators
    assert_same_outputs(before, result.proto, data(9, 8))


@pytest.mark.parametrize(
    "changed",
    [
        {"ws": np.float32(0.03)},
        {"ws": np.full((1,), 0.1, np.float32)},
        {"ws": RNG.uniform(0.001, 0.1, (1, M, 1, 1)).astype(np.float32)},
        {"b": RNG.normal(size=(M, 1, 1)).astype(np.float32)},
        {"b": np.array(0.5, np.float32)},
        {"wz": np.array([7], np.uint8)},
        {"inputs": "q, w, z"},
    ],
    ids=lambda changed: " ".join(changed),
)
def test_parameters(changed: dict[str, Any]) -> None:
    before = convolution("t = Add(p, b)  y = Tanh(t)", **changed)
    result = rewrite(before)
    assert result.op_types == ["DynamicQuantizedConvTanh"]
    assert_same_outputs(before, result.proto, data(9, 8))


def test_int8_weights_are_the_same_integers() -> None:
    """ONNX Runtime 1.22 has no kernel for int8 weights, so the expected outputs are of uint8 weights."""
    w = RNG.integers(-128, 128, (M, C, 3, 3))
    ws = np.float32(0.02)
    signed = convolution(w=w.astype(np.int8), wz=np.int8(-9), ws=ws)
    same = convolution(w=(w + 128).astype(np.uint8), wz=np.uint8(119), ws=ws)
    result = rewrite(signed)
    assert result.op_types == ["DynamicQuantizedConv", "Identity"]
    assert_same_outputs(same, result.proto, data(9, 8))


@pytest.mark.parametrize("value", [0.0, -2.5, 3e38])
def test_constant_input(value: float) -> None:
    before = convolution(ws=np.float32(1e-3))
    result = rewrite(before)
    assert_same_outputs(before, result.proto, {"x": np.full((1, C, 5, 6), value, np.float32)}, tolerance=1e-4)


def test_the_quantized_input_is_kept_for_another_reader() -> None:
    before = convolution(outputs=f", uint8[B, {C}, H, W] q")
    result = rewrite(before)
    assert result.op_types == ["DynamicQuantizeLinear", "DynamicQuantizedConv", "Identity"]
    assert_same_outputs(before, result.proto, data(9, 8))


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ({"window": "<pads = [-1, 0, 0, 0]>", "b": np.float32(1)}, "ATTRIBUTE"),
        ({"window": '<auto_pad = "SAME_UPPER", strides = [2, 2]>'}, "ATTRIBUTE"),
        ({"wz": RNG.integers(0, 256, M).astype(np.uint8)}, "PER_CHANNEL_SCALE"),
        ({"ws": np.ones((6,), np.float32)}, "WRONG_SHAPE"),
        ({"b": np.ones((5, 6), np.float32)}, "WRONG_SHAPE"),
    ],
)
def test_refused(arguments: dict[str, Any], code: str) -> None:
    result = rewrite(convolution("t = Add(p, b)  y = Tanh(t)", **arguments))
    assert "ConvInteger" in result.op_types and result.codes() == [code]


@pytest.mark.parametrize("name", ["w", "wz", "ws"])
@pytest.mark.parametrize("code", ["NOT_CONSTANT", "OVERRIDABLE"])
def test_parameters_that_are_inputs(name: str, code: str) -> None:
    declared = {"w": f", uint8[{M}, {C}, 3, 3] w", "wz": ", uint8 wz", "ws": f", float[{M}, 1, 1] ws"}[name]
    before = convolution("t = Add(p, b)  y = Relu(t)", declared=declared)
    if code == "NOT_CONSTANT":
        kept = [tensor for tensor in before.graph.initializer if tensor.name != name]
        del before.graph.initializer[:]
        before.graph.initializer.extend(kept)
    assert rewrite(before).codes() == [code]


def test_rank_of_the_weight() -> None:
    w = RNG.integers(0, 256, (M, C, 1, 1, 1, 1)).astype(np.uint8)
    before = convolution(window="", kernel=(1, 1), w=w)
    del before.graph.input[0].type.tensor_type.shape.dim[:]
    del before.graph.output[0].type.tensor_type.shape.dim[:]
    for value in (before.graph.input[0], before.graph.output[0]):
        value.type.tensor_type.ClearField("shape")
    assert rewrite(before).codes() == ["WRONG_RANK"]


def test_a_layer_in_two_graphs() -> None:
    inner = f"g1 () => (float[B, {M}, P, Q] y1) {{ c = Cast<to = 1>(m)  u = Mul(s, ws)  y1 = Mul(c, u) }}"
    other = "g2 () => (float[1, 1, 1, 1] y2) { y2 = Constant<value = float[1, 1, 1, 1] {0.0}>() }"
    body = f"""q, s, z = DynamicQuantizeLinear(x)  m = ConvInteger(q, w, z)
               y = If(k) <then_branch = {inner}, else_branch = {other}>"""
    text = f"g (float[B, {C}, H, W] x, bool k) => (float[P, Q, R, S] y) {{ {body} }}"
    before = model_from_text(text, {"w": np.ones((M, C, 3, 3), np.uint8), "ws": np.float32(0.1)})
    assert rewrite(before).codes() == ["ESCAPES"]


def test_gpus_keep_the_convolution() -> None:
    assert rewrite(convolution(), device="cuda").codes() == []


@pytest.mark.parametrize(
    ("window", "kernel", "group", "size", "code"),
    [
        ("", (3, 3), 1, 30, "APPLIED"),
        ("", (3, 3), 2, 30, "APPLIED"),
        ("<strides = [2, 2]>", (3, 3), 1, 30, "NO_GAIN"),
        ("<strides = [2, 2]>", (3, 3), 2, 30, "NO_GAIN"),
        ("", (11, 11), 1, 30, "NO_GAIN"),
        ("", (11, 11), 1, 18, "APPLIED"),
        ("", (3,), 1, 100, "NO_GAIN"),
        ("", (3,), 1, 66, "APPLIED"),
    ],
)
def test_where_it_is_faster(window: str, kernel: tuple[int, ...], group: int, size: int, code: str) -> None:
    before = convolution(window=window, kernel=kernel, group=group)
    for dim in before.graph.input[0].type.tensor_type.shape.dim[2:]:
        dim.dim_value = size
    before.graph.output[0].type.tensor_type.ClearField("shape")
    assert rewrite(before, ignore_cost_model=False).codes() == [code]


@pytest.mark.once
@pytest.mark.parametrize("name", ["resnet18", "mobilenet_v2"])
def test_a_model_of_quantize_dynamic(name: str, tmp_path: Path) -> None:
    files = [str(tmp_path / name) for name in ("float.onnx", "int8.onnx", "ours.onnx")]
    onnx.save(ZOO[name](small=True), files[0])
    quantize_dynamic(files[0], files[1], weight_type=QuantType.QUInt8)
    graphopt.optimize(files[1], files[2], target="cpu", ignore_cost_model=True)
    operators = Counter(node.op_type for node in onnx.load(files[2]).graph.node)
    assert not operators["ConvInteger"] and sum(n for op, n in operators.items() if "DynamicQuantizedConv" in op) > 5
    assert graphopt.verify(files[1], files[2]).equal
