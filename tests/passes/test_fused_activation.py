"""Activations, written out or standard, become one node of ours; similar graphs are not rewritten."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import onnx
import pytest

from graphopt.ops.fused_activation import FUSED
from graphopt.passes.feed_forward import FeedForward
from graphopt.passes.fuse_epilogue import FuseEpilogue
from graphopt.passes.fused_activation import FusedActivation
from graphopt.passes.fused_conv import FusedConv
from graphopt.passes.gate import Gate
from tests.passes.test_activations import CONSTANTS, FORMS, MISH, model
from tests.rewriting import Array, assert_same_outputs, model_from_text, rewrite, run

RNG = np.random.default_rng(41)
WRITTEN = [body for body, op in FORMS if op in ("Gelu", "HardSwish", "Mish")]
# As torch.onnx writes torch.nn.GELU in opsets without Gelu.
GELU = "z = Div(x, r2)\n e = Erf(z)\n p = Add(e, one)\n h = Mul(x, p)\n y = Mul(h, half)"
GELU_TANH = (
    "q = Mul(x, x)\n w = Mul(x, q)\n m = Mul(w, k)\n s = Add(x, m)\n z = Mul(s, c)\n t = Tanh(z)\n p = Add(one, t)\n"
    " h = Mul(x, p)\n y = Mul(half, h)"
)
HARD_SWISH = "s = HardSigmoid <alpha: float = 0.16666667, beta: float = 0.5> (x)\n y = Mul(x, s)"


def values(dtype: type = np.float32) -> Array:
    x: Array = (RNG.standard_normal((2, 5, 40)) * 4).astype(dtype)
    x[0, 0, :8] = [0.0, -0.0, 30.0, -30.0, 3.0, -3.0, 200.0, -200.0]
    return x


def suffix_of(body: str) -> str:
    if "Erf" in body:
        return "Gelu"
    return "Mish" if "Softplus" in body or "Log" in body else "GeluTanh" if "Tanh" in body else "HardSwish"


@pytest.mark.parametrize("opset", [13, 20])
@pytest.mark.parametrize("body", WRITTEN)
def test_written_out(body: str, opset: int) -> None:
    before = model(body, opset, extra={"m3": np.asarray(-3.0, np.float32)})
    after = rewrite(before, [FusedActivation()])
    assert after.op_types == [f"Fused{suffix_of(body)}"]
    assert_same_outputs(before, after.proto, {"x": values()})


@pytest.mark.parametrize("device", ["cpu", "rocm", "cuda"])
@pytest.mark.parametrize("opset", [11, 17, 21])
@pytest.mark.parametrize("body", [GELU, GELU_TANH, MISH, HARD_SWISH])
def test_every_opset(body: str, opset: int, device: str) -> None:
    after = rewrite(model(body, opset), [FusedActivation()], device=device)
    assert after.op_types == [f"Fused{suffix_of(body)}"]
    assert_same_outputs(model(body, opset), after.proto, {"x": values()})


@pytest.mark.parametrize("body", [GELU, GELU_TANH, MISH, HARD_SWISH])
def test_half_precision(body: str) -> None:
    before = model(body, 17, "float16")
    after = rewrite(before, [FusedActivation()])
    assert after.op_types == [f"Fused{suffix_of(body)}"]
    x = values(np.float16)
    x[np.abs(x) > 10] = 5.0  # x^3 and exp(x) of the written-out forms overflow in float16
    assert_same_outputs(before, after.proto, {"x": x}, tolerance=4e-3)


@pytest.mark.parametrize(
    ("body", "suffix", "function"),
    [
        (GELU, "Gelu", lambda v: 0.5 * v * math.erfc(-v / math.sqrt(2))),
        (GELU_TANH, "GeluTanh", lambda v: v / (1 + math.exp(-2 * math.sqrt(2 / math.pi) * (v + 0.044715 * v**3)))),
        (MISH, "Mish", lambda v: v * math.tanh(math.log1p(math.exp(v)))),
        (HARD_SWISH, "HardSwish", lambda v: v * min(max(v / 6 + 0.5, 0.0), 1.0)),
    ],
)
def test_values(body: str, suffix: str, function: Callable[[float], float]) -> None:
    x = np.resize(np.linspace(-7, 7, 97, dtype=np.float32), (2, 5, 40))
    after = rewrite(model(body, 13), [FusedActivation()])
    assert after.op_types == [f"Fused{suffix}"]
    wanted = np.vectorize(function)(x.astype(np.float64))
    for library in (False, True):
        np.testing.assert_allclose(run(after.proto, {"x": x}, library=library)[0], wanted, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize(
    ("body", "device", "op"),
    [
        ("y = Gelu(x)", "cpu", "FusedGelu"),
        ('y = Gelu <approximate = "tanh"> (x)', "cpu", "FusedGeluTanh"),
        ("y = Mish(x)", "cpu", "FusedMish"),
        ("y = Mish(x)", "cuda", "FusedMish"),
        ("y = HardSwish(x)", "cpu", "FusedHardSwish"),
        ("y = Gelu(x)", "cuda", "Gelu"),
        ("y = HardSwish(x)", "rocm", "HardSwish"),
        (MISH, "migraphx", None),
        (GELU, "portable", None),
        ("y = Relu(x)", "cpu", "Relu"),
        ("s = Sigmoid(x)\n y = Mul(x, s)", "cpu", None),
    ],
)
def test_standard_operators(body: str, device: str, op: str | None) -> None:
    before = model(body, 20)
    after = rewrite(before, [FusedActivation()], device=device)
    assert after.op_types == ([n.op_type for n in before.graph.node] if op is None else [op])
    if after.proto != before:
        assert_same_outputs(before, after.proto, {"x": values()})


@pytest.mark.parametrize(
    ("code", "text", "device"),
    [
        ("GRAPH_OUTPUT", "(XT x) => (XT y, XT t) { " + MISH + " }", "cpu"),
        ("OTHER_USES", "(XT x) => (XT y, XT z) { " + MISH + "\n z = Neg(s) }", "cuda"),
        ("WRONG_DTYPE", "(double[3] x) => (double[3] y) { " + MISH + " }", "cpu"),
        (
            "NO_GAIN",
            "(float[1, 2, 4, 4] v, float[2, 2, 1, 1] w) => (float[1, 2, 4, 4] y) {x = Conv(v, w)\n y = HardSwish(x)}",
            "cpu",
        ),
        (
            "ESCAPES",
            "(XT x, bool c) => (XT y) { s = Softplus(x)\n t = Tanh(s)\n"
            " y = If(c) <then_branch = a () => (XT p) { p = Mul(x, t) },"
            " else_branch = b () => (XT q) { q = Identity(x) }> }",
            "cpu",
        ),
    ],
)
def test_refused(code: str, text: str, device: str) -> None:
    before = model_from_text("g " + text.replace("XT", "float[2, 3]"), opset=18, check=False)
    after = rewrite(before, [FusedActivation()], device=device)
    assert after.codes() == [code]


def layer(body: str) -> onnx.ModelProto:
    """The activation after a MatMul and its bias."""
    weights = {"W": RNG.standard_normal((40, 40)).astype(np.float32), "b": RNG.standard_normal(40).astype(np.float32)}
    constants = {n: np.float32(v) for n, v in CONSTANTS.items() if f" {n})" in body or f"({n}," in body}
    text = f"g (float[2, 5, 40] v) => (float[2, 5, 40] y) {{ o = MatMul(v, W)\n x = Add(o, b)\n {body} }}"
    return model_from_text(text, weights | constants, 13)


@pytest.mark.parametrize("body", [GELU, GELU_TANH, MISH, HARD_SWISH])
def test_part_of_a_layer(body: str) -> None:
    """The operators of ours are activations for the passes before, which include them in their own nodes."""
    before = layer(body)
    first = rewrite(before, [FusedActivation()], device="cuda")
    assert first.op_types == ["MatMul", "Add", f"Fused{suffix_of(body)}"]
    after = rewrite(first.proto, [FeedForward()], device="cuda")
    assert after.op_types == [f"Linear{suffix_of(body)}"]
    assert_same_outputs(before, after.proto, {"v": values()})


def test_part_of_a_convolution() -> None:
    for suffix in FUSED:
        text = f"""<ir_version: 8, opset_import: ["" : 13, "com.graphopt" : 1]>
            g (float[1, 8, 6, 6] v) => (float[1, 8, 6, 6] y) {{
                x = Conv <pads = [1, 1, 1, 1], group = 2> (v, w)
                y = com.graphopt.Fused{suffix} (x) }}"""
        before = onnx.parser.parse_model(text)
        weight = RNG.standard_normal((8, 4, 3, 3)).astype(np.float32)
        before.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
        after = rewrite(before, [FusedConv(), FuseEpilogue()])
        assert after.op_types == [f"FusedConv{suffix}"]


def test_part_of_a_gate() -> None:
    text = """<ir_version: 8, opset_import: ["" : 13, "com.graphopt" : 1]>
        g (float[2, 8] a, float[2, 8] b) => (float[2, 8] y) { x = com.graphopt.FusedGelu (a)  y = Mul (x, b) }"""
    assert rewrite(onnx.parser.parse_model(text), [Gate()]).op_types == ["GatedGelu"]
