"""A decoder's block of com.microsoft operators becomes the same graph as the same block in standard ONNX."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import graphopt
from tests.rewriting import Array, assert_same_outputs

B, S, N, H = 2, 6, 4, 16
D = N * H
INPUTS = "float[{B}, {S}, 64] x, float[{B}, {S}, 64] r, int64[{B}, {S}] ids"
CONTRIB = """
    n, n1, n2, s = com.microsoft.SkipSimplifiedLayerNormalization <epsilon = 1e-5> (x, r, gamma)
    q = MatMul (n, wq) k = MatMul (n, wk) v = MatMul (n, wv)
    qr = com.microsoft.RotaryEmbedding <num_heads = 4> (q, ids, cos, sin)
    kr = com.microsoft.RotaryEmbedding <num_heads = 4> (k, ids, cos, sin)
    o = {attention}
    p = MatMul (o, wo)
    y, y1, y2, t = com.microsoft.SkipSimplifiedLayerNormalization <epsilon = 1e-5> (p, s, gamma)
"""
ATTENTION = {
    "bias": "com.microsoft.MultiHeadAttention <num_heads = 4> (qr, kr, v, , , mask)",
    "causal": "com.microsoft.MultiHeadAttention <num_heads = 4, unidirectional = 1> (qr, kr, v)",
    "grouped": "com.microsoft.GroupQueryAttention <num_heads = 4, kv_num_heads = 4> (qr, kr, v, , , last, total)",
}


def norm(x: str, y: str) -> str:
    return f"""
    {y}_2 = Pow ({x}, two) {y}_m = ReduceMean <axes = [-1]> ({y}_2) {y}_e = Add ({y}_m, epsilon)
    {y}_r = Sqrt ({y}_e) {y}_d = Div ({x}, {y}_r) {y} = Mul ({y}_d, gamma)
"""


def turned(x: str, y: str) -> str:
    return f"""
    {y}_h = Reshape ({x}, heads) {y}_t = Transpose <perm = [0, 2, 1, 3]> ({y}_h)
    {y}_a = Slice ({y}_t, zero, half, last_axis) {y}_b = Slice ({y}_t, half, all, last_axis)
    {y}_n = Neg ({y}_b) {y}_c = Concat <axis = -1> ({y}_n, {y}_a)
    {y}_p = Mul ({y}_t, c) {y}_q = Mul ({y}_c, d) {y} = Add ({y}_p, {y}_q)
"""


STANDARD = f"""
    two = Constant <value = float {{2.0}}> () epsilon = Constant <value = float {{1e-5}}> ()
    heads = Constant <value = int64[4] {{0, 0, 4, 16}}> () flat = Constant <value = int64[3] {{0, 0, 64}}> ()
    zero = Constant <value = int64[1] {{0}}> () half = Constant <value = int64[1] {{8}}> ()
    all = Constant <value = int64[1] {{16}}> () last_axis = Constant <value = int64[1] {{3}}> ()
    one = Constant <value = int64[1] {{1}}> () scale = Constant <value = float {{0.25}}> ()
    s = Add (x, r) {norm("s", "n")}
    q = MatMul (n, wq) k = MatMul (n, wk) v = MatMul (n, wv)
    c0 = Gather (cos2, ids) d0 = Gather (sin2, ids) c = Unsqueeze (c0, one) d = Unsqueeze (d0, one)
    {turned("q", "qr")} {turned("k", "kr")}
    vh = Reshape (v, heads) vt = Transpose <perm = [0, 2, 1, 3]> (vh)
    kt = Transpose <perm = [0, 1, 3, 2]> (kr)
    a1 = MatMul (qr, kt) a2 = Mul (a1, scale) a3 = Add (a2, mask) a4 = Softmax <axis = -1> (a3) a5 = MatMul (a4, vt)
    a6 = Transpose <perm = [0, 2, 1, 3]> (a5) o = Reshape (a6, flat)
    p = MatMul (o, wo) t = Add (p, s) {norm("t", "y")}
