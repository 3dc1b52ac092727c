"""A MaxPool after an operator of ours becomes MaxPoolPlanes; and refusals."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from graphopt import optimize
from graphopt.passes.pool_planes import PoolPlanes
from graphopt.passes.scale_shift import ScaleShift
from tests.rewriting import Array, assert_same_outputs, model_from_text, rewrite

RNG = np.random.default_rng(21)
WINDOW = "kernel_shape = [2, 2], strides = [2, 2]"


def draw(*shape: int) -> Array:
    return RNG.standard_normal(shape).astype(np.float32)


def pool(window: str = WINDOW, T: str = "float", producer: str = "b = Mul(x, s) a = Add(b, s)") -> onnx.ModelProto:
    text = f"g ({T}[N, 3, H, W] x) => ({T}[N, 3, K, L] y) {{ {producer} y = MaxPool <{window}> (a) }}"
    dtype = {"float": np.float32, "float16": np.float16}[T]
    return model_from_text(text, {"s": draw(3, 1, 1).astype(dtype)})


@pytest.mark.parametrize(
    "shape", [(2, 3, 8, 34), (1, 3, 7, 70), (1, 3, 2, 2), (1, 3, 3, 3), (0, 3, 4, 4), (1, 3, 5, 9)]
)
@pytest.mark.parametrize("window", [WINDOW, f"{WINDOW}, pads = [0, 0, 0, 0], dilations = [1, 1], ceil_mode = 0"])
def test_pools_after_our_operators_are_rewritten(shape: tuple[int, ...], window: str) -> None:
    model = pool(window)
    result = rewrite(model, [ScaleShift(), PoolPlanes()])
    assert result.op_types == ["ScaleShift", "MaxPoolPlanes"]
    assert_same_outputs(model, result.proto, {"x": draw(*shape)})


def test_between_winograd_convolutions() -> None:
    text = """g (float[1, 64, 40, 40] x) => (float[1, 64, 20, 20] y) {
      a = Conv <pads = [1, 1, 1, 1]> (x, V) b = Relu(a)
      c = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (b) y = Conv <pads = [1, 1, 1, 1]> (c, W)
    }"""
    model = model_from_text(text, {name: draw(64, 64, 3, 3) / 24 for name in ("V", "W")})
    after, _ = optimize(model, target="cpu")
    assert [n.op_type for n in after.graph.node] == ["WinogradConvRelu", "MaxPoolPlanes", "WinogradConv"]
    again, _ = optimize(after, target="cpu")
    assert again == after
    assert_same_outputs(model, after, {"x": draw(1, 64, 40, 40)}, tolerance=1e-4)


@pytest.mark.parametrize(
    "window",
    [
        "kernel_shape = [3, 3], strides = [2, 2]",
        "kernel_shape = [2, 2]",
        "kernel_shape = [2, 2], strides = [2, 1]",
        f"{WINDOW}, pads = [0, 0, 1, 1]",
        f"{WINDOW}, dilations = [2, 1]",
        f"{WINDOW}, ceil_mode = 1",
        f'{WINDOW}, auto_pad = "SAME_UPPER"',
    ],
)
def test_other_windows_are_kept(window: str) -> None:
    assert rewrite(pool(window), [ScaleShift(), PoolPlanes()]).op_types == ["ScaleShift", "MaxPool"]


def test_pools_after_other_operators_are_kept() -> None:
    assert rewrite(pool(producer="a = Mul(x, s)"), [PoolPlanes()]).op_types == ["Mul", "MaxPool"]
    assert rewrite(pool(), [ScaleShift(), PoolPlanes()], device="rocm").op_types[-1] == "MaxPool"


def test_half_precision_is_refused() -> None:
    assert rewrite(pool(T="float16"), [ScaleShift(), PoolPlanes()]).codes() == ["APPLIED", "WRONG_DTYPE"]
