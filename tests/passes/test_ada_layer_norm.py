"""Scale and shift per image after a LayerNorm, and refusals; test_exported_forms.py has exported models."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from graphopt.passes.ada_layer_norm import AdaLayerNorm
from graphopt.passes.fuse_row_norm import FuseRowNorm
from tests.rewriting import Array, assert_same_outputs, model_from_text, rewrite

RNG = np.random.default_rng(5)
D = 8
PASSES = [FuseRowNorm(), AdaLayerNorm()]


def draw(*shape: int) -> Array:
    return RNG.standard_normal(shape).astype(np.float32)


def modulated(
    scale: str = "N, 1, 8",
    shift: str = "N, 1, 8",
    x: str = "N, S, 8",
    more: str = "",
    outputs: str = "",
    T: str = "float",
) -> onnx.ModelProto:
    text = f"""g (float[{x}] x, {T}[{scale}] scale, {T}[{shift}] shift) => (float y {outputs}) {{
        n = LayerNormalization <axis: int = -1> (x, gamma, beta)
        a = Mul(n, scale)
        y = Add(shift, a)
        {more} }}"""
    model = model_from_text(text, {"gamma": draw(D), "beta": draw(D)}, check=False)
    model.graph.output[0].type.tensor_type.ClearField("shape")
    return model


def codes(model: onnx.ModelProto, device: str = "cpu") -> list[str]:
    result = rewrite(model, PASSES, device=device)
    assert not any("Ada" in op for op in result.op_types)
    return [r.code for r in result.remarks if r.pass_name == "ada_layer_norm"]


@pytest.mark.parametrize("device", ["cpu", "rocm"])
@pytest.mark.parametrize(
    ("x", "rows"), [("N, S, 8", (3, 1, 8)), ("N, S, 8", (1, 1, 8)), ("N, H, W, 8", (3, 1, 1, 8)), ("N, 8", (3, 8))]
)
def test_parameters_of_a_norm_join_scale_and_shift(x: str, rows: tuple[int, ...], device: str) -> None:
    dims = ", ".join(["N" if rows[0] == 3 else "1", *map(str, rows[1:])])
    model = modulated(dims, dims, x)
    result = rewrite(model, PASSES, device=device)
    assert result.op_types == ["Mul", "Add", "Mul", "FusedAdaLayerNorm"]
    shape = (*(3, 4, 5)[: len(rows) - 1], 8)
    assert_same_outputs(model, result.proto, {"x": draw(*shape), "scale": draw(*rows), "shift": draw(*rows)})


def test_no_images() -> None:
    model = modulated()
    result = rewrite(model, PASSES)
    feeds = {"x": draw(0, 4, 8), "scale": draw(0, 1, 8), "shift": draw(0, 1, 8)}
    assert_same_outputs(model, result.proto, feeds)


def test_the_sum_has_readers_in_front_of_the_scale() -> None:
    """The fused node is inserted at the norm, because Neg reads the sum before the Add of the shift."""
    text = f"""g (float[N, S, {D}] x, float[N, S, {D}] r, float[N, 1, {D}] scale, float[N, 1, {D}] shift)
               => (float[N, S, {D}] y, float[N, S, {D}] z) {{
        s = Add(x, r)
        n = LayerNormalization <axis: int = -1> (s, gamma)
        z = Neg(s)
        a = Mul(n, scale)
        y = Add(a, shift) }}"""
    model = model_from_text(text, {"gamma": draw(D)})
    result = rewrite(model, PASSES)
    assert "FusedAdaLayerNormAddSum" in result.op_types
    feeds = {"x": draw(2, 3, D), "r": draw(2, 3, D), "scale": draw(2, 1, D), "shift": draw(2, 1, D)}
    assert_same_outputs(model, result.proto, feeds)


def test_refuses_a_sum_that_the_scale_is_made_of() -> None:
    text = f"""g (float[N, S, {D}] x, float[N, S, {D}] r) => (float[N, S, {D}] y) {{
        s = Add(x, r)
        n = LayerNormalization <axis: int = -1> (s, gamma)
        m = ReduceMax <axes: ints = [1]> (s)
        a = Mul(n, m)
        y = Add(a, m) }}"""
    assert codes(model_from_text(text, {"gamma": draw(D)})) == ["ESCAPES"]


@pytest.mark.parametrize(
    ("scale", "shift", "x"),
    [
        ("N, S, 8", "N, 1, 8", "N, S, 8"),  # one scale for each row
        ("N, 1, 1", "N, 1, 8", "N, S, 8"),  # a single element
        ("1, 8", "1, 8", "N, S, 8"),  # rank 2 instead of 3
        ("N, 1, 8", "1, 1, 8", "N, S, 8"),  # a scale for each image, one shift for all
        ("2, 1, 8", "2, 1, 8", "3, S, 8"),
        ("8", "8", "8"),
    ],
)
def test_refuses_another_shape(scale: str, shift: str, x: str) -> None:
    assert codes(modulated(scale, shift, x)) == ["WRONG_SHAPE"]


def test_refuses_images_that_are_not_proven_alike() -> None:
    assert codes(modulated("M, 1, 8", "M, 1, 8")) == ["UNKNOWN_SHAPE"]


def test_refuses_scale_of_unknown_rank() -> None:
    model = modulated()
    model.graph.input[1].type.tensor_type.ClearField("shape")
    assert codes(model) == ["UNKNOWN_SHAPE"]


def test_refuses_another_type() -> None:
    model = modulated()
    for value in model.graph.input[1:]:
        value.type.tensor_type.elem_type = onnx.TensorProto.FLOAT16
    assert codes(model) == ["MIXED_DTYPE"]


def test_refuses_a_shift_in_a_branch() -> None:
    text = f"""g (float[N, S, {D}] x, float[N, 1, {D}] scale, float[N, 1, {D}] shift, bool c) => (float[N, S, {D}] y) {{
        n = LayerNormalization <axis: int = -1> (x, gamma)
        a = Mul(n, scale)
        y = If (c) <then_branch = t () => (float[N, S, {D}] p) {{ p = Add(a, shift) }},
                    else_branch = e () => (float[N, S, {D}] q) {{ q = Neg(x) }}> }}"""
    assert codes(model_from_text(text, {"gamma": draw(D)})) == ["ESCAPES"]


@pytest.mark.parametrize("more", ["z = Neg(n)", "z = Neg(a)"])
def test_a_value_that_others_read_is_no_modulation(more: str) -> None:
    assert codes(modulated(more=more, outputs=", float[N, S, 8] z")) == []


def test_refuses_an_old_opset() -> None:
    """A FusedLayerNorm in a file of opset 10: FusedAdaLayerNorm cannot be written below opset 11."""
    model = rewrite(modulated(), [FuseRowNorm()]).proto
    model.opset_import[0].version = 10
    assert [r.code for r in rewrite(model, [AdaLayerNorm()]).remarks] == ["OPSET"]
