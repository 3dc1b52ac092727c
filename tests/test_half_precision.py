"""Half precision: results against float32 and float64, nodes kept in float32 and why, the interface, the report."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
import pytest

import graphopt
from graphopt.errors import OptionError, RuntimeMissingError
from graphopt.graph import inference
from graphopt.graph.writing import to_message
from graphopt.ops import DOMAIN
from graphopt.precision.float16 import range_of
from graphopt.report.data import Report
from graphopt.verification.probes import largest_of, with_ranges
from graphopt.verification.verify import verify
from models import ZOO
from tests.rewriting import inferred, model_from_text, run

Array = npt.NDArray[Any]
FLOAT, HALF = onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16
LOWEST = float(np.finfo(np.float32).min)


def convert(model: onnx.ModelProto, target: str = "rocm", **options: Any) -> tuple[onnx.ModelProto, Report]:
    return graphopt.optimize(model, target=target, precision="fp16", check=True, **options)


def refusals(report: Report) -> dict[str, str]:
    return {r.code: r.detail for r in report.remarks if r.pass_name == "half_precision" and not r.applied}


def dtypes(model: onnx.ModelProto) -> dict[str, int]:
    return {t.name: t.data_type for t in model.graph.initializer}


def node(model: onnx.ModelProto, op_type: str) -> onnx.NodeProto:
    found: onnx.NodeProto = next(n for n in model.graph.node if n.op_type == op_type)
    return found


def producer(model: onnx.ModelProto, value: str) -> onnx.NodeProto | None:
    return next((n for n in model.graph.node if value in n.output), None)


def weight(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def assert_in_order(before: onnx.ModelProto, after: onnx.ModelProto, target: str) -> None:
    for a, b in zip((*before.graph.input, *before.graph.output), (*after.graph.input, *after.graph.output)):
        assert (a.name, a.type) == (b.name, b.type)
    makers = {o: n for n in after.graph.node for o in n.output}
    constants = dtypes(after)
    for n in after.graph.node:
        source = makers.get(n.input[0]) if n.op_type == "Cast" else None
        assert source is None or source.op_type != "Cast", f"{source.name} and {n.name} cancel"
        if n.op_type in ("Softmax", "ReduceMean", "InstanceNormalization"):
            maker = makers[n.input[0]]
            assert maker.op_type != "Cast" or maker.attribute[0].i == FLOAT, n.name
        assert all(constants.get(i) != HALF for i in n.input if n.op_type == "ReduceMean")
    again, _ = convert(after, target)
    assert again.SerializeToString(deterministic=True) == after.SerializeToString(deterministic=True)


# The files do not depend on the runtime: each model is verified with both, but for one target only.
@pytest.mark.parametrize("target", ["rocm", *(pytest.param(t, marks=pytest.mark.once) for t in ("cpu", "portable"))])
@pytest.mark.parametrize("name", ["resnet18", "mobilenet_v2", "yolo", "bert", "gpt2", "vit", "sd_block"])
def test_zoo(name: str, target: str) -> None:
    before = ZOO[name](small=True, dynamic=True)
    after, report = convert(before, target)
    assert report.numerics == "fp16"
    assert report.before is not None and report.after is not None
    assert report.after.initializer_bytes < 0.6 * report.before.initializer_bytes
    assert_in_order(before, after, target)
    compared = verify(before, after)
    assert compared.equal, compared.summary
    assert compared.numerics == "fp16"


@pytest.mark.parametrize("name", ["bert", "sd_block"])
def test_the_interface_becomes_half_when_asked(name: str) -> None:
    before = ZOO[name](small=True)
    after, _ = convert(before, keep_io=False)
    for a, b in zip((*before.graph.input, *before.graph.output), (*after.graph.input, *after.graph.output)):
        was, now = a.type.tensor_type.elem_type, b.type.tensor_type.elem_type
        assert a.name == b.name
        assert now == (HALF if was == FLOAT else was)
    compared = verify(before, after)
    assert compared.equal, compared.summary
    assert "interface is float16" in compared.summary
    # From a model with a float32 interface.
    kept, _ = convert(before)
    later, _ = convert(kept, keep_io=False)
    assert {o.type.tensor_type.elem_type for o in later.graph.output} == {HALF}
    assert verify(before, later).equal


def test_unrequested_float16_outputs_are_a_difference() -> None:
    before = model_from_text("g (float[2, 3] x, float[2, 3] z) => (float[2, 3] y) { y = Add(x, z) }")
    after = model_from_text(
        "g (float[2, 3] x, float[2, 3] z) => (float16[2, 3] y) { s = Add(x, z)  y = Cast<to=10>(s) }"
    )
    after.metadata_props.add(key="graphopt.numerics", value="fp16")
    assert not verify(before, after).equal


MASKED = """g (float[B, 2, S, 8] q, float[B, 2, 8, S] k, float[B, 2, S, 8] v, %s m) => (float[B, 2, S, 8] y) {
    %s
    s = MatMul(q, k)  b = Add(s, bias)  p = Softmax<axis=-1>(b)  y = MatMul(p, v)
}"""
ADDITIVE = MASKED % ("int64[B, 1, 1, S]", "f = Cast<to=1>(m)  n = Sub(one, f)  bias = Mul(n, low)")
WHERE = MASKED % ("bool[B, 1, 1, S]", "bias = Where(m, zero, low)")
CONSTANT_BIAS = """g (float[2, 6, 8] q, float[2, 8, 6] k, float[2, 6, 8] v) => (float[2, 6, 8] y) {
    s = MatMul(q, k)  b = Add(s, bias)  p = Softmax<axis=-1>(b)  y = MatMul(p, v)
}"""


@pytest.mark.parametrize("target", ["rocm", "portable", "cpu"])
@pytest.mark.parametrize(
    ("graph", "low"), [(ADDITIVE, LOWEST), (ADDITIVE, -1e30), (WHERE, LOWEST), (WHERE, -1e30), (WHERE, -np.inf)]
)
def test_fully_masked_rows_keep_their_result(graph: str, low: float, target: str) -> None:
    constants = {"one": np.float32(1), "zero": np.float32(0), "low": np.float32(low)}
    before = model_from_text(graph, constants)
    before.graph.initializer.append(onnx.numpy_helper.from_array(weight(8, 8), "unused"))
    after, _ = convert(before, target, ignore_cost_model=True)
    q, v = 3 * weight(2, 2, 5, 8), weight(2, 2, 5, 8, seed=1)
    k = 3 * weight(2, 2, 8, 5, seed=2)
    keep = np.array([[1, 1, 1, 0, 0], [0, 0, 0, 0, 0]]).reshape(2, 1, 1, 5)
    feeds = {"q": q, "k": k, "v": v, "m": keep.astype(np.int64 if graph is ADDITIVE else bool)}
    (want,) = run(before, feeds)
    ours = any(n.domain == DOMAIN for n in after.graph.node)
    assert ours == (target != "portable")
    for library in (False, True) if ours else (False,):
        (got,) = run(after, feeds, library=library)
        np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
        np.testing.assert_allclose(got, want, atol=0.01)
        if np.isinf(low):
            assert np.isnan(got[1]).all()
        else:
            np.testing.assert_allclose(got[1], np.broadcast_to(v[1].mean(axis=1, keepdims=True), v[1].shape), atol=0.01)


@pytest.mark.parametrize("branches", ["zero, low", "low, zero"])
def test_a_bias_that_only_masks_becomes_its_condition(branches: str) -> None:
    graph = MASKED % ("bool[B, 1, S, S]", f"bias = Where(m, {branches})")
    before = model_from_text(graph, {"zero": np.float32(0), "low": np.float32(LOWEST)})
    after, _ = convert(before, ignore_cost_model=True)
    (fused,) = (n for n in after.graph.node if n.domain == DOMAIN)
    assert fused.op_type == "FusedAttentionMask"
    assert ("Not" in {n.op_type for n in after.graph.node}) == (branches == "low, zero")
    assert "Where" not in {n.op_type for n in after.graph.node}
    mask = np.random.default_rng(0).random((2, 1, 5, 5)) < 0.6
    mask[0, 0, 2] = branches[0] == "l"
    feeds = {"q": weight(2, 2, 5, 8), "k": weight(2, 2, 8, 5, seed=1), "v": weight(2, 2, 5, 8, seed=2), "m": mask}
    for library in (False, True):
        np.testing.assert_allclose(run(after, feeds, library=library)[0], run(before, feeds)[0], atol=0.01)


def test_a_constant_bias_that_only_hides_becomes_a_mask() -> None:
    hidden = np.where(np.random.default_rng(0).random((6, 6)) < 0.5, 0, LOWEST).astype(np.float32)
    hidden[2] = LOWEST
    before = model_from_text(CONSTANT_BIAS, {"bias": hidden})
    after, _ = convert(before, ignore_cost_model=True)
    (fused,) = (n for n in after.graph.node if n.domain == DOMAIN)
    assert fused.op_type == "FusedAttentionMask"
    feeds = {"q": weight(2, 6, 8), "k": weight(2, 8, 6, seed=1), "v": weight(2, 6, 8, seed=2)}
    for library in (False, True):
        np.testing.assert_allclose(run(after, feeds, library=library)[0], run(before, feeds)[0], atol=0.01)


def test_a_constant_bias_that_hides_becomes_a_mask() -> None:
    causal = np.where(np.tril(np.ones((6, 6), bool)), weight(6, 6), LOWEST).astype(np.float32)
    causal[2] = LOWEST
    before = model_from_text(CONSTANT_BIAS, {"bias": causal})
    after, report = convert(before, ignore_cost_model=True)
    fused = next(n for n in after.graph.node if n.domain == DOMAIN)
    assert fused.op_type == "FusedAttentionBiasMask"
    feeds = {"q": weight(2, 6, 8), "k": weight(2, 8, 6, seed=1), "v": weight(2, 6, 8, seed=2)}
    for library in (False, True):
        np.testing.assert_allclose(run(after, feeds, library=library)[0], run(before, feeds)[0], atol=0.01)
    (found,) = [r for r in report.initializer_ranges if r.overflow]
    assert (found.size, found.overflow) == (36, int((causal == LOWEST).sum()))


def test_ranges_are_counted() -> None:
    array = np.array([1, 70000, -1e30, 65504, 65519, 1e-5, 6.1e-5, 1e-8, -1e-9, 0, np.inf, 2.0**-24], np.float32)
    found = range_of("w", array)
    # 65519 rounds to 65504; 2^-24 is subnormal and exact; 1e-5 and 6.1e-5 lose bits.
    assert (found.size, found.overflow, found.subnormal, found.zero) == (12, 2, 2, 2)
    assert not found.fits
    assert found.share == pytest.approx(6 / 12)
    assert range_of("w", weight(64, 64)).fits
    assert not range_of("w", weight(64, 64) * np.float32(1e-6)).fits
    assert range_of("zero", np.zeros(3, np.float32)).fits


def test_weights_out_of_range_are_kept_and_reported() -> None:
    graph = """g (float[2, 4] x) => (float[2, 4] a, float[2, 4] b, float[2, 4] c) {
        a = MatMul(x, large)  b = MatMul(x, small)  c = MatMul(x, fine)
    }"""
    weights = {"large": weight(4, 4) * 1e5, "small": weight(4, 4) * 1e-7, "fine": weight(4, 4)}
    before = model_from_text(graph, weights)
    for target in ("rocm", "cpu"):
        after, report = convert(before, target)
        assert dtypes(after) == {"large": FLOAT, "small": FLOAT, "fine": HALF}
        assert {r.name: r.converted for r in report.initializer_ranges} == {"large": False, "small": False}
        assert all(r["share"] > 0 for r in report.to_dict()["initializer_ranges"])
        if target == "rocm":
            codes = refusals(report)
            assert "large" in codes["OVERFLOW"]
            assert "16 of 16" in codes["UNDERFLOW"]
        feeds = {"x": weight(2, 4, seed=3)}
        for want, got in zip(run(before, feeds), run(after, feeds)):
            np.testing.assert_allclose(got, want, atol=5e-3 * np.abs(want).max())


def test_an_epsilon_that_would_become_zero_is_kept() -> None:
    graph = """g (float[2, 4] x) => (float[2, 4] y) {
        h = MatMul(x, w)  a = Abs(h)  e = Add(a, epsilon)  y = Div(h, e)
    }"""
    before = model_from_text(graph, {"w": weight(4, 4), "epsilon": np.float32(1e-12)})
    after, report = convert(before)
    assert dtypes(after) == {"w": HALF, "epsilon": FLOAT}
    assert "1 become zero" in refusals(report)["UNDERFLOW"]
    assert np.isfinite(run(after, {"x": np.zeros((2, 4), np.float32)})[0]).all()


@pytest.mark.parametrize("op_type", ["Softmax", "ReduceMean", "Exp"])
def test_statistics_and_their_inputs_are_kept_in_float32(op_type: str) -> None:
    attributes = "<axis=-1>" if op_type == "Softmax" else "<axes=[-1]>" if op_type == "ReduceMean" else ""
    graph = f"""g (float[2, 4] x) => (float[a, b] y) {{
        h = MatMul(x, w)  q = Mul(h, h)  s = {op_type}{attributes}(q)  y = MatMul(s, w2)
    }}"""
    before = model_from_text(graph, {"w": weight(4, 4) * 200, "w2": weight(1 if op_type == "ReduceMean" else 4, 3)})
    after, report = convert(before)
    assert refusals(report)["STATISTICS"] == f"{op_type} computes statistics"
    square = node(after, "Mul")
    source = producer(after, square.input[0])
    assert source is not None and source.op_type == "Cast" and source.attribute[0].i == FLOAT
    assert producer(after, node(after, op_type).input[0]) == square
    # 200^2 times 16 exceeds float16.
    feeds = {"x": weight(2, 4, seed=1)}
    want, got = run(before, feeds)[0], run(after, feeds)[0]
    np.testing.assert_array_equal(np.isfinite(got), np.isfinite(want))


def test_sines_of_constant_positions_are_computed_in_float32() -> None:
    positions = np.outer(np.arange(256), 10.0 ** -np.linspace(0, 4, 64)).astype(np.float32)
    before = model_from_text(
        "g (float[256, 64] x) => (float[256, 64] y) { h = MatMul(x, w)  c = Cos(p)  s = Sin(p)  a = Mul(h, c)"
        "  b = Mul(x, s)  d = Add(a, b)  y = MatMul(d, w) }",
        {"p": positions, "w": np.eye(64, dtype=np.float32)},
    )
    after, _ = convert(before)
    x = weight(256, 64)
    (got,) = run(after, {"x": x})
    wide = positions.astype(np.float64)
    np.testing.assert_allclose(got, x * (np.cos(wide) + np.sin(wide)), rtol=0.01, atol=0.01)


def test_a_chain_of_float32_results_ends_at_a_convolution() -> None:
    """Exp reads the whole network, but only the last convolution directly."""
    graph = """g (float[2, 4, 8, 8] x) => (float[2, 4, 8, 8] y) {
        c0 = Conv(x, w)  r0 = Relu(c0)  c1 = Conv(r0, w)  r1 = HardSwish(c1)  c2 = Conv(r1, w)  y = Exp(c2)
    }"""
    after, _ = convert(model_from_text(graph, {"w": weight(4, 4, 1, 1)}))
    assert [n.op_type for n in after.graph.node] == "Cast Conv Relu Conv HardSwish Conv Cast Exp".split()


# Squeeze-and-excitation and a classifier, with the means of PyTorch's dynamo exporter.
SQUEEZED = """g (float[2, 4, 8, 8] x) => (float[2, 3] y) {
    c0 = Conv(x, w)  r0 = HardSwish(c0)  m0 = ReduceMean<axes=AXES>(r0)
    s0 = Conv(m0, w)  s1 = Relu(s0)  s2 = Conv(s1, w)  gate = HardSigmoid(s2)  g = Mul(gate, r0)
    c1 = Conv(g, w)  r1 = HardSwish(c1)  m1 = ReduceMean<axes=AXES>(r1)  f = Flatten(m1)  y = MatMul(f, v)
}"""


@pytest.mark.parametrize("axes", ["[2, 3]", "[-1, -2]"])
def test_means_of_planes_become_float16_like_global_average_pooling(axes: str) -> None:
    before = model_from_text(SQUEEZED.replace("AXES", axes), {"w": weight(4, 4, 1, 1), "v": weight(4, 3)})
    after, report = convert(before)
    assert [n.op_type for n in after.graph.node].count("Cast") == 2
    assert "STATISTICS" not in refusals(report)
    compared = verify(before, after)
    assert compared.equal, compared.summary


@pytest.mark.parametrize(
    ("source", "read"),
    [("Add(h, h)", "y = Sub(h, s)"), ("Mul(h, h)", "y = Conv(s, w)"), ("Add(h, h)", "y = Neg(s)")],
)
def test_means_of_norms_and_outputs_are_kept_in_float32(source: str, read: str) -> None:
    graph = f"""g (float[2, 4, 8, 8] x) => (float[a, b, c, d] y) {{
        h = Conv(x, w)  p = {source}  s = ReduceMean<axes=[2, 3]>(p)  {read}
    }}"""
    after, report = convert(model_from_text(graph, {"w": weight(4, 4, 1, 1)}))
    assert refusals(report)["STATISTICS"] == "ReduceMean computes statistics"
    assert producer(after, node(after, "ReduceMean").input[0]) == node(after, source.split("(")[0])


@pytest.mark.parametrize(
    ("residual", "read", "kept"),
    [("h", "Add(r, t)", False), ("small", "Add(r, t)", True), ("h", "Div(r, t)", True), ("h", "Max(r, t)", True)],
)
def test_small_constants_lose_bits_only_if_larger_values_are_added(residual: str, read: str, kept: bool) -> None:
    """ConvNeXt's layer scale starts at 1e-6."""
    graph = f"""g (float[2, 6, 4] x) => (float[2, 4, 6] y) {{
        h = Transpose<perm=[0, 2, 1]>(x)  small = Mul(h, tiny)  r = Relu({residual})
        p = MatMul(x, w)  s = Mul(p, scale)  t = Transpose<perm=[0, 2, 1]>(s)  y = {read}
    }}"""
    constants = {"w": weight(4, 4), "scale": np.full(4, 1e-6, np.float32), "tiny": np.full(6, 1e-5, np.float32)}
    before = model_from_text(graph, constants)
    after, report = convert(before, skip=["fold_affine"])
    assert (dtypes(after)["scale"] == FLOAT) == kept
    assert ("scale: 4 of 4 elements lose bits" in str(report.remarks)) == kept
    compared = verify(before, after)
    assert compared.equal, compared.summary


