"""BatchNormalization that cannot be folded, and chains of per-channel constants, become one ScaleShift."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from graphopt.passes.scale_shift import ScaleShift
from tests.passes.test_fold_affine import NORM
from tests.rewriting import Array, assert_same_outputs, model_from_text, rewrite

RNG = np.random.default_rng(8)


def draw(*shape: int, dtype: type = np.float32) -> Array:
    return RNG.standard_normal(shape).astype(dtype)


def statistics(C: int) -> dict[str, Array]:
    return {"g": draw(C), "b": draw(C), "m": draw(C), "v": RNG.uniform(0.3, 2.0, C).astype(np.float32)}


def check(model: onnx.ModelProto, feeds: dict[str, Array], tolerance: float = 1e-5) -> None:
    after = rewrite(model, [ScaleShift()])
    assert after.op_types == ["ScaleShift"]
    assert_same_outputs(model, after.proto, feeds, tolerance)
    assert rewrite(after.proto, [ScaleShift()]).proto == after.proto


@pytest.mark.parametrize("opset", [7, 9, 14, 15])
@pytest.mark.parametrize("tail", [(), (5,), (5, 4), (2, 3, 4)])
def test_batch_norm_of_every_rank(opset: int, tail: tuple[int, ...]) -> None:
    dims = ", ".join(map(str, ("N", 6, *tail)))
    text = f"g (float[{dims}] x) => (float[{dims}] y) {{ y = BatchNormalization (x, g, b, m, v) }}"
    check(model_from_text(text, statistics(6), opset), {"x": draw(3, 6, *tail)})


def test_half_precision() -> None:
    text = "g (float16[N, 6, 5] x) => (float16[N, 6, 5] y) { y = BatchNormalization (x, g, b, m, v) }"
    check(model_from_text(text, statistics(6)), {"x": draw(3, 6, 5, dtype=np.float16)}, 5e-3)


@pytest.mark.parametrize(
    "body",
    [
        "t = Mul(x, a)\n y = Add(t, c)",
        "t = Mul(a, x)\n y = Sub(c, t)",
        "t = Sub(x, a)\n y = Div(t, c)",
        "t = Add(x, c4)\n y = Mul(t, a)",
        "t = BatchNormalization(x, g, b, m, v)\n u = Mul(t, two)\n y = BatchNormalization(u, g, b, m, v)",
        "t = Mul(x, a)\n u = Add(t, two)\n y = Mul(u, c)",
    ],
)
def test_chains(body: str) -> None:
    weights = {"a": draw(6, 1, 1), "c": draw(6, 1, 1), "c4": draw(1, 6, 1, 1), "two": np.float32(2.0), **statistics(6)}
    text = f"g (float[N, 6, 5, 7] x) => (float[N, 6, 5, 7] y) {{ {body} }}"
    check(model_from_text(text, weights), {"x": draw(2, 6, 5, 7)})


def test_channels_that_only_the_shape_engine_knows() -> None:
    """Onnx's inference does not follow the elements of a shape through Expand."""
    text = """g (float[A, B] x, float[N, 6, H] z) => (float[N, 6, H] y) {
      s = Shape(z)  target = Expand(s, three)  r = Reshape(x, target)  m = Mul(r, a)  y = Add(m, c) }"""
    model = model_from_text(text, {"three": np.array([3]), "a": draw(6, 1), "c": draw(6, 1)})
    after = rewrite(model, [ScaleShift()])
    assert after.op_types == ["Shape", "Expand", "Reshape", "ScaleShift"]
    assert_same_outputs(model, after.proto, {"x": draw(4, 15), "z": draw(2, 6, 5)})


@pytest.mark.parametrize("opset", [7, 13, 17])
@pytest.mark.parametrize(
    ("body", "left"),
    [
        ("t = BatchNormalization(x, g, b, m, v)\n u = Mul(t, a)\n y = Add(u, c)", ["BatchNormalization"]),
        ("t = Mul(x, a)\n u = Sub(c, t)\n y = BatchNormalization(u, g, b, m, v)", ["BatchNormalization"]),
        (
            "t = BatchNormalization(x, g, b, m, v)\n u = Div(t, two)\n y = BatchNormalization(u, g, b, m, v)",
            ["BatchNormalization"],
        ),
        ("t = Mul(x, a)\n u = Add(t, two)\n v0 = Mul(u, c)\n y = Add(v0, a)", ["Mul", "Add"]),
        ("t = Mul(x, a)\n y = Mul(t, two)", ["Mul"]),
        ("t = Add(x, c4)\n y = Sub(t, a)", ["Add"]),
        ("t = Add(x, a)\n y = Sub(t, a)", ["Add"]),
        ("t = Mul(x, a)\n y = Add(t, c)", ["Mul", "Add"]),
        ("t = Add(x, a)\n y = Mul(t, c)", ["Add", "Mul"]),
        ("t = Mul(x, wide)\n y = Mul(t, a)", ["Mul", "Mul"]),
        ("t = Mul(x, two)\n u = Add(t, two)\n y = Mul(u, two)", ["Mul", "Add", "Mul"]),
    ],
)
def test_chains_in_standard_onnx(body: str, left: list[str], opset: int) -> None:
    weights = {"a": draw(6, 1, 1), "c": draw(6, 1, 1), "c4": draw(1, 6, 1, 1), "two": np.float32(2.0), **statistics(6)}
    weights["wide"] = draw(6, 5, 1)
    text = f"g (float[N, 6, 5, 7] x) => (float[N, 6, 5, 7] y) {{ {body} }}"
    model = model_from_text(text, weights, opset)
    after = rewrite(model, [ScaleShift()], device="migraphx")
    assert after.op_types == left
    assert_same_outputs(model, after.proto, {"x": draw(2, 6, 5, 7)})
    assert rewrite(after.proto, [ScaleShift()], device="migraphx").proto == after.proto


