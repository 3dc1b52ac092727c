"""Transposed convolutions that become FusedConvTranspose, and refusals."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from graphopt.passes.fuse_epilogue import FuseEpilogue
from graphopt.passes.fused_conv_transpose import FusedConvTranspose
from tests.rewriting import Array, assert_same_outputs, model_from_text, rewrite

RNG = np.random.default_rng(21)


def draw(*shape: int, dtype: type = np.float32) -> Array:
    return (RNG.standard_normal(shape) / 4).astype(dtype)


@pytest.mark.parametrize(
    ("attributes", "weight", "image", "pads"),
    [
        ("strides = [2, 2]", (4, 3, 2, 2), (2, 4, 5, 6), [0, 0, 0, 0]),
        ("strides = [2, 3], pads = [1, 0, 0, 2], dilations = [1, 2]", (4, 7, 4, 3), (2, 4, 5, 6), [1, 0, 0, 2]),
        ("group = 2, strides = [2, 2], output_padding = [1, 0]", (4, 3, 3, 3), (1, 4, 4, 5), [0, 0, 0, 0]),
        ('auto_pad = "VALID", strides = [3]', (4, 2, 5), (2, 4, 9), [0, 0]),
        ('auto_pad = "SAME_UPPER", strides = [2, 1]', (4, 2, 5, 4), (2, 4, 3, 4), [1, 1, 2, 2]),
        ('auto_pad = "SAME_LOWER", strides = [2, 1]', (4, 2, 5, 4), (2, 4, 3, 4), [2, 2, 1, 1]),
        ("output_shape = [8, 9], strides = [2, 2]", (4, 2, 3, 3), (2, 4, 4, 5), [1, 1, 0, 1]),
        ("strides = [8], pads = [4, 4]", (4, 3, 16), (2, 4, 9), [4, 4]),
        ("strides = [2, 2, 1], pads = [1, 0, 1, 0, 1, 0]", (4, 2, 3, 2, 2), (1, 4, 2, 3, 4), [1, 0, 1, 0, 1, 0]),
    ],
)
@pytest.mark.parametrize("bias", ["", ", c"])
def test_becomes_ours(
    attributes: str, weight: tuple[int, ...], image: tuple[int, ...], pads: list[int], bias: str
) -> None:
    sizes, results = ", ".join(map(str, image[1:])), ", ".join(f"D{i}" for i in range(len(image) - 2))
    M = weight[1] * (2 if "group" in attributes else 1)
    text = (
        f"g (float[N, {sizes}] x) => (float[N, {M}, {results}] y) {{ y = ConvTranspose <{attributes}> (x, W{bias}) }}"
    )
    model = model_from_text(text, {"W": draw(*weight)} | ({"c": draw(M)} if bias else {}))
    after = rewrite(model, [FusedConvTranspose()], ignore_cost_model=True)
    assert after.op_types == ["FusedConvTranspose"]
    assert all(after.proto.graph.node[0].input)
    assert {a.name: list(a.ints) for a in after.proto.graph.node[0].attribute}["pads"] == pads
    assert_same_outputs(model, after.proto, {"x": draw(*image)}, 1e-5)
    assert rewrite(after.proto, [FusedConvTranspose()], ignore_cost_model=True).proto == after.proto


@pytest.mark.parametrize(
    ("behind", "op"),
    [
        ("s = Add (t, r) y = Relu (s)", "FusedConvTransposeAddRelu"),
        ("g = Sigmoid (t) y = Mul (t, g)", "FusedConvTransposeSilu"),
        ("y = PRelu (t, slopes)", "FusedConvTransposePRelu"),
        ("s = Add (r, t) y = PRelu (s, slopes)", "FusedConvTransposeAddPRelu"),
    ],
)
def test_fuses_the_sum_and_the_activation(behind: str, op: str) -> None:
    text = f"""g (float[N, 6, 5, 7] x, float[N, 8, 10, 14] r) => (float[N, 8, 10, 14] y) {{
      t = ConvTranspose <group = 2, strides = [2, 2], pads = [1, 1, 1, 1]> (x, W, c)
      {behind}
    }}"""
    model = model_from_text(text, {"W": draw(6, 4, 4, 4), "c": draw(8), "slopes": draw(8, 1, 1)})
    after = rewrite(model, [FusedConvTranspose(), FuseEpilogue()], ignore_cost_model=True)
    assert after.op_types == [op]
    assert_same_outputs(model, after.proto, {"x": draw(2, 6, 5, 7), "r": draw(2, 8, 10, 14)}, 1e-5)


@pytest.mark.parametrize(
    ("attributes", "weight", "size", "is_faster"),
    [
        ("strides = [4, 4]", (24, 24, 4, 4), (80, 80), True),
        ("strides = [2, 2]", (24, 24, 2, 2), (150, 150), False),
        ("strides = [4, 4]", (24, 24, 4, 4), (40, 40), False),
        ("strides = [4, 4]", (24, 1, 4, 4), (400, 400), False),
        ("strides = [4, 4]", (96, 32, 4, 4), (80, 80), False),
        ("strides = [2, 2], pads = [1, 1, 1, 1]", (16, 16, 4, 4), (40, 40), True),
        ("strides = [2, 2], pads = [1, 1, 1, 1]", (32, 16, 4, 4), (40, 40), False),
        ("strides = [2, 2], pads = [1, 1, 1, 1]", (16, 16, 3, 3), (80, 80), False),
        ("strides = [2, 2], dilations = [2, 1]", (16, 16, 4, 4), (40, 40), False),
        ("strides = [2, 2], pads = [1, 1, 1, 1], group = 32", (32, 1, 4, 4), (40, 40), True),
        ("strides = [2, 2], group = 32", (32, 1, 2, 2), (40, 40), False),
        ("strides = [2, 2, 2]", (32, 16, 2, 2, 2), (16, 16, 16), True),
        ("strides = [2, 2, 2]", (64, 16, 2, 2, 2), (16, 16, 16), False),
        ("strides = [8], pads = [4, 4]", (16, 16, 16), (4000,), False),
        ("strides = [4, 4]", (24, 24, 4, 4), ("H", 150), False),
    ],
)
def test_is_faster(attributes: str, weight: tuple[int, ...], size: tuple[int | str, ...], is_faster: bool) -> None:
    M = weight[1] * (32 if "group" in attributes else 1)
    results = ", ".join(f"D{i}" for i in range(len(size)))
    text = f"""g (float[N, {weight[0]}, {", ".join(map(str, size))}] x) => (float[N, {M}, {results}] y) {{
      y = ConvTranspose <{attributes}> (x, W)
    }}"""
    after = rewrite(model_from_text(text, {"W": draw(*weight)}), [FusedConvTranspose()])
    assert after.op_types == ["FusedConvTranspose" if is_faster else "ConvTranspose"]
    assert [r.code for r in after.remarks] == ["APPLIED" if is_faster else "NO_GAIN"]


def test_is_faster_with_an_activation_after_it() -> None:
    text = """g (float[N, 24, 150, 150] x) => (float[N, 24, 300, 300] y) {
      t = ConvTranspose <strides = [2, 2]> (x, W) y = Relu (t)
    }"""
    after = rewrite(model_from_text(text, {"W": draw(24, 24, 2, 2)}), [FusedConvTranspose(), FuseEpilogue()])
    assert after.op_types == ["FusedConvTransposeRelu"]


def test_half_precision() -> None:
    text = "g (float16[N, 4, 9, 9] x) => (float16[N, 3, 18, 18] y) { y = ConvTranspose <strides = [2, 2]> (x, W) }"
    model = model_from_text(text, {"W": draw(4, 3, 2, 2, dtype=np.float16)})
    after = rewrite(model, [FusedConvTranspose()], ignore_cost_model=True)
    assert after.op_types == ["FusedConvTranspose"]
    assert_same_outputs(model, after.proto, {"x": draw(2, 4, 9, 9, dtype=np.float16)}, 2e-2)


@pytest.mark.parametrize(
    ("inputs", "conv", "code"),
    [
        ("", "ConvTranspose <pads = [0, -1, 0, 0]> (x, W)", "ATTRIBUTE"),
        ("", "ConvTranspose <output_padding = [0, -1]> (x, W)", "ATTRIBUTE"),
        ("", "ConvTranspose <output_shape = [8, 9], strides = [2, 2]> (x, W)", "ATTRIBUTE"),  # H is unknown
        ("", "ConvTranspose <output_shape = [8]> (x, W)", "ATTRIBUTE"),
        ("", 'ConvTranspose <auto_pad = "SAME_UPPER", strides = [3, 1]> (x, W)', "ATTRIBUTE"),  # gaps
        ("", 'ConvTranspose <auto_pad = "SAME_UPPER", pads = [0, 0, 0, 0]> (x, W)', "ATTRIBUTE"),
        ("", "ConvTranspose <group = 3> (x, W)", "WRONG_SHAPE"),
        (", float[4, 4, 1, 1] F", "ConvTranspose (x, F)", "NOT_CONSTANT"),
        (", float[4, 4, K, 1] F", "ConvTranspose (x, F)", "UNKNOWN_SHAPE"),
        (", float F", "ConvTranspose (x, F)", "WRONG_RANK"),
        ("", "ConvTranspose (x, Q)", "QUANTIZED"),
    ],
)
def test_convolutions_that_are_refused(inputs: str, conv: str, code: str) -> None:
    text = f"""g (float[N, 4, H, 9] x{inputs}) => (float[N, M, P, R] y) {{
      Q = DequantizeLinear (q, s)
      y = {conv}
    }}"""
    weights = {"W": draw(4, 4, 2, 2), "q": np.ones((4, 4, 1, 1), np.int8), "s": np.float32(0.5)}
    after = rewrite(model_from_text(text, weights), [FusedConvTranspose()], ignore_cost_model=True)
    assert "FusedConvTranspose" not in after.op_types
    assert [r.code for r in after.remarks] == [code]


def test_refuses_double_other_targets_and_overridable_weights() -> None:
    text = "g (double[1, 4, 5, 5] x) => (double[1, 4, 5, 5] y) { y = ConvTranspose (x, W) }"
    model = model_from_text(text, {"W": draw(4, 4, 1, 1, dtype=np.float64)})
    after = rewrite(model, [FusedConvTranspose()], ignore_cost_model=True)
    assert [r.code for r in after.remarks] == ["WRONG_DTYPE"]
    text = "g (float[1, 4, 5, 5] x) => (float[1, 4, 5, 5] y) { y = ConvTranspose (x, W) }"
    model = model_from_text(text, {"W": draw(4, 4, 1, 1)})
    for device in ("portable", "migraphx", "rocm"):
        assert rewrite(model, [FusedConvTranspose()], ignore_cost_model=True, device=device).op_types == [
            "ConvTranspose"
        ]
    model.graph.input.append(onnx.helper.make_tensor_value_info("W", onnx.TensorProto.FLOAT, (4, 4, 1, 1)))
    after = rewrite(model, [FusedConvTranspose()], ignore_cost_model=True)
    assert [r.code for r in after.remarks] == ["OVERRIDABLE"]