def test_a_folded_layer_scale_before_a_norm_becomes_float16() -> None:
    """The scale of 1e-5 is part of the weight, which loses bits; the sum is computed by the norm behind it."""
    graph = """g (float[2, 6, 64] x) => (float[2, 6, 64] y) {
        p = MatMul(x, w)  q = Add(p, b)  s = Mul(q, scale)  r = Add(x, s)  n = LayerNormalization(r, g, b)
        m = MatMul(n, w)  y = Add(r, m)
    }"""
    constants = {"w": weight(64, 64), "b": weight(64), "g": weight(64), "scale": np.full(64, 1e-5, np.float32)}
    before = model_from_text(graph, constants)
    after, report = convert(before, ignore_cost_model=True)
    assert {n.op_type for n in after.graph.node} >= {"Linear", "FusedLayerNormAddSum"}
    assert "UNDERFLOW" not in refusals(report)
    assert set(dtypes(after).values()) == {HALF}
    compared = verify(before, after)
    assert compared.equal, compared.summary


@pytest.mark.parametrize("batch", ["2", "N"])
def test_pixels_become_rows_by_a_transpose_of_four_axes(batch: str) -> None:
    graph = f"""g (float[{batch}, 4, 6, 5] x) => (float[{batch}, 4, 6, 5] y) {{
        c = Conv(x, w)  r = Reshape(c, merged)  t = Transpose<perm=[0, 2, 1]>(r)  n = LayerNormalization(t, s, b)
        p = MatMul(n, m)  u = Transpose<perm=[0, 2, 1]>(p)  q = Reshape(u, pixels)  y = Conv(q, w)
    }}"""
    constants = {"w": weight(4, 4, 1, 1), "m": weight(4, 4), "s": weight(4), "b": weight(4, seed=1)}
    shapes = {"merged": np.array([0, 4, 30]), "pixels": np.array([0, 4, 6, 5])}
    before = model_from_text(graph, constants | shapes)
    after, _ = convert(before, skip=["fold_affine"])
    moves = [n for n in after.graph.node if n.op_type in ("Transpose", "Reshape")]
    assert [n.op_type for n in moves] == ["Transpose", "Reshape", "Reshape", "Transpose"]
    assert [list(n.attribute[0].ints) for n in moves[::3]] == [[0, 2, 3, 1], [0, 3, 1, 2]]
    compared = verify(before, after)
    assert compared.equal, compared.summary


