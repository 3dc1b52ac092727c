"""Attention as exporters write it becomes one node; similar graphs are refused with their code."""
# ruff: noqa: E501  graphs and tables are easier to read with one line for each node or case

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from graphopt import pipeline
from graphopt.graph import inference
from graphopt.graph.editor import Editor
from graphopt.graph.reading import load
from graphopt.ops import DOMAIN
from graphopt.passes.fuse_attention import FuseAttention
from graphopt.targets.target import Target
from tests.contrib.nodes import RUNTIME
from tests.rewriting import Array, Rewritten, assert_same_outputs, model_from_text, python_calls, rewrite, run

RNG = np.random.default_rng(11)
LOWEST = float(np.finfo(np.float32).min)


def draw(*shape: int, dtype: Any = np.float32) -> Array:
    return RNG.standard_normal(shape).astype(dtype)


def fuse(model: onnx.ModelProto) -> Rewritten:
    return rewrite(model, [FuseAttention()])


def attributes(after: Rewritten) -> dict[str, Any]:
    node = next(n for n in after.proto.graph.node if n.op_type.startswith("FusedAttention"))
    return {a.name: helper.get_attribute_value(a) for a in node.attribute}


def check(
    model: onnx.ModelProto,
    feeds: Mapping[str, Array] | Sequence[Mapping[str, Array]],
    op: str = "FusedAttention",
    *,
    tolerance: float = 1e-5,
    rest: Sequence[str] | None = None,
) -> Rewritten:
    """Asserts that one node named `op` replaces the attention, and that only `rest` remains."""
    after = fuse(model)
    fused = [t for t in after.op_types if t.startswith("FusedAttention")]
    assert fused == [op], after.remarks
    assert len(after.op_types) <= len(model.graph.node)
    if rest is not None:
        assert sorted(t for t in after.op_types if t != op) == sorted(rest)
    onnx.checker.check_model(after.proto)
    for feed in [feeds] if isinstance(feeds, Mapping) else feeds:
        assert_same_outputs(model, after.proto, feed, tolerance)
    again = fuse(after.proto)
    assert again.proto == after.proto
    return after


def refuse(model: onnx.ModelProto, code: str) -> Rewritten:
    after = fuse(model)
    assert after.codes() == [code], after.remarks
    assert after.op_types == [n.op_type for n in model.graph.node]
    assert all(r.detail and r.nodes for r in after.remarks)
    return after


# -- the form of most models: inputs Q, K, V [B, H, S, D], K transposed, operations between the two GEMMs
# ----------------


def core(
    between: str,
    initializers: Mapping[str, Array] | None = None,
    *,
    extra: str = "",
    opset: int = 17,
    dims: str = "B, 4",
    rows: str = "S",
    keys: str = "T",
    outputs: str = "",
    qk: str = "kt = Transpose <perm = [0, 1, 3, 2]> (k)\n s = MatMul(q, kt)",
    pv: str = "o = MatMul(p, v)",
    dtype: str = "float",
) -> onnx.ModelProto:
    """Returns a model with scores `s` and probabilities `p`: `between` computes p from s."""
    t = dtype
    text = (
        f"g ({t}[{dims}, {rows}, 8] q, {t}[{dims}, {keys}, 8] k, {t}[{dims}, {keys}, 6] v{extra}) "
        f"=> ({t}[{dims}, {rows}, 6] o{outputs}) {{ {qk}\n {between}\n {pv} }}"
    )
    return model_from_text(text, initializers, opset)


def operands(B: int = 2, S: int = 5, T: int = 7, dtype: Any = np.float32) -> dict[str, Array]:
    return {n: draw(B, 4, rows, size, dtype=dtype) for n, rows, size in (("q", S, 8), ("k", T, 8), ("v", T, 6))}


SOFTMAX = "p = Softmax <axis = -1> (s)"


def test_plain() -> None:
    after = check(core(SOFTMAX), [operands(), operands(1, 1, 1), operands(3, 9, 2)], rest=[])
    assert attributes(after) == {
        "scale": 1.0,
        "q_perm": [0, 1, 2, 3],
        "k_perm": [0, 1, 3, 2],
        "v_perm": [0, 1, 2, 3],
        "o_perm": [0, 1, 2, 3],
    }


@pytest.mark.parametrize(("device", "size", "fused"), [("rocm", 256, True), ("rocm", 257, False), ("cpu", 512, True)])
def test_head_size_of_the_gpu_kernel(device: str, size: int, fused: bool) -> None:
    model = core(SOFTMAX, qk=f"shape = Constant <value_ints = [0, 0, 0, {size}]> ()\n q1 = Reshape(q, shape)\n"
                 " kt = Transpose <perm = [0, 1, 3, 2]> (k)\n s = MatMul(q1, kt)")  # fmt: skip
    after = rewrite(model, [FuseAttention()], device=device)
    assert ("FusedAttention" in after.op_types) == fused, after.remarks
    if not fused:
        assert after.codes() == ["WRONG_SHAPE"]


@pytest.mark.parametrize(
    ("device", "rows", "size", "fused"),
    [("cuda", 32, 196, False), ("rocm", 49, 196, False), ("cuda", 50, 196, True), ("cuda", 8, 128, True),
     ("cpu", 32, 196, True)],
)  # fmt: skip
def test_attention_over_few_channels_is_not_fused_on_gpus(device: str, rows: int, size: int, fused: bool) -> None:
    text = f"""g (float[2, 4, {rows}, {size}] q, float[2, 4, {size}, {rows}] k, float[2, 4, {rows}, {size}] v)
        => (float[2, 4, {rows}, {size}] y) {{ s = MatMul(q, k) {SOFTMAX} y = MatMul(p, v) }}"""
    after = rewrite(model_from_text(text), [FuseAttention()], device=device)
    assert ("FusedAttention" in after.op_types) == fused, after.remarks
    assert after.codes() == ["APPLIED" if fused else "NO_GAIN"]


def test_against_float64() -> None:
    model = core(f"m = Mul(s, c)\n b = Add(m, bias)\n {SOFTMAX.replace('(s)', '(b)')}", {"c": np.float32(0.37)},
                 extra=", float[4, S, T] bias")  # fmt: skip
    after = check(model, {**operands(), "bias": draw(4, 5, 7)}, "FusedAttentionBias")
    feeds = {**operands(), "bias": 5 * draw(4, 5, 7)}
    q, k, v, bias = (feeds[n].astype(np.float64) for n in ("q", "k", "v", "bias"))
    s = 0.37 * q @ k.transpose(0, 1, 3, 2) + bias
    e = np.exp(s - s.max(-1, keepdims=True))
    want = e / e.sum(-1, keepdims=True) @ v
    for library in (False, True):
        got = run(after.proto, feeds, library=library)[0]
        assert np.abs(got - want).max() <= 1e-5 * math.sqrt((want**2).mean())


@pytest.mark.parametrize(
    ("between", "scale"),
    [
        ("m = Mul(s, c)\n p = Softmax <axis = -1> (m)", 0.3),
        ("m = Mul(c, s)\n p = Softmax <axis = -1> (m)", 0.3),
        ("m = Div(s, c)\n p = Softmax <axis = 3> (m)", 1 / 0.3),
        ("r = Sqrt(c)\n m = Div(s, r)\n p = Softmax <axis = -1> (m)", 0.3**-0.5),
        ("a = Mul(s, c)\n b = Div(a, d)\n p = Softmax <axis = -1> (b)", 0.3 / 4.0),
        ("n = Neg(s)\n m = Mul(n, c)\n p = Softmax <axis = -1> (m)", -0.3),
    ],
)
def test_scale_on_the_scores(between: str, scale: float) -> None:
    constants = {"c": np.float32(0.3), "d": np.asarray([4.0], np.float32)}
    after = check(core(between, constants), operands(), rest=[])
    assert attributes(after)["scale"] == pytest.approx(scale, rel=1e-6)


@pytest.mark.parametrize(
    "qk",
    [
        "a = Mul(q, c)\n t = Transpose <perm = [0, 1, 3, 2]> (k)\n s = MatMul(a, t)",
        "a = Mul(k, c)\n t = Transpose <perm = [0, 1, 3, 2]> (a)\n s = MatMul(q, t)",
        "t = Transpose <perm = [0, 1, 3, 2]> (k)\n a = Mul(t, c)\n s = MatMul(q, a)",
        "r = Sqrt(c)\n a = Mul(q, r)\n t = Transpose <perm = [0, 1, 3, 2]> (k)\n b = Mul(t, r)\n s = MatMul(a, b)",
    ],
)
def test_scale_on_an_operand(qk: str) -> None:
    after = check(core(SOFTMAX, {"c": np.float32(0.3)}, qk=qk), operands(), rest=[])
    assert attributes(after)["scale"] == pytest.approx(0.3, rel=1e-6)


def test_scale_computed_from_the_head_size() -> None:
    """Torch's tracer writes 1 / sqrt(size) as Shape, Slice, Cast, Sqrt, Div."""
    qk = """
      shape = Shape(q)
      size = Slice(shape, minus_one, huge)
      size_f = Cast <to = 1> (size)
      root = Sqrt(size_f)
      scale = Div(one, root)
      half = Sqrt(scale)
      a = Mul(q, half)
      t = Transpose <perm = [0, 1, 3, 2]> (k)
      b = Mul(t, half)
      s = MatMul(a, b)"""
    constants = {"minus_one": np.asarray([-1]), "huge": np.asarray([2**62]), "one": np.asarray([1.0], np.float32)}
    after = check(core(SOFTMAX, constants, qk=qk), operands(), rest=[])
    assert attributes(after)["scale"] == pytest.approx(8**-0.5, rel=1e-6)


@pytest.mark.parametrize("opset", [11, 12, 13, 15, 18, 21])
def test_softmax_versions(opset: int) -> None:
    check(core("p = Softmax <axis = 3> (s)", opset=opset), operands(), rest=[])


def test_no_shapes_at_all() -> None:
    """Without declared shapes the ranks come from the perms of Transposes; without these they are unknown."""
    model = core(SOFTMAX)
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.ClearField("shape")
    assert fuse(model).codes() == ["UNKNOWN_RANK"]
    text = """g (float[] q, float[] k, float[] v) => (float[] o) {
      qt = Transpose <perm = [0, 2, 1, 3]> (q)  kt = Transpose <perm = [0, 2, 3, 1]> (k)
      vt = Transpose <perm = [0, 2, 1, 3]> (v)  s = MatMul(qt, kt)  p = Softmax <axis = -1> (s)  o = MatMul(p, vt) }"""
    feeds = {"q": draw(2, 5, 4, 8), "k": draw(2, 7, 4, 8), "v": draw(2, 7, 4, 6)}
    model = model_from_text(text, check=False)
    after = fuse(model)
    assert after.op_types == ["FusedAttention"]
    assert_same_outputs(model, after.proto, feeds)