"""


def weights() -> dict[str, Array]:
    rng = np.random.default_rng(0)
    angle = np.arange(32)[:, None] / 10000 ** (np.arange(H // 2) * 2 / H)
    found: dict[str, Array] = {"cos": np.cos(angle), "sin": np.sin(angle), "gamma": rng.uniform(0.5, 1.5, D)}
    found |= {f"{name}2": np.concatenate([found[name]] * 2, -1) for name in ("cos", "sin")}
    found |= {name: rng.normal(size=(D, D)) / 8 for name in ("wq", "wk", "wv", "wo")}
    hidden = np.where(np.tri(S), 0, np.finfo(np.float32).min)[None, None]
    found = {name: x.astype(np.float32) for name, x in (found | {"mask": hidden}).items()}
    return found | {"last": np.full(B, S - 1, np.int32), "total": np.array(S, np.int32)}


def block(body: str, *, bias: bool, symbolic: bool = False) -> onnx.ModelProto:
    sizes: dict[str, Any] = {"B": "B", "S": "S"} if symbolic else {"B": B, "S": S}
    given = INPUTS + (", float[{B}, 1, {S}, {S}] mask" if bias else "")
    outputs = "float[{B}, {S}, 64] y, float[{B}, {S}, 64] t"
    header = '<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>'
    model = onnx.parser.parse_model(f"{header} g ({given.format(**sizes)}) => ({outputs.format(**sizes)}) {{ {body} }}")
    read = {name for node in model.graph.node for name in node.input} - {i.name for i in model.graph.input}
    model.graph.initializer.extend(numpy_helper.from_array(x, n) for n, x in weights().items() if n in read)
    return model


def operators(
    model: onnx.ModelProto, target: str, ignore_cost_model: bool
) -> tuple[Counter[str], Counter[str], list[str]]:
    """Returns our operators, others without constants, and the reasons against lowering com.microsoft nodes."""
    after, report = graphopt.optimize(model, target=target, ignore_cost_model=ignore_cost_model)
    ours = Counter(n.op_type for n in after.graph.node if n.domain == "com.graphopt")
    others = Counter(n.op_type for n in after.graph.node if n.domain != "com.graphopt" and n.op_type != "Constant")
    return ours, others, [r.detail for r in report.remarks if r.pass_name == "contrib" and not r.applied]


@pytest.mark.parametrize(("kind", "symbolic"), [("bias", False), ("bias", True), ("causal", False)])
@pytest.mark.parametrize(("target", "ignore_cost_model"), [("cuda", False), ("rocm", False), ("cpu", True)])
def test_same_graph(target: str, ignore_cost_model: bool, kind: str, symbolic: bool) -> None:
    """The graphs differ only in two Concats, which repeat the cached angles of half a head for the whole head."""
    bias = kind == "bias"
    ours, others, stay = operators(
        block(CONTRIB.format(attention=ATTENTION[kind]), bias=bias, symbolic=symbolic), target, ignore_cost_model
    )
    wanted, other, _ = operators(block(STANDARD, bias=bias, symbolic=symbolic), target, ignore_cost_model)
    attention = "FusedAttentionBias" if bias else "FusedAttentionCausal"
    assert ours == wanted == {"FusedRmsNormAddSum": 2, "FusedRotary": 2, attention: 1}
    assert others == other + Counter(Concat=2)
    assert stay == []


def test_nodes_that_are_kept_on_cpus() -> None:
    """com.microsoft nodes are kept only where ONNX Runtime's kernels were measured to be faster."""
    ours, others, stay = operators(block(CONTRIB.format(attention=ATTENTION["causal"]), bias=False), "cpu", False)
    assert ours == {"FusedRmsNormAddSum": 2}
    assert others == {"MatMul": 4, "RotaryEmbedding": 2, "MultiHeadAttention": 1}
    assert len(stay) == 3


@pytest.mark.parametrize("target", ["cuda", "cpu"])
def test_an_attention_with_a_cache_is_kept(target: str) -> None:
    """GroupQueryAttention is kept, since its definition copies the cache; norms around it become our nodes."""
    ours, others, stay = operators(block(CONTRIB.format(attention=ATTENTION["grouped"]), bias=False), target, False)
    assert ours["FusedRmsNormAddSum"] == 2 and others["GroupQueryAttention"] == 1
    assert any("cache" in why for why in stay)


@pytest.mark.parametrize("kind", ATTENTION)
def test_both_compute_the_same(kind: str) -> None:
    rng = np.random.default_rng(1)
    feeds: dict[str, Array] = {n: rng.normal(size=(B, S, D)).astype(np.float32) for n in ("x", "r")}
    feeds["ids"] = np.tile(np.arange(S), (B, 1))
    bias = kind == "bias"
    if bias:
        feeds["mask"] = rng.normal(size=(B, 1, S, S)).astype(np.float32)
    contrib, standard = block(CONTRIB.format(attention=ATTENTION[kind]), bias=bias), block(STANDARD, bias=bias)
    for model in (contrib, standard):
        after, _ = graphopt.optimize(model, target="cpu", ignore_cost_model=True)
        assert_same_outputs(standard, after, feeds)