@pytest.mark.parametrize("merged", [[0, 6, 20], [4, 2, 30]])
def test_other_reshapes_before_a_transpose_are_kept(merged: list[int]) -> None:
    graph = """g (float[2, 4, 6, 5] x) => (float[a, b, c] y) {
        c = Conv(x, w)  r = Reshape(c, merged)  y = Transpose<perm=[0, 2, 1]>(r)
    }"""
    after, _ = convert(model_from_text(graph, {"w": weight(4, 4, 1, 1), "merged": np.array(merged)}))
    assert list(node(after, "Transpose").attribute[0].ints) == [0, 2, 1]


def test_norms_with_statistics_in_float32_by_definition_are_converted() -> None:
    graph = (
        "g (float[2, 4] x) => (float[2, 4] y) { h = MatMul(x, w)  n = LayerNormalization(h, s, b)  y = MatMul(n, w) }"
    )
    constants = {"w": weight(4, 4), "s": weight(4), "b": weight(4, seed=1)}
    after, _ = convert(model_from_text(graph, constants))
    assert set(dtypes(after).values()) == {HALF}
    other = model_from_text(graph.replace("(h, s, b)", "<stash_type=11>(h, s, b)"), constants, check=False)
    after, report = convert(other)
    assert dtypes(after)["s"] == FLOAT
    assert "LayerNormalization" in refusals(report)["STATISTICS"]