# -- additive terms and masks ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "dims",
    [(), (1,), (7,), (5, 1), (5, 7), (4, 5, 1), (4, 1, 1), (1, 5, 7), (2, 1, 1, 7), (1, 1, 5, 7), (2, 4, 5, 7), (2, 4, 1, 1)],
)  # fmt: skip
def test_bias_shapes(dims: tuple[int, ...]) -> None:
    text = f"[{', '.join(map(str, dims))}]" if dims else ""
    model = core(
        "a = Add(s, b)\n p = Softmax <axis = -1> (a)", extra=f", float{text} b", dims="2, 4", rows="5", keys="7"
    )
    check(model, {**operands(), "b": np.asarray(3 * draw(*dims))}, "FusedAttentionBias", rest=[])


@pytest.mark.parametrize("dims", [(), (7,), (5, 1), (5, 7), (4, 5, 1), (2, 1, 1, 7), (1, 1, 5, 7), (2, 4, 5, 7)])
@pytest.mark.parametrize("value", [-math.inf, LOWEST, -1e4])
@pytest.mark.parametrize("inverted", [False, True])
def test_mask_shapes(dims: tuple[int, ...], value: float, inverted: bool) -> None:
    """Fully masked rows are included: as in the original, -inf gives NaN and the lowest float the average of V."""
    text = f"[{', '.join(map(str, dims))}]" if dims else ""
    order = "m, c, s" if inverted else "m, s, c"
    model = core(
        f"a = Where({order})\n p = Softmax <axis = -1> (a)", {"c": np.float32(value)},
        extra=f", bool{text} m", dims="2, 4", rows="5", keys="7",
    )  # fmt: skip
    mask = RNG.random(dims) < 0.5
    if dims == (2, 4, 5, 7):
        mask[1, 2, 3] = inverted
    after = check(model, {**operands(), "m": np.asarray(mask)}, "FusedAttentionMask", rest=["Not"] if inverted else [])
    assert attributes(after)["mask_value"] == np.float32(value)


def test_inverted_mask_of_a_negation() -> None:
    """masked_fill(~keep): the operator needs the inverted mask, so the Not is removed."""
    between = "n = Not(m)\n a = Where(n, c, s)\n p = Softmax <axis = -1> (a)"
    model = core(between, {"c": np.float32(-np.inf)}, extra=", bool[B, 1, 1, T] m")
    check(model, {**operands(), "m": RNG.random((2, 1, 1, 7)) < 0.7}, "FusedAttentionMask", rest=[])


def test_mask_value_as_a_whole_tensor() -> None:
    model = core(
        "a = Where(m, s, c)\n p = Softmax <axis = -1> (a)", {"c": np.full((5, 7), -1e9, np.float32)},
        extra=", bool[5, 7] m", dims="2, 4", rows="5", keys="7",
    )  # fmt: skip
    check(model, {**operands(), "m": RNG.random((5, 7)) < 0.6}, "FusedAttentionMask", rest=[])


def test_several_terms() -> None:
    """Scales around several biases, one subtracted: the biases are summed before the node, where they are small."""
    between = """
      a = Mul(s, c)  b = Add(b1, a)  d = Sub(b, b2)  e = Div(d, two)  f = Add(e, b3)
      p = Softmax <axis = -1> (f)"""
    model = core(
        between, {"c": np.float32(0.3), "two": np.float32(2.0)},
        extra=", float[B, 1, 1, T] b1, float[4, S, 1] b2, float[S, T] b3",
    )  # fmt: skip
    feeds = {**operands(), "b1": draw(2, 1, 1, 7), "b2": draw(4, 5, 1), "b3": draw(5, 7)}
    after = check(model, feeds, "FusedAttentionBias")
    assert attributes(after)["scale"] == pytest.approx(0.15)


def test_two_masks_and_a_bias() -> None:
    between = "a = Add(s, b)\n d = Where(m1, a, c)\n e = Where(m2, c, d)\n p = Softmax <axis = -1> (e)"
    model = core(between, {"c": np.float32(-np.inf)}, extra=", float[4, S, T] b, bool[B, 1, 1, T] m1, bool[S, T] m2")
    m2 = ~np.tri(5, 7, 2, dtype=bool)
    feeds = {**operands(), "b": draw(4, 5, 7), "m1": RNG.random((2, 1, 1, 7)) < 0.8, "m2": m2}
    check(model, feeds, "FusedAttentionBiasMask", rest=["And", "Not"])


def test_padding_after_a_causal_mask() -> None:
    """The first GPT-2 adds the padding to Where(causal, s, lowest); both become one bias."""
    between = "a = Where(m, s, c)\n b = Add(a, pad)\n p = Softmax <axis = -1> (b)"
    model = core(between, {"c": np.float32(LOWEST)}, extra=", bool[1, 1, S, T] m, float[B, 1, 1, T] pad")
    pad = np.zeros((2, 1, 1, 7), np.float32)
    pad[1, ..., :3] = LOWEST
    feeds = {**operands(), "m": np.tri(5, 7, 2, dtype=bool)[None, None], "pad": pad}
    check(model, feeds, "FusedAttentionBias", rest=["Where", "Add"])


# Forms of s m - c (1 - m): the nodes that compute m, and those that subtract the second term.
FACTORS = {
    "buffer": ("m = Slice(tri, zero, size, rows)", "h = Sub(one, m)\n g = Mul(h, c)\n b = Sub(a, g)"),
    "booleans": ("m = Cast <to = 1> (keep)", "h = Sub(one, m)\n g = Mul(c, h)\n b = Sub(a, g)"),
    "other Cast": ("m = Cast <to = 1> (keep)\n n = Cast <to = 1> (keep)", "h = Sub(n, one)\n g = Mul(h, c)\n b = Add(g, a)"),
    "negated": ("m = Cast <to = 1> (keep)\n n = Not(keep)", "f = Cast <to = 1> (n)\n h = Neg(f)\n g = Mul(h, c)\n b = Add(a, g)"),
    "Trilu": ("ones = ConstantOfShape <value: tensor = float[1] {1.0}> (square)\n m = Trilu <upper = 0> (ones)", "h = Sub(one, m)\n g = Div(h, inverse)\n b = Sub(a, g)"),
    "product": ("f = Cast <to = 1> (keep)\n m = Mul(f, tri)", "h = Sub(one, m)\n g = Mul(c, h)\n b = Sub(a, g)"),
    "folded": ("m = Identity(tri)", "b = Add(a, folded)"),
    "Where": ("m = Cast <to = 1> (keep)", "low = Neg(c)\n g = Where(keep, nothing, low)\n b = Add(a, g)"),
}  # fmt: skip


@pytest.mark.parametrize("form", FACTORS)
def test_mask_as_a_factor(form: str) -> None:
    """Megatron, GLM and the first GPT-2 multiply by the mask, which gives the same bits as FusedAttentionMask."""
    mask, term = FACTORS[form]
    tri = np.tri(7, dtype=np.float32)
    constants = {
        "tri": tri, "folded": np.where(tri == 0, np.float32(-1e4), np.float32(0)), "c": np.float32(1e4),
        "inverse": np.float32(1e-4), "one": np.float32(1), "nothing": np.float32(0), "zero": np.asarray([0]),
        "size": np.asarray([7]), "rows": np.asarray([0]), "square": np.asarray([7, 7]),
    }  # fmt: skip
    used = {
        n: a
        for n, a in constants.items()
        if n in f"{mask} {term}".replace("(", " ").replace(")", " ").replace(",", " ").split()
    }
    between = f"{mask}\n a = Mul(s, m)\n {term}\n p = Softmax <axis = -1> (b)"
    keep = ", bool[B, 1, 7, 7] keep" if "keep" in mask else ""
    model = core(between, used, extra=keep, rows="7", keys="7")
    feeds = operands(2, 7, 7)
    if keep:
        given = RNG.random((2, 1, 7, 7)) < 0.5
        given[0, :, 3] = False
        feeds["keep"] = given
    after = check(model, feeds, "FusedAttentionMask")
    assert attributes(after)["mask_value"] == -1e4


@pytest.mark.parametrize("order", ["d, s", "s, d"])
def test_a_bias_that_a_matmul_produces(order: str) -> None:
    """Lc0: a small network generates the bias; either operand of the Add could be the scores."""
    text = f"""g (float[B, 4, 9, 8] q, float[B, 4, 9, 8] k, float[B, 4, 9, 6] v, float[B, 4, 5] latent) => (float[B, 4, 9, 6] o) {{
      kt = Transpose <perm = [0, 1, 3, 2]> (k)  s = MatMul(q, kt)  g = MatMul(latent, w)  d = Reshape(g, grid)
      a = Add({order})  p = Softmax <axis = -1> (a)  o = MatMul(p, v) }}"""
    model = model_from_text(text, {"w": draw(5, 81), "grid": np.asarray([-1, 4, 9, 9])})
    feeds = {"q": draw(2, 4, 9, 8), "k": draw(2, 4, 9, 8), "v": draw(2, 4, 9, 6), "latent": draw(2, 4, 5)}
    check(model, feeds, "FusedAttentionBias", rest=["MatMul", "Reshape"])


@pytest.mark.parametrize("cap", [20.0, -20.0])
def test_soft_cap(cap: float) -> None:
    between = "a = Mul(s, c)\n b = Div(a, cap)\n t = Tanh(b)\n d = Mul(t, cap)\n p = Softmax <axis = -1> (d)"
    model = core(between, {"c": np.float32(0.3), "cap": np.float32(cap)})
    after = check(model, {n: 10 * x for n, x in operands().items()}, "FusedAttentionSoftcap", rest=[])
    assert attributes(after)["softcap"] == pytest.approx(cap)


def test_soft_cap_of_two_numbers() -> None:
    between = "b = Mul(s, a)\n t = Tanh(b)\n d = Mul(t, c)\n e = Add(d, m)\n p = Softmax <axis = -1> (e)"
    model = core(between, {"a": np.float32(0.11), "c": np.float32(7.0)}, extra=", float[S, T] m")
    after = check(model, {**operands(), "m": draw(5, 7)}, "FusedAttentionBiasSoftcap", rest=[])
    assert attributes(after)["softcap"] == pytest.approx(7.0)
    assert attributes(after)["scale"] == pytest.approx(0.77)


def test_nan_guard() -> None:
    """Torch's exporter replaces NaN by 0, so fully masked rows give 0."""
    between = """
      a = Add(s, m)  x = Softmax <axis = -1> (a)  nan = IsNaN(x)  p = Where(nan, zero, x)"""
    model = core(between, {"zero": np.float32(0.0)}, extra=", float[S, T] m")
    mask = np.where(RNG.random((5, 7)) < 0.7, 0.0, -np.inf).astype(np.float32)
    mask[2] = -np.inf
    after = check(model, {**operands(), "m": mask}, "FusedAttentionBiasGuard", rest=[])
    assert np.all(run(after.proto, {**operands(), "m": mask})[0][:, :, 2] == 0.0)


