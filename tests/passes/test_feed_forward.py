"""Fully connected layers on GPU targets, and their remark on other targets."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from graphopt.passes.feed_forward import FeedForward
from graphopt.passes.registry import PASSES
from tests.rewriting import assert_same_outputs, model_from_text, rewrite

RNG = np.random.default_rng(0)
W = {"w": RNG.normal(size=(4, 6)).astype(np.float32), "b": RNG.normal(size=6).astype(np.float32)}
FEEDS = {"x": RNG.normal(size=(2, 3, 4)).astype(np.float32), "r": RNG.normal(size=(2, 3, 6)).astype(np.float32)}
# body, resulting operator, beginning of the remark on other targets
LAYERS = [
    ("m = MatMul(x, w)  t = Add(m, b)  y = Relu(t)", "LinearRelu", "MatMul, bias, Relu"),
    ("m = MatMul(x, w)  t = Add(b, m)  s = Sigmoid(t)  y = Mul(t, s)", "LinearSilu", "MatMul, bias, Silu"),
    ("m = MatMul(x, w)  t = Add(b, m)  y = Add(t, r)", "LinearAdd", "MatMul, bias, residual"),
    ("m = MatMul(x, w)  t = Add(b, m)  y = Add(r, t)", "LinearAdd", "MatMul, bias, residual"),
    (
        "m = MatMul(x, w)  t = Add(m, b)  u = Softplus(t)  v = Tanh(u)  y = Mul(t, v)",
        "LinearMish",
        "MatMul, bias, Mish",
    ),
]
GELU = """m = MatMul(x, w)  t = Add(m, b)
    c = Constant<value = float {1.4142135}>()  d = Div(t, c)  e = Erf(d)  one = Constant<value = float {1.0}>()
    f = Add(e, one)  g = Mul(t, f)  half = Constant<value = float {0.5}>()  y = Mul(g, half)"""


def three_axes(body: str) -> onnx.ModelProto:
    return model_from_text(f"g (float[2, 3, 4] x, float[2, 3, 6] r) => (float[2, 3, 6] y) {{ {body} }}", W)


@pytest.mark.parametrize(("body", "op", "parts"), LAYERS)
@pytest.mark.parametrize("device", ["cuda", "rocm"])
def test_a_layer_on_a_gpu(body: str, op: str, parts: str, device: str) -> None:
    result = rewrite(three_axes(body), [FeedForward()], device=device)
    assert result.op_types == [op]
    assert_same_outputs(three_axes(body), result.proto, FEEDS)


@pytest.mark.parametrize("opset", [17, 20])
def test_gelu(opset: int) -> None:
    """A decomposed Gelu; at opset 20 the pass `activations` first turns it into the operator Gelu."""
    model = model_from_text(f"g (float[2, 3, 4] x) => (float[2, 3, 6] y) {{ {GELU} }}", W, opset)
    result = rewrite(model, PASSES, device="cuda")
    assert result.op_types == ["LinearGelu"]
    assert_same_outputs(model, result.proto, {"x": FEEDS["x"]})


@pytest.mark.parametrize("bias", [(6,), (1, 6), (1, 1, 6), (1,), ()])
def test_shapes_of_a_bias(bias: tuple[int, ...]) -> None:
    weights = {**W, "b": RNG.normal(size=bias).astype(np.float32)}
    text = "g (float[2, 3, 4] x) => (float[2, 3, 6] y) { m = MatMul(x, w)  t = Add(m, b)  y = Relu(t) }"
    model = model_from_text(text, weights)
    result = rewrite(model, [FeedForward()], device="cuda")
    assert result.op_types == ["LinearRelu"]
    assert_same_outputs(model, result.proto, {"x": FEEDS["x"]})


def test_a_matmul_of_constants_is_kept_for_the_runtime() -> None:
    """Runtimes fold a MatMul of constants (position embeddings of DeBERTa and Swin v2), but not a node of ours."""
    text = "g (float[2, 3, 6] r) => (float[2, 3, 6] y) { m = MatMul(c, w)  t = Add(m, b)  a = Relu(t)  y = Add(a, r) }"
    result = rewrite(model_from_text(text, {**W, "c": FEEDS["x"]}), [FeedForward()], device="cuda")
    assert result.op_types == ["MatMul", "Add", "Relu", "Add"]
    assert result.codes() == ["NO_GAIN"]


@pytest.mark.parametrize("transposed", [0, 1])
def test_gemm(transposed: int) -> None:
    weights = {"w": np.ascontiguousarray(W["w"].T) if transposed else W["w"], "b": W["b"]}
    text = f"g (float[N, 4] x) => (float[N, 6] y) {{ t = Gemm<transB = {transposed}>(x, w, b)  y = Relu(t) }}"
    model = model_from_text(text, weights)
    result = rewrite(model, [FeedForward()], device="cuda")
    assert result.op_types == ["LinearRelu"]
    assert_same_outputs(model, result.proto, {"x": FEEDS["x"][0]})


@pytest.mark.parametrize(
    ("graph", "weights", "code"),
    [
        ("m = MatMul(x, w)  y = Relu(m)", W, "NO_GAIN"),
        ("m = MatMul(x, w)  t = Add(m, b)  y = Relu(t)", {**W, "b": np.ones((3, 6), np.float32)}, "WRONG_SHAPE"),
        ("m = MatMul(x, w)  t = Add(m, b)  y = Relu(t)", {**W, "b": np.ones((3, 1), np.float32)}, "WRONG_SHAPE"),
        ("m = MatMul(x, w)  t = Add(m, b)  y = Relu(t)", {**W, "w": np.ones((2, 4, 6), np.float32)}, "WRONG_RANK"),
        ("m = MatMul(x, w)  t = Add(m, b)  y = Add(t, r)", W, "MIXED_DTYPE"),
    ],
)
def test_refusals_on_a_gpu(graph: str, weights: dict[str, np.ndarray], code: str) -> None:
    text = f"g (float[2, 3, 4] x, uint8[2, 3, 6] r) => (float[2, 3, 6] y) {{ {graph} }}"
    model = model_from_text(text, weights, check=False)
    result = rewrite(model, [FeedForward()], device="cuda")
    assert result.codes() == [code]
    assert result.op_types == [n.op_type for n in model.graph.node]


@pytest.mark.parametrize(
    ("body", "ops"),
    [
        ("m = MatMul(x, w)  t = Add(m, b)  y = Elu(t)", ["Linear", "Elu"]),
        ("m = MatMul(x, w)  t = Add(m, b)  u = Relu(t)  v = Neg(t)  y = Add(u, v)", ["Linear", "Relu", "Neg", "Add"]),
        (
            "m = MatMul(x, w)  t = Add(m, b)  s = Sigmoid(t)  u = Mul(t, s)  y = Add(u, s)",
            ["Linear", "Sigmoid", "Mul", "Add"],
        ),
        ("m = MatMul(x, w)  t = Add(m, b)  y = Add(t, one_row)", ["Linear", "Add"]),
        ("m = MatMul(x, w)  t = Add(m, b)  y = Add(t, unknown)", ["Linear", "Add"]),
        ("m = MatMul(x, w)  t = Add(m, b)  y = Add(t, t)", ["Linear", "Add"]),
        ("m = MatMul(x, w)  y = Add(m, b)", ["Linear"]),
    ],
)
def test_unsupported_nodes_remain_after_the_linear(body: str, ops: list[str]) -> None:
    text = f"g (float[2, 3, 4] x, float[2, 1, 6] one_row, float[2, A, 6] unknown) => (float[2, 3, 6] y) {{ {body} }}"
    model = model_from_text(text, W)
    result = rewrite(model, [FeedForward()], device="cuda")
    assert result.op_types == ops
    others = {"one_row": FEEDS["r"][:, :1], "unknown": FEEDS["r"]}
    assert_same_outputs(model, result.proto, {"x": FEEDS["x"], **others})


@pytest.mark.parametrize("attributes", ["alpha = 2.0", "beta = 0.5", "transA = 1"])
def test_a_gemm_with_other_attributes_is_refused(attributes: str) -> None:
    text = f"g (float[4, 4] x) => (float[4, 6] y) {{ t = Gemm<{attributes}>(x, w, b)  y = Relu(t) }}"
    result = rewrite(model_from_text(text, W), [FeedForward()], device="cuda")
    assert result.codes() == ["ATTRIBUTE"]


def test_a_shared_weight_is_not_doubled() -> None:
    weights = {"w": np.ascontiguousarray(W["w"].T), "b": W["b"]}
    text = """g (float[2, 4] x) => (float[2, 6] y) {
        s = Gemm<transB = 1>(x, w, b)  t = Gemm<transB = 1>(x, w, b)  u = Relu(s)  v = Relu(t)  y = Mul(u, v) }"""
    result = rewrite(model_from_text(text, weights), [FeedForward()], device="cuda")
    assert result.codes() == ["OTHER_USES", "OTHER_USES"]


@pytest.mark.parametrize(("body", "op", "parts"), LAYERS)
@pytest.mark.parametrize("device", ["cpu", "portable", "migraphx"])
def test_a_layer_elsewhere(body: str, op: str, parts: str, device: str) -> None:
    model = three_axes(body)
    for ignore_cost_model in (False, True):
        result = rewrite(model, [FeedForward()], device=device, ignore_cost_model=ignore_cost_model)
        (remark,) = result.remarks
        assert remark.code == "NO_GAIN"
        detail, _, estimate = remark.detail.partition(": ")
        assert detail == f"our kernels are not faster than ONNX Runtime's for {parts}"
        assert estimate == ("both take an estimated 0.0 us for 6x4 by 4x6" if device == "cpu" else "")
        assert result.op_types == [n.op_type for n in model.graph.node]


@pytest.mark.parametrize(
    "body",
    ["m = MatMul(x, w)  y = Neg(m)", "m = MatMul(x, r)  y = Neg(m)", "m = MatMul(x, w)  t = Neg(m)  y = Relu(t)"],
)
def test_no_candidates(body: str) -> None:
    weights = {"w": np.ones((4, 4), np.float32), "b": np.ones(4, np.float32)}
    model = model_from_text(f"g (float[2, 4] x, float[4, 4] r) => (float[2, 4] y) {{ {body} }}", weights)
    for device in ("cpu", "cuda"):
        assert rewrite(model, [FeedForward()], device=device).remarks == []


@pytest.mark.parametrize("product", ["MatMul(x, w)", "Gemm(x, w)", "Gemm<transB = 1>(x, v)", "MatMul(x, t)"])
@pytest.mark.parametrize("body", ["a = Add(m, b)  y = Relu(a)", "y = Relu(m)", "y = Add(m, r)"])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_weight_that_is_an_input(product: str, body: str, device: str) -> None:
    """The remark names the weight, which a user could make constant; the bias may be an input as well."""
    inputs = "float[2, 4] x, float[4, 6] w, float[6, 4] v, float[6] b, float[2, 6] r"
    text = f"g ({inputs}) => (float[2, 6] y) {{ t = Transpose<perm = [1, 0]>(v)  m = {product}  {body} }}"
    (remark,) = rewrite(model_from_text(text, {}), [FeedForward()], device=device).remarks
    assert remark.code == "NOT_CONSTANT" and remark.detail in [f"the weight is not constant: {name}" for name in "wvt"]
    assert "MatMul" in remark.nodes[0] or "Gemm" in remark.nodes[0]


def test_a_product_of_two_activations() -> None:
    """Keys that come from a cache are not a weight."""
    text = "g (float[2, 3, 4] x, float[2, 4, 5] k) => (float[2, 3, 5] y) { m = MatMul(x, k)  y = Relu(m) }"
    for device in ("cpu", "cuda"):
        assert rewrite(model_from_text(text, {}), [FeedForward()], device=device).remarks == []


@pytest.mark.parametrize(
    ("K", "N", "op"),
    [(2048, 512, "LinearRelu"), (768, 3072, "LinearRelu"), (2047, 512, ""), (2048, 511, ""), (767, 3072, "")],
)
@pytest.mark.parametrize("product", ["m = MatMul(x, w)  t = Add(m, b)", "t = Gemm<transB = 1>(x, w, b)"])
def test_a_large_layer_on_a_cpu(K: int, N: int, op: str, product: str) -> None:
    """On a CPU only layers for which our GEMM is faster are rewritten."""
    w = RNG.normal(size=(K, N)).astype(np.float32) / np.float32(K**0.5)
    weights = {"w": np.ascontiguousarray(w.T) if "Gemm" in product else w, "b": RNG.normal(size=N).astype(np.float32)}
    text = f"g (float[M, {K}] x) => (float[M, {N}] y) {{ {product}  y = Relu(t) }}"
    model = model_from_text(text, weights)
    result = rewrite(model, [FeedForward()], device="cpu")
    assert result.op_types == ([op] if op else [n.op_type for n in model.graph.node])
    assert result.codes() == ["APPLIED" if op else "NO_GAIN"]
    for rows in (1, 15):
        assert_same_outputs(model, result.proto, {"x": RNG.normal(size=(rows, K)).astype(np.float32)})


@pytest.mark.parametrize(
    ("x", "K", "N", "op"),
    [
        ("128", 768, 768, "LinearRelu"),
        ("2, 64", 768, 832, "LinearRelu"),
        ("127", 768, 768, ""),
        ("M, 128", 768, 768, ""),
        ("128", 736, 768, ""),
        ("128", 768, 800, ""),
    ],
)
def test_a_layer_of_many_rows_on_a_cpu(x: str, K: int, N: int, op: str) -> None:
    w = RNG.normal(size=(K, N)).astype(np.float32) / np.float32(K**0.5)
    text = f"g (float[{x}, {K}] x) => (float[{x}, {N}] y) {{ m = MatMul(x, w)  t = Add(m, b)  y = Relu(t) }}"
    model = model_from_text(text, {"w": w, "b": RNG.normal(size=N).astype(np.float32)})
    result = rewrite(model, [FeedForward()], device="cpu")
    assert result.codes() == ["APPLIED" if op else "NO_GAIN"]
    if op:
        assert result.op_types == [op]
        sizes = [int(n) for n in x.split(", ")]
        assert_same_outputs(model, result.proto, {"x": RNG.normal(size=(*sizes, K)).astype(np.float32)})


@pytest.mark.parametrize(("kind", "dtype"), [("float16", "float16"), ("double", "float64")])
def test_a_large_layer_of_another_type_on_a_cpu(kind: str, dtype: str) -> None:
    text = f"g ({kind}[M, 2048] x) => ({kind}[M, 512] y) {{ m = MatMul(x, w)  y = Relu(m) }}"
    result = rewrite(model_from_text(text, {"w": np.ones((2048, 512), dtype)}), [FeedForward()], device="cpu")
    assert result.codes() == ["NO_GAIN"]


def test_a_large_product_without_a_bias_on_a_cpu() -> None:
    text = "g (float[M, 2048] x) => (float[M, 512] y) { y = MatMul(x, w) }"
    w = RNG.normal(size=(2048, 512)).astype(np.float32) / np.float32(45)
    model = model_from_text(text, {"w": w})
    result = rewrite(model, [FeedForward()], device="cpu")
    assert result.op_types == ["Linear"]
    assert_same_outputs(model, result.proto, {"x": RNG.normal(size=(5, 2048)).astype(np.float32)})


@pytest.mark.parametrize("body", [LAYERS[0][0], LAYERS[2][0], GELU, "m = MatMul(x, w)  y = Add(m, b)"])
def test_the_runtime_fuses_a_body_as_it_fuses_the_layer(body: str, tmp_path: object) -> None:
    """Without our library the function body runs; ONNX Runtime must fuse it like the original layer."""
    model = three_axes(body)
    result = rewrite(model, PASSES, device="cuda")
    assert [op.startswith("Linear") for op in result.op_types] == [True]
    found = []
    for proto in (model, result.proto):
        options = ort.SessionOptions()
        options.optimized_model_filepath = f"{tmp_path}/optimized.onnx"
        options.log_severity_level = 3
        ort.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
        found.append([n.op_type for n in onnx.load(options.optimized_model_filepath).graph.node])
    assert found[0] == found[1]