def test_integers_shapes_and_scales_are_untouched() -> None:
    graph = """g (float[1, 2, H, W] x) => (float[1, 2, A, B] y, int64[4] n) {
        c = Conv<kernel_shape=[1, 1]>(x, w)  s = Shape(c)  f = Cast<to=1>(s)  d = Mul(f, twice)
        n = Cast<to=7>(d)  r = Resize<mode="nearest">(c, , scales)  y = Relu(r)
    }"""
    constants = {
        "w": weight(2, 2, 1, 1),
        "twice": np.array([1, 1, 2, 2], np.float32),
        "scales": np.array([1, 1, 1.5, 1.5], np.float32),
    }
    before = model_from_text(graph, constants)
    after, _ = convert(before)
    assert dtypes(after) == {"w": HALF, "twice": FLOAT, "scales": FLOAT}
    feeds = {"x": weight(1, 2, 2049, 3)}
    want, got = run(before, feeds), run(after, feeds)
    np.testing.assert_array_equal(got[1], want[1])
    np.testing.assert_allclose(got[0], want[0], atol=0.01)


def test_bodies_are_converted_inside_and_captures_keep_their_type() -> None:
    graph = """g (float[2, 4] x, bool which) => (float[2, 4] y) {
        h = MatMul(x, w)
        r = If (which) <
            then_branch = t () => (float[2, 4] a) { a = MatMul(h, w) },
            else_branch = e () => (float[2, 4] b) { b = Exp(h) }
        >
        y = Relu(r)
    }"""
    before = model_from_text(graph, {"w": weight(4, 4)})
    after, _ = convert(before)
    assert dtypes(after) == {"w": HALF}
    onnx.checker.check_model(after, full_check=True)
    for which in (True, False):
        feeds = {"x": weight(2, 4), "which": np.array(which)}
        np.testing.assert_allclose(run(after, feeds)[0], run(before, feeds)[0], rtol=0.01, atol=0.01)


