"""Small linear layers over axis 1, between transpositions: every rank, exported attention, and refusals."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from graphopt import optimize
from graphopt.passes.axis_linear import AxisLinear
from tests.rewriting import Array, assert_same_outputs, model_from_text, rewrite

RNG = np.random.default_rng(31)
TO_LAST = {3: "0, 2, 1", 4: "0, 2, 3, 1", 5: "0, 2, 3, 4, 1"}
BACK = {3: "0, 2, 1", 4: "0, 3, 1, 2", 5: "0, 4, 1, 2, 3"}


def draw(*shape: int) -> Array:
    return RNG.standard_normal(shape).astype(np.float32)


def layer(
    dims: str = "B, 4, S, T",
    weight: Array | None = None,
    bias: Array | None = None,
    perms: tuple[str, str] = (TO_LAST[4], BACK[4]),
    more: str = "",
    outputs: str = "",
) -> onnx.ModelProto:
    weight = draw(4, 4) if weight is None else weight
    T = {np.dtype(np.float16): "float16", np.dtype(np.float64): "double"}.get(weight.dtype, "float")
    constants = {"w": weight} if bias is None else {"w": weight, "b": bias}
    text = f"""g ({T}[{dims}] x) => ({T} y{outputs}) {{
        t = Transpose <perm = [{perms[0]}]> (x)
        {"p = MatMul(t, w)" if bias is None else "m = MatMul(t, w) p = Add(m, b)"}
        {more}
        y = Transpose <perm = [{perms[1]}]> (p) }}"""
    model = model_from_text(text, constants, check=False)
    for output in model.graph.output:
        output.type.tensor_type.ClearField("shape")
    return model


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize(
    ("dims", "shape", "weight"),
    [
        ("B, 4, S, T", (2, 4, 7, 5), (4, 4)),
        ("B, 3, 9", (3, 3, 9), (3, 16)),
        ("2, 16, A, 3, C", (2, 16, 2, 3, 4), (16, 1)),
        ("B, 1, S, T", (0, 1, 7, 5), (1, 2)),
    ],
)
def test_becomes_a_convolution(dims: str, shape: tuple[int, ...], weight: tuple[int, int], has_bias: bool) -> None:
    rank = len(shape)
    bias = draw(weight[1]) if has_bias else None
    model = layer(dims, draw(*weight), bias, (TO_LAST[rank], BACK[rank]))
    result = rewrite(model, [AxisLinear()], device="rocm")
    assert result.op_types == ["Conv"]
    assert_same_outputs(model, result.proto, {"x": draw(*shape)})


def test_the_first_transpose_may_have_other_readers() -> None:
    model = layer(more="z = Neg(t)", outputs=", float z")
    result = rewrite(model, [AxisLinear()], device="rocm")
    assert sorted(result.op_types) == ["Conv", "Neg", "Transpose"]
    assert_same_outputs(model, result.proto, {"x": draw(2, 4, 3, 5)})


@pytest.mark.parametrize("target", ["rocm", "cuda"])
def test_talking_heads(target: str) -> None:
    """Attention of CaiT: the heads are mixed before and after the softmax."""
    text = f"""g (float[B, 4, S, 8] q, float[B, 4, 8, S] k, float[B, 4, S, 8] v) => (float[B, 4, S, 8] y) {{
        p = MatMul(q, k)  t = Transpose <perm = [{TO_LAST[4]}]> (p)  m = MatMul(t, w)  a = Add(m, b)
        u = Transpose <perm = [{BACK[4]}]> (a)  s = Softmax <axis: int = -1> (u)
        r = Transpose <perm = [{TO_LAST[4]}]> (s)  n = MatMul(r, x)  c = Add(n, d)
        z = Transpose <perm = [{BACK[4]}]> (c)  y = MatMul(z, v) }}"""
    model = model_from_text(text, {"w": draw(4, 4), "b": draw(4), "x": draw(4, 4), "d": draw(4)})
    after, _ = optimize(model, target=target)
    ops = [n.op_type for n in after.graph.node]
    assert "Transpose" not in ops and sum("Conv" in op for op in ops) == 2
    assert_same_outputs(model, after, {"q": draw(2, 4, 5, 8), "k": draw(2, 4, 8, 5), "v": draw(2, 4, 5, 8)})


@pytest.mark.parametrize(
    ("model", "code"),
    [
        (layer("B, 17, S, T", draw(17, 2)), "NO_GAIN"),
        (layer("B, 2, S, T", draw(2, 17)), "NO_GAIN"),
        (layer(weight=draw(4, 4).astype(np.float64)), "WRONG_DTYPE"),
        (layer(weight=draw(1, 4, 4)), "WRONG_RANK"),
        (layer(weight=draw(4, 3), bias=draw(1)), "WRONG_SHAPE"),
        (layer(bias=draw(5, 4)), "WRONG_SHAPE"),
        (layer(bias=draw(1, 1, 1, 1, 4)), "WRONG_SHAPE"),
    ],
)
def test_refusals(model: onnx.ModelProto, code: str) -> None:
    assert rewrite(model, [AxisLinear()], device="rocm").codes() == [code]


def test_float16_on_gpus() -> None:
    model = layer(weight=draw(4, 4).astype(np.float16))
    assert rewrite(model, [AxisLinear()], device="rocm").op_types == ["Conv"]


@pytest.mark.parametrize(
    ("model", "ops"),
    [
        (layer(perms=("0, 3, 2, 1", BACK[4])), 3),  # the axes behind axis 1 change their order
        (layer(perms=(TO_LAST[4], "0, 3, 2, 1")), 3),
        (layer(perms=("0, 2, 1, 3", BACK[4]), dims="B, S, T, 4"), 3),
        (layer(more="z = Neg(p)", outputs=", float z"), 4),  # another node reads the layer
    ],
)
def test_is_no_candidate(model: onnx.ModelProto, ops: int) -> None:
    result = rewrite(model, [AxisLinear()], device="rocm")
    assert len(result.op_types) == ops and result.codes() == []


def test_a_matrix_that_is_not_constant() -> None:
    text = f"""g (float[B, 4, S, T] x, float[4, 4] w) => (float[B, 4, S, T] y) {{
        t = Transpose <perm = [{TO_LAST[4]}]> (x)  p = MatMul(t, w)  y = Transpose <perm = [{BACK[4]}]> (p) }}"""
    assert rewrite(model_from_text(text), [AxisLinear()], device="rocm").codes() == ["NOT_CONSTANT"]
