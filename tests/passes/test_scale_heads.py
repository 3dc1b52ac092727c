"""A factor for each head before a softmax: Swin v2 as exported, and refusals."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from graphopt import optimize
from graphopt.passes.fuse_attention import FuseAttention
from graphopt.passes.scale_heads import ScaleHeads
from tests.rewriting import Array, assert_same_outputs, model_from_text, rewrite

RNG = np.random.default_rng(8)
FOLDER = Path(__file__).parent / "exported"


def draw(*shape: int) -> Array:
    return RNG.standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("target", ["cpu", "rocm"])
@pytest.mark.parametrize("exporter", ["torchscript", "dynamo"])
@pytest.mark.parametrize("model", ["swin", "swinv2"])
def test_windows_of_swin(model: str, exporter: str, target: str) -> None:
    before = onnx.load(FOLDER / f"{model}-{exporter}.onnx")
    after, _ = optimize(before, target=target)
    ops = [n.op_type for n in after.graph.node]
    assert "FusedAttentionBias" in ops and "Softmax" not in ops
    assert_same_outputs(before, after, {before.graph.input[0].name: draw(2, 64, 16)}, tolerance=5e-5)


def attention(factor: str, middle: str = "s = Mul(p, c)", T: str = "float") -> onnx.ModelProto:
    text = f"""g ({T}[B, 4, S, 8] q, {T}[B, 4, 8, S] k, {T}[B, 4, S, 8] v, {T}[{factor}] c) => ({T} y) {{
        p = MatMul(q, k)
        {middle}
        w = Softmax <axis: int = -1> (s)
        y = MatMul(w, v) }}"""
    model = model_from_text(text, check=False)
    model.graph.output[0].type.tensor_type.ClearField("shape")
    return model


@pytest.mark.parametrize(
    ("factor", "shape"),
    [("4, 1, 1", (4, 1, 1)), ("1, 4, 1, 1", (1, 4, 1, 1)), ("B, 1, 1, 1", (2, 1, 1, 1)), ("1", (1,))],
)
def test_a_computed_factor_of_each_head(factor: str, shape: tuple[int, ...]) -> None:
    model = attention(factor)
    result = rewrite(model, [ScaleHeads(), FuseAttention()])
    assert result.op_types == ["Mul", "FusedAttention"]
    feeds = {"q": draw(2, 4, 5, 8), "k": draw(2, 4, 8, 5), "v": draw(2, 4, 5, 8), "c": draw(*shape)}
    assert_same_outputs(model, result.proto, feeds)


@pytest.mark.parametrize(
    ("factor", "middle", "T"),
    [
        ("4, 5, 1", "s = Mul(p, c)", "float"),  # per row
        ("1, 5", "s = Mul(p, c)", "float"),  # per column
        ("7, 1, 4, 1, 1", "s = Mul(p, c)", "float"),  # the factor would make Q larger
        ("B, 4, 1, 1", "s = Mul(p, c)", "float16"),
        ("4, 1, 1", "t = Mul(p, c) r = Abs(t) s = Add(t, r)", "float"),
    ],
)
def test_factors_that_are_not_moved_are_refused_by_fuse_attention(factor: str, middle: str, T: str) -> None:
    result = rewrite(attention(factor, middle, T), [ScaleHeads(), FuseAttention()])
    assert result.op_types[0] == "MatMul" and "FusedAttention" not in result.op_types
    assert not [r for r in result.remarks if r.pass_name == "scale_heads"]
    assert [r.code for r in result.remarks if r.pass_name == "fuse_attention"]


def test_a_scalar_factor_becomes_the_scale_of_attention() -> None:
    model = attention("1")
    del model.graph.input[3]
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array([0.5], np.float32), "c"))
    assert rewrite(model, [ScaleHeads(), FuseAttention()]).op_types == ["FusedAttention"]


def test_targets_without_our_operators_keep_it() -> None:
    assert rewrite(attention("4, 1, 1"), [ScaleHeads()], device="portable").remarks == []


def test_a_factor_after_a_matmul_with_a_vector_is_kept() -> None:
    """With a vector K the product is [3, 3, 5]: c is not along the heads of Q [3, 3, 5, 8]."""
    text = """g (float[3, 3, 5, 8] q, float[8] k, float[3, 1, 1] c) => (float[3, 3, 5] y) {
        p = MatMul(q, k)
        s = Mul(p, c)
        y = Softmax <axis: int = -1> (s) }"""
    assert rewrite(model_from_text(text), [ScaleHeads()]).op_types == ["MatMul", "Mul", "Softmax"]
