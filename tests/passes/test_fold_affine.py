"""Constant Mul, Add, Sub and Div next to linear operators: folding, and broadcasts that must not fold."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from graphopt import optimize
from graphopt.passes.fold_affine import FoldAffine
from tests.rewriting import Array, assert_same_outputs, model_from_text, rewrite

RNG = np.random.default_rng(10)


def draw(*shape: int, dtype: type = np.float32) -> Array:
    return RNG.standard_normal(shape).astype(dtype)


def check(model: onnx.ModelProto, feeds: dict[str, Array], wanted: list[str]) -> None:
    after = rewrite(model, [FoldAffine()])
    assert set(after.codes()) == {"APPLIED"}
    assert after.op_types == wanted
    assert_same_outputs(model, after.proto, feeds)
    assert rewrite(after.proto, [FoldAffine()]).proto == after.proto


NODES = ["Mul(t, {0})", "Mul({0}, t)", "Add(t, {0})", "Sub(t, {0})", "Sub({0}, t)", "Div(t, {0})"]


@pytest.mark.parametrize("node", NODES)
@pytest.mark.parametrize("shape", [(), (1,), (8, 1, 1), (1, 8, 1, 1), (1, 1, 1, 1)])
@pytest.mark.parametrize("bias", ["", ", c"])
def test_after_conv(node: str, shape: tuple[int, ...], bias: str) -> None:
    text = f"""g (float[N, 6, 7, 8] x) => (float[N, 8, 7, 8] y) {{
        t = Conv <pads = [1, 1, 1, 1], group = 2> (x, W{bias})
        y = {node.format("k")} }}"""
    weights = {"W": draw(8, 3, 3, 3), "k": draw(*shape)} | ({"c": draw(8)} if bias else {})
    check(model_from_text(text, weights), {"x": draw(2, 6, 7, 8)}, ["Conv"])


def test_after_conv_transpose() -> None:
    text = """g (float[2, 6, 5, 4] x) => (float[2, 8, H, W] y) {
        t = ConvTranspose <strides = [2, 2], group = 2> (x, W)
        s = Mul(t, k)
        y = Add(s, k) }"""
    weights = {"W": draw(6, 4, 3, 3), "k": draw(8, 1, 1)}
    check(model_from_text(text, weights), {"x": draw(2, 6, 5, 4)}, ["ConvTranspose"])


@pytest.mark.parametrize("node", NODES)
@pytest.mark.parametrize("shape", [(), (5,), (1, 5)])
def test_after_gemm(node: str, shape: tuple[int, ...]) -> None:
    text = f"""g (float[3, 4] x) => (float[3, 5] y) {{
        t = Gemm <alpha: float = 0.5, beta: float = -2.0> (x, W, c)
        y = {node.format("k")} }}"""
    check(model_from_text(text, {"W": draw(4, 5), "c": draw(3, 1), "k": draw(*shape)}), {"x": draw(3, 4)}, ["Gemm"])


@pytest.mark.parametrize("rank", [2, 3])
def test_after_matmul(rank: int) -> None:
    dims = ", ".join(["2"] * (rank - 1))
    text = f"""g (float[{dims}, 4] x) => (float[{dims}, 5] y) {{
        p = MatMul(x, W)
        t = Add(c, p)
        y = Mul(t, k) }}"""
    weights = {"W": draw(4, 5), "c": draw(5), "k": draw(5)}
    check(model_from_text(text, weights), {"x": draw(*[2] * (rank - 1), 4)}, ["MatMul", "Add"])


@pytest.mark.parametrize("node", ["Mul(t, k)", "Mul(k, t)", "Div(t, k)"])
@pytest.mark.parametrize("shape", [(), (5, 1, 1), (1, 5, 1, 1)])
@pytest.mark.parametrize("bias", [True, False])
def test_after_a_transpose(node: str, shape: tuple[int, ...], bias: bool) -> None:
    """The layer scale of ConvNeXt multiplies the transposed result of a MatMul."""
    text = f"""g (float[2, 3, 7, 4] x) => (float[2, 5, 3, 7] y) {{
        {"p" if bias else "s"} = MatMul(x, W)
        {"s = Add(p, c)" if bias else ""}
        t = Transpose <perm = [0, 3, 1, 2]> (s)
        y = {node} }}"""
    weights = {"W": draw(4, 5), "k": draw(*shape)} | ({"c": draw(5)} if bias else {})
    check(
        model_from_text(text, weights),
        {"x": draw(2, 3, 7, 4)},
        ["MatMul", "Add", "Transpose"] if bias else ["MatMul", "Transpose"],
    )


def test_after_a_transpose_of_conv() -> None:
    text = """g (float[2, 6, 7, 8] x) => (float[2, 7, 8, 9] y) {
        s = Conv(x, W)
        t = Transpose <perm = [0, 2, 3, 1]> (s)
        m = Mul(t, k)
        y = Add(m, c) }"""
    weights = {"W": draw(9, 6, 1, 1), "k": draw(9), "c": draw(1, 9)}
    check(model_from_text(text, weights), {"x": draw(2, 6, 7, 8)}, ["Conv", "Transpose"])


@pytest.mark.parametrize(
    ("constant", "tail", "code"),
    [("k", "", "WRONG_AXIS"), ("c", "z = Abs(t)", "OTHER_USES"), ("c", "z = Abs(s)", "OTHER_USES")],
)
def test_refused_after_a_transpose(constant: str, tail: str, code: str) -> None:
    output = ", float[2, 3, 8] z" if tail else ""
    text = f"""g (float[2, 3, 4] x) => (float[2, 8, 3] y{output}) {{
        p = MatMul(x, W)
        s = Add(p, b)
        t = Transpose <perm = [0, 2, 1]> (s)
        y = Mul(t, {constant})
        {tail} }}"""
    constants = {"k": draw(3), "c": draw(8, 1)}
    weights = {"W": draw(4, 8), "b": draw(8), constant: constants[constant]}
    model = model_from_text(text, weights, check=False)
    assert rewrite(model, [FoldAffine()]).codes() == [code]


@pytest.mark.parametrize("node", ["Mul(x, k)", "Add(x, k)", "Sub(k, x)", "Div(x, k)"])
def test_ahead_of_an_unpadded_conv(node: str) -> None:
    text = f"""g (float[N, 6, 7, 8] x) => (float[N, 8, 5, 6] y) {{
        t = {node}
        y = Conv <group = 2> (t, W, c) }}"""
    weights = {"W": draw(8, 3, 3, 3), "c": draw(8), "k": draw(6, 1, 1)}
    check(model_from_text(text, weights), {"x": draw(2, 6, 7, 8)}, ["Conv"])


def test_ahead_of_a_padded_conv_only_a_scale() -> None:
    text = """g (float[N, 6, 7, 8] x) => (float[N, 8, 7, 8] y) {
        t = Mul(x, k)
        y = Conv <pads = [1, 1, 1, 1]> (t, W, c) }"""
    weights = {"W": draw(8, 6, 3, 3), "c": draw(8), "k": draw(6, 1, 1)}
    check(model_from_text(text, weights), {"x": draw(2, 6, 7, 8)}, ["Conv"])


def test_ahead_of_conv_transpose_only_a_scale() -> None:
    text = """g (float[2, 6, 5, 4] x) => (float[2, 8, H, W] y) {
        t = Mul(x, k)
        y = ConvTranspose <strides = [2, 2], group = 2, pads = [1, 0, 1, 0]> (t, W) }"""
    weights = {"W": draw(6, 4, 3, 3), "k": draw(6, 1, 1)}
    check(model_from_text(text, weights), {"x": draw(2, 6, 5, 4)}, ["ConvTranspose"])


def test_ahead_of_gemm_and_matmul() -> None:
    text = """g (float[3, 4] x) => (float[3, 5] y) { t = Add(x, k) y = Gemm <transB = 1> (t, W) }"""
    check(model_from_text(text, {"W": draw(5, 4), "k": draw(4)}), {"x": draw(3, 4)}, ["Gemm"])
    text = """g (float[2, 3, 4] x) => (float[2, 3, 5] y) { t = Mul(x, k) y = MatMul (t, W) }"""
    check(model_from_text(text, {"W": draw(4, 5), "k": draw(4)}), {"x": draw(2, 3, 4)}, ["MatMul"])


CONV = "t = Conv <pads = [1, 1, 1, 1]> (x, W)\n"


@pytest.mark.parametrize(
    ("code", "body", "outputs"),
    [
        # A constant [C] broadcasts along the width, which equals the number of channels.
        ("WRONG_AXIS", CONV + "y = Mul(t, c1)", "IMAGE y"),
        ("WRONG_AXIS", CONV + "y = Add(t, c1)", "IMAGE y"),
        ("WRONG_AXIS", CONV + "y = Mul(t, n)", "IMAGE y"),
        ("WRONG_AXIS", CONV + "y = Add(t, full)", "IMAGE y"),
        ("BROADCAST_GROWS", CONV + "y = Mul(t, c5)", "float[1, 2, 6, 7, 6] y"),
        ("OTHER_USES", CONV + "y = Mul(t, c3)\n z = Relu(t)", "IMAGE y, IMAGE z"),
        ("GRAPH_OUTPUT", CONV + "y = Mul(t, c3)", "IMAGE y, IMAGE t"),
        ("OVERRIDABLE", CONV + "y = Mul(t, o)", "IMAGE y"),
        ("NOT_CONSTANT", "t = Conv <pads = [1, 1, 1, 1]> (x, U)\n y = Mul(t, c3)", "IMAGE y"),
        ("QUANTIZED", "Z = DequantizeLinear(q, s)\n t = Conv (x, Z)\n y = Mul(t, c3)", "float[2, 6, 5, 4] y"),
        ("NOT_FINITE", CONV + "y = Div(t, zero)", "IMAGE y"),
        ("PADDED", "t = Add(x, c3)\n y = Conv <pads = [1, 1, 1, 1]> (t, W)", "IMAGE y"),
        ("PADDED", "t = Add(x, c3)\n y = ConvTranspose <pads = [1, 1, 1, 1]> (t, W)", "IMAGE y"),
        ("WRONG_AXIS", "t = Mul(x, c1)\n y = Conv <pads = [1, 1, 1, 1]> (t, W)", "IMAGE y"),
    ],
)
def test_refused(code: str, body: str, outputs: str) -> None:
    weights = {
        "W": draw(6, 6, 3, 3),
        "c1": draw(6),
        "c3": draw(6, 1, 1),
        "c5": draw(1, 1, 6, 1, 1),
        "n": draw(2, 1, 1, 1),
        "full": draw(6, 7, 6),
        "zero": np.zeros((6, 1, 1), np.float32),
        "o": draw(6, 1, 1),
        "q": RNG.integers(-128, 127, (6, 6, 3, 3)).astype(np.int8),
        "s": np.float32(0.01),
    }
    text = f"g (IMAGE x, float[6, 6, 3, 3] U, float[6, 1, 1] o) => ({outputs}) {{ {body} }}"
    model = model_from_text(text.replace("IMAGE", "float[2, 6, 7, 6]"), weights, check=False)
    after = rewrite(model, [FoldAffine()])
    assert after.codes() == [code]
    assert after.op_types == [n.op_type for n in model.graph.node]


def test_a_channel_axis_that_the_constant_would_broadcast() -> None:
    text = "g (float[2, C, 7, 6] x) => (float y) { t = Mul(x, k)\n y = Conv (t, W) }"
    model = model_from_text(text, {"W": draw(6, 6, 3, 3), "k": draw(6, 1, 1)}, check=False)
    assert rewrite(model, [FoldAffine()]).codes() == ["UNKNOWN_SHAPE"]


@pytest.mark.parametrize(
    "body",
    ["t = MatMul(x, W)\n y = Add(t, b)", "t = Mul(x, x)\n y = MatMul(t, W)", "t = Add(x, a)\n y = MatMul(t, W)"],
)
def test_no_candidates(body: str) -> None:
    text = f"g (float[2, 3, 4] x) => (float[2, 3, 5] y) {{ {body} }}"
    model = model_from_text(text, {"W": draw(4, 5), "b": draw(5), "a": draw(4)})
    assert rewrite(model, [FoldAffine()]).remarks == []


def test_a_factor_of_gelu_is_kept_for_the_runtime() -> None:
    body = "z = Div(x, r)\n e = Erf(z)\n p = Add(e, one)\n h = Mul(x, p)\n t = Mul(h, half)\n y = MatMul(t, W)"
    constants = {"r": np.float32(2**0.5), "one": np.float32(1), "half": np.float32(0.5), "W": draw(4, 5)}
    text = f"g (float[2, 3, 4] x) => (float[2, 3, 5] y) {{ {body} }}"
    assert rewrite(model_from_text(text, constants), [FoldAffine()]).codes() == ["NO_GAIN"]
    # Without Erf the same multiplication is not part of a Gelu.
    text = text.replace("e = Erf(z)", "e = Exp(z)")
    assert rewrite(model_from_text(text, constants), [FoldAffine()]).codes() == ["APPLIED"]


NORM = """m = ReduceMean <axes = [-1]> (x)
    d = Sub(x, m)
    q = Pow(d, two)
    v = ReduceMean <axes = [-1]> (q)
    e = Add(v, epsilon)
    s = Sqrt(e)
    n = Div(d, s)
    h = Mul(n, gamma)
    z = Add(h, beta)"""
RMS_NORM = (
    NORM.replace("m = ReduceMean <axes = [-1]> (x)\n    d = Sub(x, m)\n", "")
    .replace("(d, ", "(x, ")
    .replace("h = Mul", "z = Mul")
    .replace("z = Add(h, beta)", "")
)


def norm_before_gemm(body: str) -> onnx.ModelProto:
    constants = {"two": np.float32(2), "epsilon": np.float32(1e-5), "gamma": draw(4), "beta": draw(4)}
    text = f"g (float[3, 4] x) => (float[3, 5] y) {{ {body}\n y = Gemm(z, W, b) }}"
    return model_from_text(text, constants | {"W": draw(4, 5), "b": draw(5)}, 9)


@pytest.mark.parametrize("device", ["cpu", "rocm", "portable"])
def test_scale_and_shift_of_a_norm_are_kept_for_the_runtime(device: str) -> None:
    model = norm_before_gemm(NORM)
    after = rewrite(model, [FoldAffine()], device=device)
    assert after.codes() == ["NO_GAIN"]
    assert after.op_types == [n.op_type for n in model.graph.node]


def test_the_runtime_fuses_norms_that_are_kept(tmp_path: Path) -> None:
    """The norm is kept because our operator cannot be written in opset 9, the opset of the model."""
    model, _ = optimize(norm_before_gemm(NORM), target="cpu")
    options = ort.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "fused.onnx")
    options.log_severity_level = 4
    ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    assert [n.op_type for n in onnx.load(tmp_path / "fused.onnx").graph.node] == ["LayerNormalization", "Gemm"]


def test_the_scale_of_an_rms_norm_is_kept_for_the_runtime() -> None:
    assert rewrite(norm_before_gemm(RMS_NORM), [FoldAffine()]).codes() == ["NO_GAIN"]


@pytest.mark.parametrize(
    ("device", "body"),
    [
        ("migraphx", NORM),  # MIGraphX recognizes a norm without its scale
        ("cpu", NORM.replace("s = Sqrt(e)", "s = Exp(e)")),
        ("cpu", NORM.replace("q = Pow(d, two)", "q = Mul(d, x)")),
        ("cpu", NORM.replace("axes = [-1]", "axes = [0]")),
    ],
)
def test_scale_and_shift_of_norms_that_no_runtime_fuses(device: str, body: str) -> None:
    model = norm_before_gemm(body)
    after = rewrite(model, [FoldAffine()], device=device)
    assert set(after.codes()) == {"APPLIED"}
    assert len(after.op_types) == len(model.graph.node) - 2
    assert_same_outputs(model, after.proto, {"x": draw(3, 4)}, 1e-4)
