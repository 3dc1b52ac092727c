"""Convolutions that become FusedConv, and refusals."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from graphopt.passes.fuse_epilogue import FuseEpilogue
from graphopt.passes.fused_conv import FusedConv
from tests.rewriting import Array, assert_same_outputs, model_from_text, rewrite

RNG = np.random.default_rng(20)


def draw(*shape: int, dtype: type = np.float32) -> Array:
    return (RNG.standard_normal(shape) / 4).astype(dtype)


@pytest.mark.parametrize(
    ("attributes", "weight", "image", "pads"),
    [
        ("pads = [1, 2, 0, 1], strides = [2, 1], dilations = [1, 2]", (7, 4, 3, 2), (2, 4, 9, 8), [1, 2, 0, 1]),
        ("group = 4, pads = [1, 1, 1, 1]", (8, 1, 3, 3), (2, 4, 6, 5), [1, 1, 1, 1]),
        ("group = 2", (6, 2, 1, 1), (1, 4, 5, 5), [0, 0, 0, 0]),
        ('auto_pad = "VALID"', (3, 4, 5), (2, 4, 11), [0, 0]),
        ('auto_pad = "SAME_UPPER"', (3, 4, 2, 4), (1, 4, 6, 7), [0, 1, 1, 2]),
        ('auto_pad = "SAME_LOWER", strides = [2, 3]', (3, 4, 4, 3), (1, 4, 7, 8), [2, 1, 1, 0]),
        ("strides = [1, 2, 1], pads = [1, 0, 1, 0, 1, 0]", (3, 4, 2, 3, 2), (2, 4, 3, 7, 4), [1, 0, 1, 0, 1, 0]),
    ],
)
@pytest.mark.parametrize("bias", ["", ", c"])
def test_becomes_ours(
    attributes: str, weight: tuple[int, ...], image: tuple[int, ...], pads: list[int], bias: str
) -> None:
    sizes, results = ", ".join(map(str, image[1:])), ", ".join(f"D{i}" for i in range(len(image) - 2))
    text = f"g (float[N, {sizes}] x) => (float[N, {weight[0]}, {results}] y) {{ y = Conv <{attributes}> (x, W{bias}) }}"
    model = model_from_text(text, {"W": draw(*weight)} | ({"c": draw(weight[0])} if bias else {}))
    after = rewrite(model, [FusedConv()], ignore_cost_model=True)
    assert after.op_types == ["FusedConv"]
    assert {a.name: list(a.ints) for a in after.proto.graph.node[0].attribute}["pads"] == pads
    assert_same_outputs(model, after.proto, {"x": draw(*image)}, 1e-5)
    assert rewrite(after.proto, [FusedConv()], ignore_cost_model=True).proto == after.proto


def test_fuses_the_sum_and_the_activation() -> None:
    text = """g (float[N, 6, 9, 9] x, float[N, 8, 5, 5] r) => (float[N, 8, 5, 5] y, float[N, 6, 9, 9] z) {
      a = Conv <strides = [2, 2], pads = [1, 1, 1, 1]> (x, W) s = Add (r, a) g = Sigmoid (s) y = Mul (s, g)
      d = Conv <group = 6, pads = [1, 1, 1, 1]> (x, D) z = HardSwish (d)
    }"""
    model = model_from_text(text, {"W": draw(8, 6, 3, 3), "D": draw(6, 1, 3, 3)})
    after = rewrite(model, [FusedConv(), FuseEpilogue()], ignore_cost_model=True)
    assert sorted(after.op_types) == ["FusedConvAddSilu", "FusedConvHardSwish"]
    assert_same_outputs(model, after.proto, {"x": draw(2, 6, 9, 9), "r": draw(2, 8, 5, 5)}, 1e-5)


@pytest.mark.parametrize(
    ("group", "weight", "op"),
    [
        (4, (8, 1, 3, 3), "FusedConv"),
        (2, (6, 2, 1, 1), "FusedConv"),
        (4, (4, 1, 3, 3), "Conv"),
        (1, (4, 4, 3, 3), "Conv"),
        (2, (16, 8, 3, 3), "FusedConv"),
        (2, (48, 16, 3, 3), "FusedConv"),
        (2, (32, 16, 3, 3), "Conv"),
        (2, (32, 8, 1, 1), "Conv"),
    ],
)
def test_is_faster_in_groups_that_are_neither_planes_nor_blocks(group: int, weight: tuple[int, ...], op: str) -> None:
    C = group * weight[1]
    text = f"g (float[N, {C}, 9, 8] x) => (float[N, {weight[0]}, H, V] y) {{ y = Conv <group = {group}> (x, W) }}"
    model = model_from_text(text, {"W": draw(*weight)})
    after = rewrite(model, [FusedConv()])
    assert after.op_types == [op]
    assert_same_outputs(model, after.proto, {"x": draw(2, C, 9, 8)}, 1e-5)


@pytest.mark.parametrize(
    ("weight", "image", "attributes", "is_faster"),
    [
        ((8, 8, 3, 3), (28, 28), "group = 1", True),
        ((1, 64, 3, 3), (28, 28), "group = 1", True),
        ((8, 3, 7, 7), (56, 56), "strides = [2, 2]", True),
        ((8, 8, 3, 39), (40, 264), "group = 1", True),
        ((8, 8, 3, 3, 3), (16, 16, 16), "group = 1", True),
        ((9, 8, 3, 3), (28, 28), "group = 1", False),
        ((8, 64, 1, 1), (28, 28), "group = 1", False),
        ((8, 16, 3, 3), (56, 56), "strides = [2, 2]", False),
        ((8, 512, 3, 3), (7, 7), "group = 1", False),
        ((32, 33, 3, 3), (28, 28), "group = 1", True),
        ((32, 36, 3, 3), (28, 28), "group = 1", False),
        ((32, 33, 1, 1), (28, 28), "group = 1", False),
        ((64, 33, 3, 3), (28, 28), "group = 1", False),
        ((32, 16, 5), (1000,), "group = 1", True),
        ((64, 16, 5), (1000,), "group = 1", False),
        ((32, 16, 5), (1000,), "strides = [2]", False),
        ((8, 8, 5), (60,), "group = 1", False),
    ],
)
def test_is_faster_where_the_runtime_runs_below_the_peak(
    weight: tuple[int, ...], image: tuple[int, ...], attributes: str, is_faster: bool
) -> None:
    """Few output channels, or channels outside the runtime's NCHWc layout (docs/measurements/conv_peak_cpu.md)."""
    x, y = ", ".join(map(str, (weight[1], *image))), ", ".join(["M", *"HVD"[: len(image)]])
    text = f"g (float[1, {x}] x) => (float[1, {y}] y) {{ y = Conv <{attributes}> (x, W) }}"
    after = rewrite(model_from_text(text, {"W": draw(*weight)}), [FusedConv()])
    assert after.op_types == ["FusedConv" if is_faster else "Conv"]