def test_functions_of_the_user_and_foreign_operators_are_kept() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17, "mine" : 1]>
        g (float[2, 4] x) => (float[2, 4] y) { h = MatMul(x, w)  f = mine.twice(h)  y = MatMul(f, w) }
        <domain: "mine", opset_import: ["" : 17]> twice (a) => (b) {
            two = Constant<value = float {2.0}>()  b = Mul(a, two)
        }"""
    before = onnx.parser.parse_model(text)
    before.graph.initializer.append(onnx.numpy_helper.from_array(weight(4, 4), "w"))
    after, report = convert(before)
    assert "mine::twice" in refusals(report)["UNSUPPORTED_OP"]
    assert [n.op_type for n in after.functions[0].node] == [n.op_type for n in before.functions[0].node]
    feeds = {"x": weight(2, 4)}
    np.testing.assert_allclose(run(after, feeds)[0], run(before, feeds)[0], atol=0.03)


@pytest.mark.parametrize("target", ["rocm", "cpu"])
def test_keep_float(target: str) -> None:
    graph = """g (float[2, 8] x) => (float[2, 8] y) {
        [first] h = MatMul(x, a)  [second] i = MatMul(h, b)  y = Relu(i)
    }"""
    before = model_from_text(graph, {"a": weight(8, 8), "b": weight(8, 8, seed=1)})
    after, report = convert(before, target, keep_float=["first"])
    assert dtypes(after) == {"a": FLOAT, "b": HALF}
    assert "first" in {n for r in report.remarks if r.code == "KEPT" for n in r.nodes}
    np.testing.assert_allclose(run(after, {"x": weight(2, 8)})[0], run(before, {"x": weight(2, 8)})[0], atol=0.05)
    after, report = convert(before, target, keep_float=["MatMul"])
    assert dtypes(after) == {"a": FLOAT, "b": FLOAT}
    with pytest.raises(OptionError, match="third"):
        convert(before, target, keep_float=["third"])
    with pytest.raises(OptionError, match="precision"):
        graphopt.optimize(before, target=target, keep_float=["first"])


def test_quantized_nodes_are_kept() -> None:
    graph = """g (float[2, 4] x) => (float[2, 4] y) {
        w = DequantizeLinear(wq, scale)  h = MatMul(x, w)  y = MatMul(h, v)
    }"""
    wq = np.random.default_rng(0).integers(-99, 99, (4, 4)).astype(np.int8)
    before = model_from_text(graph, {"wq": wq, "scale": np.float32(0.01), "v": weight(4, 4)})
    after, report = convert(before)
    assert dtypes(after)["scale"] == FLOAT
    assert dtypes(after)["v"] == HALF
    assert "QUANTIZED" in refusals(report)


def test_operators_without_float16_are_kept_in_float32() -> None:
    graph = """g (float[1, 6, 4] boxes, float[1, 1, 6] scores) => (int64[N, 3] y) {
        b = MatMul(boxes, w)  y = NonMaxSuppression(b, scores)
    }"""
    _, report = convert(model_from_text(graph, {"w": weight(4, 4)}))
    assert "NonMaxSuppression" in refusals(report)["NO_FLOAT16"]
    _, report = convert(model_from_text(graph, {"w": weight(4, 4)}), "cpu")
    assert "MatMul" in refusals(report)["NO_FLOAT16"] or "NonMaxSuppression" in refusals(report)["NO_FLOAT16"]


def test_old_opsets() -> None:
    graph = (
        "g (float[1, 2, 5, 5] x) => (float[1, 2, 5, 5] y) { y = Conv<kernel_shape=[3, 3], pads=[1, 1, 1, 1]>(x, w) }"
    )
    before = model_from_text(graph, {"w": weight(2, 2, 3, 3)}, opset=6)
    after, report = convert(before)
    assert "OPSET" in refusals(report)
    assert dtypes(after) == {"w": FLOAT}


GROUP_NORM = """g (float[2, 6, 5, 7] x) => (float[2, 6, 5, 7] y) {
    g = Reshape(x, groups)  i = InstanceNormalization(g, one, zero)  u = Reshape(i, back)
    m = Mul(u, gamma)  n = Add(m, beta)  s = Sigmoid(n)  t = Mul(n, s)
    c = Conv<kernel_shape=[3, 3], pads=[1, 1, 1, 1]>(t, w)  d = Relu(c)
    e = Mul(d, gamma)  f = Add(e, beta)  y = Relu(f)
}"""
GROUP_NORM_CONSTANTS = {
    "groups": np.array([0, 3, -1]),
    "back": np.array([2, 6, 5, 7]),
    "one": np.ones(3, np.float32),
    "zero": np.zeros(3, np.float32),
    "gamma": weight(6, 1, 1, seed=3),
    "beta": weight(6, 1, 1, seed=4),
    "w": weight(6, 6, 3, 3, seed=5),
}


@pytest.mark.parametrize("opset", [7, 8, 9, 11, 12, 13, 14, 15])
def test_our_operators_in_old_opsets(opset: int) -> None:
    before = model_from_text(GROUP_NORM, GROUP_NORM_CONSTANTS, opset=opset)
    after, report = convert(before, ignore_cost_model=True)
    ours = {n.op_type: n for n in after.graph.node if n.domain == DOMAIN}
    assert ours.keys() >= {
        "FusedGroupNormSilu" if opset >= 9 else "ScaleShiftSilu",
        "WinogradConvRelu",
        "ScaleShiftRelu",
    }
    inferred = onnx.shape_inference.infer_shapes(after, strict_mode=True)
    types = {v.name: v.type.tensor_type.elem_type for v in inferred.graph.value_info}
    assert {types[n.output[0]] for n in ours.values()} == {HALF}
    assert "OPSET" not in refusals(report)
    feeds = {"x": weight(2, 6, 5, 7)}
    for library in (False, True):
        np.testing.assert_allclose(run(after, feeds, library=library)[0], run(before, feeds)[0], atol=0.05)
    again, _ = convert(after, ignore_cost_model=True)
    assert again.SerializeToString(deterministic=True) == after.SerializeToString(deterministic=True)


@pytest.mark.parametrize(("opset", "ours"), [(14, FLOAT), (15, HALF)])
def test_below_opset_15_an_operator_is_converted_everywhere_or_nowhere(opset: int, ours: int) -> None:
    """Below opset 15 a function body has one type: a node with an overflowing constant keeps the others in float32."""
    text = """g (float[2, 6, 5, 7] x) => (float[2, 6, 5, 7] y) {
        a = Mul(x, gamma)  b = Add(a, beta)  c = Relu(b)  p = MaxPool<kernel_shape=[1, 1]>(c)
        d = Mul(p, huge)  e = Add(d, beta)  y = Relu(e)
    }"""
    constants = {k: GROUP_NORM_CONSTANTS[k] for k in ("gamma", "beta")} | {"huge": np.full((6, 1, 1), 1e5, np.float32)}
    before = model_from_text(text, constants, opset=opset)
    after, report = convert(before, ignore_cost_model=True)
    assert [n.op_type for n in after.graph.node if n.domain == DOMAIN] == ["ScaleShiftRelu"] * 2
    assert ("OPSET" in refusals(report)) == (ours == FLOAT)
    assert "OVERFLOW" in refusals(report)
    inferred = onnx.shape_inference.infer_shapes(after, strict_mode=True)
    values = (*inferred.graph.value_info, *inferred.graph.output)
    types = {v.name: v.type.tensor_type.elem_type for v in values}
    first, second = (types.get(n.output[0]) for n in after.graph.node if n.domain == DOMAIN)
    assert (first, second) == (ours, FLOAT)
    feeds = {"x": weight(2, 6, 5, 7)}
    for library in (False, True):
        (got,), (want,) = run(after, feeds, library=library), run(before, feeds)
        np.testing.assert_allclose(got, want, rtol=0.01, atol=200)


@pytest.mark.parametrize("opset", [11, 12, 13, 14])
def test_attention_masks_in_old_opsets(opset: int) -> None:
    constants = {"one": np.float32(1), "zero": np.float32(0), "low": np.float32(LOWEST)}
    before = model_from_text(ADDITIVE, constants, opset=opset)
    after, report = convert(before, ignore_cost_model=True)
    (fused,) = (n for n in after.graph.node if n.domain == DOMAIN)
    assert fused.op_type == "FusedAttentionBiasMask"
    assert "OPSET" not in refusals(report)
    q, v = weight(2, 2, 5, 8), weight(2, 2, 5, 8, seed=1)
    keep = np.array([[1, 1, 1, 0, 0], [0, 0, 0, 0, 0]]).reshape(2, 1, 1, 5)
    feeds = {"q": q, "k": weight(2, 2, 8, 5, seed=2), "v": v, "m": keep}
    for library in (False, True):
        np.testing.assert_allclose(run(after, feeds, library=library)[0], run(before, feeds)[0], atol=0.01)


def test_overridable_initializers_and_shared_weights() -> None:
    graph = """g (float[2, 4] x, float[4, 4] o) => (float[2, 4] y, float[4, 4] z) {
        h = MatMul(x, o)  y = MatMul(h, w)  z = Exp(w)
    }"""
    before = model_from_text(graph, {"o": weight(4, 4), "w": weight(4, 4, seed=1)})
    after, _ = convert(before)
    assert dtypes(after) == {"o": FLOAT, "w": FLOAT, "w_half": HALF}
    feeds = {"x": weight(2, 4), "o": weight(4, 4, seed=5)}
    for want, got in zip(run(before, feeds), run(after, feeds)):
        np.testing.assert_allclose(got, want, atol=0.05)
    np.testing.assert_array_equal(run(after, feeds)[1], run(before, feeds)[1])


def test_the_precision_decides_before_products_are_replaced() -> None:
    graph = "g (float[1, 64, 56, 56] x) => (float[1, 64, 56, 56] y) { y = Conv<pads=[1, 1, 1, 1]>(x, w) }"
    before = model_from_text(graph, {"w": weight(64, 64, 3, 3)})
    _, plain = graphopt.optimize(before, target="rocm")
    assert any(r.pass_name == "winograd_conv" and r.applied for r in plain.remarks)
    _, report = convert(before)
    (remark,) = [r for r in report.remarks if r.pass_name == "winograd_conv"]
    assert remark.code == "NO_GAIN"
    assert "F(2x2" in remark.detail


@pytest.mark.parametrize("reader", ["Softmax", "Exp"])
def test_float16_values_of_the_model_keep_their_readers(reader: str) -> None:
    """The model casts a value to float16 for a reader that is not converted: the reader reads the GEMM's float16."""
    graph = f"""g (float[2, 4] x) => (float[2, 4] y) {{
        h = MatMul(x, w)  c = Cast<to=10>(h)  s = {reader}(c)  r = Relu(s)  y = Cast<to=1>(r)
    }}"""
    before = model_from_text(graph, {"w": weight(4, 4)})
    after, _ = convert(before)
    assert node(after, "MatMul").output[0] in node(after, reader).input
    feeds = {"x": 0.1 * weight(2, 4, seed=2)}
    np.testing.assert_allclose(run(after, feeds)[0], run(before, feeds)[0], atol=0.01)


