"""A Softmax over an axis before the last: every axis and shape, and refusals."""

from __future__ import annotations

import numpy as np
import pytest

from graphopt import optimize
from graphopt.passes.axis_softmax import AxisSoftmax
from tests.rewriting import Array, assert_same_outputs, model_from_text, rewrite, run

RNG = np.random.default_rng(20)


def draw(*shape: int) -> Array:
    return (RNG.standard_normal(shape) * 5).astype(np.float32)


def text(x: str, axis: int, T: str = "float") -> str:
    return f"g ({T}[{x}] x) => ({T}[{x}] y) {{ y = Softmax <axis = {axis}> (x) }}"


@pytest.mark.parametrize(
    ("x", "axis", "shape"),
    [
        ("N, 16, 4, A", 1, (2, 16, 4, 33)),
        ("N, 16, 4, A", 1, (0, 16, 4, 5)),
        ("N, C, 70", -2, (3, 5, 70)),
        ("3, 1, 16", 1, (3, 1, 16)),
        ("5, 7, 9", 0, (5, 7, 9)),
        ("2, C, 40", 1, (2, 0, 40)),
    ],
)
def test_becomes_ours(x: str, axis: int, shape: tuple[int, ...]) -> None:
    model = model_from_text(text(x, axis))
    result = rewrite(model, [AxisSoftmax()])
    assert result.op_types == ["AxisSoftmax"] and result.codes() == ["APPLIED"]
    assert rewrite(result.proto, [AxisSoftmax()]).proto == result.proto
    assert_same_outputs(model, result.proto, {"x": draw(*shape)})


def test_infinities_and_nan() -> None:
    """The expected values follow the definition: e^(x - max), divided by its sum along the axis."""
    model = model_from_text(text("1, 6, 40", 1))
    x = draw(1, 6, 40)
    x[0, :3, 1] = -np.inf
    x[0, :, 2] = -np.inf
    x[0, 4, 3], x[0, 5, 35] = np.inf, np.nan
    x[0, :, 4] = 1e30
    x[0, :, 5] = [-1e30, 0, 100, 5, -200, 3]
    with np.errstate(invalid="ignore"):
        e = np.exp(x.astype(np.float64) - x.max(axis=1, keepdims=True))
    got = run(rewrite(model, [AxisSoftmax()]).proto, {"x": x}, library=True)[0]
    np.testing.assert_allclose(got, e / e.sum(axis=1, keepdims=True), rtol=2e-6, atol=1e-37)


@pytest.mark.parametrize(
    ("x", "axis", "T", "code"),
    [
        ("2, 3, 15", 1, "float", "NO_GAIN"),
        ("2, 1000, 1, 1", 1, "float", "NO_GAIN"),
        ("2, 3, 40", 1, "float16", "WRONG_DTYPE"),
        ("2, 3, 40", 1, "double", "WRONG_DTYPE"),
    ],
)
def test_refusals(x: str, axis: int, T: str, code: str) -> None:
    assert rewrite(model_from_text(text(x, axis, T)), [AxisSoftmax()]).codes() == [code]


def test_other_targets_keep_the_softmax() -> None:
    for device in ("portable", "rocm"):
        result = rewrite(model_from_text(text("2, 3, 40", 1)), [AxisSoftmax()], device=device)
        assert result.op_types == ["Softmax"] and result.codes() == []


@pytest.mark.parametrize(("axis", "opset"), [(2, 13), (-1, 13), (1, 11)])
def test_is_no_candidate(axis: int, opset: int) -> None:
    """Neither the last axis, nor a Softmax below opset 13, which covers all axes from `axis` on."""
    result = rewrite(model_from_text(text("2, 3, 40", axis), opset=opset), [AxisSoftmax()])
    assert result.op_types == ["Softmax"] and result.codes() == []


def test_the_boxes_of_a_detector() -> None:
    """As in YOLOv8, each distance of a box is a mean over sixteen bins."""
    model = model_from_text(
        """g (float[1, 64, 50] x) => (float[1, 4, 50] y) {
             a = Reshape(x, shape) b = Transpose <perm = [0, 2, 1, 3]> (a) c = Softmax <axis = 1> (b)
             d = Conv(c, W) y = Reshape(d, sizes)
           }""",
        {
            "shape": np.array([1, 4, 16, 50]),
            "W": np.arange(16, dtype=np.float32).reshape(1, 16, 1, 1),
            "sizes": np.array([1, 4, 50]),
        },
    )
    after, _ = optimize(model, target="cpu")
    assert [n.op_type for n in after.graph.node] == ["Reshape", "Transpose", "AxisSoftmax", "Conv", "Reshape"]
    assert_same_outputs(model, after, {"x": draw(1, 64, 50)})