def test_fully_hidden_rows_without_guard_stay_nan() -> None:
    model = core("a = Add(s, m)\n p = Softmax <axis = -1> (a)", extra=", float[S, T] m")
    mask = np.zeros((5, 7), np.float32)
    mask[2] = -np.inf
    after = check(model, {**operands(), "m": mask}, "FusedAttentionBias")
    assert np.isnan(run(after.proto, {**operands(), "m": mask})[0][:, :, 2]).all()


def test_dropout_and_identity_at_inference() -> None:
    between = "i = Identity(s)\n x = Softmax <axis = -1> (i)\n d, unused = Dropout(x, ratio)\n p = Identity(d)"
    check(core(between, {"ratio": np.float32(0.1)}), operands(), rest=[])


@pytest.mark.parametrize("rows", [1, 5, 7])
@pytest.mark.parametrize("value", [-math.inf, LOWEST])
@pytest.mark.parametrize("kind", ["bias", "mask", "inverted mask"])
def test_constant_causal_mask(rows: int, value: float, kind: str) -> None:
    keep = np.tri(rows, 7, 7 - rows)[None, None] > 0
    between = {
        "bias": "a = Add(s, m)",
        "mask": "a = Where(m, s, c)",
        "inverted mask": "a = Where(m, c, s)",
    }[kind] + "\n p = Softmax <axis = -1> (a)"
    constants: dict[str, Array] = {
        "m": {"bias": np.where(keep, 0, value).astype(np.float32), "mask": keep}.get(kind, ~keep)
    }
    if kind != "bias":
        constants["c"] = np.asarray(value, np.float32)
    model = core(between, constants, rows=str(rows), keys="7")
    check(model, operands(S=rows), "FusedAttention" if rows == 1 else "FusedAttentionCausal", rest=[])


def test_masks_that_are_not_causal_for_sure() -> None:
    """Not causal: another diagonal, or the lowest float with a padding mask that could hide all other keys of a row."""
    top_left = np.where(np.tri(5, 7) > 0, 0, -np.inf).astype(np.float32)
    between = "a = Add(s, m)\n p = Softmax <axis = -1> (a)"
    check(core(between, {"m": top_left}, rows="5", keys="7"), operands(), "FusedAttentionBias")
    lowest = np.where(np.tri(5, 7, 2) > 0, 0, LOWEST).astype(np.float32)
    pad = np.zeros((2, 1, 1, 7), np.float32)
    pad[1, ..., :3] = LOWEST
    between = "a = Add(s, m)\n b = Add(a, pad)\n p = Softmax <axis = -1> (b)"
    model = core(between, {"m": lowest}, rows="5", keys="7", extra=", float[B, 1, 1, 7] pad")
    check(model, {**operands(), "pad": pad}, "FusedAttentionBias", rest=["Add"])
    model = core(between, {"m": np.where(lowest < 0, -np.inf, 0).astype(np.float32)}, rows="5", keys="7",
                 extra=", float[B, 1, 1, 7] pad")  # fmt: skip
    check(model, {**operands(), "pad": pad}, "FusedAttentionBiasCausal", rest=[])


@pytest.mark.parametrize(
    ("between", "constants"),
    [
        ("a = Add(s, m)", {"m": np.zeros((1, 1, 5, 7), np.float32)}),
        ("a = Where(m, s, c)", {"m": np.ones((1, 1, 5, 1), np.bool_), "c": np.float32(-np.inf)}),
        ("a = Where(m, c, s)", {"m": np.zeros((7,), np.bool_), "c": np.float32(-1e4)}),
        (
            "e = Expand(m, shape)  w = Where(e, zero, c)  a = Add(s, w)",
            {"m": np.ones((1, 1, 5, 1), np.bool_), "shape": np.array([2, 1, 5, 7]), "zero": np.float32(0),
             "c": np.float32(LOWEST)},
        ),
    ],
)  # fmt: skip
def test_constant_masks_without_effect(between: str, constants: dict[str, Array]) -> None:
    model = core(between + "\n p = Softmax <axis = -1> (a)", constants, dims="2, 4", rows="5", keys="7")
    check(model, operands(), rest=[])


def test_constant_masks_with_effect() -> None:
    """One hidden score, a term that is not 0 and, with an unknown batch, a mask that may repeat the scores."""
    softmax = "\n p = Softmax <axis = -1> (a)"
    mask = np.ones((1, 1, 5, 7), np.bool_)
    mask[..., 2, 3] = False
    model = core("a = Where(m, s, c)" + softmax, {"m": mask, "c": np.float32(-1e9)}, rows="5", keys="7")
    check(model, operands(), "FusedAttentionMask", rest=[])
    check(
        core("a = Add(s, m)" + softmax, {"m": np.full((5, 7), 1e-3, np.float32)}, rows="5", keys="7"),
        operands(),
        "FusedAttentionBias",
        rest=[],
    )
    after = fuse(core("a = Add(s, m)" + softmax, {"m": np.zeros((2, 1, 5, 7), np.float32)}, rows="5", keys="7"))
    assert "FusedAttention" not in after.op_types
    # A Cast to an integer makes 0.5 a 0, which hides the scores.
    half = "i = Cast <to = 6> (m)\n e = Cast <to = 9> (i)\n a = Where(e, s, c)"
    constants = {"m": np.full((5, 7), 0.5, np.float32), "c": np.float32(-1e4)}
    check(core(half + softmax, constants, rows="5", keys="7"), operands(), "FusedAttentionMask")


def test_many_tokens_need_no_memory() -> None:
    """A static image of 512 x 512 has 2^36 scores, so no array of their size may be created."""
    after = fuse(core(SOFTMAX, rows=str(1 << 18), keys=str(1 << 18)))
    assert after.op_types == ["FusedAttention"], after.remarks


# -- layouts -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("k_perm", ["0, 2, 3, 1", "0, 2, 1, 3"])
def test_bert(k_perm: str) -> None:
    """Projections, head split and merge, Div, padding mask; batch and length dynamic, -1 and 0 in Reshapes."""
    kt = "kt = Identity(kh)" if k_perm == "0, 2, 3, 1" else "kt = Transpose <perm = [0, 1, 3, 2]> (kh)"
    text = f"""g (float[B, S, 32] x, float[B, 1, 1, S] mask) => (float[B, S, 32] y) {{
      qp = MatMul(x, wq)  qr = Reshape(qp, split)  qh = Transpose <perm = [0, 2, 1, 3]> (qr)
      kp = MatMul(x, wk)  kr = Reshape(kp, split)  kh = Transpose <perm = [{k_perm}]> (kr)  {kt}
      vp = MatMul(x, wv)  vr = Reshape(vp, split)  vh = Transpose <perm = [0, 2, 1, 3]> (vr)
      s = MatMul(qh, kt)  d = Div(s, root)  a = Add(d, mask)  p = Softmax <axis = -1> (a)
      o = MatMul(p, vh)  ot = Transpose <perm = [0, 2, 1, 3]> (o)  y = Reshape(ot, merge) }}"""
    constants = {w: draw(32, 32) / 6 for w in ("wq", "wk", "wv")}
    constants |= {"split": np.asarray([0, -1, 4, 8]), "merge": np.asarray([0, 0, 32]), "root": np.float32(8**0.5)}
    mask = np.zeros((3, 1, 1, 9), np.float32)
    mask[1, ..., 6:] = LOWEST
    after = check(
        model_from_text(text, constants), {"x": draw(3, 9, 32), "mask": mask}, "FusedAttentionBias",
        rest=["MatMul"] * 3 + ["Reshape"] * 4,
    )  # fmt: skip
    assert attributes(after) == {
        "scale": pytest.approx(8**-0.5),
        "q_perm": [0, 2, 1, 3],
        "k_perm": [0, 2, 3, 1],
        "v_perm": [0, 2, 1, 3],
        "o_perm": [0, 2, 1, 3],
    }


def test_flattened_key_transpose() -> None:
    """Torch's dynamo exporter transposes K with flattened leading dimensions; their sizes come from Shape."""
    qk = """
      b = Shape <start = 0, end = 1> (k)
      t = Shape <start = 2, end = 3> (k)
      flat_shape = Concat <axis = 0> (minus_one, t, eight)
      flat = Reshape(k, flat_shape)
      turned = Transpose <perm = [0, 2, 1]> (flat)
      back = Concat <axis = 0> (b, four, eight, t)
      kt = Reshape(turned, back)
      ks = Mul(kt, c)
      qs = Mul(q, c)
      s = MatMul(qs, ks)"""
    ints = {n: np.asarray([i]) for n, i in (("minus_one", -1), ("eight", 8), ("four", 4))}
    check(core(SOFTMAX, {**ints, "c": np.float32(0.6)}, qk=qk), [operands(), operands(1, 8, 4)], rest=[])


def test_keys_that_are_also_cached() -> None:
    """The concatenated cache is an output of the model; it is kept, and the attention is fused."""
    text = """g (float[B, 4, 1, 8] q, float[B, 4, 1, 8] k, float[B, 4, 1, 6] v, float[B, 4, P, 8] pk, float[B, 4, P, 6] pv)
      => (float[B, 4, 1, 6] o, float[B, 4, T, 8] k2, float[B, 4, T, 6] v2) {
      k2 = Concat <axis = 2> (pk, k)  v2 = Concat <axis = 2> (pv, v)  kt = Transpose <perm = [0, 1, 3, 2]> (k2)
      s = MatMul(q, kt)  p = Softmax <axis = -1> (s)  o = MatMul(p, v2) }"""
    feeds = {"q": draw(2, 4, 1, 8), "k": draw(2, 4, 1, 8), "v": draw(2, 4, 1, 6), "pk": draw(2, 4, 5, 8),
             "pv": draw(2, 4, 5, 6)}  # fmt: skip
    check(model_from_text(text), feeds, rest=["Concat", "Concat"])