def test_an_output_that_declares_no_type_declares_none() -> None:
    before = model_from_text("g (float[2, 4] x) => (float[2, 4] y) { y = MatMul(x, w) }", {"w": weight(4, 4)})
    before.graph.output[0].ClearField("type")
    after, _ = convert(before)
    made = producer(after, "y")
    assert made is not None
    assert made.op_type == "Cast"
    assert not after.graph.output[0].HasField("type")
    feeds = {"x": weight(2, 4, seed=2)}
    np.testing.assert_allclose(run(after, feeds)[0], run(before, feeds)[0], atol=0.05)


def test_half_models_pass_through() -> None:
    graph = """g (float16[2, 4] x) => (float16[2, 4] y) {
        h = MatMul(x, w)  f = Cast<to=1>(h)  s = Softmax(f)  y = Cast<to=10>(s)
    }"""
    before = model_from_text(graph, {"w": weight(4, 4).astype(np.float16)})
    after, report = convert(before)
    assert not report.changed
    assert dtypes(after) == {"w": HALF}


def test_a_large_model_is_written_as_a_stream(tmp_path: Any) -> None:
    graph = "g (float[2, 512] x) => (float[2, 512] y) { y = MatMul(x, w) }"
    before = model_from_text(graph, {"w": weight(512, 512)})
    path, out = tmp_path / "in.onnx", tmp_path / "out.onnx"
    onnx.save(before, path, save_as_external_data=True, location="weights")
    graphopt.optimize(path, out, target="rocm", precision="fp16")
    assert ir.load(out).graph.initializers["w"].dtype == ir.DataType.FLOAT16
    assert verify(path, out).equal


