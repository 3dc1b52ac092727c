"""Rotary embeddings in forms that test_exported_forms.py does not have, and refusals."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from graphopt.passes.fuse_rotary import FuseRotary
from tests.rewriting import Array, assert_same_outputs, model_from_text, rewrite

RNG = np.random.default_rng(7)
TURN = """
    p, q = Split <axis: int = -1> (x)
    n = Neg(q)
    t = Concat <axis: int = -1> (n, p)
    b = Mul(t, sin)
    a = Mul(x, cos)
    y = Add(a, b)
"""
ANGLES = "float[1, 1, S, 6] cos, float[1, 1, S, 6] sin"


def draw(*shape: int) -> Array:
    return RNG.standard_normal(shape).astype(np.float32)


def rotary(
    x: str = "float[N, H, S, 6] x", angles: str = ANGLES, body: str = TURN, outputs: str = "", opset: int = 17
) -> onnx.ModelProto:
    model = model_from_text(f"g ({x}, {angles}) => (float y {outputs}) {{ {body} }}", opset=opset, check=False)
    model.graph.output[0].type.tensor_type.ClearField("shape")
    return model


def codes(model: onnx.ModelProto, device: str = "cpu") -> list[str]:
    result = rewrite(model, [FuseRotary()], device=device)
    assert not any(op.startswith("FusedRotary") for op in result.op_types)
    return result.codes()


@pytest.mark.parametrize("device", ["cpu", "rocm"])
@pytest.mark.parametrize(
    ("x", "shape", "angles"),
    [
        ("N, H, S, 6", (2, 3, 5, 6), ("1, 1, S, 6", (1, 1, 5, 6))),
        ("N, S, H, 6", (2, 5, 3, 6), ("N, S, 1, 6", (2, 5, 1, 6))),
        ("N, S, 6", (2, 5, 6), ("S, 6", (5, 6))),
        ("S, 6", (5, 6), ("6", (6,))),
    ],
)
def test_ranks(x: str, shape: tuple[int, ...], angles: tuple[str, tuple[int, ...]], device: str) -> None:
    text, of = angles
    model = rotary(f"float[{x}] x", f"float[{text}] cos, float[{text}] sin")
    result = rewrite(model, [FuseRotary()], device=device)
    assert result.op_types == ["FusedRotary"]
    assert_same_outputs(model, result.proto, {"x": draw(*shape), "cos": draw(*of), "sin": draw(*of)})


def test_parts_with_other_readers_are_kept() -> None:
    model = rotary(body=TURN + "z = Abs(p)", outputs=", float[N, H, S, 3] z")
    result = rewrite(model, [FuseRotary()])
    assert result.op_types == ["Split", "FusedRotary", "Abs"]
    feeds = {"x": draw(2, 3, 5, 6), "cos": draw(1, 1, 5, 6), "sin": draw(1, 1, 5, 6)}
    assert_same_outputs(model, result.proto, feeds)


def test_a_transpose_with_other_readers_is_kept() -> None:
    model = rotary("float[N, S, H, 6] w", body="x = Transpose <perm: ints = [0, 2, 1, 3]> (w)" + TURN + "z = Abs(x)",
                   outputs=", float[N, H, S, 6] z")  # fmt: skip
    result = rewrite(model, [FuseRotary()])
    assert sorted(result.op_types) == ["Abs", "FusedRotary", "Transpose"]
    feeds = {"w": draw(2, 5, 3, 6), "cos": draw(1, 1, 5, 6), "sin": draw(1, 1, 5, 6)}
    assert_same_outputs(model, result.proto, feeds)


@pytest.mark.parametrize(
    "body",
    [
        TURN.replace("(n, p)", "(p, n)"),  # operands swapped
        TURN.replace("Neg(q)", "Neg(p)").replace("(n, p)", "(n, q)"),
        TURN.replace("Mul(x, cos)", "Mul(cos, cos)"),
    ],
)
def test_similar_forms_are_not_rotary_embeddings(body: str) -> None:
    assert codes(rotary(body=body)) in ([], ["UNSUPPORTED_OP"])


def test_refuses_a_rotation_that_is_subtracted() -> None:
    assert codes(rotary(body=TURN.replace("Add(a, b)", "Sub(a, b)"))) == ["UNSUPPORTED_OP"]


@pytest.mark.parametrize("angles", ["7, 1, 1, S, 6", "1, 1, S, 1", "1, 2, S, 6"])
def test_refuses_angles_of_another_shape(angles: str) -> None:
    model = rotary("float[N, 1, S, 6] x", f"float[{angles}] cos, float[{angles}] sin")
    assert codes(model) == ["WRONG_SHAPE"]


def test_refuses_angles_that_are_not_proven_to_fit() -> None:
    assert codes(rotary(angles="float[1, 1, T, 6] cos, float[1, 1, T, 6] sin")) == ["UNKNOWN_SHAPE"]


def test_refuses_five_axes() -> None:
    assert codes(rotary("float[N, K, H, S, 6] x")) == ["WRONG_RANK"]


def test_refuses_two_types() -> None:
    assert codes(rotary(angles="float16[1, 1, S, 6] cos, float16[1, 1, S, 6] sin")) == ["MIXED_DTYPE"]


def test_refuses_double() -> None:
    model = rotary("double[N, H, S, 6] x", ANGLES.replace("float", "double"))
    model.graph.output[0].type.tensor_type.elem_type = onnx.TensorProto.DOUBLE
    assert codes(model) == ["WRONG_DTYPE"]


@pytest.mark.parametrize(("more", "outputs", "code"), [
    ("z = Abs(t)", ", float[N, H, S, 6] z", "UNSUPPORTED_OP"),
    ("z = Abs(a)", ", float[N, H, S, 6] z", "OTHER_USES"),
    ("", ", float[N, H, S, 6] a", "GRAPH_OUTPUT"),
])  # fmt: skip
def test_refuses_values_that_are_needed(more: str, outputs: str, code: str) -> None:
    assert codes(rotary(body=TURN + more, outputs=outputs)) == [code]


def test_refuses_targets_without_our_operators() -> None:
    assert codes(rotary(), "portable") == ["TARGET"]


def test_refuses_an_old_opset() -> None:
    assert codes(rotary(opset=10)) == ["OPSET"]


def test_refuses_a_sum_in_a_branch() -> None:
    body = (
        TURN.replace("y = Add(a, b)", "")
        + """
        y = If (c) <then_branch = t () => (float[N, H, S, 6] u) { u = Add(a, b) },
                    else_branch = e () => (float[N, H, S, 6] v) { v = Neg(x) }>"""
    )
    assert codes(rotary(body=body, angles=f"{ANGLES}, bool c")) == ["ESCAPES"]