@pytest.mark.parametrize("tile", [False, True])
def test_grouped_heads(tile: bool) -> None:
    """Llama: 2 key/value heads serve 4 query heads each; the repetition is removed, BSNH is kept."""
    repeat = "Tile(xu, times)" if tile else "Expand(xu, wide)"
    repeated = "".join(
        f"{n}h = Transpose <perm = [0, 2, 1, 3]> ({n})  {n}u = Unsqueeze({n}h, two)  "
        f"{n}w = {repeat.replace('xu', n + 'u')}  {n}r = Reshape({n}w, merged)  "
        for n in "kv"
    )
    text = f"""g (float[2, 5, 8, 6] q, float[2, 5, 2, 6] k, float[2, 5, 2, 6] v, float[2, 1, 5, 5] m) => (float[2, 5, 8, 6] o) {{
      qh = Transpose <perm = [0, 2, 1, 3]> (q)  {repeated} kt = Transpose <perm = [0, 1, 3, 2]> (kr)
      s = MatMul(qh, kt)  c = Mul(s, scale)  a = Add(c, m)  p = Softmax <axis = -1> (a)
      oh = MatMul(p, vr)  o = Transpose <perm = [0, 2, 1, 3]> (oh) }}"""
    constants = {
        "two": np.asarray([2]), "times": np.asarray([1, 1, 4, 1, 1]), "wide": np.asarray([2, 2, 4, 5, 6]),
        "merged": np.asarray([2, 8, 5, 6]), "scale": np.float32(0.4),
    }  # fmt: skip
    constants.pop("wide" if tile else "times")
    feeds = {"q": draw(2, 5, 8, 6), "k": draw(2, 5, 2, 6), "v": draw(2, 5, 2, 6), "m": draw(2, 1, 5, 5)}
    after = check(model_from_text(text, constants), feeds, "FusedAttentionBiasGqa", rest=[])
    assert attributes(after)["k_perm"] == [0, 2, 3, 1]


def test_heads_repeated_in_the_other_order_are_no_groups() -> None:
    """Tiling whole head blocks is not repeat-interleave: the repetition stays outside."""
    text = """g (float[2, 8, 5, 6] q, float[2, 2, 5, 6] k, float[2, 2, 5, 6] v) => (float[2, 8, 5, 6] o) {
      kr = Tile(k, times)  vr = Tile(v, times)  kt = Transpose <perm = [0, 1, 3, 2]> (kr)
      s = MatMul(q, kt)  p = Softmax <axis = -1> (s)  o = MatMul(p, vr) }"""
    model = model_from_text(text, {"times": np.asarray([1, 4, 1, 1])})
    feeds = {"q": draw(2, 8, 5, 6), "k": draw(2, 2, 5, 6), "v": draw(2, 2, 5, 6)}
    check(model, feeds, rest=["Tile", "Tile"])
    unsqueezed = """g (float[2, 8, 5, 6] q, float[2, 2, 5, 6] k, float[2, 2, 5, 6] v) => (float[2, 8, 5, 6] o) {
      ku = Unsqueeze(k, one)  kw = Expand(ku, wide)  kr = Reshape(kw, merged)
      vu = Unsqueeze(v, one)  vw = Expand(vu, wide)  vr = Reshape(vw, merged)  kt = Transpose <perm = [0, 1, 3, 2]> (kr)
      s = MatMul(q, kt)  p = Softmax <axis = -1> (s)  o = MatMul(p, vr) }"""
    constants = {"one": np.asarray([1]), "wide": np.asarray([2, 4, 2, 5, 6]), "merged": np.asarray([2, 8, 5, 6])}
    after = check(model_from_text(unsqueezed, constants), feeds)
    assert "Expand" in after.op_types


def test_one_key_head_for_all_queries() -> None:
    """Multi-query attention needs no grouping: the heads of K and V broadcast."""
    text = """g (float[B, 4, S, 8] q, float[B, 1, T, 8] k, float[B, 1, T, 6] v) => (float[B, 4, S, 6] o) {
      kt = Transpose <perm = [0, 1, 3, 2]> (k)  s = MatMul(q, kt)  p = Softmax <axis = -1> (s)  o = MatMul(p, v) }"""
    check(model_from_text(text), {"q": draw(2, 4, 5, 8), "k": draw(2, 1, 7, 8), "v": draw(2, 1, 7, 6)}, rest=[])


def test_learned_queries_broadcast_over_the_batch() -> None:
    text = """g (float[B, 4, T, 8] k, float[B, 4, T, 6] v) => (float[B, 4, 3, 6] o) {
      kt = Transpose <perm = [0, 1, 3, 2]> (k)  s = MatMul(q, kt)  p = Softmax <axis = -1> (s)  o = MatMul(p, v) }"""
    check(model_from_text(text, {"q": draw(4, 3, 8)}), {"k": draw(2, 4, 7, 8), "v": draw(2, 4, 7, 6)}, rest=[])


@pytest.mark.parametrize("rank", [2, 3])
def test_lower_ranks(rank: int) -> None:
    batch = "B, " * (rank - 2)
    perm = [0, 2, 1] if rank == 3 else [1, 0]
    text = f"""g (float[{batch}S, 8] q, float[{batch}T, 8] k, float[{batch}T, 6] v) => (float[{batch}S, 6] o) {{
      kt = Transpose <perm = {perm}> (k)  s = MatMul(q, kt)  p = Softmax <axis = -1> (s)  o = MatMul(p, v) }}"""
    lead = (3,) * (rank - 2)
    check(model_from_text(text), {"q": draw(*lead, 5, 8), "k": draw(*lead, 7, 8), "v": draw(*lead, 7, 6)}, rest=[])


def test_heads_folded_into_the_batch() -> None:
    """Stable Diffusion's first code multiplies with bmm over batch * heads."""
    text = """g (float[B, S, 24] q, float[B, T, 24] k, float[B, T, 24] v) => (float[B, S, 24] o) {
      q4 = Reshape(q, split)  qt = Transpose <perm = [0, 2, 1, 3]> (q4)  q3 = Reshape(qt, fold)
      k4 = Reshape(k, split)  kt = Transpose <perm = [0, 2, 1, 3]> (k4)  k3 = Reshape(kt, fold)
      v4 = Reshape(v, split)  vt = Transpose <perm = [0, 2, 1, 3]> (v4)  v3 = Reshape(vt, fold)
      n = Shape <start = 1, end = 2> (q)
      kk = Transpose <perm = [0, 2, 1]> (k3)  s = MatMul(q3, kk)  c = Mul(s, scale)  p = Softmax <axis = -1> (c)
      o3 = MatMul(p, v3)  back = Concat <axis = 0> (lead, n, eight)  o4 = Reshape(o3, back)
      ot = Transpose <perm = [0, 2, 1, 3]> (o4)  o = Reshape(ot, merge) }"""
    constants = {
        "split": np.asarray([0, -1, 3, 8]), "fold": np.asarray([-1, 5, 8]), "scale": np.float32(0.35),
        "lead": np.asarray([-1, 3]), "eight": np.asarray([8]), "merge": np.asarray([0, -1, 24]),
    }  # fmt: skip
    feeds = {n: draw(2, 5, 24) for n in "qkv"}
    check(model_from_text(text, constants), feeds)


@pytest.mark.parametrize(
    ("first", "second"),
    [("bhid,bhjd->bhij", "bhij,bhjd->bhid"), ("bihd,bjhd->bhij", "bhij,bjhd->bihd"), ("bjhd,bihd->bhij", "bhij,bjhd->bhid")],
)  # fmt: skip
def test_einsum(first: str, second: str) -> None:
    sizes = {"b": 2, "h": 4, "i": 5, "j": 7, "d": 8}
    a, b = first.split("->")[0].split(",")
    swapped = "i" not in a
    v = second.split("->")[0].split(",")[1]
    dims = {"q": [sizes[c] for c in (b if swapped else a)], "k": [sizes[c] for c in (a if swapped else b)],
            "v": [sizes[c] for c in v]}  # fmt: skip
    inputs = ", ".join(f"float{dims[n]} {n}" for n in "qkv")
    text = f"""g ({inputs}) => (float{[sizes[c] for c in second[-4:]]} o) {{
      s = Einsum <equation = "{first}"> ({"k, q" if swapped else "q, k"})  c = Mul(s, scale)
      p = Softmax <axis = -1> (c)  o = Einsum <equation = "{second}"> (p, v) }}"""
    check(model_from_text(text, {"scale": np.float32(0.35)}), {n: draw(*dims[n]) for n in "qkv"}, rest=[])


WINDOWS = """g (float[B, 6, 5, 3, 8] x, float[B, 6, 7, 3, 8] y%s) => (float[B, 6, 5, 3, 8] o) {
  q = Transpose <perm = [0, 1, 3, 2, 4]> (x)  k = Transpose <perm = [0, 1, 3, 2, 4]> (y)  v = Abs(k)  d = Mul(k, scale)
  s = Einsum <equation = "B G H I D, B G H J D -> B G H I J"> (q, d)  b = %s
  p = Softmax <axis = -1> (b)  c = Einsum <equation = "B G H I J, B G H J D -> B G H I D"> (p, v)
  o = Transpose <perm = [0, 1, 3, 2, 4]> (c) }"""


@pytest.mark.parametrize(
    ("bias", "reshapes"),
    [((3, 1, 7), 0), ((1, 3, 5, 7), 1), ((1, 1, 1, 5, 7), 1), (("B", 6, 1, 5, 7), 1), ((), 0)],
)
def test_two_batch_axes(bias: tuple[int | str, ...], reshapes: int) -> None:
    """MaxViT of torchvision has windows beside the batch. The fused node has one batch axis."""
    dims = ", ".join(map(str, bias))
    text = WINDOWS % ((f", float[{dims}] r", "Add(s, r)") if bias else ("", "Identity(s)"))
    feeds = {"x": draw(2, 6, 5, 3, 8), "y": draw(2, 6, 7, 3, 8)}
    if bias:
        feeds["r"] = draw(*(2 if n == "B" else int(n) for n in bias))
    rest = ["Reshape"] * (4 + reshapes) + ["Abs", "Transpose"]
    after = check(
        model_from_text(text, {"scale": np.float32(0.35)}),
        feeds,
        "FusedAttentionBias" if bias else "FusedAttention",
        rest=rest,
    )
    assert attributes(after)["q_perm"] == [0, 2, 1, 3]
    assert attributes(after)["o_perm"] == [0, 2, 1, 3]


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (WINDOWS.replace("B, 6, ", "B, G, ") % ("", "Identity(s)"), "UNKNOWN_SHAPE"),
        (WINDOWS % (", float[6, 1, 5, 7] r", "Add(s, r)"), "WRONG_SHAPE"),
        (WINDOWS.replace("[0, 1, 3, 2, 4]", "[1, 0, 3, 2, 4]", 1) % ("", "Identity(s)"), "WRONG_PERM"),
    ],
)
def test_batch_axes_that_cannot_be_merged(text: str, code: str) -> None:
    refuse(model_from_text(text, {"scale": np.float32(0.35)}), code)


