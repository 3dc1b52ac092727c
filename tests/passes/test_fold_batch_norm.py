"""BatchNormalization folded into its neighbours' weights: every form that folds, and one model for each refusal."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from graphopt.passes.fold_batch_norm import FoldBatchNorm
from tests.rewriting import Array, assert_same_outputs, model_from_text, rewrite

RNG = np.random.default_rng(7)
BN = "BatchNormalization"


def draw(*shape: int, dtype: type = np.float32) -> Array:
    return RNG.standard_normal(shape).astype(dtype)


def statistics(C: int, dtype: type = np.float32) -> dict[str, Array]:
    return {
        "g": draw(C, dtype=dtype),
        "b": draw(C, dtype=dtype),
        "m": draw(C, dtype=dtype),
        "v": RNG.uniform(0.3, 2.0, C).astype(dtype),
    }


def check(model: onnx.ModelProto, feeds: dict[str, Array], tolerance: float = 1e-5) -> list[str]:
    after = rewrite(model, [FoldBatchNorm()])
    assert after.codes() == ["APPLIED"]
    assert BN not in after.op_types
    assert_same_outputs(model, after.proto, feeds, tolerance)
    again = rewrite(after.proto, [FoldBatchNorm()])
    assert again.proto == after.proto
    return after.op_types


@pytest.mark.parametrize("opset", [7, 9, 14, 15, 17])
@pytest.mark.parametrize("bias", ["", ", c", ', ""'])
@pytest.mark.parametrize("group", [1, 2, 6])
def test_conv(opset: int, bias: str, group: int) -> None:
    weights = {"W": draw(12, 6 // group, 3, 3), **statistics(12)}
    if bias == ", c":
        weights["c"] = draw(12)
    text = f"""g (float[N, 6, H, 5] x) => (float[N, 12, H, 5] y) {{
        t = Conv <pads = [1, 1, 1, 1], group = {group}> (x, W{bias})
        y = BatchNormalization <epsilon: float = 0.01> (t, g, b, m, v) }}"""
    assert check(model_from_text(text, weights, opset), {"x": draw(2, 6, 7, 5)}) == ["Conv"]


@pytest.mark.parametrize("group", [1, 2, 3])
def test_conv_transpose(group: int) -> None:
    weights = {"W": draw(6, 4, 3, 2), "c": draw(4 * group), **statistics(4 * group)}
    text = f"""g (float[2, 6, 5, 4] x) => (float[2, {4 * group}, H, W] y) {{
        t = ConvTranspose <strides = [2, 2], group = {group}, output_padding = [1, 0]> (x, W, c)
        y = BatchNormalization (t, g, b, m, v) }}"""
    assert check(model_from_text(text, weights), {"x": draw(2, 6, 5, 4)}) == ["ConvTranspose"]


@pytest.mark.parametrize("trans_b", [0, 1])
@pytest.mark.parametrize("trans_a", [0, 1])
@pytest.mark.parametrize("c_shape", [None, (), (1,), (5,), (1, 5), (3, 1), (3, 5)])
def test_gemm(trans_a: int, trans_b: int, c_shape: tuple[int, ...] | None) -> None:
    weights = {"W": draw(*((5, 4) if trans_b else (4, 5))), **statistics(5)}
    if c_shape is not None:
        weights["c"] = draw(*c_shape)
    x = (4, 3) if trans_a else (3, 4)
    text = f"""g (float[{x[0]}, {x[1]}] x) => (float[3, 5] y) {{
        t = Gemm <alpha: float = 0.5, beta: float = -2.0, transA = {trans_a}, transB = {trans_b}>
            (x, W{", c" if c_shape is not None else ""})
        y = BatchNormalization (t, g, b, m, v) }}"""
    assert check(model_from_text(text, weights), {"x": draw(*x)}) == ["Gemm"]


@pytest.mark.parametrize("bias", [False, True])
def test_matmul(bias: bool) -> None:
    weights = {"W": draw(4, 5), **statistics(5)} | ({"c": draw(5)} if bias else {})
    text = f"""g (float[N, 4] x) => (float[N, 5] y) {{
        {"p = MatMul(x, W) t = Add(c, p)" if bias else "t = MatMul(x, W)"}
        y = BatchNormalization (t, g, b, m, v) }}"""
    model = model_from_text(text, weights)
    assert check(model, {"x": draw(3, 4)}) == (["MatMul", "Add"] if bias else ["Gemm"])
    (remark,) = rewrite(model, [FoldBatchNorm()]).remarks
    assert remark.detail == "folded into the weights of MatMul before it"


@pytest.mark.parametrize("group", [1, 2])
@pytest.mark.parametrize("pad", ["pads = [0, 0, 0, 0]", 'auto_pad = "VALID"'])
def test_ahead_of_an_unpadded_conv(group: int, pad: str) -> None:
    weights = {"W": draw(8, 6 // group, 3, 1), **statistics(6)}
    text = f"""g (float[N, 6, 7, 5] x) => (float[N, 8, 5, 5] y) {{
        t = BatchNormalization (x, g, b, m, v)
        y = Conv <group = {group}, {pad}> (t, W) }}"""
    assert check(model_from_text(text, weights), {"x": draw(2, 6, 7, 5)}) == ["Conv"]


def test_a_scale_without_shift_folds_into_a_padded_conv() -> None:
    weights = {"W": draw(8, 6, 3, 3), **statistics(6)}
    weights["b"] = weights["m"] = np.zeros(6, np.float32)
    text = """g (float[N, 6, 7, 5] x) => (float[N, 8, 7, 5] y) {
        t = BatchNormalization (x, g, b, m, v)
        y = Conv <pads = [1, 1, 1, 1]> (t, W) }"""
    assert check(model_from_text(text, weights), {"x": draw(2, 6, 7, 5)}) == ["Conv"]


@pytest.mark.parametrize("trans_b", [0, 1])
def test_ahead_of_gemm(trans_b: int) -> None:
    weights = {"W": draw(*((5, 4) if trans_b else (4, 5))), "c": draw(3, 5), **statistics(4)}
    text = f"""g (float[3, 4] x) => (float[3, 5] y) {{
        t = BatchNormalization (x, g, b, m, v)
        y = Gemm <alpha: float = 0.5, beta: float = -2.0, transB = {trans_b}> (t, W, c) }}"""
    assert check(model_from_text(text, weights), {"x": draw(3, 4)}) == ["Gemm"]


def test_ahead_of_matmul() -> None:
    weights = {"W": draw(4, 5), **statistics(4)}
    text = """g (float[N, 4] x) => (float[N, 5] y) {
        t = BatchNormalization (x, g, b, m, v)
        y = MatMul (t, W) }"""
    assert check(model_from_text(text, weights), {"x": draw(3, 4)}) == ["Gemm"]


def test_half_precision_data_with_single_precision_statistics() -> None:
    weights = {"W": draw(8, 4, 3, 3, dtype=np.float16), **statistics(8)}
    text = """g (float16[N, 4, 7, 5] x) => (float16[N, 8, 5, 3] y) {
        t = Conv (x, W)
        y = BatchNormalization (t, g, b, m, v) }"""
    model = model_from_text(text, weights)
    assert check(model, {"x": draw(2, 4, 7, 5, dtype=np.float16)}, 1e-2) == ["Conv"]


def test_a_shared_weight_is_not_changed() -> None:
    weights = {"W": draw(6, 6, 3, 3)}
    weights |= {f"{n}{i}": a for i in (1, 2) for n, a in statistics(6).items()}
    text = """g (float[N, 6, 7, 5] x) => (float[N, 6, 7, 5] y, float[N, 6, 7, 5] z, float[N, 6, 7, 5] w) {
        s = Conv <pads = [1, 1, 1, 1]> (x, W)
        y = BatchNormalization (s, g1, b1, m1, v1)
        t = Conv <pads = [1, 1, 1, 1]> (x, W)
        z = BatchNormalization (t, g2, b2, m2, v2)
        w = Conv <pads = [1, 1, 1, 1]> (x, W) }"""
    model = model_from_text(text, weights)
    after = rewrite(model, [FoldBatchNorm()])
    assert after.op_types == ["Conv"] * 3
    assert "W" in {i.name for i in after.proto.graph.initializer}
    assert len({n.input[1] for n in after.proto.graph.node}) == 3
    assert_same_outputs(model, after.proto, {"x": draw(2, 6, 7, 5)})


def test_the_old_weight_of_a_folded_matmul_is_removed() -> None:
    """A node that the pass creates and discards must not count as a reader of W, which is unused."""
    text = """g (float[N, 4] x) => (float[N, 6] y) {
        t = MatMul (x, W)
        y = BatchNormalization (t, g, b, m, v) }"""
    after = rewrite(model_from_text(text, {"W": draw(4, 6), **statistics(6)}), [FoldBatchNorm()])
    assert after.op_types == ["Gemm"]
    assert {i.name for i in after.proto.graph.initializer} == {*after.proto.graph.node[0].input} - {"x"}


def test_weights_from_outer_scopes_and_equal_names_in_two_branches() -> None:
    branch = """{name} () => (float[N, 6, 7, 5] {name}_y)
        <float[6, 6, 3, 3] W2> {{
        t = Conv <pads = [1, 1, 1, 1]> (x, W)
        {name}_y = BatchNormalization (t, g, b, m, v) }}"""
    text = f"""g (bool c, float[N, 6, 7, 5] x) => (float[N, 6, 7, 5] y) {{
        y = If (c) <then_branch = {branch.format(name="p")}, else_branch = {branch.format(name="q")}> }}"""
    text = text.replace("<float[6, 6, 3, 3] W2>", "")
    model = model_from_text(text, {"W": draw(6, 6, 3, 3), **statistics(6)})
    after = rewrite(model, [FoldBatchNorm()])
    assert after.codes() == ["APPLIED", "APPLIED"]
    for taken in (True, False):
        assert_same_outputs(model, after.proto, {"c": np.array(taken), "x": draw(2, 6, 7, 5)})


CONV = "t = Conv <pads = [1, 1, 1, 1]> (x, W)\n"
NORM = "y = BatchNormalization (t, g, b, m, v)"
SHAPES = "(float[N, 6, 7, 7] x) => (float[N, 6, 7, 7] y)"


@pytest.mark.parametrize(
    ("code", "header", "body", "opset"),
    [
        (
            "OTHER_USES",
            "(IMAGE x) => (IMAGE y, IMAGE z)",
            CONV + NORM + "\nz = Relu(t)",
            17,
        ),
        ("GRAPH_OUTPUT", "(IMAGE x) => (IMAGE y, IMAGE t)", CONV + NORM, 17),
        ("TRAINING_MODE", SHAPES, CONV + "y, n, o = BatchNormalization <training_mode = 1> (t, g, b, m, v)", 17),
        ("TRAINING_MODE", SHAPES, CONV + "y = BatchNormalization <training_mode = 1> (t, g, b, m, v)", 17),
        ("ATTRIBUTE", SHAPES, CONV + "y = BatchNormalization <spatial = 0> (t, g, b, m, v)", 7),
        (
            "NOT_CONSTANT",
            "(IMAGE x, float[6] s) => (IMAGE y)",
            CONV + "y = BatchNormalization (t, s, b, m, v)",
            17,
        ),
        (
            "NOT_CONSTANT",
            "(IMAGE x, float[6, 6, 3, 3] U) => (IMAGE y)",
            "t = Conv <pads = [1, 1, 1, 1]> (x, U)\n" + NORM,
            17,
        ),
        (
            "NOT_CONSTANT",
            "(IMAGE x, float[6] s) => (IMAGE y)",
            "t = Conv <pads = [1, 1, 1, 1]> (x, W, s)\n" + NORM,
            17,
        ),
        ("OVERRIDABLE", "(IMAGE x, float[6] g) => (IMAGE y)", CONV + NORM, 17),
        ("OVERRIDABLE", "(IMAGE x, float[6, 6, 3, 3] W) => (IMAGE y)", CONV + NORM, 17),
        ("PADDED", SHAPES, "t = BatchNormalization (x, g, b, m, v)\ny = Conv <pads = [1, 1, 1, 1]> (t, W)", 17),
        ("PADDED", SHAPES, 't = BatchNormalization (x, g, b, m, v)\ny = Conv <auto_pad = "SAME_UPPER"> (t, W)', 17),
        ("WRONG_SHAPE", SHAPES, CONV + "y = BatchNormalization (t, one, b, m, v)", 17),
    ],
)
def test_refused(code: str, header: str, body: str, opset: int) -> None:
    weights = {"W": draw(6, 6, 3, 3), "one": draw(5), **statistics(6)}
    text = f"g {header} {{ {body} }}".replace("IMAGE", "float[N, 6, 7, 7]")
    model = model_from_text(text, weights, opset, check=False)
    after = rewrite(model, [FoldBatchNorm()])
    assert after.codes() == [code]
    assert BN in after.op_types


def test_refused_because_of_overflow() -> None:
    weights = {"W": draw(8, 4, 3, 3, dtype=np.float16), **statistics(8)}
    weights["v"] = np.full(8, 1e-12, np.float32)
    weights["g"] = np.full(8, 1e4, np.float32)
    text = """g (float16[N, 4, 7, 5] x) => (float16[N, 8, 5, 3] y) {
        t = Conv (x, W)
        y = BatchNormalization (t, g, b, m, v) }"""
    assert rewrite(model_from_text(text, weights), [FoldBatchNorm()]).codes() == ["NOT_FINITE"]


@pytest.mark.parametrize("value", [-1.0, np.nan, np.inf])
def test_refused_because_of_a_variance(value: float) -> None:
    weights = {"W": draw(6, 6, 3, 3), **statistics(6)}
    weights["v"][2] = value
    after = rewrite(model_from_text(f"g {SHAPES} {{ {CONV} {NORM} }}", weights), [FoldBatchNorm()])
    assert after.codes() == ["NOT_FINITE"]


def test_refused_because_of_a_quantized_weight() -> None:
    weights = {"q": RNG.integers(-128, 127, (6, 6, 3, 3)).astype(np.int8), "s": np.float32(0.01), **statistics(6)}
    text = f"g {SHAPES} {{ W = DequantizeLinear(q, s)\n {CONV} {NORM} }}"
    assert rewrite(model_from_text(text, weights), [FoldBatchNorm()]).codes() == ["QUANTIZED"]


def test_channels_of_a_matmul_of_rank_3_are_another_axis() -> None:
    weights = {"W": draw(4, 5), **statistics(5)}
    text = """g (float[N, 5, 4] x) => (float[N, 5, 5] y) {
        t = MatMul (x, W)
        y = BatchNormalization (t, g, b, m, v) }"""
    assert rewrite(model_from_text(text, weights), [FoldBatchNorm()]).codes() == ["WRONG_RANK"]


@pytest.mark.parametrize("between", ["Transpose <perm = [1, 0]> (p)", "Reshape(p, s)"])
def test_refuses_a_node_between_matmul_and_norm(between: str) -> None:
    """All sizes are equal, but after a Transpose or Reshape the norm's channels are not those of the MatMul."""
    weights = {"W": draw(4, 4), "s": np.array([4, 4]), **statistics(4)}
    text = f"""g (float[4, 4] x) => (float[4, 4] y) {{
        p = MatMul (x, W)
        t = {between}
        y = BatchNormalization (t, g, b, m, v) }}"""
    after = rewrite(model_from_text(text, weights), [FoldBatchNorm()])
    assert after.remarks == []
    assert BN in after.op_types


def test_a_norm_in_a_branch_does_not_fold_into_an_outer_conv() -> None:
    text = f"""g (bool c, float[N, 6, 7, 7] x) => (float[N, 6, 7, 7] y) {{
        {CONV}
        y = If (c) <then_branch = p () => (float[N, 6, 7, 7] u) {{ u = BatchNormalization (t, g, b, m, v) }},
                    else_branch = q () => (float[N, 6, 7, 7] w) {{ w = Relu (x) }}> }}"""
    model = model_from_text(text, {"W": draw(6, 6, 3, 3), **statistics(6)})
    assert rewrite(model, [FoldBatchNorm()]).codes() == ["ESCAPES"]
