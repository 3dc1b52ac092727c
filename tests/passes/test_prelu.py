"""PRelu with a slope for each channel on the CPU, as exported and by hand, and refusals."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from graphopt import optimize
from graphopt.passes.prelu import PRelu
from tests.rewriting import Array, assert_same_outputs, model_from_text, rewrite, run

RNG = np.random.default_rng(9)
FOLDER = Path(__file__).parent / "exported"
OURS = ["ScaleShiftRelu", "Relu", "ScaleShiftAdd"]


def draw(*shape: int) -> Array:
    return RNG.standard_normal(shape).astype(np.float32)


def prelu(x: str = "N, 3, H, W", slope: tuple[int, ...] = (3, 1, 1), T: str = "float") -> onnx.ModelProto:
    text = f"g ({T}[{x}] x) => ({T}[{x}] y) {{ y = PRelu(x, s) }}"
    dtype = {"float": np.float32, "float16": np.float16, "double": np.float64}[T]
    return model_from_text(text, {"s": draw(*slope).astype(dtype)}, check=False)


def codes(model: onnx.ModelProto, device: str = "cpu") -> list[str]:
    result = rewrite(model, [PRelu()], device=device)
    assert "PRelu" in result.op_types
    return result.codes()


@pytest.mark.parametrize("exporter", ["torchscript", "dynamo"])
def test_prelu_after_a_convolution(exporter: str) -> None:
    model = onnx.load(FOLDER / f"prelu-{exporter}.onnx")
    after, _ = optimize(model, target="cpu")
    assert [n.op_type for n in after.graph.node] == ["WinogradConvPRelu", "Conv"]
    assert_same_outputs(model, after, {"x": draw(2, 32, 28, 28)}, tolerance=1e-4)
    after, _ = optimize(model, target="cpu", skip=["fuse_epilogue"])
    assert [n.op_type for n in after.graph.node] == ["WinogradConv", *OURS, "Conv"]
    assert_same_outputs(model, after, {"x": draw(2, 32, 28, 28)}, tolerance=1e-4)


def test_prelu_after_a_convolution_in_bfloat16() -> None:
    """A bfloat16 convolution does not fuse the PRelu."""
    model = onnx.load(FOLDER / "prelu-dynamo.onnx")
    after, _ = optimize(model, target="cpu", precision="bf16")
    assert [n.op_type for n in after.graph.node] == ["FusedConvBf16", *OURS, "Conv"]
    assert_same_outputs(model, after, {"x": draw(2, 32, 28, 28)}, tolerance=2e-2)


@pytest.mark.parametrize(
    ("x", "slope", "shape"),
    [
        ("N, 3, H, W", (3, 1, 1), (2, 3, 5, 7)),
        ("N, 3, H, W", (1, 3, 1, 1), (2, 3, 1, 1)),
        ("N, 3, L", (3, 1), (2, 3, 9)),
    ],
)
def test_every_number_is_the_same(x: str, slope: tuple[int, ...], shape: tuple[int, ...]) -> None:
    model = prelu(x, slope)
    result = rewrite(model, [PRelu()])
    assert result.op_types == OURS
    feed = draw(*shape)
    feed.flat[:5] = [np.inf, -np.inf, np.nan, 0.0, -1e38]
    # The expected values follow the definition, since PRelu of onnxruntime 1.22 gives NaN for infinities.
    s = onnx.numpy_helper.to_array(model.graph.initializer[0])
    with np.errstate(over="ignore"):
        want = np.where(feed < 0, s * feed, feed)
    for library in (False, True):
        np.testing.assert_array_equal(run(result.proto, {"x": feed}, library=library)[0], want)


def test_half_precision() -> None:
    model = prelu(T="float16")
    result = rewrite(model, [PRelu()])
    assert result.op_types == OURS
    assert_same_outputs(model, result.proto, {"x": draw(2, 3, 5, 7).astype(np.float16)}, tolerance=2e-3)


def test_one_number_is_no_candidate() -> None:
    assert codes(prelu(slope=(1,))) == []


@pytest.mark.parametrize(("x", "slope"), [("N, 3, H, 5", (5,)), ("N, 3", (3,)), ("N, 3, 4, 5", (3, 4, 5))])
def test_refuses_other_slopes(x: str, slope: tuple[int, ...]) -> None:
    assert codes(prelu(x, slope)) == ["WRONG_SHAPE"]


def test_refuses_unknown_channels() -> None:
    assert codes(prelu("N, C, H, W")) == ["UNKNOWN_SHAPE"]


@pytest.mark.parametrize("number", [np.inf, np.nan])
def test_refuses_slopes_that_are_not_finite(number: float) -> None:
    """The slope is multiplied by 0 where X is positive, which would give NaN."""
    model = prelu()
    slope = draw(3, 1, 1)
    slope[1] = number
    model.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(slope, "s"))
    assert codes(model) == ["NOT_FINITE"]


def test_refuses_double() -> None:
    assert codes(prelu(T="double")) == ["WRONG_DTYPE"]


def test_refuses_a_slope_that_is_computed() -> None:
    text = "g (float[N, 3, H, W] x, float[3, 1, 1] s) => (float[N, 3, H, W] y) { y = PRelu(x, s) }"
    assert codes(model_from_text(text)) == ["NOT_CONSTANT"]
    assert codes(model_from_text(text, {"s": draw(3, 1, 1)})) == ["OVERRIDABLE"]


def test_refuses_gpus_and_targets_without_our_operators() -> None:
    assert codes(prelu(), "rocm") == ["NO_GAIN"]
    assert codes(prelu(), "portable") == ["TARGET"]


def test_no_slope() -> None:
    assert codes(model_from_text("g (float[N, 3] x) => (float[N, 3] y) { y = PRelu(x) }", check=False)) == [
        "UNSUPPORTED_OP"
    ]