def test_transposed_probabilities() -> None:
    """The first Stable Diffusion autoencoder computes V^T P^T, with K and V stored as [B, C, H W]."""
    text = """g (float[B, 8, N] q, float[B, 8, N] k, float[B, 6, N] v) => (float[B, 6, N] o) {
      qt = Transpose <perm = [0, 2, 1]> (q)  s = MatMul(qt, k)  c = Mul(s, scale)  p = Softmax <axis = 2> (c)
      pt = Transpose <perm = [0, 2, 1]> (p)  o = MatMul(v, pt) }"""
    after = check(
        model_from_text(text, {"scale": np.float32(0.35)}),
        {"q": draw(2, 8, 12), "k": draw(2, 8, 12), "v": draw(2, 6, 12)}, rest=[],
    )  # fmt: skip
    assert attributes(after)["k_perm"] == [0, 1, 2]
    assert attributes(after)["o_perm"] == [0, 2, 1]


# -- scores with other shapes ------------------------------------------------------------------------------------------


def test_softmax_over_a_matrix() -> None:
    """tf2onnx flattens the scores to 2-D for Softmax, and transposes K by [0, 2, 3, 1]."""
    text = """g (float[B, S, 4, 8] q, float[B, 7, 4, 8] k, float[B, 7, 4, 6] v) => (float[B, S, 4, 6] o) {
      qt = Transpose <perm = [0, 2, 1, 3]> (q)  kt = Transpose <perm = [0, 2, 3, 1]> (k)
      vt = Transpose <perm = [0, 2, 1, 3]> (v)  s = MatMul(qt, kt)  shape = Shape(s)
      flat = Reshape(s, two_d)  x = Softmax <axis = 1> (flat)  p = Reshape(x, shape)
      oh = MatMul(p, vt)  o = Transpose <perm = [0, 2, 1, 3]> (oh) }"""
    model = model_from_text(text, {"two_d": np.asarray([-1, 7])}, opset=12)
    check(model, {"q": draw(2, 5, 4, 8), "k": draw(2, 7, 4, 8), "v": draw(2, 7, 4, 6)}, rest=[])


@pytest.mark.parametrize("dynamic", [False, True])
def test_swin_windows(dynamic: bool) -> None:
    """Relative bias, then the shift mask of each window in the shape [image, window, head, row, key]."""
    N = "N" if dynamic else "6"
    text = f"""g (float[{N}, 4, 9, 8] q, float[{N}, 4, 9, 8] k, float[{N}, 4, 9, 8] v) => (float[{N}, 4, 9, 8] o) {{
      kt = Transpose <perm = [0, 1, 3, 2]> (k)  s = MatMul(q, kt)  c = Mul(s, scale)  a = Add(c, bias)
      n = Shape <start = 0, end = 1> (q)  images = Div(n, windows)  there = Concat <axis = 0> (images, rest)
      w = Reshape(a, there)  m = Add(w, mask)  back = Concat <axis = 0> (n, tail)  r = Reshape(m, back)
      p = Softmax <axis = -1> (r)  o = MatMul(p, v) }}"""
    constants = {
        "scale": np.float32(0.35), "bias": draw(1, 4, 9, 9), "windows": np.asarray([3]),
        "rest": np.asarray([3, 4, 9, 9]), "mask": np.where(RNG.random((1, 3, 1, 9, 9)) < 0.2, -100, 0).astype(np.float32),
        "tail": np.asarray([4, 9, 9]),
    }  # fmt: skip
    if dynamic:
        # The batch is known to be a multiple of the windows only if the graph contains the partition into windows.
        text = text.replace(f"(float[{N}, 4, 9, 8] q", "(float[B, 4, 9, 8] q0").replace(
            "kt =", "q = Tile(q0, by)  kt ="
        )
        constants["by"] = np.asarray([3, 1, 1, 1])
    feeds = {n: draw(6, 4, 9, 8) for n in "qkv"}
    if dynamic:
        feeds["q0"] = feeds.pop("q")[:2]
    after = check(model_from_text(text, constants), feeds, "FusedAttentionBias")
    assert "Softmax" not in after.op_types


def test_decomposed_relative_positions() -> None:
    """SAM adds a bias for image rows and one for image columns, in a shape that splits queries and keys."""
    between = """
      w = Reshape(s, there)  a = Add(w, bh)  b = Add(a, bw)  r = Reshape(b, back)  p = Softmax <axis = -1> (r)"""
    model = core(
        between, {"there": np.asarray([2, 4, 3, 4, 2, 5]), "back": np.asarray([2, 4, 12, 10])},
        extra=", float[2, 4, 3, 4, 2, 1] bh, float[2, 4, 3, 4, 1, 5] bw", dims="2, 4", rows="12", keys="10",
    )  # fmt: skip
    feeds = {**operands(2, 12, 10), "bh": draw(2, 4, 3, 4, 2, 1), "bw": draw(2, 4, 3, 4, 1, 5)}
    check(model, feeds, "FusedAttentionBias", rest=["Add", "Reshape"])


def test_mask_over_heads_folded_into_the_batch() -> None:
    """The original BART reshapes the scores of bmm to [B, H, S, T] to add the padding mask."""
    text = """g (float[8, 5, 6] q, float[8, 7, 6] k, float[8, 7, 6] v, float[2, 1, 5, 7] m) => (float[8, 5, 6] o) {
      kt = Transpose <perm = [0, 2, 1]> (k)  s = MatMul(q, kt)  w = Reshape(s, there)  a = Add(w, m)  r = Reshape(a, back)
      p = Softmax <axis = -1> (r)  o = MatMul(p, v) }"""
    constants = {"there": np.asarray([2, 4, 5, 7]), "back": np.asarray([8, 5, 7])}
    feeds = {"q": draw(8, 5, 6), "k": draw(8, 7, 6), "v": draw(8, 7, 6), "m": 3 * draw(2, 1, 5, 7)}
    check(model_from_text(text, constants), feeds, "FusedAttentionBias", rest=["Expand", "Reshape"])


def test_readers_of_the_shape_of_the_scores() -> None:
    """Tracers query sizes of intermediate values, here to slice a causal mask from a larger one."""
    between = """
      shape = Shape(s)  n = Gather(shape, two)  t = Gather(shape, three)  nu = Unsqueeze(n, zero)  tu = Unsqueeze(t, zero)
      begin = Sub(tu, nu)  rows = Slice(all, begin, tu, zero)  causal = Slice(rows, zero, tu, one)
      a = Where(causal, s, c)  p = Softmax <axis = -1> (a)"""
    constants = {
        "two": np.asarray(2), "three": np.asarray(3), "zero": np.asarray([0]), "one": np.asarray([1]),
        "all": np.tri(12, 12, dtype=bool), "c": np.float32(-1e4),
    }  # fmt: skip
    check(core(between, constants), [operands(), operands(1, 4, 12)], "FusedAttentionMask")


# -- float16 -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("casts", [False, True])
def test_half_precision(casts: bool) -> None:
    between = "a = Add(s, m)\n p = Softmax <axis = -1> (a)"
    if casts:
        between = "a = Add(s, m)\n f = Cast <to = 1> (a)\n x = Softmax <axis = -1> (f)\n p = Cast <to = 10> (x)"
    model = core(between, extra=", float16[S, T] m", dtype="float16")
    feeds = {**operands(dtype=np.float16), "m": draw(5, 7, dtype=np.float16)}
    check(model, feeds, "FusedAttentionBias", tolerance=5e-3, rest=[])


@pytest.mark.parametrize("opset", [11, 13, 14])
def test_half_precision_in_old_models(opset: int) -> None:
    """Below opset 15, without CastLike, a body has one type: nodes of a model's second type are not rewritten."""
    text = """g (T[B, 4, S, 8] q, T[B, 4, 8, T] k, T[B, 4, T, 6] v) => (T[B, 4, S, 6] o) {
      s = MatMul(q, k)  p = Softmax <axis = 3> (s)  o = MatMul(p, v) }"""
    model = model_from_text(text.replace("T[B", "float16[B"), opset=opset)
    feeds = {"q": draw(2, 4, 5, 8), "k": draw(2, 4, 8, 7), "v": draw(2, 4, 7, 6)}
    check(model, {n: x.astype(np.float16) for n, x in feeds.items()}, tolerance=5e-3, rest=[])

    both = """g (float16[B, 4, S, 8] q, float16[B, 4, 8, T] k, float16[B, 4, T, 6] v, float[B, 4, S, 8] q2, float[B, 4, 8, T] k2,
      float[B, 4, T, 6] v2) => (float16[B, 4, S, 6] o, float[B, 4, S, 6] o2) {
      s = MatMul(q, k)  p = Softmax <axis = 3> (s)  o = MatMul(p, v)
      s2 = MatMul(q2, k2)  p2 = Softmax <axis = 3> (s2)  o2 = MatMul(p2, v2) }"""
    after = fuse(model_from_text(both, opset=opset))
    assert sorted(after.op_types) == ["FusedAttention", "MatMul", "MatMul", "Softmax"]
    assert [r.code for r in after.remarks if not r.applied] == ["OPSET"]
    assert fuse(after.proto).proto == after.proto
    both_feeds = {n: x.astype(np.float16) for n, x in feeds.items()} | {f"{n}2": x for n, x in feeds.items()}
    assert_same_outputs(model_from_text(both, opset=opset), after.proto, both_feeds, 5e-3)


def test_half_precision_scores_in_a_float_attention() -> None:
    """Scores in float16, mask, softmax and values in float: the node computes in float."""
    text = """g (float16[B, 4, S, 8] q, float16[B, 4, T, 8] k, float[B, 4, T, 6] v, float[S, T] m) => (float[B, 4, S, 6] o) {
      kt = Transpose <perm = [0, 1, 3, 2]> (k)  s = MatMul(q, kt)  f = Cast <to = 1> (s)  a = Add(f, m)
      p = Softmax <axis = -1> (a)  o = MatMul(p, v) }"""
    feeds = {"q": draw(2, 4, 5, 8, dtype=np.float16), "k": draw(2, 4, 7, 8, dtype=np.float16), "v": draw(2, 4, 7, 6)}
    mask = np.where(RNG.random((5, 7)) < 0.3, LOWEST, 0).astype(np.float32)
    check(model_from_text(text), {**feeds, "m": mask}, "FusedAttentionBias", tolerance=5e-3, rest=["Cast", "Cast"])


# -- Attention of ai.onnx ----------------------------------------------------------------------------------------------