def test_an_if_branch() -> None:
    text = """g (bool c, float[N, 6, 7] x) => (float[N, 6, 7] y) {
        y = If (c) <then_branch = p () => (float[N, 6, 7] u) { u = BatchNormalization (x, g, b, m, v) },
                    else_branch = q () => (float[N, 6, 7] w) { w = Relu (x) }> }"""
    model = model_from_text(text, statistics(6))
    after = rewrite(model, [ScaleShift()])
    assert after.codes() == ["APPLIED"]
    for taken in (True, False):
        assert_same_outputs(model, after.proto, {"c": np.array(taken), "x": draw(2, 6, 7)})


@pytest.mark.parametrize(
    "body",
    [
        "t = Mul(x, w)\n y = Add(t, w)",  # along the last axis
        "t = Mul(x, two)\n y = Add(t, two)",  # scalars
        "t = Mul(x, a)\n y = Relu(t)",
        "t = Mul(x, x)\n y = Add(t, a)",
    ],
)
def test_no_candidates(body: str) -> None:
    weights = {"a": draw(6, 1, 1), "w": draw(6), "two": np.float32(2.0)}
    text = f"g (float[N, 6, 5, 6] x) => (float[N, 6, 5, 6] y) {{ {body} }}"
    assert rewrite(model_from_text(text, weights), [ScaleShift()]).remarks == []


@pytest.mark.parametrize(
    ("code", "text", "device"),
    [
        ("TARGET", "(XT x) => (XT y) { y = BN (x, g, b, m, v) }", "portable"),
        ("UNKNOWN_RANK", "(float x) => (float y) { y = BN (x, g, b, m, v) }", "cpu"),
        ("WRONG_DTYPE", "(double[N, 6, 5] x) => (double[N, 6, 5] y) { y = BN (x, g, b, m, v) }", "cpu"),
        (
            "NOT_CONSTANT",
            "(XT x, float[6] s) => (XT y) { y = BN (x, s, b, m, v) }",
            "cpu",
        ),
        (
            "TRAINING_MODE",
            "(XT x) => (XT y) { y, n, o = BN <training_mode = 1> (x, g, b, m, v) }",
            "cpu",
        ),
        ("UNKNOWN_SHAPE", "(float[N, C, 5] x) => (float[N, C, 5] y) { t = Mul(x, a)\n y = Add(t, a) }", "cpu"),
        ("BROADCAST_GROWS", "(float[3, 6] x) => (float[1, 3, 6] y) { t = Mul(x, a3)\n y = Add(t, a3) }", "cpu"),
        ("WRONG_SHAPE", "(float[N, 1, 5] x) => (XT y) { t = Mul(x, a)\n y = Add(t, a) }", "cpu"),
        ("NOT_FINITE", "(XT x) => (XT y) { t = Mul(x, big)\n y = Mul(t, big) }", "cpu"),
    ],
)
def test_refused(code: str, text: str, device: str) -> None:
    weights = {"a": draw(6, 1), "a3": draw(1, 1, 6), "big": np.full((6, 1), 1e30, np.float32), **statistics(6)}
    text = f"g {text}".replace("XT", "float[N, 6, 5]").replace("BN", "BatchNormalization")
    model = model_from_text(text, weights, check=False)
    if code == "UNKNOWN_RANK":
        model.graph.input[0].type.tensor_type.ClearField("shape")
        model.graph.output[0].type.tensor_type.ClearField("shape")
    assert set(rewrite(model, [ScaleShift()], device=device).codes()) == {code}


@pytest.mark.parametrize("device", ["cpu", "portable"])
@pytest.mark.parametrize("behind", ["y = Identity(z)", "y = Mul(z, gamma)"])
def test_scale_and_shift_of_a_norm_are_kept_for_the_runtime(device: str, behind: str) -> None:
    body = f"{NORM}\n{behind}"
    constants = {"two": np.float32(2), "epsilon": np.float32(1e-5), "gamma": draw(4), "beta": draw(4)}
    model = model_from_text(f"g (float[3, 4] x) => (float[3, 4] y) {{ {body} }}", constants, 11)
    assert rewrite(model, [ScaleShift()], device=device).op_types == [n.op_type for n in model.graph.node]
    # Without Sqrt this is no norm, so the same Mul and Add are rewritten.
    model = model_from_text(f"g (float[3, 4] x) => (float[3, 4] y) {{ {body.replace('Sqrt', 'Exp')} }}", constants, 11)
    assert len(rewrite(model, [ScaleShift()], device="cpu").op_types) < len(model.graph.node)