def test_options() -> None:
    model = ZOO["resnet18"](small=True)
    with pytest.raises(OptionError, match="precision"):
        graphopt.optimize(model, precision="int8")  # type: ignore[call-overload]
    with pytest.raises(OptionError, match="precision"):
        graphopt.optimize(model, keep_io=False)


# -- the range of activations -----------------------------------------------------------------------------------------

# A pre-norm block twice: a residual stream, which each norm scales back to 1.
STREAM = """g (int64[B, S] ids) => (float[B, S, 32] y) {
    h0 = Gather(table, ids)
    s0 = Mul(h0, h0)  v0 = ReduceMean<axes = [-1]>(s0)  e0 = Add(v0, eps)  r0 = Sqrt(e0)  n0 = Div(h0, r0)
    p0 = MatMul(n0, w0)
    h1 = Add(h0, p0)
    s1 = Mul(h1, h1)  v1 = ReduceMean<axes = [-1]>(s1)  e1 = Add(v1, eps)  r1 = Sqrt(e1)  n1 = Div(h1, r1)
    p1 = MatMul(n1, w1)
    h2 = Add(h1, p1)
    s2 = Mul(h2, h2)  v2 = ReduceMean<axes = [-1]>(s2)  e2 = Add(v2, eps)  r2 = Sqrt(e2)  n2 = Div(h2, r2)
    y = MatMul(n2, w2)
}"""


def stream(scale: float) -> onnx.ModelProto:
    """Returns a model with sums of at most about 25 times `scale`."""
    weights = {f"w{i}": weight(32, 32, seed=i) * (scale if i < 2 else 1.0) for i in range(3)}
    return model_from_text(STREAM, {"table": weight(50, 32, seed=9), "eps": np.float32(1e-6), **weights})


def test_a_residual_stream_beyond_the_range_is_kept_in_float32() -> None:
    """All GEMMs compute in float16, those that write the stream with smaller weights; sums and norms are in float32."""
    before = stream(9000)
    after, report = convert(before)
    products = [n for n in after.graph.node if n.op_type == "MatMul"]
    graphs = ir.traversal.RecursiveGraphIterator(inferred(after).graph)
    types = {value.name: int(value.dtype or 0) for node in graphs for value in node.outputs}
    constants = dtypes(after)
    assert [constants[n.input[1]] for n in products] == [HALF] * 3
    assert [types[n.output[0]] for n in products] == [HALF] * 3
    assert [types[name] for name in ("h1", "p0", "p1")] == [FLOAT] * 3
    kept = {name for r in report.remarks if r.code == "RANGE" for name in r.nodes}
    assert kept and kept <= {n.name for n in after.graph.node}
    (note,) = [n for n in report.notes if "65504" in n]
    assert "100.0% of the floating-point multiply-adds" in note
    compared = verify(before, after)
    assert compared.equal, compared.summary
    again, _ = convert(after)
    assert again.SerializeToString(deterministic=True) == after.SerializeToString(deterministic=True)


def test_a_residual_of_a_fused_layer_is_added_in_float32() -> None:
    """The GEMMs of fused linear layers with biases and sums compute in float16."""
    graph = """g (float[N, 16] x) => (float[N, 16] y) {
        p0 = MatMul(x, w0)  q0 = Add(p0, b0)  h = Add(q0, x)
        n = LayerNormalization(h, one)  p1 = MatMul(n, w1)  q1 = Add(p1, b1)  g = Gelu(q1)
        p2 = MatMul(g, w2)  q2 = Add(p2, b2)  s = Add(q2, h)  y = LayerNormalization(s, one)
    }"""
    constants: dict[str, Any] = {"one": np.ones(16, np.float32)}
    for i, (scale, m, n) in enumerate(((1, 16, 16), (1, 16, 64), (9000, 64, 16))):
        constants |= {f"w{i}": scale * weight(m, n, seed=i) / 4, f"b{i}": scale * weight(n, seed=i + 5) / 9}
    before = model_from_text(graph, constants, opset=20)
    after, report = convert(before)
    (note,) = [n for n in report.notes if "65504" in n]
    assert "100.0% of the floating-point multiply-adds" in note
    assert "Linear" in note
    assert verify(before, after).equal