def attention_node(
    opset: int, mask: str = "", heads: int = 4, keys: int = 7, rows: int = 5, node: Mapping[str, Any] | None = None
) -> onnx.ModelProto:
    inputs = [
        helper.make_tensor_value_info(n, TensorProto.FLOAT, d)
        for n, d in (("q", [2, 4, rows, 8]), ("k", [2, heads, keys, 8]), ("v", [2, heads, keys, 6]))
    ]
    names = ["q", "k", "v"]
    if mask:
        kind = TensorProto.BOOL if mask == "bool" else TensorProto.FLOAT
        inputs.append(helper.make_tensor_value_info("m", kind, [2, 1, rows, keys]))
        names.append("m")
    made = helper.make_node("Attention", names, ["o"], **(node or {}))
    output = helper.make_tensor_value_info("o", TensorProto.FLOAT, [2, 4, rows, 6])
    graph = helper.make_graph([made], "g", inputs, [output])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def specified(feeds: Mapping[str, Array], scale: float, softcap: float = 0.0, causal: bool = False) -> Array:
    """Computes the function body of Attention-23 in float64: fully masked rows give 0."""
    q, k, v = (feeds[n].astype(np.float64) for n in "qkv")
    past = feeds["pk"].shape[2] if "pk" in feeds else 0
    if past:
        k, v = np.concatenate([feeds["pk"], k], axis=2), np.concatenate([feeds["pv"], v], axis=2)
    k, v = (np.repeat(x, q.shape[1] // x.shape[1], axis=1) for x in (k, v))
    s = scale * q @ k.transpose(0, 1, 3, 2)
    s = softcap * np.tanh(s / softcap) if softcap else s
    if "m" in feeds:
        m = feeds["m"]
        s = s + (np.where(m, 0.0, -np.inf) if m.dtype == bool else m.astype(np.float64))
    if causal:
        s = np.where(np.tri(s.shape[-2], s.shape[-1], past) > 0, s, -np.inf)
    top = s.max(-1, keepdims=True)
    e = np.exp(s - np.where(np.isfinite(top), top, 0.0))
    total = e.sum(-1, keepdims=True)
    return np.asarray(np.where(total > 0, e / np.where(total > 0, total, 1.0), 0.0) @ v)


def run_anywhere(proto: onnx.ModelProto, feeds: Mapping[str, Array], *, library: bool) -> list[Array]:
    """Lowers opsets above 21 and runs the model: runtimes that load no opset above 22 can run a rewritten model."""
    for holder in (proto, *proto.functions):
        for opset in holder.opset_import:
            opset.version = min(opset.version, 21)
    return run(proto, feeds, library=library)


@pytest.mark.parametrize("opset", [23, 24, 25])
@pytest.mark.parametrize("mask", ["", "bool", "float"])
@pytest.mark.parametrize("heads", [4, 2])
def test_attention_node(opset: int, mask: str, heads: int) -> None:
    no_window = {"left_window_size": -1, "right_window_size": -1} if opset == 25 else {}
    model = attention_node(opset, mask, heads, node={"softcap": 9.0, "scale": 0.4, **no_window})
    after = fuse(model)
    variant = {"": "", "bool": "Mask", "float": "Bias"}[mask] + ("Gqa" if heads == 2 else "")
    assert after.op_types == [f"FusedAttention{variant}{'Guard' if mask else ''}Softcap"]
    feeds = {**operands(), "k": draw(2, heads, 7, 8), "v": draw(2, heads, 7, 6)}
    if mask:
        keep = RNG.random((2, 1, 5, 7)) < 0.6
        keep[1, 0, 3] = False
        feeds["m"] = keep if mask == "bool" else np.where(keep, 0.5, -np.inf).astype(np.float32)
    want = specified(feeds, 0.4, 9.0)
    for library in (False, True):
        np.testing.assert_allclose(run_anywhere(after.proto, feeds, library=library)[0], want, atol=2e-5)


def test_attention_node_with_a_mask_that_keeps_all_scores() -> None:
    text = """g (float[B, 4, 5, 8] q, float[B, 4, 7, 8] k, float[B, 4, 7, 6] v) => (float[B, 4, 5, 6] o) {
      o = Attention(q, k, v, m) }"""
    after = fuse(model_from_text(text, {"m": np.ones((1, 1, 5, 7), np.bool_)}, 23))
    assert after.op_types == ["FusedAttentionGuard"]
    feeds = operands()
    for library in (False, True):
        np.testing.assert_allclose(
            run_anywhere(after.proto, feeds, library=library)[0], specified(feeds, 8**-0.5), atol=2e-5
        )


def test_causal_attention_node() -> None:
    model = attention_node(23, rows=7, node={"is_causal": 1})
    after = fuse(model)
    assert after.op_types == ["FusedAttentionCausal"]
    feeds = operands(S=7)
    for library in (False, True):
        np.testing.assert_allclose(
            run_anywhere(after.proto, feeds, library=library)[0], specified(feeds, 8**-0.5, causal=True), atol=2e-5
        )


def test_attention_node_includes_the_transposes_of_heads() -> None:
    text = """g (float[B, S, 4, 8] q, float[B, T, 4, 8] k, float[B, T, 4, 8] v) => (float[B, S, 4, 8] o) {
      qt = Transpose <perm = [0, 2, 1, 3]> (q)  kt = Transpose <perm = [0, 2, 1, 3]> (k)
      vt = Transpose <perm = [0, 2, 1, 3]> (v)  a = Attention(qt, kt, vt)  o = Transpose <perm = [0, 2, 1, 3]> (a) }"""
    after = fuse(model_from_text(text, opset=23))
    assert after.op_types == ["FusedAttention"]
    assert attributes(after)["k_perm"] == [0, 2, 3, 1]


@pytest.mark.parametrize(
    ("model", "code"),
    [
        (attention_node(23, node={"is_causal": 1}), "UNKNOWN_SHAPE"),
        (attention_node(23, node={"scale": -1.0}), "ATTRIBUTE"),
        (attention_node(23, node={"softcap": -1.0}), "ATTRIBUTE"),
        (attention_node(23, node={"softmax_precision": TensorProto.DOUBLE}), "WRONG_DTYPE"),
        (attention_node(25, node={"left_window_size": 1}), "UNKNOWN_SHAPE"),
        (attention_node(25, rows=7, node={"right_window_size": -2}), "ATTRIBUTE"),
        (attention_node(26, node={"of_a_later_version": 1}), "ATTRIBUTE"),
    ],
)
def test_attention_nodes_that_are_kept(model: onnx.ModelProto, code: str) -> None:
    refuse(model, code)


def cached_node(
    *,
    packed: bool,
    heads: int,
    past: int,
    causal: bool = False,
    mask: bool = False,
    rows: str = "S",
    opset: int = 23,
    window: tuple[int, int] = (-1, -1),
) -> onnx.ModelProto:
    """Returns a model with attention over new keys and, with `past`, cached ones; the extended caches are outputs."""
    new = {
        "q": f"float[B, {rows}, 32] q" if packed else f"float[B, 4, {rows}, 8] q",
        "k": f"float[B, {rows}, {heads * 8}] k" if packed else f"float[B, {heads}, {rows}, 8] k",
        "v": f"float[B, {rows}, {heads * 6}] v" if packed else f"float[B, {heads}, {rows}, 6] v",
    }
    inputs, names, outputs = (
        list(new.values()),
        ["q", "k", "v"],
        ["float[B, S, 24] o" if packed else "float[B, 4, S, 6] o"],
    )
    if mask:
        inputs.append("float[B, 1, S, N] m")
    if past:
        inputs += [f"float[B, {heads}, P, 8] pk", f"float[B, {heads}, P, 6] pv"]
        outputs += [f"float[B, {heads}, N, 8] k2", f"float[B, {heads}, N, 6] v2"]
        names += ["m" if mask else "", "pk", "pv"]
    elif mask:
        names.append("m")
    attributes = [f"is_causal = {int(causal)}"]
    if opset >= 25:
        attributes += [f"left_window_size = {window[0]}", f"right_window_size = {window[1]}"]
    if packed:
        attributes += ["q_num_heads = 4", f"kv_num_heads = {heads}"]
    text = f"""g ({", ".join(inputs)}) => ({", ".join(outputs)}) {{
      {"o, k2, v2" if past else "o"} = Attention <{", ".join(attributes)}> ({", ".join(names)}) }}"""
    return model_from_text(text, opset=opset, check=False)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("heads", [4, 2])
@pytest.mark.parametrize("past", [0, 3])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("mask", [False, True])
def test_packed_heads_and_caches(packed: bool, heads: int, past: int, causal: bool, mask: bool) -> None:
    model = cached_node(packed=packed, heads=heads, past=past, causal=causal, mask=mask)
    after = fuse(model)
    variant = (
        ("Bias" if mask else "")
        + ("Causal" if causal else "")
        + ("Gqa" if heads == 2 else "")
        + ("Guard" if mask else "")
    )
    around = (
        ["Reshape"] * (4 if packed else 0)
        + ["Concat"] * (2 if past else 0)
        + ["Transpose"] * (2 if packed and past else 0)
    )
    assert sorted(after.op_types) == sorted([f"FusedAttention{variant}", *around])
    onnx.checker.check_model(after.proto)
    for B, S in ((2, 5), (1, 1), (3, 4)):
        feeds = {"q": draw(B, 4, S, 8), "k": draw(B, heads, S, 8), "v": draw(B, heads, S, 6)}
        if past:
            feeds |= {"pk": draw(B, heads, past, 8), "pv": draw(B, heads, past, 6)}
        if mask:
            m = np.where(RNG.random((B, 1, S, S + past)) < 0.7, draw(B, 1, S, S + past), -np.inf).astype(np.float32)
            m[0, 0, 0] = -np.inf
            feeds["m"] = m
        want = specified(feeds, 8**-0.5, causal=causal)
        given = dict(feeds)
        if packed:
            given |= {n: feeds[n].transpose(0, 2, 1, 3).reshape(B, S, -1) for n in "qkv"}
            want = want.transpose(0, 2, 1, 3).reshape(B, S, -1)
        for library in (False, True):
            o, *present = run_anywhere(after.proto, given, library=library)
            np.testing.assert_allclose(o, want, atol=2e-5)
            for old, new, got in zip(("pk", "pv"), "kv", present):
                np.testing.assert_array_equal(got, np.concatenate([feeds[old], feeds[new]], axis=2))


@pytest.mark.parametrize("window", [(2, 0), (1, 3), (-1, 2), (0, -1), (300, 0)])
@pytest.mark.parametrize(("causal", "mask", "past", "heads"), [(0, 0, 0, 4), (1, 0, 3, 2), (0, 1, 3, 4), (1, 1, 0, 2)])
def test_windows(window: tuple[int, int], causal: int, mask: int, past: int, heads: int) -> None:
    """Compares with ONNX's reference, and with this runtime if it supports the opset."""
    model = cached_node(
        packed=heads == 2, heads=heads, past=past, causal=bool(causal), mask=bool(mask), opset=25, window=window
    )
    S = 9
    for value in model.graph.input:  # a mask may not be shorter than the keys
        for dim in value.type.tensor_type.shape.dim:
            if size := {"S": S, "P": past, "N": S + past}.get(dim.dim_param):
                dim.dim_value = size
    after = fuse(model)
    fused = next(n for n in after.proto.graph.node if n.domain == DOMAIN)
    hides = window[0] >= 0 or (window[1] >= 0 and not causal)
    suffixes = [("Bias", mask), ("Causal", not hides), ("Gqa", heads == 2), ("Guard", mask), ("Window", hides)]
    assert fused.op_type == "FusedAttention" + "".join(name for name, there in suffixes if there)
    onnx.checker.check_model(after.proto)
    feeds = {"q": draw(2, 4, S, 8), "k": draw(2, heads, S, 8), "v": draw(2, heads, S, 6)}
    if heads == 2:
        feeds = {n: x.transpose(0, 2, 1, 3).reshape(2, S, -1) for n, x in feeds.items()}
    if past:
        feeds |= {"pk": draw(2, heads, past, 8), "pv": draw(2, heads, past, 6)}
    if mask:
        feeds["m"] = np.where(RNG.random((2, 1, S, S + past)) < 0.7, 0.5, -np.inf).astype(np.float32)
    want = np.asarray(next(iter(ReferenceEvaluator(model).run(None, feeds))))
    if RUNTIME >= (1, 32):
        np.testing.assert_allclose(run(model, feeds)[0], want, atol=2e-5)
    for library in (False, True):
        np.testing.assert_allclose(run_anywhere(after.proto, feeds, library=library)[0], want, atol=2e-5)


@pytest.mark.parametrize(
    ("text", "opset", "code"),
    [
        ("float[B, S, 32] q, float[B, T, 32] k, float[B, 4, T, 8] v) => (float[B, S, 32] o) { o = Attention <q_num_heads = 4, kv_num_heads = 4> (q, k, v) }", 23, "WRONG_RANK"),
        ("float[B, S, 32] q, float[B, T, 32] k, float[B, T, 32] v) => (float[B, S, 32] o) { o = Attention <q_num_heads = 5, kv_num_heads = 5> (q, k, v) }", 23, "ATTRIBUTE"),
        ("float[B, 4, S, 8] q, float[B, 4, T, 8] k, float[B, 4, T, 8] v, int64[B] n) => (float[B, 4, S, 8] o) { o = Attention (q, k, v, , , , n) }", 24, "UNSUPPORTED_OP"),
        ("float[B, 4, S, 8] q, float[B, 4, T, 8] k, float[B, 4, T, 8] v) => (float[B, 4, S, 8] o, float[B, 4, S, T] s) { o, , , s = Attention (q, k, v) }", 23, "ESCAPES"),
        ("float[B, 4, S, 8] q, float[B, 4, T, 8] k, float[B, 4, T, 8] v) => (float[B, 4, S, 8] o, float[B, 4, T, 8] c) { o, c = Attention (q, k, v) }", 23, "ESCAPES"),
        ("float[B, 4, S, 8] q, float[B, 4, S, 8] k, float[B, 4, S, 8] v, float[S, N] m, float[B, 4, P, 8] a, float[B, 4, P, 8] b) => (float[B, 4, S, 8] o) { o = Attention (q, k, v, m, a, b) }", 24, "UNKNOWN_SHAPE"),
    ],
)  # fmt: skip
def test_attention_nodes_that_are_refused(text: str, opset: int, code: str) -> None:
    refuse(model_from_text(f"g ({text}", opset=opset, check=False), code)


# -- graphs that must not be fused -------------------------------------------------------------------------------------


def test_not_a_candidate() -> None:
    """A Softmax that is not between two GEMMs leaves no remark."""
    for body in (
        "h = MatMul(x, w)  y = Softmax <axis = -1> (h)",
        "p = Softmax <axis = -1> (x)  y = MatMul(p, w)",
        "h = MatMul(x, w)  p = Softmax <axis = -1> (h)  y = Relu(p)",
    ):
        model = model_from_text(f"g (float[4, 8] x) => (float[4, 8] y) {{ {body} }}", {"w": draw(8, 8)})
        assert fuse(model).remarks == []


SQUARE = {"dims": "2, 4", "rows": "5", "keys": "5"}


@pytest.mark.parametrize(
    ("between", "constants", "options", "code"),
    [
        ("p = Softmax <axis = 2> (s)", {}, SQUARE, "WRONG_AXIS"),
        ("p = Softmax <axis = -2> (s)", {}, SQUARE, "WRONG_AXIS"),
        ("p = Softmax(s)", {}, {**SQUARE, "opset": 11}, "FLATTENED_SOFTMAX"),
        ("p = Softmax <axis = 2> (s)", {}, {**SQUARE, "opset": 12}, "FLATTENED_SOFTMAX"),
        ("a = Mul(s, c)\n p = Softmax <axis = -1> (a)", {"c": draw(4, 1, 1)}, {}, "PER_CHANNEL_SCALE"),
        ("a = Mul(s, c)\n p = Softmax <axis = -1> (a)", {"c": draw(5)}, SQUARE, "PER_CHANNEL_SCALE"),
        ("a = Mul(s, c)\n p = Softmax <axis = -1> (a)", {}, {"extra": ", float c"}, "NOT_CONSTANT"),
        ("a = Div(s, c)\n p = Softmax <axis = -1> (a)", {"c": np.float32(0)}, {}, "NOT_FINITE"),
        ("a = Mul(s, c)\n p = Softmax <axis = -1> (a)", {"c": np.float32(np.inf)}, {}, "NOT_FINITE"),
        ("a = Mul(s, m)\n p = Softmax <axis = -1> (a)", {}, {"extra": ", float[S, T] m"}, "NOT_CONSTANT"),
        ("a = Where(m, s, c)\n p = Softmax <axis = -1> (a)", {}, {"extra": ", bool[S, T] m, float c"}, "NOT_CONSTANT"),
        ("a = Where(m, s, c)\n p = Softmax <axis = -1> (a)", {"c": draw(5, 5)}, {**SQUARE, "extra": ", bool[5, 5] m"}, "UNSUPPORTED_OP"),
        ("x = Softmax <axis = -1> (s)\n p = Add(x, m)", {}, {"extra": ", float[S, T] m"}, "UNSUPPORTED_OP"),
        ("x = Softmax <axis = -1> (s)\n p = Mul(x, c)", {"c": np.float32(2)}, {}, "UNSUPPORTED_OP"),
        ("x = Softmax <axis = -1> (s)\n h = Cast <to = 10> (x)\n p = Cast <to = 1> (h)", {}, {}, "MIXED_DTYPE"),
        ("a = Div(c, s)\n p = Softmax <axis = -1> (a)", {"c": np.float32(2)}, {}, "UNSUPPORTED_OP"),
        ("a = Max(m, s)\n p = Softmax <axis = -1> (a)", {}, {"extra": ", float[S, T] m"}, "UNSUPPORTED_OP"),
        ("h = QuantizeLinear(s, c, z)\n a = DequantizeLinear(h, c, z)\n p = Softmax <axis = -1> (a)", {"c": np.float32(0.1), "z": np.int8(0)}, {}, "QUANTIZED"),
        ("a = Relu(s)\n p = Softmax <axis = -1> (a)", {}, {}, "UNSUPPORTED_OP"),
        ("a = Where(m, s, c)\n b = Add(a, n)\n p = Softmax <axis = -1> (b)", {"c": np.float32(-1e4)}, {"extra": ", bool[S, T] m, float[S, T] n"}, "MASK_ORDER"),
        ("a = Mul(s, m)\n r = Sub(one, m)\n h = Mul(r, c)\n b = Sub(a, h)\n p = Softmax <axis = -1> (b)", {"one": np.float32(1), "c": np.float32(1e4)}, {"extra": ", float[B, 1, S, T] m"}, "MASK_VALUES"),
        ("a = Mul(s, m)\n h = Mul(m, c)\n b = Sub(a, h)\n p = Softmax <axis = -1> (b)", {"m": np.tri(5, dtype=np.float32), "c": np.float32(1e4)}, SQUARE, "PER_CHANNEL_SCALE"),
        ("a = Mul(s, m)\n p = Softmax <axis = -1> (a)", {"m": np.tri(5, dtype=np.float32)}, SQUARE, "PER_CHANNEL_SCALE"),
        ("a = Where(m, s, c)\n b = Where(n, a, d)\n p = Softmax <axis = -1> (b)", {"c": np.float32(-1e4), "d": np.float32(-1e9)}, {"extra": ", bool[S, T] m, bool[S, T] n"}, "UNSUPPORTED_OP"),
        ("x = Softmax <axis = -1> (s)\n p = Dropout(x, r, t)", {"r": np.float32(0.3), "t": np.asarray(True)}, {}, "TRAINING_MODE"),
        ("r = RandomNormal <shape = [5, 5]> ()\n a = Add(s, r)\n p = Softmax <axis = -1> (a)", {}, SQUARE, "NON_DETERMINISTIC"),
        ("x = Softmax <axis = -1> (s)\n r = RandomUniform <shape = [5, 5]> ()\n p = Mul(x, r)", {}, SQUARE, "NON_DETERMINISTIC"),
        ("a = Add(s, m)\n p = Softmax <axis = -1> (a)", {}, {**SQUARE, "dims": "1, 4", "extra": ", float[3, 1, 5, 5] m"}, "BROADCAST_GROWS"),
        ("a = Add(s, m)\n p = Softmax <axis = -1> (a)", {}, {**SQUARE, "rows": "1", "extra": ", float[6, 5] m"}, "BROADCAST_GROWS"),
        ("a = Add(s, m)\n p = Softmax <axis = -1> (a)", {}, {"extra": ", float[9, T] m"}, "BROADCAST_GROWS"),
        ("a = Where(m, s, c)\n p = Softmax <axis = -1> (a)", {"c": np.float32(-1e4)}, {**SQUARE, "rows": "1", "extra": ", bool[6, 5] m"}, "BROADCAST_GROWS"),
        (SOFTMAX, {}, {"outputs": ", float[B, 4, S, T] s"}, "GRAPH_OUTPUT"),
        (SOFTMAX, {}, {"outputs": ", float[B, 4, S, T] p"}, "GRAPH_OUTPUT"),
        (f"{SOFTMAX}\n e = Relu(s)", {}, {"outputs": ", float[B, 4, S, T] e"}, "OTHER_USES"),
        (f"{SOFTMAX}\n e = Relu(p)", {}, {"outputs": ", float[B, 4, S, T] e"}, "OTHER_USES"),
        ("a = Mul(s, c)\n b = Add(a, c)\n p = Softmax <axis = -1> (b)\n e = Add(a, b)", {"c": np.float32(0.5)}, {"outputs": ", float[B, 4, S, T] e"}, "ESCAPES"),
        (SOFTMAX, {}, {"dtype": "double"}, "WRONG_DTYPE"),
        (SOFTMAX, {}, {"dims": "B, C, E, 4"}, "WRONG_RANK"),
        ("w = Reshape(s, there)\n x = Softmax <axis = -1> (w)\n p = Reshape(x, back)", {"there": np.asarray([2, 4, 25]), "back": np.asarray([2, 4, 5, 5])}, SQUARE, "WRONG_AXIS"),
        ("w = Reshape(s, there)\n p = Softmax <axis = -1> (w)", {"there": np.asarray([4, 2, 5, 5])}, SQUARE, "WRONG_SHAPE"),
        ("w = Reshape(s, there)\n x = Softmax <axis = -1> (w)\n p = Reshape(x, back)", {}, {"extra": ", int64[2] there, int64[4] back"}, "UNKNOWN_SHAPE"),
        ("x = Softmax <axis = -1> (s)\n p = Transpose <perm = [0, 1, 3, 2]> (x)", {}, SQUARE, "WRONG_PERM"),
    ],
)  # fmt: skip
def test_attentions_that_must_not_be_fused(
    between: str, constants: dict[str, Array], options: dict[str, Any], code: str
) -> None:
    options = dict(options)
    if options.get("dims") == "B, C, E, 4":
        options["qk"] = "kt = Transpose <perm = [0, 1, 2, 3, 5, 4]> (k)\n s = MatMul(q, kt)"
    refuse(core(between, constants, **options), code)


def test_overridable_scale() -> None:
    model = core("a = Mul(s, c)\n p = Softmax <axis = -1> (a)", extra=", float c")
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.float32(0.3), "c"))
    refuse(model, "NOT_CONSTANT")


