"""Convolutions that become WinogradConv, and refusals."""

from __future__ import annotations

import numpy as np
import pytest

from graphopt.passes.winograd_conv import WinogradConv
from tests.rewriting import Array, assert_same_outputs, model_from_text, rewrite

RNG = np.random.default_rng(9)


def draw(*shape: int, dtype: type = np.float32) -> Array:
    return (RNG.standard_normal(shape) / 4).astype(dtype)


@pytest.mark.parametrize(
    ("attributes", "pads"),
    [
        ("pads = [1, 1, 1, 1]", [1, 1, 1, 1]),
        ("pads = [0, 3, 2, 1], kernel_shape = [3, 3], strides = [1, 1], dilations = [1, 1], group = 1", [0, 3, 2, 1]),
        ('auto_pad = "SAME_UPPER"', [1, 1, 1, 1]),
        ('auto_pad = "SAME_LOWER"', [1, 1, 1, 1]),
        ('auto_pad = "VALID"', [0, 0, 0, 0]),
        ("kernel_shape = [3, 3]", [0, 0, 0, 0]),
    ],
)
@pytest.mark.parametrize("bias", ["", ", c", ', ""'])
@pytest.mark.parametrize("constant", [True, False])
def test_swapped(attributes: str, pads: list[int], bias: str, constant: bool) -> None:
    text = f"""g (float[N, 5, H, W] x{"" if constant else ", float[7, 5, 3, 3] W"}) => (float[N, 7, P, Q] y) {{
        y = Conv <{attributes}> (x, W{bias}) }}"""
    weights = {"c": draw(7)} if bias == ", c" else {}
    W = draw(7, 5, 3, 3)
    model = model_from_text(text, weights | ({"W": W} if constant else {}))
    after = rewrite(model, [WinogradConv()], ignore_cost_model=True)
    assert after.op_types == ["WinogradConv"]
    assert list(after.proto.graph.node[0].attribute[0].ints) == pads
    feeds = {"x": draw(2, 5, 9, 11)} | ({} if constant else {"W": W})
    assert_same_outputs(model, after.proto, feeds, 1e-3)
    assert rewrite(after.proto, [WinogradConv()], ignore_cost_model=True).proto == after.proto


def test_half_precision_without_a_cost_model() -> None:
    text = "g (float16[N, 4, 9, 9] x) => (float16[N, 4, 7, 7] y) { y = Conv (x, W) }"
    model = model_from_text(text, {"W": draw(4, 4, 3, 3, dtype=np.float16)})
    after = rewrite(model, [WinogradConv()], ignore_cost_model=True)
    assert after.op_types == ["WinogradConv"]
    assert_same_outputs(model, after.proto, {"x": draw(2, 4, 9, 9, dtype=np.float16)}, 2e-2)


CONV = "(float[N, 64, 56, 56] x) => (float[N, 64, P, Q] y) {{ y = Conv <{0}> (x, W) }}"


def test_the_profit_table_decides() -> None:
    model = model_from_text("g " + CONV.format("pads = [1, 1, 1, 1]"), {"W": draw(64, 64, 3, 3)})
    after = rewrite(model, [WinogradConv()])
    assert after.op_types == ["WinogradConv"]
    narrow = model_from_text("g " + CONV.format("pads = [1, 1, 1, 1]").replace("64", "3"), {"W": draw(3, 3, 3, 3)})
    assert rewrite(narrow, [WinogradConv()]).codes() == ["NO_GAIN"]
    half = model_from_text(
        "g " + CONV.format("pads = [1, 1, 1, 1]").replace("float", "float16"),
        {"W": draw(64, 64, 3, 3, dtype=np.float16)},
    )
    assert rewrite(half, [WinogradConv()]).codes() == ["NO_GAIN"]


@pytest.mark.parametrize(
    ("code", "text", "device"),
    [
        ("TARGET", CONV.format("group = 1"), "migraphx"),
        ("ATTRIBUTE", CONV.format("strides = [2, 2]"), "cpu"),
        ("ATTRIBUTE", CONV.format("dilations = [1, 2]"), "cpu"),
        ("ATTRIBUTE", CONV.format("group = 64").replace("W)", "G)"), "cpu"),
        ("ATTRIBUTE", CONV.format("pads = [1, 1, -1, 1]"), "cpu"),
        ("WRONG_DTYPE", CONV.format("group = 1").replace("float", "double").replace("W)", "D)"), "cpu"),
        ("WRONG_DTYPE", CONV.format("group = 1").replace("float[N, 64", "uint8[N, 64", 1), "cpu"),
        (
            "QUANTIZED",
            CONV.format("group = 1").replace("y =", "Z = DequantizeLinear(q, s)\n y =").replace("W)", "Z)"),
            "cpu",
        ),
    ],
)
def test_refused(code: str, text: str, device: str) -> None:
    weights = {
        "W": draw(64, 64, 3, 3),
        "G": draw(64, 1, 3, 3),
        "D": draw(64, 64, 3, 3, dtype=np.float64),
        "q": RNG.integers(-128, 127, (64, 64, 3, 3)).astype(np.int8),
        "s": np.float32(0.01),
    }
    model = model_from_text(f"g {text}", weights, check=False)
    assert rewrite(model, [WinogradConv()], device=device, ignore_cost_model=True).codes() == [code]


def test_a_weight_of_unknown_shape() -> None:
    text = """g (float[N, 4, 9, 9] x, float[M, 4, 3, 3] W) => (float[N, M, 7, 7] y) {
        y = Conv <kernel_shape = [3, 3]> (x, W) }"""
    assert rewrite(model_from_text(text), [WinogradConv()], ignore_cost_model=True).codes() == ["UNKNOWN_SHAPE"]


@pytest.mark.parametrize(
    "shape", ["float[N, 4, 9] x|4, 4, 3", "float[N, 4, 9, 9] x|4, 4, 1, 1", "float[N, 4, 9, 9, 9] x|4, 4, 3, 3, 3"]
)
def test_other_kernels_are_no_candidates(shape: str) -> None:
    x, w = shape.split("|")
    model = model_from_text(
        f"g ({x}) => (float y) {{ y = Conv (x, W) }}", {"W": draw(*map(int, w.split(",")))}, check=False
    )
    assert rewrite(model, [WinogradConv()], ignore_cost_model=True).remarks == []