def test_half_precision() -> None:
    text = "g (float16[N, 4, 9, 9] x) => (float16[N, 4, 7, 7] y) { y = Conv (x, W) }"
    model = model_from_text(text, {"W": draw(4, 4, 3, 3, dtype=np.float16)})
    after = rewrite(model, [FusedConv()], ignore_cost_model=True)
    assert after.op_types == ["FusedConv"]
    assert_same_outputs(model, after.proto, {"x": draw(2, 4, 9, 9, dtype=np.float16)}, 2e-2)


@pytest.mark.parametrize(
    ("inputs", "conv", "code"),
    [
        ("", "Conv <pads = [0, -1, 0, 0]> (x, W)", "ATTRIBUTE"),
        ("", 'Conv <auto_pad = "SAME_UPPER", strides = [2, 2]> (x, W)', "ATTRIBUTE"),  # H is unknown
        (", float[4, 4, 1, 1] F", "Conv (x, F)", "NOT_CONSTANT"),
        (", float[4, 4, K, 1] F", "Conv (x, F)", "UNKNOWN_SHAPE"),
        (", float F", "Conv (x, F)", "WRONG_RANK"),
        ("", "Conv (x, Q)", "QUANTIZED"),
        (", uint8[N, 4, H, 9] u", "Conv (u, W)", "WRONG_DTYPE"),
    ],
)
def test_convolutions_that_are_refused(inputs: str, conv: str, code: str) -> None:
    text = f"""g (float[N, 4, H, 9] x{inputs}) => (float[N, M, P, R] y) {{
      Q = DequantizeLinear (q, s)
      y = {conv}
    }}"""
    weights = {"W": draw(4, 4, 2, 2), "q": np.ones((4, 4, 1, 1), np.int8), "s": np.float32(0.5)}
    after = rewrite(model_from_text(text, weights), [FusedConv()], ignore_cost_model=True)
    assert "FusedConv" not in after.op_types
    assert [r.code for r in after.remarks] == [code]


def test_refuses_double_other_targets_and_overridable_weights() -> None:
    text = "g (double[1, 4, 5, 5] x) => (double[1, 4, 5, 5] y) { y = Conv (x, W) }"
    after = rewrite(
        model_from_text(text, {"W": draw(4, 4, 1, 1, dtype=np.float64)}), [FusedConv()], ignore_cost_model=True
    )
    assert [r.code for r in after.remarks] == ["WRONG_DTYPE"]
    text = "g (float[1, 4, 5, 5] x) => (float[1, 4, 5, 5] y) { y = Conv (x, W) }"
    model = model_from_text(text, {"W": draw(4, 4, 1, 1)})
    for device in ("portable", "migraphx", "rocm"):
        assert rewrite(model, [FusedConv()], ignore_cost_model=True, device=device).op_types == ["Conv"]
    after = rewrite(model, [FusedConv()])
    assert [r.code for r in after.remarks] == ["NO_GAIN"]
    model.graph.input.append(onnx.helper.make_tensor_value_info("W", onnx.TensorProto.FLOAT, (4, 4, 1, 1)))
    after = rewrite(model, [FusedConv()], ignore_cost_model=True)
    assert [r.code for r in after.remarks] == ["OVERRIDABLE"]