def test_target_without_our_operators() -> None:
    after = rewrite(core(SOFTMAX), [FuseAttention()], device="migraphx")
    assert after.codes() == ["TARGET"]


def test_keys_transposed_over_rows_where_rows_equal_heads() -> None:
    """K [B, S, H, D] transposed by [0, 1, 3, 2] can be multiplied only because S = H."""
    text = """g (float[2, 4, 32] x) => (float[2, 4, 4, 8] o) {
      qp = MatMul(x, wq)  qr = Reshape(qp, split)  qt = Transpose <perm = [0, 2, 1, 3]> (qr)
      kp = MatMul(x, wk)  kr = Reshape(kp, split)  kt = Transpose <perm = [0, 1, 3, 2]> (kr)
      vp = MatMul(x, wv)  vr = Reshape(vp, split)  vt = Transpose <perm = [0, 2, 1, 3]> (vr)
      s = MatMul(qt, kt)  p = Softmax <axis = -1> (s)  o = MatMul(p, vt) }"""
    constants = {w: draw(32, 32) for w in ("wq", "wk", "wv")} | {"split": np.asarray([2, 4, 4, 8])}
    refuse(model_from_text(text, constants), "WRONG_PERM")


def test_inputs_stacked_over_rows_where_rows_equal_heads() -> None:
    text = """g (float[2, 4, 4, 8] q, float[2, 4, 4, 8] k, float[2, 4, 4, 8] v) => (float[2, 4, 4, 8] o) {
      qt = Transpose <perm = [0, 2, 1, 3]> (q)  kt = Transpose <perm = [0, 1, 3, 2]> (k)
      vt = Transpose <perm = [0, 2, 1, 3]> (v)  s = MatMul(qt, kt)  p = Softmax <axis = -1> (s)  o = MatMul(p, vt) }"""
    refuse(model_from_text(text), "WRONG_PERM")
    # Different sizes distinguish the layouts: here K is [B, H, S, D].
    model = model_from_text(text.replace("4, 4, 8] k", "4, 7, 8] k").replace("[2, 4, 4, 8] v", "[2, 7, 4, 8] v"))
    check(model, {"q": draw(2, 4, 4, 8), "k": draw(2, 4, 7, 8), "v": draw(2, 7, 4, 8)}, rest=[])


