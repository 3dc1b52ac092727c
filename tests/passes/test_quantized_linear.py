"""Layers as quantize_dynamic writes them: forms of the parameters, activations, other readers, refusals."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnxruntime.quantization import QuantType, quantize_dynamic

import graphopt
from graphopt.passes.quantized_linear import QuantizedLinear
from models import ZOO
from tests import rewriting
from tests.rewriting import Array, Rewritten, assert_same_outputs, model_from_text

RNG = np.random.default_rng(50)
K, N = 24, 10
X = {"x": RNG.normal(size=(2, 3, K)).astype(np.float32)}
QUANTIZE = "q, s, z = DynamicQuantizeLinear(x)  "
LAYER = "m = MatMulInteger(q, w, z, wz)  c = Cast<to = 1>(m)  u = Mul(s, ws)  "
BIASED = LAYER + "p = Mul(c, u)  t = Add(p, b)  "


def rewrite(
    before: onnx.ModelProto, *, device: str = "cpu", ignore_cost_model: bool = True, vnni: bool = True
) -> Rewritten:
    """Most layers of this file are too small to pay."""
    passes = [QuantizedLinear()]
    return rewriting.rewrite(before, passes, device=device, ignore_cost_model=ignore_cost_model, vnni=vnni)


def weights(byte: str = "int8", columns: tuple[int, ...] = (N,)) -> dict[str, Array]:
    """Weights of 7 bits, for which no kernel of a runtime saturates."""
    middle = 0 if byte == "int8" else 128
    return {
        "w": (RNG.integers(-64, 65, (K, N)) + middle).astype(byte),
        "wz": (RNG.integers(-5, 6, columns) + middle).astype(byte),
        "ws": RNG.uniform(0.001, 0.1, columns).astype(np.float32),
        "b": RNG.normal(size=N).astype(np.float32),
    }


def model(body: str, parameters: dict[str, Array] | None = None, *, y: str = f"float[B, 3, {N}] y") -> onnx.ModelProto:
    parameters = weights() if parameters is None else parameters
    used = {name: array for name, array in parameters.items() if f"{name})" in body or f"{name}," in body}
    return model_from_text(f"g (float[B, 3, {K}] x) => ({y}) {{ {QUANTIZE} {body} }}", used)


@pytest.mark.parametrize("byte", ["int8", "uint8"])
@pytest.mark.parametrize("columns", [(), (1,), (N,)])
def test_scales_and_zero_points(byte: str, columns: tuple[int, ...]) -> None:
    before = model(BIASED + "y = Identity(t)", weights(byte, columns))
    result = rewrite(before)
    assert result.op_types == ["QuantizedLinear", "Identity"] and result.codes() == ["APPLIED"]
    assert_same_outputs(before, result.proto, X)
    assert rewrite(result.proto).proto == result.proto


@pytest.mark.parametrize("shape", [(), (1,), (N,), (1, 1, N)])
def test_shapes_of_a_bias(shape: tuple[int, ...]) -> None:
    before = model(LAYER + "p = Mul(u, c)  y = Add(b, p)", {**weights(), "b": RNG.normal(size=shape).astype("f")})
    result = rewrite(before)
    assert result.op_types == ["QuantizedLinear"]
    assert_same_outputs(before, result.proto, X)


@pytest.mark.parametrize(
    ("body", "operators"),
    [
        (LAYER + "y = Mul(c, u)", ["QuantizedLinear"]),
        (LAYER.replace(", wz", "") + "y = Mul(c, u)", ["QuantizedLinear"]),
        (BIASED + "y = Relu(t)", ["QuantizedLinearRelu"]),
        (BIASED + "g = Sigmoid(t)  y = Mul(t, g)", ["QuantizedLinearSilu"]),
        (BIASED + "y = Tanh(t)", ["QuantizedLinear", "Tanh"]),
        (BIASED + "a = Relu(t)  y = Add(a, t)", ["QuantizedLinear", "Relu", "Add"]),
        # A residual sum is no bias.
        (LAYER + "p = Mul(c, u)  r = Tanh(p)  y = Add(p, r)", ["QuantizedLinear", "Tanh", "Add"]),
    ],
)
def test_nodes_around(body: str, operators: list[str]) -> None:
    before = model(body)
    result = rewrite(before)
    assert result.op_types == operators
    assert_same_outputs(before, result.proto, X)


def test_layers_of_one_quantized_input() -> None:
    """Both layers are rewritten; the quantized input is kept for its other reader, the output q."""
    second = LAYER
    for name in "mcu":
        second = second.replace(f"{name} =", f"{name}2 =").replace(f"({name})", f"({name}2)")
    body = LAYER + "y = Mul(c, u)  " + second + "y2 = Mul(c2, u2)"
    for outputs, operators in (
        (f"float[B, 3, {N}] y, float[B, 3, {N}] y2", ["QuantizedLinear"] * 2),
        (
            f"float[B, 3, {N}] y, float[B, 3, {N}] y2, uint8[B, 3, {K}] q",
            ["DynamicQuantizeLinear", *["QuantizedLinear"] * 2],
        ),
    ):
        before = model(body, y=outputs)
        result = rewrite(before)
        assert result.op_types == operators
        assert_same_outputs(before, result.proto, X)


@pytest.mark.parametrize("value", [0.0, -2.5, 3e38])
def test_constant_input(value: float) -> None:
    before = model(BIASED + "y = Identity(t)")
    result = rewrite(before)
    assert_same_outputs(before, result.proto, {"x": np.full((1, 3, K), value, np.float32)}, tolerance=1e-4)


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({"w": np.ones((2, K, N), np.int8), "wz": np.int8(0), "ws": np.float32(1)}, "WRONG_RANK"),
        ({"ws": np.ones((3, 1), np.float32)}, "WRONG_SHAPE"),
        ({"b": np.ones((3, N), np.float32)}, "WRONG_SHAPE"),
    ],
)
def test_shapes_that_do_not_fit(changed: dict[str, Array], code: str) -> None:
    x = "2, 3" if "w" in changed else "B, 3"
    used = {**weights(), **changed}
    before = model_from_text(f"g (float[{x}, {K}] x) => (float[{x}, {N}] y) {{ {QUANTIZE}{BIASED} y = Relu(t) }}", used)
    result = rewrite(before)
    assert "MatMulInteger" in result.op_types and result.codes() == [code]


@pytest.mark.parametrize("name", ["w", "wz", "ws"])
@pytest.mark.parametrize("code", ["NOT_CONSTANT", "OVERRIDABLE"])
def test_parameters_that_are_inputs(name: str, code: str) -> None:
    parameters = weights()
    declared = {"w": f"int8[{K}, {N}] w", "wz": f"int8[{N}] wz", "ws": f"float[{N}] ws"}[name]
    constants = {key: array for key, array in parameters.items() if key != name or code == "OVERRIDABLE"}
    before = model_from_text(
        f"g (float[B, 3, {K}] x, {declared}) => (float[B, 3, {N}] y) {{ {QUANTIZE}{BIASED} y = Relu(t) }}", constants
    )
    result = rewrite(before)
    assert result.codes() == [code]


def test_a_layer_in_two_graphs() -> None:
    y = f"float[B, 3, {N}]"
    inner = f"g1 () => ({y} y1) {{ c = Cast<to = 1>(m)  u = Mul(s, ws)  y1 = Mul(c, u) }}"
    other = "g2 () => (float[1, 1, 1] y2) { y2 = Constant<value = float[1, 1, 1] {0.0}>() }"
    body = f"m = MatMulInteger(q, w, z, wz)  y = If(k) <then_branch = {inner}, else_branch = {other}>"
    constants = {name: array for name, array in weights().items() if name != "b"}
    text = f"g (float[B, 3, {K}] x, bool k) => (float[P, Q, R] y) {{ {QUANTIZE} {body} }}"
    before = model_from_text(text, constants)
    assert rewrite(before).codes() == ["ESCAPES"]


@pytest.mark.parametrize(
    "body",
    [
        "m = MatMulInteger(q, w)  c = Cast<to = 1>(m)  u = Mul(s, ws)  y = Mul(c, u)",  # without the zero point of x
        LAYER + "y = Mul(c, s)",
        LAYER + "p = Mul(c, u)  h = Cast<to = 1>(m)  y = Add(p, h)",
    ],
)
def test_no_candidates(body: str) -> None:
    result = rewrite(model(body))
    assert "MatMulInteger" in result.op_types and result.codes() == []


def test_other_targets_keep_the_nodes() -> None:
    for device in ("cuda", "rocm", "portable"):
        result = rewrite(model(BIASED + "y = Relu(t)"), device=device)
        assert "MatMulInteger" in result.op_types and result.codes() == []


PIXELS = QUANTIZE + "m = ConvInteger(q, w, z, wz)  c = Cast<to = 1>(m)  u = Mul(s, ws)  p = Mul(c, u)  "


def convolution(
    tail: str, spatial: tuple[int, ...] = (5, 6), window: str = "", *, group: int = 1, taps: int = 1, **changed: Array
) -> onnx.ModelProto:
    """Returns a ConvInteger from K to N channels; its weight is uint8, because ONNX Runtime 1.22 has no int8."""
    axes, middle = len(spatial), 128
    shape = (N, K // group, *[taps] * axes)
    given = {
        "w": (RNG.integers(-64, 65, shape) + middle).astype(np.uint8),
        "wz": np.uint8(middle),
        "ws": np.float32(0.01),
        "b": RNG.normal(size=(1, N, *[1] * axes)).astype(np.float32),
    } | changed
    body = PIXELS.replace("ConvInteger", f"ConvInteger{window}") + tail
    used = {name: array for name, array in given.items() if f"{name})" in body or f"{name}," in body}
    x = ", ".join(map(str, ("B", K, *spatial)))
    model = model_from_text(f"g (float[{x}] x) => (float[{x}] y) {{ {body} }}", used)
    model.graph.output[0].type.tensor_type.ClearField("shape")
    return model


@pytest.mark.parametrize("spatial", [(7,), (5, 6), (2, 3, 4)])
@pytest.mark.parametrize(
    ("tail", "operator"),
    [
        ("y = Identity(p)", "QuantizedLinear"),
        ("t = Add(p, b)  y = Relu(t)", "QuantizedLinearRelu"),
        ("t = Add(b, p)  g = Sigmoid(t)  y = Mul(t, g)", "QuantizedLinearSilu"),
    ],
)
def test_convolutions_of_one_pixel(spatial: tuple[int, ...], tail: str, operator: str) -> None:
    before = convolution(tail, spatial)
    result = rewrite(before)
    assert result.op_types[:3] == ["Transpose", operator, "Transpose"] and result.codes() == ["APPLIED"]
    assert_same_outputs(before, result.proto, {"x": RNG.normal(size=(2, K, *spatial)).astype(np.float32)})
    assert rewrite(result.proto).proto == result.proto


@pytest.mark.parametrize(
    "changed",
    [
        {"ws": RNG.uniform(0.001, 0.1, (N, 1, 1)).astype(np.float32)},
        {"ws": RNG.uniform(0.001, 0.1, (1, N, 1, 1)).astype(np.float32)},
        {"ws": np.full((1,), 0.1, np.float32)},
        {"b": RNG.normal(size=(N, 1, 1)).astype(np.float32)},
        {"b": np.array(0.5, np.float32)},
        {"b": np.full((1, 1), 0.5, np.float32)},
    ],
    ids=lambda changed: "".join(f"{name} {array.shape}" for name, array in changed.items()),
)
def test_parameters_of_channels(changed: dict[str, Any]) -> None:
    before = convolution("t = Add(p, b)  y = Tanh(t)", **changed)
    result = rewrite(before)
    assert result.op_types == ["Transpose", "QuantizedLinear", "Transpose", "Tanh"]
    assert_same_outputs(before, result.proto, {"x": RNG.normal(size=(2, K, 5, 6)).astype(np.float32)})


@pytest.mark.parametrize("byte", ["int8", "uint8"])
def test_zero_points_of_channels(byte: str) -> None:
    """ONNX Runtime has one zero point for all channels, and 1.22 no int8, so numpy computes the sums."""
    middle = 0 if byte == "int8" else 128
    w, zero = (RNG.integers(-low, low, shape) + middle for low, shape in ((100, (N, K, 1, 1)), (20, N)))
    before = convolution("y = Identity(p)", w=w.astype(byte), wz=zero.astype(byte))
    result = rewrite(before)
    x = RNG.normal(size=(2, K, 5, 6)).astype(np.float32)
    low, high = min(x.min(), 0), max(x.max(), 0)
    scale = np.float32(high - low) / np.float32(255)
    q = np.rint(x / scale).astype(np.int64)
    named = {tensor.name: onnx.numpy_helper.to_array(tensor).astype(np.int64) for tensor in before.graph.initializer}
    sums = np.einsum("nchw,mc->nmhw", q, named["w"][..., 0, 0] - named["wz"][:, None])
    (y,) = rewriting.run(result.proto, {"x": x}, library=True)
    # A quantized element may differ by one, where x / scale is near the middle of two integers.
    np.testing.assert_allclose(y, sums * (np.float64(scale) * np.float32(0.01)), rtol=1e-5, atol=1e-4)


def test_adjacent_convolutions_have_no_transposes_between() -> None:
    second = PIXELS.replace("DynamicQuantizeLinear(x)", "DynamicQuantizeLinear(h)")
    for name in "qszmcup":
        second = (
            second.replace(f"{name} =", f"{name}2 =").replace(f"({name}", f"({name}2").replace(f"{name},", f"{name}2,")
        )
    second = second.replace(", z,", ", z2,").replace("c2, u)", "c2, u2)")
    before = convolution("h = Relu(p)  " + second + " y = Identity(p2)", w=np.full((K, K, 1, 1), 129, np.uint8))
    result = rewrite(before)
    assert Counter(result.op_types)["Transpose"] == 2
    assert_same_outputs(before, result.proto, {"x": RNG.normal(size=(2, K, 5, 6)).astype(np.float32)})


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ({"taps": 3}, "WRONG_SHAPE"),
        ({"window": "<strides = [2, 1]>"}, "ATTRIBUTE"),
        ({"window": "<pads = [0, 0, 1, 0]>"}, "ATTRIBUTE"),
        ({"window": "<group = 2>", "group": 2}, "ATTRIBUTE"),
        ({"ws": np.ones((6,), np.float32)}, "WRONG_SHAPE"),
        ({"b": np.ones((5, 6), np.float32)}, "WRONG_SHAPE"),
        ({"b": np.ones((1, 1, N, 1, 1), np.float32)}, "WRONG_SHAPE"),
    ],
)
def test_refused_convolutions(arguments: dict[str, Any], code: str) -> None:
    result = rewrite(convolution("t = Add(p, b)  y = Tanh(t)", **arguments))
    assert "ConvInteger" in result.op_types and result.codes() == [code]


@pytest.mark.parametrize(
    ("spatial", "byte", "code"),
    [
        ((4, 4), "uint8", "APPLIED"),
        ((17,), "uint8", "NO_GAIN"),
        ((17,), "int8", "NO_GAIN"),
        ((1, 1), "int8", "APPLIED"),
    ],
)
def test_convolutions_pay_with_few_pixels(spatial: tuple[int, ...], byte: str, code: str) -> None:
    w = np.ones((N, K, *[1] * len(spatial)), byte)
    before = convolution("y = Identity(p)", spatial, w=w, wz=np.zeros((), byte))
    before.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 1
    assert rewrite(before, ignore_cost_model=False).codes() == [code]


@pytest.mark.parametrize(
    ("rows", "columns", "code"),
    [("17", 2000, "NO_GAIN"), ("R", 40, "NO_GAIN"), ("16", 40, "APPLIED"), ("R", 2000, "NO_GAIN")],
)
def test_is_faster_with_few_rows(rows: str, columns: int, code: str) -> None:
    constants = {"w": np.ones((K, columns), np.int8), "wz": np.int8(0), "ws": np.float32(1)}
    text = f"g (float[{rows}, {K}] x) => (float[{rows}, {columns}] y) {{ {QUANTIZE}{LAYER} y = Mul(c, u) }}"
    assert rewrite(model_from_text(text, constants), ignore_cost_model=False).codes() == [code]


@pytest.mark.parametrize("vnni", [True, False])
@pytest.mark.parametrize(
    ("rows", "body", "is_faster_without_vnni"),
    [
        (1, "y = Mul(c, u)", False),
        (2, "p = Mul(c, u)  y = Add(p, b)", False),
        (3, "y = Mul(c, u)", True),
        (16, "y = Mul(c, u)", True),
        (1, "p = Mul(c, u)  y = Relu(p)", False),
        (4, "p = Mul(c, u)  y = Relu(p)", True),
        (1, "p = Mul(c, u)  n = MatMulInteger(q, w, z, wz)  d = Cast<to = 1>(n)  y = Add(p, d)", True),
    ],
)
def test_few_rows_without_vnni(vnni: bool, rows: int, body: str, is_faster_without_vnni: bool) -> None:
    """The runtime has one kernel for a layer if no other node reads the quantized X."""
    constants = {"w": np.ones((K, 40), np.int8), "wz": np.int8(0), "ws": np.float32(1), "b": np.ones(40, np.float32)}
    used = {name: array for name, array in constants.items() if name != "b" or "b)" in body}
    model = model_from_text(f"g (float[{rows}, {K}] x) => (float[{rows}, 40] y) {{ {QUANTIZE}{LAYER} {body} }}", used)
    codes = rewrite(model, ignore_cost_model=False, vnni=vnni).codes()
    assert codes == ["APPLIED" if vnni or is_faster_without_vnni else "NO_GAIN"]


@pytest.mark.parametrize(("rows", "code"), [("17", "APPLIED"), ("1000", "APPLIED"), ("R", "NO_GAIN")])
def test_many_rows_without_vnni(rows: str, code: str) -> None:
    constants = {"w": np.ones((K, 40), np.int8), "wz": np.int8(0), "ws": np.float32(1)}
    text = f"g (float[{rows}, {K}] x) => (float[{rows}, 40] y) {{ {QUANTIZE}{LAYER} y = Mul(c, u) }}"
    assert rewrite(model_from_text(text, constants), ignore_cost_model=False, vnni=False).codes() == [code]


@pytest.mark.parametrize(
    ("word", "in_words", "is_small"),
    [
        ([127, 0, 0, 0, 1, 0, 0, 0], 1, True),  # 128 * 255 is the largest sum
        ([127, 0, 0, 0, 2, 0, 0, 0], 1, False),
        ([127, 0, 0, 0, 0, 0, 2, 0], 1, True),  # another pair
        ([127, 0, 0, 0, -2, 0, 0, 0], 1, True),
        ([-127, -1, 0, 0, 0, 0, 0, 0], 1, True),
        ([-127, -1, 0, 0, -1, 0, 0, 0], 1, False),
        ([127, 0, 0, 0, 2, 0, 0, 0], 250, True),  # one large word of 500
        ([127, 0, 0, 0, 2, 0, 0, 0], 249, False),
        ([127, 127, 0, 0, 127, 127, 0, 0], 250, False),  # two large words of 500
    ],
)
@pytest.mark.parametrize("byte", ["int8", "uint8"])
def test_large_weights_without_vnni(word: list[int], in_words: int, is_small: bool, byte: str) -> None:
    """One of `in_words` pairs of words of each column is `word`, and the others are 0."""
    middle = 0 if byte == "int8" else 128
    w = np.zeros((8 * in_words, 16), np.int64)
    w[:8] = np.array(word)[:, None]
    constants = {"w": (w + middle).astype(byte), "wz": np.array(middle, byte), "ws": np.float32(1)}
    text = f"g (float[8, {len(w)}] x) => (float[8, 16] y) {{ {QUANTIZE}{LAYER} y = Mul(c, u) }}"
    result = rewrite(model_from_text(text, constants), ignore_cost_model=False, vnni=False)
    assert result.codes() == ["APPLIED" if is_small else "NO_GAIN"]
    assert rewrite(model_from_text(text, constants), ignore_cost_model=False).codes() == ["APPLIED"]


@pytest.mark.once
def test_a_model_of_quantize_dynamic(tmp_path: Path) -> None:
    """Weights of 7 bits, because ONNX Runtime saturates sums of larger ones on processors without VNNI."""
    files = [str(tmp_path / name) for name in ("float.onnx", "int8.onnx", "ours.onnx")]
    onnx.save(ZOO["bert"](small=True), files[0])
    quantize_dynamic(files[0], files[1], weight_type=QuantType.QInt8, per_channel=True, reduce_range=True)
    graphopt.optimize(files[1], files[2], target="cpu", ignore_cost_model=True)
    operators = Counter(node.op_type for node in onnx.load(files[2]).graph.node)
    assert operators["QuantizedLinear"] == 11 and operators["QuantizedLinearGelu"] == 2
    assert not operators["MatMulInteger"] and not operators["DynamicQuantizeLinear"]
    assert graphopt.verify(files[1], files[2]).equal
