"""com.microsoft operators become the same nodes as other forms of the same computation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import pytest

import graphopt
from graphopt.contrib.matmul_nbits import unpack
from graphopt.passes.contrib import Contrib
from tests.rewriting import Array, Rewritten, assert_same_outputs, rewrite

rng = np.random.default_rng(0)
N, D = 4, 32


def draw(*shape: int) -> Array:
    return (rng.normal(size=shape) * 0.5).astype(np.float32)


def model(graph: str, weights: Mapping[str, Array] | None = None, opset: int = 17) -> onnx.ModelProto:
    parsed = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : {opset}, "com.microsoft" : 1]>\n{graph}')
    parsed.graph.initializer.extend(onnx.numpy_helper.from_array(a, n) for n, a in (weights or {}).items())
    return parsed


WEIGHTS = {n: draw(D, D) for n in ("wq", "wk", "wv", "wo")} | {n: draw(D) for n in ("g", "b", "bq")}
BLOCK = f"""g (float[B, S, {D}] x) => (float[B, S, {D}] y) {{
    q = MatMul(x, wq)  k = MatMul(x, wk)  v = MatMul(x, wv)
    %s
    o = MatMul(c, wo)  %s }}"""
FUSED = BLOCK % (
    "c = com.microsoft.MultiHeadAttention <num_heads = 4> (q, k, v)",
    "y = com.microsoft.SkipLayerNormalization <epsilon = 1e-5> (o, x, g, b)",
)
HEADS = "h{0} = Reshape({0}, split)  t{0} = Transpose<perm=[0, 2, {1}]>(h{0})"
WRITTEN = BLOCK % (
    f"""split = Constant<value = int64[4] {{0, 0, 4, -1}}>()  join = Constant<value = int64[3] {{0, 0, {D}}}>()
    scale = Constant<value = float {{{1 / np.sqrt(D // N)}}}>()
    {HEADS.format("q", "1, 3")}  {HEADS.format("k", "3, 1")}  {HEADS.format("v", "1, 3")}
    s = MatMul(tq, tk)  u = Mul(s, scale)  p = Softmax<axis = -1>(u)  a = MatMul(p, tv)
    m = Transpose<perm=[0, 2, 1, 3]>(a)  c = Reshape(m, join)""",
    "z = Add(o, x)  y = LayerNormalization<axis = -1, epsilon = 1e-5>(z, g, b)",
)


@pytest.mark.parametrize("target", ["cpu", "cuda", "portable"])
def test_both_spellings_of_one_block_end_alike(target: str) -> None:
    feeds = {"x": draw(2, 5, D)}
    ends = []
    for text in (FUSED, WRITTEN):
        before = model(text, WEIGHTS)
        after, _ = graphopt.optimize(before, target=target)
        assert_same_outputs(before, after, feeds, tolerance=1e-4)
        ends.append(sorted(n.op_type for n in after.graph.node if n.op_type != "Constant"))
    assert ends[0] == ends[1]
    if target != "portable":
        assert {"FusedAttention", "FusedLayerNormAdd"} < set(ends[0])


@pytest.mark.parametrize(
    ("node", "becomes"),
    [
        ("SkipLayerNormalization(x, x, g, b)", "FusedLayerNormAdd"),
        ("SkipLayerNormalization(x, x, g, b, bq)", "FusedLayerNormAdd"),
        ("SkipSimplifiedLayerNormalization(x, x, g)", "FusedRmsNormAdd"),
        ("Attention<num_heads = 4>(x, wqkv, bqkv)", "FusedAttention"),
    ],
)
def test_becomes_our_operator_on_the_cpu(node: str, becomes: str) -> None:
    weights = WEIGHTS | {"wqkv": draw(D, 3 * D), "bqkv": draw(3 * D)}
    before = model(f"g (float[B, S, {D}] x) => (float[B, S, {D}] y) {{ y = com.microsoft.{node} }}", weights)
    after, _ = graphopt.optimize(before, target="cpu")
    assert becomes in [n.op_type for n in after.graph.node]
    assert_same_outputs(before, after, {"x": draw(2, 5, D)}, tolerance=1e-4)


def test_convolution_with_all_that_the_runtime_fuses_into_it() -> None:
    text = """g (float[1, 32, 28, 28] x) => (float[1, 32, 28, 28] y) {
        c = com.microsoft.FusedConv <pads = [1, 1, 1, 1], activation = "Relu"> (x, w, bias)
        y = com.microsoft.FusedConv <pads = [1, 1, 1, 1], activation = "Relu"> (c, w, bias, x) }"""
    before = model(text, {"w": draw(32, 32, 3, 3), "bias": draw(32)})
    after, _ = graphopt.optimize(before, target="cpu", ignore_cost_model=True)
    assert [n.op_type for n in after.graph.node] == ["WinogradConvRelu", "WinogradConvAddRelu"]
    assert_same_outputs(before, after, {"x": draw(1, 32, 28, 28)}, tolerance=1e-3)


def one(
    node: str, weights: Mapping[str, Array], opset: int = 17, shape: str = f"B, S, {D}", device: str = "portable"
) -> Rewritten:
    text = f"g (float[{shape}] x) => (float[{shape}] y) {{ y = {node} }}"
    return rewrite(model(text, {**WEIGHTS, **weights}, opset), [Contrib()], device=device)


@pytest.mark.parametrize(
    ("code", "node", "arguments"),
    [
        ("UNSUPPORTED_OP", "com.microsoft.LongformerAttention<num_heads = 4>(x)", {}),
        ("UNSUPPORTED_OP", "com.microsoft.SkipLayerNormalization(x, x)", {}),
        ("NO_GAIN", "com.microsoft.FastGelu(x)", {"device": "cpu"}),
        ("NO_GAIN", "com.microsoft.MultiHeadAttention<num_heads = 4, unidirectional = 1>(x, x, x)", {"device": "cpu"}),
        ("OPSET", "com.microsoft.Gelu(x)", {"opset": 10}),
        ("ATTRIBUTE", "com.microsoft.Gelu<approximate = 1>(x)", {}),
        ("ATTRIBUTE", "com.microsoft.MultiHeadAttention(x, x, x)", {}),
        ("UNKNOWN_SHAPE", "com.microsoft.MultiHeadAttention<num_heads = 4>(x, x, x)", {"shape": "B, S, E"}),
        ("WRONG_AXIS", "SimplifiedLayerNormalization<axis = 1>(x, g)", {}),
        ("MIXED_DTYPE", "SimplifiedLayerNormalization(x, h)", {}),
        ("WRONG_RANK", "com.microsoft.Attention<num_heads = 4>(x, w, c, m)", {}),
        # Runtimes load these models; only their runs fail.
        ("WRONG_SHAPE", "com.microsoft.Attention<num_heads = 4>(x, narrow, c)", {}),
        ("WRONG_SHAPE", "com.microsoft.Attention<num_heads = 4>(x, w, short)", {}),
        ("WRONG_SHAPE", "com.microsoft.Attention<num_heads = 4, qkv_hidden_sizes = [8, 8, 8]>(x, w, c)", {}),
    ],
)
def test_refuses(code: str, node: str, arguments: Mapping[str, Any]) -> None:
    weights = {
        "w": draw(D, 3 * D),
        "c": draw(3 * D),
        "h": draw(D).astype(np.float16),
        "narrow": draw(D - 1, 3 * D),
        "short": draw(3 * D - 1),
        "m": np.ones((1, 1, 5, 5), np.int32),
    }
    assert one(node, weights, **arguments).codes() == [code]


def test_an_unknown_type_is_no_contradiction() -> None:
    node = "n = local.Other(x)  y = com.microsoft.Attention<num_heads = 4>(n, w, c)"
    text = f"g (float[2, 3, {D}] x) => (float[2, 3, {D}] y) {{ {node} }}"
    result = rewrite(model(text, {"w": draw(D, 3 * D), "c": draw(3 * D)}), [Contrib()], device="portable")
    assert "WRONG_SHAPE" not in result.codes()


def test_refuses_ranks_and_types_that_nothing_tells() -> None:
    text = "g (x) => (float[B, S] y) { z = com.microsoft.FusedMatMul<transA = 1>(x, w)  y = Relu(z) }"
    parsed = model(text, {"w": draw(4, 4)})
    parsed.graph.input[0].type.tensor_type.elem_type = onnx.TensorProto.FLOAT
    assert rewrite(parsed, [Contrib()], device="portable").codes() == ["UNKNOWN_RANK"]
    text = "g (float[4] x) => (y) { z = com.microsoft.Tokenizer(x)  y = com.microsoft.Gelu(z) }"
    assert "WRONG_DTYPE" in rewrite(model(text), [Contrib()], device="portable").codes()


def test_refuses_a_quantized_cache_and_a_scale_for_each_column() -> None:
    heads = "num_heads = 2, kv_num_heads = 2"
    text = f"""g (float[1, 1, {D}] x, int8[1, 2, 3, 16] p, int32[1] l, int32 t, float s) => (float[1, 1, {D}] y) {{
        y = com.microsoft.GroupQueryAttention<{heads}>(x, x, x, p, p, l, t, , , , , , s, s) }}"""
    assert rewrite(model(text), [Contrib()], device="portable").codes() == ["QUANTIZED"]
    text = "g (uint8[4] x, float s) => (uint8[4] y) { y = com.microsoft.QLinearSigmoid(x, s, , s) }"
    assert rewrite(model(text), [Contrib()], device="cpu", ignore_cost_model=True).codes() == ["QUANTIZED"]
    text = "g (uint8[4, 3] x, float[3] s) => (float[4, 5] y) { y = com.microsoft.MatMulIntegerToFloat(x, w, s, c) }"
    weights: dict[str, Array] = {"w": np.ones((3, 5), np.uint8), "c": np.array(0.1, np.float32)}
    assert rewrite(model(text, weights), [Contrib()], device="portable").codes() == ["WRONG_SHAPE"]


def test_refuses_an_attribute_of_the_function_around_it() -> None:
    text = """g (float[4] x) => (float[4] y) { y = own.F<slope = 2.0>(x) }
        <domain: "own", opset_import: ["" : 17, "com.microsoft" : 1]>
        F <slope> (x) => (y) { y = com.microsoft.QuickGelu<alpha: float = @slope>(x) }"""
    header = '<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1, "own" : 1]>\n'
    result = rewrite(onnx.parser.parse_model(header + text), [Contrib()], device="portable")
    assert result.codes() == ["FUNCTION_ATTRIBUTE"]


def test_operators_that_the_model_defines_are_kept() -> None:
    text = """g (float[4] x) => (float[4] y) { y = com.microsoft.Gelu(x) }
        <domain: "com.microsoft", opset_import: ["" : 17]> Gelu (x) => (y) { y = Relu(x) }"""
    header = '<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>\n'
    assert rewrite(onnx.parser.parse_model(header + text), [Contrib()], device="portable").remarks == []


def test_packed_weights_that_remain_are_not_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each check of a 4-bit decoder would unpack all its weights."""
    unpacked: list[int] = []

    def recorded(rows: Array, bits: int) -> Array:
        unpacked.append(rows.size)
        return unpack(rows, bits)

    monkeypatch.setattr("graphopt.contrib.matmul_nbits.unpack", recorded)
    K = 128
    packed = rng.integers(0, 256, (K, 8, 8), np.uint8)
    weights = {"w": packed, "s": draw(K, 8), "z": rng.integers(0, 256, (K, 4), np.uint8)}
    node = f"com.microsoft.MatMulNBits <K = {K}, N = {K}, block_size = 16> (x, w, s, z)"
    before = model(f"g (float[1, {K}] x) => (float[1, {K}] y) {{ y = {node} }}", weights, opset=21)
    after, report = graphopt.optimize(before, target="cuda")
    assert [n.op_type for n in after.graph.node] == ["MatMulNBits"] and report.remarks
    assert unpacked and max(unpacked) < packed.size
    standard, _ = graphopt.optimize(before, target="portable")
    assert "DequantizeLinear" in {n.op_type for n in standard.graph.node} and packed.size in unpacked