def test_mixed_types() -> None:
    text = """g (float16[B, 4, S, 8] q, float16[B, 4, T, 8] k, float16[B, 4, T, 6] v, float[S, T] m) => (float16[B, 4, S, 6] o) {
      kt = Transpose <perm = [0, 1, 3, 2]> (k)  s = MatMul(q, kt)  f = Cast <to = 1> (s)  a = Add(f, m)
      x = Softmax <axis = -1> (a)  p = Cast <to = 10> (x)  o = MatMul(p, v) }"""
    refuse(model_from_text(text), "MIXED_DTYPE")


def test_captured_by_a_branch() -> None:
    """An If that reads the probabilities keeps them."""
    text = f"""g (float[B, 4, S, 8] q, float[B, 4, T, 8] k, float[B, 4, T, 6] v, bool c) => (float[B, 4, S, 6] o, float y) {{
      kt = Transpose <perm = [0, 1, 3, 2]> (k)  s = MatMul(q, kt)  {SOFTMAX}  o = MatMul(p, v)
      y = If (c) <then_branch = t () => (float a) {{ a = ReduceMax <keepdims = 0> (p) }},
                  else_branch = e () => (float b) {{ b = Constant <value_float = 1.0> () }}> }}"""
    refuse(model_from_text(text), "OTHER_USES")


def test_inside_a_branch() -> None:
    """Attention in a branch of an If, with captured K and V."""
    text = f"""g (float[2, 4, 5, 8] q, float[2, 4, 7, 8] k, float[2, 4, 7, 6] v, bool c) => (float[2, 4, 5, 6] o) {{
      o = If (c) <then_branch = t () => (float[2, 4, 5, 6] a) {{
            kt = Transpose <perm = [0, 1, 3, 2]> (k)  s = MatMul(q, kt)  {SOFTMAX}  a = MatMul(p, v) }},
          else_branch = e () => (float[2, 4, 5, 6] b) {{ b = MatMul(q, w) }}> }}"""
    model = model_from_text(text, {"w": draw(8, 6)})
    after = fuse(model)
    branch = after.proto.graph.node[0].attribute[0].g
    assert [n.op_type for n in branch.node] == ["FusedAttention"]
    for condition in (True, False):
        assert_same_outputs(model, after.proto, {**operands(), "c": np.asarray(condition)})


def layers(count: int) -> Editor:
    """Returns an editor of `count` BERT layers, with 400 element-wise nodes after each."""
    body, current = [], "x"
    for layer in range(count):
        p = f"l{layer}_"
        for n in "qkv":
            perm = "0, 2, 3, 1" if n == "k" else "0, 2, 1, 3"
            body += [f"{p}{n}p = MatMul({current}, w)", f"{p}{n}r = Reshape({p}{n}p, split)",
                     f"{p}{n} = Transpose <perm = [{perm}]> ({p}{n}r)"]  # fmt: skip
        body += [f"{p}s = MatMul({p}q, {p}k)", f"{p}d = Div({p}s, root)", f"{p}a = Add({p}d, mask)",
                 f"{p}sm = Softmax <axis = -1> ({p}a)", f"{p}o = MatMul({p}sm, {p}v)",
                 f"{p}t = Transpose <perm = [0, 2, 1, 3]> ({p}o)", f"{p}y0 = Reshape({p}t, merge)"]  # fmt: skip
        body += [f"{p}y{i + 1} = {'Tanh' if i % 2 else 'Neg'}({p}y{i})" for i in range(400)]
        current = f"{p}y400"
    text = "g (float[B, S, 32] x, float[B, 1, 1, S] mask) => (float[B, S, 32] y) {\n" + "\n".join(body)
    text += f"\n y = Identity({current}) }}"
    constants = {"w": draw(32, 32), "split": np.asarray([0, -1, 4, 8]), "merge": np.asarray([0, 0, 32]),
                 "root": np.float32(8**0.5)}  # fmt: skip
    work = load(model_from_text(text, constants, check=False)).model
    inference.infer(work)
    return Editor(work, Target("cpu"))


@pytest.mark.once
def test_work_grows_linearly_with_the_layers() -> None:
    def calls(count: int) -> int:
        editor = layers(count)
        return python_calls(
            lambda: applied.append(pipeline.run(editor, [FuseAttention()]).passes["fuse_attention"].applied)
        )

    applied: list[int] = []
    calls(1)  # fills permanent caches
    small, large = calls(12), calls(24)
    assert applied == [1, 12, 24]
    assert large < 2.2 * small


def doubled(op: str, first: str, last: str) -> str:
    """Returns thirty nodes in a row that each read a value twice: 2^30 paths lead from the last to the first."""
    names = [first, *(f"{last}{i}" for i in range(29)), last]
    return "\n ".join(f"{after} = {op}({before}, {before})" for before, after in itertools.pairwise(names))


MANY_PATHS = {
    "a factor": f"f = Cast <to = 1> (keep)\n {doubled('Mul', 'f', 'm')}\n a = Mul(s, m)\n h = Sub(one, m)\n b = Add(a, h)",
    "a term": f"m = Cast <to = 1> (keep)\n a = Mul(s, m)\n h = Sub(one, m)\n {doubled('Add', 'h', 'g')}\n b = Add(a, g)",
    "an operand": f"{doubled('Add', 'q', 'x')}\n z = MatMul(x, kt)\n b = Where(keep, z, one)",
}


@pytest.mark.parametrize("form", MANY_PATHS)
def test_each_value_is_visited_once_on_all_paths(form: str) -> None:
    text = f"{MANY_PATHS[form]}\n p = Softmax <axis = -1> (b)"
    model = core(text, {"one": np.float32(1)}, extra=", bool[B, 1, 7, 7] keep", rows="7", keys="7")
    python_calls(lambda: fuse(model), most=2_000_000)


def test_packed_heads_that_are_split_apart() -> None:
    """SAM: one projection, Split and Squeeze; the shape of the scores is computed from Q and K."""
    text = """g (float[B, S, 72] x) => (float[M, S, 6] o, int64[3] shape) {
      r = Reshape(x, packed)  t = Transpose <perm = [2, 0, 3, 1, 4]> (r)  n = Shape <start = 0, end = 1> (x)
      heads = Mul(n, four)  flat_shape = Concat <axis = 0> (three, heads, rows)  f = Reshape(t, flat_shape)
      q1, k1, v1 = Split <axis = 0> (f, each)  q = Squeeze(q1, zero)  k = Squeeze(k1, zero)  v = Squeeze(v1, zero)
      kt = Transpose <perm = [0, 2, 1]> (k)  s = MatMul(q, kt)  shape = Shape(s)
      p = Softmax <axis = -1> (s)  o = MatMul(p, v) }"""
    constants = {
        "packed": np.asarray([0, 5, 3, 4, 6]), "four": np.asarray([4]), "three": np.asarray([3]),
        "rows": np.asarray([5, 6]), "each": np.asarray([1, 1, 1]), "zero": np.asarray([0]),
    }  # fmt: skip
    model = model_from_text(text, constants)
    check(model, [{"x": draw(2, 5, 72)}, {"x": draw(1, 5, 72)}])