def test_a_layer_of_zeros_with_an_operand_beyond_the_range() -> None:
    """The result is 0 in all runs, so no power of two is needed for it."""
    graph = "g (float[N, 8] x) => (float[N, 8] y) { h = MatMul(x, v)  y = MatMul(h, w) }"
    before = model_from_text(graph, {"v": 9000 * weight(8, 8), "w": np.zeros((8, 8), np.float32)})
    after, report = convert(before)
    assert "'h' reaches" in refusals(report)["RANGE"]
    assert not run(after, {"x": weight(2, 8)})[0].any()


@pytest.mark.parametrize("name", ["stream", "gpt2", "mobilenet_v2"])
def test_values_within_the_range_leave_the_file_as_it_is(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = stream(9) if name == "stream" else ZOO[name](small=True, dynamic=True)
    after, report = convert(before)
    assert "RANGE" not in refusals(report)
    monkeypatch.setattr("graphopt.optimizer._activation_ranges", lambda *_: None)
    unmeasured, _ = convert(before)
    assert after.SerializeToString(deterministic=True) == unmeasured.SerializeToString(deterministic=True)


def test_lowest_numbers_of_masks_are_no_activations() -> None:
    mask = np.where(np.tri(8), 0, LOWEST).astype(np.float32)
    graph = """g (float[B, 8, 16] x, int64[B, 8] keep) => (float[B, 8, 16] y) {
        s = MatMul(x, w)  t = Transpose<perm = [0, 2, 1]>(x)  q = MatMul(s, t)
        k = Cast<to = 1>(keep)  u = Unsqueeze(k, axis)  i = Sub(one, u)  b = Mul(i, low)
        c = Add(q, mask)  d = Add(c, b)  p = Softmax<axis = 2>(d)  y = MatMul(p, x)
    }"""
    constants = {
        "w": weight(16, 16),
        "mask": mask,
        "low": np.float32(-1e9),
        "one": np.float32(1),
        "axis": np.array([1]),
    }
    _, report = convert(model_from_text(graph, constants, opset=17))
    assert "RANGE" not in refusals(report)


def test_inputs_of_the_caller_count() -> None:
    graph = "g (float[N, 8] x) => (float[N, 8] y) { h = MatMul(x, w)  y = Mul(h, h) }"
    before = model_from_text(graph, {"w": weight(8, 8)})
    assert "RANGE" not in refusals(convert(before)[1])
    after, report = convert(before, inputs={"x": 100 * weight(2, 8, seed=3)})
    assert "'y' reaches" in refusals(report)["RANGE"]
    feeds = {"x": 100 * weight(2, 8, seed=3)}
    np.testing.assert_allclose(run(after, feeds)[0], run(before, feeds)[0], rtol=0.02, atol=100)
    with pytest.raises(OptionError, match="fp16"):
        graphopt.optimize(before, target="rocm", inputs={"x": weight(2, 8)})


def test_ranges_in_bodies_and_of_empty_values() -> None:
    """Loop and If: the largest element over all iterations and over the taken branch."""
    graph = """g (float[N, 4] x, int64 turns, bool which) => (float[N, 4] y, float[M, 4] none) {
        always = Constant<value_int = 1>()
        condition = Cast<to = 9>(always)
        a = Loop(turns, condition, x) <
            body = body (int64 i, bool go, float[N, 4] h) => (bool on, float[N, 4] grown, float[N, 4] unread) {
                on = Identity(go)  inside = Mul(h, ten)  grown = Add(inside, h)  unread = Identity(h)
            }
        >
        y = If(which) <
            then_branch = yes () => (float[N, 4] r) { wide = Mul(a, ten)  r = Neg(wide) },
            else_branch = no () => (float[N, 4] s) { s = Identity(a) }
        >
        none = Slice(y, zero, zero, zero)
    }"""
    before = model_from_text(graph, {"ten": np.float32(10), "zero": np.array([0])}, opset=17)
    names = ("inside", "grown", "wide", "y", "none")
    copy, scalars, _ = with_ranges(inferred(before), names)
    x = np.array([[1, -2, 3, 0.5]], np.float32)
    inference.forget(copy)
    outputs = run(to_message(copy), {"x": x, "turns": np.array(3), "which": np.array(True)})
    found = largest_of(dict(zip((str(o.name) for o in copy.graph.outputs), outputs)), scalars)
    assert found == pytest.approx({"inside": 10 * 363, "grown": 11 * 363, "wide": 39930, "y": 39930, "none": 0})


def test_a_run_for_ranges_is_bounded_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Loop of 2^40 iterations."""
    graph = """g (float[2, 4] x) => (float[2, 4] y) {
        always = Constant<value_int = 1>()
        condition = Cast<to = 9>(always)
        a = Loop(turns, condition, x) <
            body = body (int64 i, bool go, float[2, 4] h) => (bool on, float[2, 4] z) { on = Identity(go)  z = Neg(h) }
        >
        y = MatMul(a, w)
    }"""
    monkeypatch.setattr("graphopt.verification.probes.MOST_SECONDS", 0.2)
    before = model_from_text(graph, {"turns": np.int64(1 << 40), "w": weight(4, 4)}, opset=17)
    _, report = convert(before)
    assert any("were not checked" in n and "terminate" in n for n in report.notes)


def test_a_note_says_that_ranges_were_not_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise RuntimeMissingError("no ONNX Runtime is installed")

    monkeypatch.setattr("graphopt.verification.run.import_onnxruntime", missing)
    _, report = convert(stream(9000))
    assert "RANGE" not in refusals(report)
    assert any("were not checked" in n and "no ONNX Runtime" in n for n in report.notes)
